"""The picture of a dependency graph: source and output above, then the graph, then the table of iterations over the same positions."""

from __future__ import annotations

import math
import textwrap
from itertools import accumulate
from pathlib import Path
from typing import Any

from fairseq_ext.core.errors import UsageError, counted
from fairseq_ext.core.files import replacing
from fairseq_ext.search.parallel.graph import Graph

MANY = 14  # with more positions cells are small, and colour alone tells the probability
LONGEST = 40  # characters: what is longer is no word, and is cut
NARROWEST = 5.2  # inches: room for the sentences and the legend
LEFT, MARGIN = 0.95, 0.12  # inches: of the column of iterations, and around everything
DPI, MOST_DOTS, MOST_DOTS_A_SIDE = 110, 4e7, 6e4
LEGEND = (
    "▼ needs the source alone; an arrow comes from what a token had to wait for.  "
    "Green: final token, darker is surer; framed: right for good; red: still wrong."
)


def picture(graph: Graph, files: list[Path]) -> None:
    """Draw into every file, in the format of its ending. Raises UsageError without matplotlib."""
    figure = draw(graph)
    import matplotlib

    width, height = figure.get_size_inches()
    dpi = min(DPI, MOST_DOTS_A_SIDE / max(width, height), math.sqrt(MOST_DOTS / (width * height)))
    with matplotlib.rc_context({"svg.hashsalt": "ddg", "svg.fonttype": "none"}):
        for file in files:
            with replacing(file) as out:
                form = file.suffix.removeprefix(".")
                figure.savefig(out, format=form, dpi=dpi, metadata={"Date": None} if form == "svg" else None)


def draw(graph: Graph) -> Any:
    """The matplotlib figure; lengths are inches, y goes downwards. Raises UsageError without matplotlib."""
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.patches import FancyArrowPatch, Rectangle
    except ImportError as error:
        raise UsageError("dependency graphs are drawn by matplotlib, which is not installed: pip install matplotlib") from error
    L, K = len(graph.tokens), len(graph.iterations)
    small = L > MANY
    name_size, size = (7, 6) if small else (9, 8)  # of the tokens above and in the table
    columns = widths(graph, name_size, size, 0.26 if small else 0.38)
    edges = [LEFT, *accumulate(columns, initial=LEFT)][1:]  # left edge of each column, and the right one of the last
    middle = [(a + b) / 2 for a, b in zip(edges, edges[1:], strict=False)]
    row = 0.2 if small else 0.42
    reach = [0.0 if j < 0 else min(0.2 + 0.1 * (i - j), 1.6) for i, j in enumerate(graph.waits_for)]  # height of each arrow
    width = max(NARROWEST, edges[-1] + MARGIN)
    head = [("source", line, 9) for line in wrapped(graph.source_text, width - LEFT - MARGIN, 9)]
    head += [("output", line, 9) for line in wrapped(graph.text, width - LEFT - MARGIN, 9)]
    head += [("", f"{graph.method}: {counted(L, 'token')} in {counted(K, 'iteration')}", 8)]
    foot = wrapped(LEGEND, width - 2 * MARGIN, 7)
    names = 2 * MARGIN + 0.19 * len(head) + max(reach) + 0.1  # top of the row of tokens
    table = names + 0.3
    height = table + row * K + 0.12 + 0.15 * len(foot) + MARGIN
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.axis("off")
    colours = matplotlib.colormaps["viridis"]

    def write(x: float, y: float, text: str, size: float, across: str = "center", up: str = "center", **more: Any) -> None:
        axes.text(x, y, text, ha=across, va=up, fontsize=size, parse_math=False, **more)

    said = ""
    for number, (label, line, points) in enumerate(head):
        y = MARGIN + 0.19 * number
        if label != said and label:
            write(MARGIN, y, label, 8, "left", "top", color="#555")
        write(LEFT if label else MARGIN, y, line, points, "left", "top", color="black" if label else "#555")
        said = label
    for i, token in enumerate(graph.tokens):
        colour = colours(0.9 * graph.solved[i] / max(1, K - 1))
        write(middle[i], names + 0.15, shortened(token), name_size, fontweight="bold", color=colour)
        j = graph.waits_for[i]
        if j >= 0:
            bend = -2 * reach[i] / (middle[i] - middle[j])
            style: dict = dict(arrowstyle="-|>", mutation_scale=7, color=colour, lw=1.1, shrinkA=1, shrinkB=1)
            ends = (middle[j], names), (middle[i], names)
            axes.add_patch(FancyArrowPatch(*ends, connectionstyle=f"arc3,rad={bend:.3f}", **style))
        else:
            axes.plot(middle[i], names - 0.05, marker="v", color=colour, markersize=4, clip_on=False)
    write(LEFT - 0.1, names + 0.15, "iteration", 7, "right", color="#555")
    for k, iteration in enumerate(graph.iterations):
        y = table + row * k
        write(LEFT - 0.1, y + row / 2, f"{k + 1}", 8, "right")
        for place, content in enumerate(iteration["cells"], iteration["first"]):
            shade = 0.15 + 0.6 * content["probability"]
            face = (1 - shade * 0.75, 1 - shade * 0.15, 1 - shade * 0.7) if content["right"] else (1, 1 - shade * 0.35, 1 - shade * 0.4)
            solved = graph.solved[place] == k
            edge: dict = dict(edgecolor="#1b7837", linewidth=1.8, zorder=3) if solved else dict(edgecolor="white", linewidth=0.6)
            corner = (edges[place] + 0.03, y + 0.06 * row)
            axes.add_patch(Rectangle(corner, columns[place] - 0.06, 0.88 * row, facecolor=face, **edge))
            write(middle[place], y + row * (0.5 if small else 0.38), shortened(content["token"]), size, zorder=4)
            if not small:
                write(middle[place], y + 0.76 * row, f"{content['probability']:.2f}", 6, color="#555", zorder=4)
    for number, line in enumerate(foot):
        write(MARGIN, table + row * K + 0.12 + 0.15 * number, line, 7, "left", "top", color="#555")
    return figure


