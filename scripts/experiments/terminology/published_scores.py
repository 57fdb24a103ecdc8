"""Compares `python -m fairseq_ext.terms score` with the scores that the WMT 2025 terminology
task published.

    python scripts/experiments/terminology/published_scores.py FOLDER [--out DIR]

FOLDER holds `official_scores.tsv` (file, BLEU, chrF2++, proper_success, random_success),
`references.PAIR.jsonl` and the submissions `TEAM.PAIR.MODE.txt`. Data:
https://github.com/wmt-conference/wmt25-terminology (CC BY-NC 4.0).

Status 1 unless BLEU and chrF2++ agree to 1e-6 for every file, and term success within 1.0 points
for each German file and within 0.6 points on average over all files. The task took its lemmas from
stanza, the command takes them from simplemma.

    --out DIR    for published.md, the table
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "bench"), str(HERE.parent)]

from text import command_line  # noqa: E402

EXACT = 1e-6
GERMAN, MEAN = 1.0, 0.6  # points
TERMS = ("proper", "random")
HEAD = ["submission", "BLEU", "chrF2++"]
HEAD += [f"{terms} terms: {x}" for terms in TERMS for x in ("ours", "published", "difference")]
PUBLISHED = {"bleu": "BLEU", "chrf2pp": "chrF2++"}  # key of the command -> column of the table


def scores(folder: Path, name: str, terms: str) -> dict:
    """What the command prints for a submission."""
    pair = name.rsplit(".", 3)[-3]
    flags = f"-m fairseq_ext.terms score --json --format wmt25 --terms {terms}".split()
    files = ["--hypotheses", folder / name, "--references", folder / f"references.{pair}.jsonl"]
    command = [sys.executable, *flags, *map(str, files), "--target-lang", pair[2:]]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    return json.loads(done.stdout)


def main() -> int:
    """The exit status."""
    parse = command_line(__doc__)
    parse.add_argument("folder", type=Path, help="the published scores, references and submissions")
    args = parse.parse_args()
    try:
        with open(args.folder / "official_scores.tsv", encoding="utf-8") as file:
            published = list(csv.DictReader(file, delimiter="\t"))
    except OSError as error:
        sys.exit(
            f"error: {args.folder} has no official_scores.tsv ({error.strerror}): name the folder "
            "of the task's scores and submissions"
        )
    rows, exact, points, german = [], [0.0], [], [0.0]
    for row in published:
        found = {terms: scores(args.folder, row["file"], terms) for terms in TERMS}
        pairs = [
            (x[key], float(row[name])) for x in found.values() for key, name in PUBLISHED.items()
        ]
        exact += [abs(ours - theirs) for ours, theirs in pairs]
        cells = [row["file"].removesuffix(".txt"), *(f"{ours:.4f}" for ours, _ in pairs[:2])]
        for terms, each in found.items():
            ours, theirs = 100 * each["term_success"], 100 * float(row[f"{terms}_success"])
            points.append(abs(ours - theirs))
            german += [points[-1]] * (".ende." in row["file"])
            cells += [f"{ours:.2f}", f"{theirs:.2f}", f"{ours - theirs:+.2f}"]
        rows.append(cells)
        print(" | ".join(cells), flush=True)
    mean = sum(points) / len(points)
    within = max(exact) <= EXACT and max(german) <= GERMAN and mean <= MEAN
    lines = [
        f"BLEU and chrF2++: largest difference {max(exact):.1e} (at most {EXACT:.0e})",
        f"term success, German: largest difference {max(german):.2f} points (at most {GERMAN})",
        f"term success, {len(published)} files: mean difference {mean:.2f} points (at most "
        f"{MEAN}), largest {max(points):.2f}",
        "all within their bounds" if within else "**not all within their bounds**",
    ]
    print(*lines, sep="\n")
    if args.out is not None:
        # here: they import torch, which the comparison does without
        from report import machine
        from write_up import made_by, table

        title = (
            "`terms score` compared with the scores that the WMT 2025 terminology task published"
        )
        said = "".join(f"- {line}\n" for line in lines)
        page = (
            f"{table(HEAD, rows, title)}\n{said}\nTerm success in percent. {made_by(machine())}\n"
        )
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "published.md").write_text(page, encoding="utf-8")
    return int(not within)


if __name__ == "__main__":
    sys.exit(main())
