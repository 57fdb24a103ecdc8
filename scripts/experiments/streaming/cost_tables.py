"""What cost_model.py makes of its measurements: the lines, the gains that they predict,
tables and a figure."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from figure_style import FULL, label_points, of, panel, save  # noqa: E402
from step_costs import Line, Measured, Plane  # noqa: E402

FIGURES = """bandwidth: NVIDIA's data sheet of the H100 SXM; launch: time of a \
short kernel in a stream that does not wait, as NVIDIA's
article on CUDA graphs gives it (of 2019, a V100; an H100's \
host may be faster). --bandwidth and --launch take others."""


def points_of(search: dict[str, Any]) -> Measured:
    return Measured(
        *([tuple(point) for point in search[name]] for name in ("steps", "encoder", "changed"))
    )


@dataclass
class Fitted:
    """What was measured with a backend, and what its lines say of it."""

    step: Line
    plane: Plane
    encoder: Line
    change: list[float]  # seconds of one, of batches and of streams
    points: list[Measured]  # of all searches
    widths: list[Width]


@dataclass
class Width:
    """One width: how many times faster the stream is than batches."""

    kind: str
    n: int
    calls: list[int]  # of batches and stream
    rows: list[float]  # a call
    by_steps: float  # predicted from calls and rows
    by_all: float  # and from the encoder and changes
    cells: list[float]  # a row
    by_cells: float  # and from cells
    measured: list[float] | None  # middle, least, most; None where outputs differ
    outputs: str

    @property
    def name(self) -> str:
        return f"{self.kind}, n = {self.n}"


def fitted(result: dict[str, Any]) -> Fitted:
    """Fit a backend's lines to all its steps and predict every width from them."""
    searches = [[(s, points_of(s)) for s in one["searches"]] for one in result["pairs"]]
    everyone = [points for both in searches for _, points in both]
    steps = [point for points in everyone for point in points.steps]
    step, plane = Line.fit([(rows, seconds) for rows, _, seconds in steps]), Plane.fit(steps)
    encoder = Line.fit([point for points in everyone for point in points.encoder])
    by_rows, by_cells = (
        (lambda rows, _: step.of(1, rows)),
        (lambda rows, cells: plane.of(1, rows, cells)),
    )
    all_changes = [
        Measured(changed=[x for both in searches for x in both[side][1].changed]) for side in (0, 1)
    ]
    change, change_by_cells = (
        [each.change(seconds) for each in all_changes] for seconds in (by_rows, by_cells)
    )
    widths = []
    for one, both in zip(result["pairs"], searches, strict=True):
        lines = [step.of(s["calls"], s["rows"]) for s, _ in both]
        planes = [plane.of(s["calls"], s["rows"], points.cells) for s, points in both]
        encoded = [
            encoder.of(len(points.encoder), sum(size for size, _ in points.encoder))
            for _, points in both
        ]
        more = [len(points.changed) for _, points in both]
        with_all = [s + e + c * n for s, e, c, n in zip(lines, encoded, change, more, strict=True)]
        with_cells = [
            s + e + c * n for s, e, c, n in zip(planes, encoded, change_by_cells, more, strict=True)
        ]
        calls, rows = [s["calls"] for s, _ in both], [s["rows"] / s["calls"] for s, _ in both]
        cells = [points.cells / s["rows"] for s, points in both]
        predicted = [a / b for a, b in (lines, with_all)]
        by = with_cells[0] / with_cells[1]
        widths.append(
            Width(
                one["kind"],
                one["n"],
                calls,
                rows,
                *predicted,
                cells,
                by,
                one["gain"],
                one["outputs"],
            )
        )
    return Fitted(step, plane, encoder, change, everyone, widths)


def backend_tables(found: dict[str, Fitted]) -> list[str]:
    """The fits, then every width predicted next to measured."""
    fits = [
        (
            "| backend | a, ms a step | b, µs a row | rows that cost a | R² | steps | a change, "
            "ms: batches | stream | with cells: a, ms | b, µs | c, ns | R² |"
        ),
        "|---|" + "---:|" * 11,
    ]
    gains = [
        (
            "| backend | width | n | calls: batches | stream | rows a call | stream | cells a row "
            "| stream | predicted: steps | with all | with cells | measured | outputs |"
        ),
        "|---|---|" + "---:|" * 11 + "---|",
    ]
    for backend, lines in found.items():
        step = lines.step
        even = f"{step.a / step.b:.0f}" if step.a > 0 and step.b > 0 else "-"
        cells = [
            f"{1e3 * step.a:.2f}",
            f"{1e6 * step.b:.1f}",
            even,
            f"{step.r2:.2f}",
            f"{step.points:,}",
            *(f"{1e3 * c:.2f}" for c in lines.change),
            f"{1e3 * lines.plane.a:.2f}",
            f"{1e6 * lines.plane.b:.1f}",
            f"{1e9 * lines.plane.c:.0f}",
            f"{lines.plane.r2:.2f}",
        ]
        fits.append(f"| {' | '.join([backend, *cells])} |")
        for w in lines.widths:
            shown = (
                "-"
                if w.measured is None
                else f"{w.measured[0]:.2f}x ({w.measured[1]:.2f}-{w.measured[2]:.2f})"
            )
            counts = (
                [f"{n:,}" for n in w.calls]
                + [f"{n:.1f}" for n in w.rows]
                + [f"{n:.0f}" for n in w.cells]
            )
            predicted = [f"{w.by_steps:.2f}x", f"{w.by_all:.2f}x", f"{w.by_cells:.2f}x"]
            gains.append(
                "| "
                f"{' | '.join([backend, w.kind, str(w.n), *counts, *predicted, shown, w.outputs])} "
                "|"
            )
    return [
        "### Time of a step: a + b x rows",
        "",
        *fits,
        "",
        "### Gain of refilling: predicted and measured",
        "",
        *gains,
        "",
    ]


def gpu_table(result: dict[str, Any], bandwidth: float, launch: float) -> list[str]:
    """The same counts with a GPU's published figures."""
    gpu = result["gpu"]
    step = Line(
        gpu["launches"] * launch + gpu["weights"] / bandwidth, gpu["row"] / bandwidth, 1.0, 0
    )
    lines = [
        "### Prediction for an H100",
        "",
        (
            f"a = {gpu['launches']:.0f} launches x {1e6 * launch:.1f} µs + "
            f"{gpu['weights'] / 1e6:.1f} MB / {bandwidth / 1e12:.2f} TB/s = {1e3 * step.a:.2f} ms; "
            f"b = {gpu['row'] / 1e3:.0f} kB / {bandwidth / 1e12:.2f} TB/s = {1e6 * step.b:.3f} µs "
            "a row. The launches are counted: torch operations a step that are no views. Nothing "
            "here was measured on a GPU."
        ),
        "",
        "| width | n | calls: batches | stream | predicted gain |",
        "|---|---:|---:|---:|---:|",
    ]
    for one in result["pairs"]:
        batch, stream = one["searches"]
        gain = step.of(batch["calls"], batch["rows"]) / step.of(stream["calls"], stream["rows"])
        lines.append(
            f"| {one['kind']} | {one['n']} | {batch['calls']:,} | {stream['calls']:,} "
            f"| {gain:.2f}x |"
        )
    return [*lines, "", FIGURES, ""]


def draw(found: dict[str, Fitted], file: Path) -> Path:
    """FILE.svg: the measured steps with each backend's line, and every width's gain,
    predicted next to measured."""
    figure, (left, right) = panel(1, 2, width=FULL)
    widest = 0.0
    named: list[tuple[str, float, float, str]] = []
    for place, (backend, lines) in enumerate(found.items()):
        style = of(backend, place)
        points = [point for measured in lines.points for point in measured.steps]
        widest = max(widest, *(r for r, *_ in points))
        rows, ms = [r for r, *_ in points], [1e3 * s for *_, s in points]
        # thousands: a picture in the SVG
        left.scatter(rows, ms, s=2, alpha=0.15, color=style["color"], linewidths=0, rasterized=True)
        ends = [0.0, max(rows)]
        left.plot(ends, [1e3 * lines.step.of(1, r) for r in ends], color=style["color"])
        last = (ends[1], 1e3 * lines.step.of(1, ends[1]))
        left.annotate(
            backend,
            last,
            textcoords="offset points",
            xytext=(4, -3),
            color=style["color"],
            fontsize=8,
        )
        for w in lines.widths:
            if w.measured is None:
                continue
            middle, low, high = w.measured
            filled = style["color"] if w.kind == "variable" else "white"
            point = {"linestyle": "none", "markerfacecolor": filled, "elinewidth": 0.8, **style}
            right.errorbar(w.by_cells, middle, yerr=[[middle - low], [high - middle]], **point)
            named.append((f"{w.n}", w.by_cells, middle, style["color"]))
    seconds = sorted(
        1e3 * s for lines in found.values() for measured in lines.points for *_, s in measured.steps
    )
    # a few steps that waited for something else are above
    most = 1.3 * seconds[int(0.99 * (len(seconds) - 1))]
    left.set(
        xlabel="rows of the step", ylabel="ms", title="Steps, and a + b x rows", ylim=(0, most)
    )
    left.set_xlim(0, 1.25 * widest)
    ends = [
        min(right.get_xlim()[0], right.get_ylim()[0]),
        max(right.get_xlim()[1], right.get_ylim()[1]),
    ]
    right.plot(ends, ends, color="black", linewidth=0.8, linestyle=":")
    right.axhline(1.0, color="black", linewidth=0.6)
    right.set(xlabel="predicted from the lines", ylabel="measured", aspect="equal")
    right.set_title("Stream over batches of so many sentences; hollow: fixed width")
    label_points(right, named)
    return save(figure, file)
