"""What cost_model.py makes of its measurements: the lines, the gains that they predict, tables and a figure."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from figure_style import FULL, of, panel, save  # noqa: E402
from step_costs import Line, Measured  # noqa: E402

FIGURES = """bandwidth: NVIDIA's data sheet of the H100 SXM; launch: time of a short kernel in a stream that does not wait, as NVIDIA's
article on CUDA graphs gives it (of 2019, a V100; an H100's host may be faster). --bandwidth and --launch take others."""


def points_of(search: dict[str, Any]) -> Measured:
    return Measured(*([(size, seconds) for size, seconds in search[name]] for name in ("steps", "encoder", "changed")))


@dataclass
class Fitted:
    """What was measured with a backend, and what its lines say of it."""

    step: Line
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
    measured: list[float] | None  # middle, least, most; None where outputs differ
    outputs: str

    @property
    def name(self) -> str:
        return f"{self.kind}, n = {self.n}"


def fitted(result: dict[str, Any]) -> Fitted:
    """Fit a backend's lines to all its steps and predict every width from them."""
    searches = [[(s, points_of(s)) for s in one["searches"]] for one in result["pairs"]]
    everyone = [points for both in searches for _, points in both]
    step = Line.fit([point for points in everyone for point in points.steps])
    encoder = Line.fit([point for points in everyone for point in points.encoder])
    change = [Measured(changed=[x for both in searches for x in both[side][1].changed]).change(step) for side in (0, 1)]
    widths = []
    for one, both in zip(result["pairs"], searches, strict=True):
        steps = [step.of(s["calls"], s["rows"]) for s, _ in both]
        full = [
            seconds + encoder.of(len(points.encoder), sum(size for size, _ in points.encoder)) + c * len(points.changed)
            for seconds, (_, points), c in zip(steps, both, change, strict=True)
        ]
        calls, rows = [s["calls"] for s, _ in both], [s["rows"] / s["calls"] for s, _ in both]
        predicted = [a / b for a, b in (steps, full)]
        widths.append(Width(one["kind"], one["n"], calls, rows, *predicted, one["gain"], one["outputs"]))
    return Fitted(step, encoder, change, everyone, widths)


def backend_tables(found: dict[str, Fitted]) -> list[str]:
    """The fits, then every width predicted beside measured."""
    fits = ["| backend | a, ms a step | b, µs a row | rows for 2a | R² | steps | a change, ms: batches | stream |", "|---|" + "---:|" * 7]
    gains = [
        "| backend | width | n | calls: batches | stream | rows a call | stream | predicted: steps | with all | measured | outputs |",
        "|---|---|" + "---:|" * 8 + "---|",
    ]
    for backend, lines in found.items():
        step = lines.step
        even = f"{step.a / step.b:.0f}" if step.b > 0 else "-"
        cells = [
            f"{1e3 * step.a:.2f}",
            f"{1e6 * step.b:.1f}",
            even,
            f"{step.r2:.2f}",
            f"{step.points:,}",
            *(f"{1e3 * c:.2f}" for c in lines.change),
        ]
        fits.append(f"| {' | '.join([backend, *cells])} |")
        for w in lines.widths:
            shown = "-" if w.measured is None else f"{w.measured[0]:.2f}x ({w.measured[1]:.2f}-{w.measured[2]:.2f})"
            counts = [f"{n:,}" for n in w.calls] + [f"{n:.1f}" for n in w.rows]
            predicted = [f"{w.by_steps:.2f}x", f"{w.by_all:.2f}x"]
            gains.append(f"| {' | '.join([backend, w.kind, str(w.n), *counts, *predicted, shown, w.outputs])} |")
    return ["### Time of a step: a + b x rows", "", *fits, "", "### Gain of refilling: predicted and measured", "", *gains, ""]


def gpu_table(result: dict[str, Any], bandwidth: float, launch: float) -> list[str]:
    """The same counts with a GPU's published figures."""
    gpu = result["gpu"]
    step = Line(gpu["launches"] * launch + gpu["weights"] / bandwidth, gpu["row"] / bandwidth, 1.0, 0)
    lines = [
        "### Prediction for an H100",
        "",
        f"a = {gpu['launches']:.0f} launches x {1e6 * launch:.1f} µs + {gpu['weights'] / 1e6:.1f} MB / {bandwidth / 1e12:.2f} TB/s = "
        f"{1e3 * step.a:.2f} ms; b = {gpu['row'] / 1e3:.0f} kB / {bandwidth / 1e12:.2f} TB/s = {1e6 * step.b:.3f} µs a row. The launches "
        "are counted: torch operations a step that are no views. Nothing here was measured on a GPU.",
        "",
        "| width | n | calls: batches | stream | predicted gain |",
        "|---|---:|---:|---:|---:|",
    ]
    for one in result["pairs"]:
        batch, stream = one["searches"]
        gain = step.of(batch["calls"], batch["rows"]) / step.of(stream["calls"], stream["rows"])
        lines.append(f"| {one['kind']} | {one['n']} | {batch['calls']:,} | {stream['calls']:,} | {gain:.2f}x |")
    return [*lines, "", FIGURES, ""]


def draw(found: dict[str, Fitted], file: Path) -> list[Path]:
    """FILE.svg and .png: the measured steps with each backend's line, and every width's gain, predicted beside measured."""
    figure, (left, right) = panel(1, 2, width=FULL)
    widest = 0.0
    for place, (backend, lines) in enumerate(found.items()):
        style = of(backend, place)
        points = [point for measured in lines.points for point in measured.steps]
        widest = max(widest, *(r for r, _ in points))
        rows, ms = [r for r, _ in points], [1e3 * s for _, s in points]
        left.scatter(rows, ms, s=2, alpha=0.15, color=style["color"], linewidths=0, rasterized=True)  # thousands: a picture in the SVG
        ends = [0.0, max(rows)]
        left.plot(ends, [1e3 * lines.step.of(1, r) for r in ends], color=style["color"])
        last = (ends[1], 1e3 * lines.step.of(1, ends[1]))
        left.annotate(backend, last, textcoords="offset points", xytext=(4, -3), color=style["color"], fontsize=8)
        for w in lines.widths:
            if w.measured is None:
                continue
            middle, low, high = w.measured
            filled = style["color"] if w.kind == "variable" else "white"
            right.errorbar(
                w.by_all, middle, yerr=[[middle - low], [high - middle]], linestyle="none", markerfacecolor=filled, elinewidth=0.8, **style
            )
            right.annotate(f"{w.n}", (w.by_all, middle), textcoords="offset points", xytext=(4, 3), fontsize=7, color=style["color"])
    seconds = sorted(1e3 * s for lines in found.values() for measured in lines.points for _, s in measured.steps)
    most = 1.3 * seconds[int(0.99 * (len(seconds) - 1))]  # a few steps that waited for something else are above
    left.set(xlabel="rows of the step", ylabel="ms", title="Steps, and a + b x rows", ylim=(0, most))
    left.set_xlim(0, 1.25 * widest)
    ends = [min(right.get_xlim()[0], right.get_ylim()[0]), max(right.get_xlim()[1], right.get_ylim()[1])]
    right.plot(ends, ends, color="black", linewidth=0.8, linestyle=":")
    right.axhline(1.0, color="black", linewidth=0.6)
    right.set(xlabel="predicted from the lines", ylabel="measured", title="Stream over batches; hollow: fixed width", aspect="equal")
    return save(figure, file)
