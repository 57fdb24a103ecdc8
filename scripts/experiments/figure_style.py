"""The one style sheet of all figures: width of a column of text, a colour for each method, labels
at the lines, SVG and PNG.

    figure, axes = panel()                       a figure as wide as a column of text, FULL
                                                 for the whole page
    axes.errorbar(..., **of("DBA, k = 5"))        colour and marker of a method, the same
                                                  in every figure
    level(axes, 1.0)                             a thin line at 1.0
    label_lines(axes)                            the labels of lines, behind their last points,
                                                 moved apart where they would touch
    label_bars(axes, {"rand1": [...]})           the labels of lines that lie all over the figure
    save(figure, OUT / "figure4")                OUT/figure4.svg
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
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
import numpy as np  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.collections import LineCollection  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402
from matplotlib.transforms import Bbox  # noqa: E402

COLUMN, FULL = 5.2, 7.4  # inches
HEIGHT = 3.4
GAP = 1.25  # lines of text between the baselines of two labels
# Okabe and Ito's colours, which readers with colour blindness distinguish; black is fairseq itself
BLACK, GREY, NAVY = "#000000", "#767676", "#00407A"
BLUE, ORANGE, GREEN, RED, SKY, PURPLE, YELLOW = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#56B4E9",
    "#CC79A7",
    "#B8A800",
)
COLOURS = {
    # searches
    "fairseq": BLACK,
    "stock": BLACK,
    "none": BLACK,
    "FIXED": BLACK,
    "full": BLACK,
    "BEAM": BLACK,
    "greedy": BLACK,
    "fixed": BLUE,
    "FIXED-OURS": BLUE,
    "FIXED-STREAM": SKY,
    "variable": GREEN,
    "VAR-BATCH": GREEN,
    "VAR-STREAM": ORANGE,
    # constraints
    "DBA": BLUE,
    "GBS": ORANGE,
    "CBS": PURPLE,
    "rand1": SKY,
    "rand2": BLUE,
    "rand3": GREEN,
    "rand4": YELLOW,
    "phr2": ORANGE,
    "phr3": RED,
    "phr4": PURPLE,
    # terminology
    "paper": SKY,
    "dba": BLUE,
    "end": GREEN,
    "draft": ORANGE,
    "draft end": RED,
    "bonus": PURPLE,
    "bonus 4 draft end": YELLOW,
    "gbs": ORANGE,
    "cbs": PURPLE,
    # stop decisions
    "count": BLACK,
    "first": ORANGE,
    "shrink": PURPLE,
    "optimal": BLUE,
    # parallel decoding
    "PJ": SKY,
    "PGJ": ORANGE,
    "HGJ": GREEN,
    "window": BLUE,
    # softmaxes
    "LSH": BLUE,
    "lsh": BLUE,
    "TOP": ORANGE,
    "top": ORANGE,
    "lexical": GREEN,
    "screened": RED,
    "BEAM + LSH": BLUE,
    "T = 2,000": SKY,
    "T = 4,000": BLUE,
    "T = 6,000": NAVY,
    # backends of the cost model
    "torch": ORANGE,
    "compiled": BLUE,
    "int8": GREEN,
    "lstm": PURPLE,
}
# for names that are not above, in the order in which they come
SPARE = (RED, GREEN, PURPLE, SKY, YELLOW, ORANGE, GREY)
MARKERS = "osD^vXP<>*h"
SHEET = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "errorbar.capsize": 2,
    "svg.fonttype": "none",
    "svg.hashsalt": "fairseq_ext",
    "figure.dpi": 100,
    "savefig.dpi": 150,
}
plt.rcParams.update(SHEET)


def panel(
    rows: int = 1, columns: int = 1, width: float = COLUMN, height: float = HEIGHT, **grid: Any
) -> tuple[Figure, Any]:
    """A figure of several panels and its axes."""
    return plt.subplots(rows, columns, figsize=(width, height), layout="constrained", **grid)


def of(name: str, place: int = 0) -> dict[str, Any]:
    """Colour and marker of a method: by its name, or by the longest known name that it begins with;
    place: of others, its number."""
    known = [
        key for key in COLOURS if name == key or name.startswith((f"{key} ", f"{key},", f"{key}="))
    ]
    colour = COLOURS[max(known, key=len)] if known else SPARE[place % len(SPARE)]
    return {"color": colour, "marker": MARKERS[place % len(MARKERS)]}


def whiskers(intervals: Iterable[tuple[float, float, float]]) -> list[list[float]]:
    """Error bars of points (value, low, high), as errorbar() takes them: lengths down and up.

    None is below 0: BLEU of a text that has no match of four words is smoothed, and
    its interval is not.
    """
    points = list(intervals)
    return [
        [max(0.0, value - low) for value, low, _ in points],
        [max(0.0, high - value) for value, _, high in points],
    ]


def level(axes: Axes, y: float) -> None:
    """A thin line at this height, as far as the points go, so that it strikes
    no name behind them."""
    bounds = axes.dataLim
    axes.hlines(y, bounds.x0, bounds.x1, color=BLACK, linewidth=0.8, zorder=1)


def label_lines(axes: Axes, room: float = 0.3) -> None:
    """Write each labelled line's name behind its last point, in its colour; room: the share of the
    width that is kept for them."""
    from matplotlib.container import ErrorbarContainer

    found = []
    for container in axes.containers:
        if isinstance(container, ErrorbarContainer) and not str(container.get_label()).startswith(
            "_"
        ):
            found.append((container.lines[0], str(container.get_label())))
    found += [
        (line, str(line.get_label()))
        for line in axes.get_lines()
        if not str(line.get_label()).startswith("_")
    ]
    if not found:
        return
    low, high = axes.get_xlim()
    axes.set_xlim(low, high + (high - low) * room / (1 - room))
    axes.figure.canvas.draw()
    to_pixels, back = axes.transData.transform, axes.transData.inverted().transform
    ends = [
        (line, name, *to_pixels((line.get_xdata()[-1], line.get_ydata()[-1])))
        for line, name in found
    ]
    ends.sort(key=lambda end: end[3])
    size = plt.rcParams["legend.fontsize"] * axes.figure.dpi / 72
    heights = apart([y for *_, y in ends], GAP * size, *axes.bbox.intervaly)
    rightmost = max(x for *_, x, _ in ends)
    for (line, name, x, _), y in zip(ends, heights, strict=True):
        # lines side by side: behind the bars of all
        place = back((rightmost if rightmost - x < 0.1 * axes.bbox.width else x, y))
        axes.annotate(
            name,
            place,
            textcoords="offset points",
            xytext=(7, 0),
            va="center",
            color=line.get_color(),
            fontsize=plt.rcParams["legend.fontsize"],
            annotation_clip=False,
        )


Bar = tuple[float, float, float, float]  # x and y of a point, low and high of its error bar
# a place in data, the name's offset in points, its alignment
Side = tuple[tuple[float, float], tuple[float, float], str, str]


def put_name(
    axes: Axes, name: str, sides: Sequence[Side], taken: list[Bbox], colour: str, size: float = 8
) -> Bbox:
    """Write a name at the first side where it covers nothing that is taken, else where it covers
    least, and take its place (pixels)."""
    tried = []
    for place, offset, across, along in sides:
        text = axes.annotate(
            name,
            place,
            textcoords="offset points",
            xytext=offset,
            ha=across,
            va=along,
            fontsize=size,
            color=colour,
        )
        box = text.get_window_extent(axes.figure.canvas.get_renderer())
        within = axes.bbox.x0 < box.x0 and box.x1 < axes.bbox.x1 and box.y1 < axes.bbox.y1
        tried.append(
            (sum(box.overlaps(other) for other in taken) if within else len(taken) + 1, box, text)
        )
        text.set_visible(False)
        if not tried[-1][0]:
            break
    _, box, chosen = min(tried, key=lambda each: each[0])
    taken.append(box)
    for *_, text in tried:
        if text is not chosen:
            text.remove()
    chosen.set_visible(True)
    return box


def label_bars(axes: Axes, lines: Mapping[str, Sequence[Bar]]) -> None:
    """Write each line's name where it covers no point, bar or other name: behind its last point,
    before its first, above a bar or below."""
    axes.figure.canvas.draw()
    ends = [
        [axes.transData.transform((x, y)) for y in (low, high)]
        for bars in lines.values()
        for x, _, low, high in bars
    ]
    taken = [Bbox.from_extents(a[0] - 5, a[1] - 2, b[0] + 5, b[1] + 2) for a, b in ends]
    for i, (name, bars) in enumerate(lines.items()):
        sides: list[Side] = [
            (bars[-1][:2], (7, 0), "left", "center"),
            (bars[0][:2], (-7, 0), "right", "center"),
        ]
        for x, _, low, high in reversed(bars):
            sides += [((x, high), (0, 4), "center", "bottom"), ((x, low), (0, -4), "center", "top")]
        put_name(axes, name, sides, taken, of(name, i)["color"])


def label_points(axes: Axes, points: Sequence[tuple[str, float, float, str]]) -> None:
    """Write the name of each point (name, x, y, colour) next to it, where it covers no line or bar
    of the figure; a thin line leads from a point to a name that found no place next to it."""
    axes.figure.canvas.draw()
    taken: list[Bbox] = []
    paths = [line.get_xydata() for line in axes.get_lines()]
    paths += [
        segment
        for bars in axes.collections
        if isinstance(bars, LineCollection)
        for segment in bars.get_segments()
    ]
    for path in paths:
        for a, b in pairwise(axes.transData.transform(path)):
            taken += [Bbox.from_bounds(x - 2, y - 2, 4, 4) for x, y in np.linspace(a, b, 40)]
    for name, x, y, colour in points:
        sides: list[Side] = [
            ((x, y), (6, 0), "left", "center"),
            ((x, y), (-6, 0), "right", "center"),
        ]
        sides += [((x, y), (0, 6), "center", "bottom"), ((x, y), (0, -6), "center", "top")]
        sides += [
            ((x, y), (dx, dy), "left" if dx > 0 else "right", "center")
            for dy in (8, -8, 18, -18)
            for dx in (5, -5)
        ]
        box = put_name(axes, name, sides, taken, colour, size=7)
        point = axes.transData.transform((x, y))
        nearest = np.clip(point, box.min, box.max)
        if np.hypot(*(nearest - point)) > 9 * axes.figure.dpi / 72:
            ends = axes.transData.inverted().transform([point, nearest])
            axes.add_line(Line2D(*ends.T, color=colour, linewidth=0.5))


def apart(heights: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """The ascending heights, each at least `gap` above the one before, moved as little as one
    pass up and one down can."""
    placed = list(heights)
    for i in range(1, len(placed)):
        placed[i] = max(placed[i], placed[i - 1] + gap)
    limit = high
    for i in reversed(range(len(placed))):
        placed[i] = max(
            min(placed[i], limit), low if i == 0 else placed[i] if placed[i] <= limit else limit
        )
        limit = placed[i] - gap
    return placed


def save(figure: Figure, file: Path) -> Path:
    """Write FILE.svg; return the file."""
    file = file.with_suffix(".svg")
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)
    return file
