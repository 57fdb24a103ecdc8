"""Compares `python -m fairseq_ext.terms score` with the scores that the WMT 2025 terminology
task published.

    python scripts/experiments/terminology/published_scores.py FOLDER [--out DIR]

FOLDER holds `official_scores.tsv` (file, BLEU, chrF2++, proper_success, random_success),
`references.PAIR.jsonl` and the submissions `TEAM.PAIR.MODE.txt`. Data:
https://github.com/wmt-conference/wmt25-terminology (CC BY-NC 4.0).

Status 1 unless BLEU and chrF2++ agree to 1e-6 for every file, and term success within 1.0 points
for each German file and within 0.6 points on average over all files. The task took its lemmas from
stanza, the command takes them from simplemma.
With --out the table is in DIR/published.md as well; `run.sh --published FOLDER` does that.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
EXACT = 1e-6
GERMAN, MEAN = 1.0, 0.6  # points
TERMS = ("proper", "random")
HEAD = [
    "submission",
    "BLEU",
    "chrF2++",
    *(f"{terms} terms: {what}" for terms in TERMS for what in ("ours", "published", "difference")),
]
PUBLISHED = {"bleu": "BLEU", "chrf2pp": "chrF2++"}  # key of the command -> column of the table


@dataclass
class Compared:
    """A submission's scores next to those published."""

    file: str
    bleu: float
    chrf: float
    away: float  # of BLEU or chrF2++, the larger difference
    # kind of terms -> term success in percent, ours and published
    success: dict[str, tuple[float, float]]

    @property
    def points(self) -> dict[str, float]:
        """How much ours is above the published one."""
        return {terms: ours - published for terms, (ours, published) in self.success.items()}


def scores(folder: Path, name: str, terms: str) -> dict:
    """What the command prints for a submission."""
    pair = name.rsplit(".", 3)[-3]
    command = [
        sys.executable,
        *"-m fairseq_ext.terms score --json --format wmt25 --terms".split(),
        terms,
    ]
    command += [
        "--hypotheses",
        folder / name,
        "--references",
        folder / f"references.{pair}.jsonl",
        "--target-lang",
        pair[2:],
    ]
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    return json.loads(done.stdout)


def compared(folder: Path) -> list[Compared]:
    """Every file of the published table, each reported as it is done."""
    try:
        with open(folder / "official_scores.tsv", encoding="utf-8") as file:
            rows = list(csv.DictReader(file, delimiter="\t"))
    except OSError as error:
        sys.exit(
            f"error: {folder} has no official_scores.tsv ({error.strerror}): name the folder of "
            "the task's scores and submissions"
        )
    out = []
    for row in rows:
        found = {terms: scores(folder, row["file"], terms) for terms in TERMS}
        bleu, chrf = (found[TERMS[0]][key] for key in PUBLISHED)
        away = max(
            abs(each[key] - float(row[column]))
            for each in found.values()
            for key, column in PUBLISHED.items()
        )
        success = {
            terms: (100 * each["term_success"], 100 * float(row[f"{terms}_success"]))
            for terms, each in found.items()
        }
        out.append(Compared(row["file"], bleu, chrf, away, success))
        reported = "  ".join(f"{terms} {points:+.2f}" for terms, points in out[-1].points.items())
        print(f"{row['file']:<44} {reported} points", flush=True)
    return out


def verdict(found: list[Compared]) -> tuple[list[str], bool]:
    """The largest differences next to their bounds, and whether all are within."""
    translation = max(each.away for each in found)
    away = [abs(points) for each in found for points in each.points.values()]
    german = max(
        (abs(points) for each in found if ".ende." in each.file for points in each.points.values()),
        default=0.0,
    )
    mean = sum(away) / len(away)
    lines = [
        f"BLEU and chrF2++: largest difference {translation:.1e} (at most {EXACT:.0e})",
        f"term success, German: largest difference {german:.2f} points (at most {GERMAN})",
        (
            f"term success, {len(found)} files: mean difference {mean:.2f} points (at most "
            f"{MEAN}), largest {max(away):.2f}"
        ),
    ]
    return lines, translation <= EXACT and german <= GERMAN and mean <= MEAN


def markdown(found: list[Compared]) -> str:
    """The page."""
    # here: they import torch, which the comparison does without
    sys.path[:0] = [str(HERE.parents[1] / "bench"), str(HERE.parent)]
    from report import machine
    from write_up import made_by, table

    rows = []
    for each in found:
        cells = [f"{each.bleu:.4f}", f"{each.chrf:.4f}"]
        for terms, (ours, published) in each.success.items():
            cells += [f"{ours:.2f}", f"{published:.2f}", f"{each.points[terms]:+.2f}"]
        rows.append([each.file.removesuffix(".txt"), *cells])
    lines, within = verdict(found)
    title = (
        "### `terms score` compared with the scores that the WMT 2025 terminology task published"
    )
    said = "".join(
        f"- {line}\n"
        for line in [
            *lines,
            "all within their bounds" if within else "**not all within their bounds**",
        ]
    )
    return (
        f"{title}\n\n{table(HEAD, rows)}\n{said}\nTerm success in percent. {made_by(machine())}\n"
    )


def main() -> int:
    """The exit status."""
    parse = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parse.add_argument("folder", type=Path, help="the published scores, references and submissions")
    parse.add_argument("--out", type=Path, help="folder for published.md (none)")
    args = parse.parse_args()
    found = compared(args.folder)
    lines, within = verdict(found)
    print(*lines, sep="\n")
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "published.md").write_text(markdown(found), encoding="utf-8")
    return int(not within)


if __name__ == "__main__":
    sys.exit(main())