def widths(graph: Graph, name_size: int, size: int, least: float) -> list[float]:
    """The width of each position's column in inches: that of its widest token, final or not."""
    room = {(token, bold): 0.14 + measured(shortened(token), name_size if bold else size, bold) for token, bold in seen(graph)}
    found = [max(least, room[token, True]) for token in graph.tokens]
    for iteration in graph.iterations:
        for place, cell in enumerate(iteration["cells"], iteration["first"]):
            found[place] = max(found[place], room[cell["token"], False])
    return found


def seen(graph: Graph) -> set[tuple[str, bool]]:
    """The texts of the picture's tokens, and whether they are bold."""
    cells = {(cell["token"], False) for iteration in graph.iterations for cell in iteration["cells"]}
    return cells | {(token, True) for token in graph.tokens}


def wrapped(text: str, width: float, size: int) -> list[str]:
    """A text in lines of at most `width` inches at this font size."""
    most = max(1, int(width * 72 / (0.5 * size)))
    while True:
        lines = textwrap.wrap(text, most) or [""]
        if most == 1 or max(measured(line, size) for line in lines) <= width:
            return lines
        most = max(1, int(0.93 * most))


def measured(text: str, size: int, bold: bool = False) -> float:
    """The width of a text at this font size, in inches."""
    from matplotlib.backends.backend_agg import RendererAgg
    from matplotlib.font_manager import FontProperties

    font, renderer = FontProperties(size=size, weight="bold" if bold else "normal"), RendererAgg(1, 1, dpi=72)
    return renderer.get_text_width_height_descent(text, font, ismath=False)[0] / 72


def shortened(token: str) -> str:
    """The token; what is far longer than a word is cut."""
    return token if len(token) <= LONGEST else token[: LONGEST - 1] + "…"
