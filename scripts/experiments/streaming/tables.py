"""The paper's Tables 1 to 5 and 7 as Markdown from what parsing.py, trees.py and
translation.py have left in DIR.

    python scripts/experiments/streaming/tables.py --out DIR
        writes DIR/tables.md and prints it

Seconds are the median of the rounds (least to most); "over" is the median of the rounds' ratios,
which other work on the machine disturbs less.
"""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from methods import BenchError  # noqa: E402
from write_up import folder, table, with_message  # noqa: E402

PARSING = {
    "atis": "Table 2: semantic parsing, ATIS (the targets are SQL)",
    "geo": "Table 7: semantic parsing, GeoQuery (the targets are SQL)",
}
Rows = list[dict[str, Any]]


def read_rows(file: Path) -> Rows:
    return json.loads(file.read_text(encoding="utf-8"))["value"]["rows"]


def section(title: str, file: Path, over: tuple[str, ...]) -> list[str]:
    """A heading, the table, and what it was made with."""
    saved = json.loads(file.read_text(encoding="utf-8"))["value"]
    return [f"### {title}\n", methods_table(saved["rows"], over), f"{saved['about']}\n"]


def methods_table(rows: Rows, over: tuple[str, ...]) -> str:
    """One line a method; a speed-up column for each of `over` that is there."""
    by_name = {row["method"]: row for row in rows}
    over = tuple(name for name in over if name in by_name)
    qualities = list(rows[0]["quality"])
    counts = ["timesteps", "expansions", "expansions / step", "useful rows"]
    lines = []
    for row in rows:
        seconds = row["seconds"]
        taken = f"{statistics.median(seconds):.2f} ({min(seconds):.2f}-{max(seconds):.2f})"
        ratios = [f"{speed_up(row, by_name[name]):.2f}x" for name in over]
        steps, expansions = row["timesteps"], row["expansions"]
        cells = [f"{row['quality'][name]:.2f}" for name in qualities] + [taken, *ratios]
        cells += [
            f"{steps:,}",
            f"{expansions:,}",
            f"{expansions / steps:.1f}",
            f"{row['useful']:.3f}",
            row["outputs"],
        ]
        lines.append([row["method"], *cells])
    return table(
        ["method", *qualities, "seconds", *(f"over {name}" for name in over), *counts, "n-best"],
        lines,
    )


def speed_up(row: dict, other: dict) -> float:
    """How many times faster, round by round."""
    return statistics.median(
        theirs / ours for ours, theirs in zip(row["seconds"], other["seconds"], strict=True)
    )


def markdown(out: Path) -> str:
    parts = [
        (
            "Expansions: live hypotheses that a decoder call extended; useful rows: their share in "
            "the rows sent through the decoder.\n"
        )
    ]
    for name, title in PARSING.items():
        if (out / "parsing" / f"{name}.json").exists():
            parts += section(title, out / "parsing" / f"{name}.json", ("FIXED", "VAR-BATCH"))
    for file in sorted((out / "trees").glob("*.json")):
        parts += section(f"Table 2: syntactic parsing, {file.stem}", file, ("FIXED", "VAR-BATCH"))
    for file in sorted((out / "translation").glob("*, k = *.json")):
        parts += section(
            f"Tables 1, 3 and 4: {file.stem}", file, ("FIXED", "DEFAULT", "FIXED-OURS", "VAR-BATCH")
        )
    exploration = out / "translation" / "exploration.json"
    if exploration.exists():
        parts += section("Table 5: one parameter changed at a time, dev", exploration, ("FIXED",))
    if len(parts) == 1:
        raise BenchError(
            f"{out} holds no results: run parsing.py, trees.py or translation.py --out {out} first"
        )
    return "\n".join(parts)


if __name__ == "__main__":
    out = folder(__doc__)
    text = with_message(lambda: markdown(out))
    (out / "tables.md").write_text(text, encoding="utf-8")
    print(text)
