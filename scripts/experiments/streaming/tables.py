"""The paper's Tables 1 to 5 and 7 as Markdown, and Figure 2, from what run.py has left in DIR.

    python scripts/experiments/streaming/tables.py --out DIR
        writes DIR/tables.md and DIR/figure2.svg, and prints the tables

Seconds are the median of the rounds (least to most); "over" is the median of the rounds' ratios,
which other work on the machine disturbs less. Figure 2: time of a step against the tokens decoded
before it, and for a hundred rows, medians and middle halves, and the rows.
"""

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from figure_style import draw  # noqa: E402
from methods import BenchError  # noqa: E402
from write_up import difference_cell, folder, table, with_message  # noqa: E402

NOTE = """Expansions: live hypotheses that a decoder call extended; useful rows: their share in \
the rows sent through the decoder.
"""
PAPER = ("FIXED", "DEFAULT", "FIXED-OURS", "VAR-BATCH")
NATURAL = [f"default batches, {order}" for order in ("corpus order", "by length")]
NATURAL += [f"{width} batches, by length" for width in ("fixed", "variable")]
SQL = "semantic parsing, {} (the targets are SQL)"
SECTIONS = {  # files: title, and over which methods
    "parsing/atis.json": (f"Table 2: {SQL.format('ATIS')}", ("FIXED", "VAR-BATCH")),
    "parsing/geo.json": (f"Table 7: {SQL.format('GeoQuery')}", ("FIXED", "VAR-BATCH")),
    "trees/test.json": ("Table 2: syntactic parsing, test", ("FIXED", "VAR-BATCH")),
    "translation/*, *, k = *.json": ("Tables 1, 3 and 4: {}", PAPER),
    "translation/natural order*.json": ("{}", NATURAL),
    "translation/exploration.json": ("Table 5: one parameter changed at a time, dev", ("FIXED",)),
}
LEAST = 3  # steps that a length must have


def section(title: str, file: Path, over: Sequence[str]) -> str:
    """A table of methods, a speed-up column for each of `over`, and what it was made with."""
    saved = json.loads(file.read_text(encoding="utf-8"))["value"]
    rows = saved["rows"]
    by_name = {row["method"]: row for row in rows}
    over, qualities = [name for name in over if name in by_name], list(rows[0]["quality"])
    lines = []
    for row in rows:
        seconds, steps, expansions = (row[key] for key in ("seconds", "timesteps", "expansions"))
        cells = [row["method"], *(f"{row['quality'][name]:.2f}" for name in qualities)]
        if "over_fixed" in rows[0]:
            cells += [difference_cell(row["over_fixed"]), f"{row['length_ratio']:.3f}"]
        cells.append(f"{statistics.median(seconds):.2f} ({min(seconds):.2f}-{max(seconds):.2f})")
        for name in over:
            ratios = [a / b for a, b in zip(by_name[name]["seconds"], seconds, strict=True)]
            cells.append(f"{statistics.median(ratios):.2f}x")
        cells += [f"{steps:,}", f"{expansions:,}", f"{expansions / steps:.1f}"]
        lines.append([*cells, f"{row['useful']:.3f}", row["outputs"]])
    head = ["method", *qualities]
    head += ["over FIXED's BLEU", "length ratio"] * ("over_fixed" in rows[0])
    head += ["seconds", *(f"over {name}" for name in over), "timesteps"]
    head += ["expansions", "expansions / step", "useful rows", "n-best"]
    return f"{table(head, lines, title.format(file.stem))}\n{saved['about']}\n"


def figure_2(steps: Path) -> list[dict[str, Any]]:
    """The panels; none where no length has enough steps."""
    known = [
        step
        for step in json.loads(steps.read_text(encoding="utf-8"))["value"]["rows"]
        if len(step["seconds"]) >= LEAST
    ]
    panels = []
    for name, rows in (("ms a step", 1), ("ms for 100 rows", 100)):
        points = []
        for step in known:
            pairs = zip(step["seconds"], step["rows"], strict=True)
            ms = [1000 * s * (rows / n if rows > 1 else 1) for s, n in pairs]
            low, middle, high = statistics.quantiles(ms, n=4)
            points.append((step["length"], middle, low, high))
        panels.append({"lines": {"VAR-STREAM": points}, "ylabel": name})
    means = [(step["length"], statistics.fmean(step["rows"])) for step in known]
    panels.append({"lines": {"VAR-STREAM": means}, "ylabel": "rows a step, mean"})
    panels[-1]["xlabel"] = "tokens decoded before the step"
    return panels if known else []


def write(out: Path) -> None:
    """OUT/tables.md and OUT/figure2.svg."""
    parts = [
        section(title, file, over)
        for pattern, (title, over) in SECTIONS.items()
        for file in sorted(out.glob(pattern))
        if "natural" not in file.stem or "natural" in pattern
    ]
    if not parts:
        raise BenchError(f"{out} holds no results: run run.py --out {out} first")
    text = "\n".join([NOTE, *parts])
    (out / "tables.md").write_text(text, encoding="utf-8")
    print(text)
    steps = out / "translation" / "steps.json"
    if panels := figure_2(steps) if steps.exists() else []:
        print(draw(out / "figure2", *panels))


if __name__ == "__main__":
    given = folder(__doc__)
    with_message(lambda: write(given))
