"""Compares `python -m fairseq_ext.terms score` with the scores that the WMT 2025 terminology task published.

    python scripts/experiments/terminology/published_scores.py FOLDER

FOLDER holds `official_scores.tsv` (file, BLEU, chrF2++, proper_success, random_success), `references.PAIR.jsonl` and the submissions
`TEAM.PAIR.MODE.txt`. Data: https://github.com/wmt-conference/wmt25-terminology (CC BY-NC 4.0).

Status 1 unless BLEU and chrF2++ agree to 1e-6 for every file, and term success within 1.0 points for each German file and within
0.6 points on average over all files. The task took its lemmas from stanza, the command takes them from simplemma.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

EXACT = 1e-6
GERMAN, MEAN = 1.0, 0.6  # points


def scores(folder: Path, name: str, terms: str) -> dict:
    """What the command prints for a submission."""
    pair = name.rsplit(".", 3)[-3]
    command = [sys.executable, "-m", "fairseq_ext.terms", "score", "--json", "--format", "wmt25", "--terms", terms]
    command += ["--hypotheses", folder / name, "--references", folder / f"references.{pair}.jsonl", "--target-lang", pair[2:]]
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    return json.loads(done.stdout)


def main(folder: Path) -> int:
    """The exit status."""
    away, translation, german = [], 0.0, 0.0
    with open(folder / "official_scores.tsv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    for row in rows:
        points = {}
        for terms in ("proper", "random"):
            found = scores(folder, row["file"], terms)
            translation = max(translation, abs(found["bleu"] - float(row["BLEU"])), abs(found["chrf2pp"] - float(row["chrF2++"])))
            points[terms] = 100 * (found["term_success"] - float(row[f"{terms}_success"]))
            away.append(abs(points[terms]))
            if ".ende." in row["file"]:
                german = max(german, abs(points[terms]))
        print(f"{row['file']:<44} proper {points['proper']:+.2f}  random {points['random']:+.2f} points", flush=True)
    mean = sum(away) / len(away)
    print(f"BLEU and chrF2++: largest difference {translation:.1e} (at most {EXACT:.0e})")
    print(f"term success, German: largest difference {german:.2f} points (at most {GERMAN})")
    print(f"term success, {len(rows)} files: mean difference {mean:.2f} points (at most {MEAN}), largest {max(away):.2f}")
    return int(translation > EXACT or german > GERMAN or mean > MEAN)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1])))
