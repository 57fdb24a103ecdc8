"""The ways to place terms, as Markdown from DIR/placement.json (placement.py makes it).

python scripts/experiments/terminology/placement_tables.py --out DIR
    writes DIR/tables.md and prints it
"""

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from write_up import Results, made_by, table, write_tables  # noqa: E402

SCORES = ["BLEU", "chrF", "TER"]
DISPLACED = [
    "way",
    *SCORES,
    "terms met",
    "displaced word still there",
    "appended at the end",
    "BLEU over by hand (95 % interval)",
]
AGREEING = ["way", *SCORES, "terms met", "BLEU over no glossary (95 % interval)"]


def over(row: dict[str, Any]) -> str:
    """The cell of the difference."""
    return "" if row["over"] is None else "{:+.1f} ({:+.1f} to {:+.1f})".format(*row["over"])


def cells(row: dict[str, Any], displaced: bool) -> list[str]:
    """A way's line."""
    scores = [row["way"], *(f"{row[name.lower()]:.1f}" for name in SCORES)]
    if not displaced:
        return [*scores, str(row["met"]), over(row)]
    return [
        *scores,
        str(row["met"]),
        str(row["left"]),
        str(row["appended"]),
        over(row),
    ]


def section(name: str, found: dict[str, Any]) -> str:
    """A text: a table for each beam."""
    displaced = found["kind"] == "displaced"
    out = []
    for beam in dict.fromkeys(row["beam"] for row in found["rows"]):
        rows = [row for row in found["rows"] if row["beam"] == beam]
        out.append(
            f"### {name}, beam {beam}: {rows[0]['terms']} terms in {found['sentences']} sentences\n"
        )
        out.append(
            table(DISPLACED if displaced else AGREEING, [cells(row, displaced) for row in rows])
        )
        inserted = next((row["inserted"] for row in rows if row["way"] == "align"), 0)
        out.append(f"align has {inserted} terms elsewhere: inserted, or brought in by a search.\n")
    return "\n".join(out)


def accuracy(results: Results) -> str:
    """The share of displaced words that each alignment finds."""
    of_text = {name: found["accuracy"] for name, found in results.items() if found["accuracy"]}
    if not of_text:
        return ""
    head = [
        "alignment",
        *(
            f"{name}{shift}"
            for name in of_text
            for shift in (f" ({of_text[name]['terms']} terms)", ", shifted")
        ),
    ]
    names = dict.fromkeys(name for found in of_text.values() for name in found["found"])

    def share(found: dict[str, Any], name: str, shift: int) -> str:
        return (
            f"{found['found'][name][shift] / found['terms']:.1%}" if name in found["found"] else ""
        )

    rows = [
        [name, *(share(found, name, shift) for found in of_text.values() for shift in (0, 1))]
        for name in names
    ]
    return f"### Which alignment finds the displaced word\n\n{table(head, rows)}\n"


def markdown(results: Results) -> str:
    """tables.md. The machine is that of the last section."""
    *_, last = results.values()
    parts = [section(name, found) for name, found in results.items()]
    return "\n".join(
        [*parts, accuracy(results), f"Made by placement.py: {made_by(last['machine'])}\n"]
    )


if __name__ == "__main__":
    write_tables(__doc__, "placement.py", markdown)
