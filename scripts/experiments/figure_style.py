"""The one style of all figures: lines with error bars, as wide as a page, a legend, SVG.

lines = {"DBA, k = 5": [(1, 20.0, 19.0, 22.0)]}
draw(OUT / "figure4", {"lines": lines, "xlabel": "tokens", "ylabel": "ms"})

A dictionary is a panel, with the arguments of `plot`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

try:
    import matplotlib
except ModuleNotFoundError:
    raise SystemExit(
        "error: figures are drawn with matplotlib, which is not installed: pip install "
        "'fairseq_ext[plots]', or pip install matplotlib"
    ) from None

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402

# Okabe and Ito's colours, which readers with colour blindness distinguish; black is the baseline
COLOURS = "#0072B2 #E69F00 #009E73 #D55E00 #56B4E9 #CC79A7 #B8A800 #767676 #00407A".split()
BASELINES = ("fairseq", "stock", "none", "FIXED", "full", "BEAM", "greedy", "count")
MARKERS = "osD^vXP<>*h"
SHEET = """font.size 9|axes.titlesize 9|axes.labelsize 9|xtick.labelsize 8|ytick.labelsize 8
legend.fontsize 8|axes.spines.top False|axes.spines.right False|axes.grid True
grid.color dddddd|grid.linewidth 0.6|axes.axisbelow True|lines.linewidth 1.4|lines.markersize 4
errorbar.capsize 2|svg.fonttype none|svg.hashsalt fairseq_ext"""
plt.rcParams.update(line.split() for line in SHEET.replace("|", "\n").splitlines())
Points = Sequence[Sequence[float]]  # x, y, and low and high of an error bar


def of(name: str, place: int = 0) -> dict[str, Any]:
    """Colour and marker of the line at a place."""
    colour = "black" if name.startswith(BASELINES) else COLOURS[place % len(COLOURS)]
    return {"color": colour, "marker": MARKERS[place % len(MARKERS)]}


def plot(
    axes: Axes,
    lines: Mapping[str, Points],
    ticks: Sequence[str] = (),
    level: float | None = None,
    single: Collection[str] = (),
    **of_axes: Any,
) -> None:
    """Draw lines by name, and their legend.

    ticks: names of 0, 1, ..., where lines then stand side by side; level: a thin line at this
    height; single: lines of which the points alone are drawn; of_axes: what Axes.set takes.
    """
    for place, (name, points) in enumerate(lines.items()):
        x, y, *ends = zip(*points, strict=True)
        # BLEU of a text without a match of four words is smoothed, and its interval is not
        bars = [
            [max(0.0, s * (b - a)) for a, b in zip(y, e, strict=True)]
            for s, e in zip((-1, 1), ends, strict=False)
        ]
        x = [each + 0.03 * place for each in x] if ticks else x
        line = {"linestyle": "none"} if name in single else {}
        axes.errorbar(x, y, bars or None, label=name, elinewidth=0.8, **line, **of(name, place))
    if ticks:
        axes.set_xticks(range(len(ticks)), ticks)
    if level is not None:
        axes.axhline(level, color="black", linewidth=0.8, zorder=1)
    axes.set(**of_axes)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def draw(file: Path, *panels: dict[str, Any]) -> Path:
    """Write FILE.svg, the panels below each other; return the file."""
    size = (7.4, 3.4 * len(panels))
    figure, axes = plt.subplots(len(panels), figsize=size, layout="constrained", squeeze=False)
    for each, panel in zip(axes[:, 0], panels, strict=True):
        plot(each, **panel)
    figure.savefig(file.with_suffix(".svg"), metadata={"Date": None})
    plt.close(figure)
    return file.with_suffix(".svg")
