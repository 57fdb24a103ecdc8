"""DDGviz: the decoding dependency graph of a sentence, from the iterations of parallel decoding
(Santilli et al. 2023, section 3.5).

    fairseq-generate ... --beam 1 --decoding jacobi --draft pad --ddg-dir DIR
    python -m fairseq_ext.viz.ddg --out DIR DIR/0.json ...

A run writes N.json for each sentence; this command draws N.svg. In the table a column is a position
and a row is an iteration; a cell has the model's token and its probability, and a frame marks the
iteration from which the token stays right. In the graph an arrow to a token comes from the nearest
token to its left that became right one iteration earlier: the token that it had to wait for. A
token without an arrow depends on the source only; tokens of one colour became right in the same
iteration.
"""

from __future__ import annotations

import argparse
import textwrap
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from fairseq_ext.core.errors import UsageError, counted
from fairseq_ext.core.files import atomic_write
from fairseq_ext.search.parallel.graph import Graph, writing


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    parse = argparse.ArgumentParser(
        prog="python -m fairseq_ext.viz.ddg",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parse.add_argument("files", nargs="+", type=Path, metavar="FILE.json", help="graphs to draw")
    parse.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder for the pictures; it is created if needed",
    )
    return parse


def main(argv: list[str] | None = None) -> None:
    """Run the command: draw graphs from their JSON."""
    args = parser().parse_args(argv)
    for file in args.files:
        write(Graph.load(file), args.out)


# ---- The picture of a graph
#
# Source and output at the top, then the graph, then the table of iterations for the same positions.


MIN_WIDTH = 5.2  # inches: space for the sentences and the legend
TOKEN_SIZE, CELL_SIZE = 9, 8  # points: of the tokens above and in the table
LEFT_COLUMN, MARGIN = 0.95, 0.12  # inches: of the column of iterations, and around the picture
LEGEND = (
    "▼ depends on the source only; an arrow comes from the token that had to be right first.  "
    "Green: final token, darker is more probable; framed: right from here on; red: still wrong."
)


def draw(graph: Graph) -> Any:
    """Return the matplotlib figure; lengths are inches, y goes downwards.

    Errors: UsageError without matplotlib.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
        from matplotlib.patches import FancyArrowPatch, Rectangle
    except ImportError as error:
        raise UsageError(
            "dependency graphs are drawn by matplotlib, which is not installed: pip "
            "install matplotlib"
        ) from error
    L, K = len(graph.tokens), len(graph.iterations)
    columns = widths(graph)
    # left edge of each column, and the right edge of the last column
    edges = [LEFT_COLUMN, *accumulate(columns, initial=LEFT_COLUMN)][1:]
    middle = [(a + b) / 2 for a, b in zip(edges, edges[1:], strict=False)]
    row = 0.42
    # height of each arrow
    reach = [0.0 if j < 0 else min(0.2 + 0.1 * (i - j), 1.6) for i, j in enumerate(graph.waits_for)]
    width = max(MIN_WIDTH, edges[-1] + MARGIN)
    head = []  # (what stands at the left, line)
    for label, text in (("source", graph.source_text), ("output", graph.text)):
        lines = wrap(text, width - LEFT_COLUMN - MARGIN, 9)
        head += [("" if i else label, line) for i, line in enumerate(lines)]
    head.append((f"{graph.method}: {counted(L, 'token')} in {counted(K, 'iteration')}", ""))
    foot = wrap(LEGEND, width - 2 * MARGIN, 7)
    names = 2 * MARGIN + 0.19 * len(head) + max(reach) + 0.1  # top of the row of tokens
    table = names + 0.3
    height = table + row * K + 0.12 + 0.15 * len(foot) + MARGIN
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.axis("off")
    colours = matplotlib.colormaps["viridis"]

    def write(
        x: float, y: float, text: str, size: float, side: str = "center", **more: Any
    ) -> None:
        if text:
            up = "top" if side == "left" else "center"
            axes.text(x, y, text, ha=side, va=up, fontsize=size, parse_math=False, **more)

    for number, (label, line) in enumerate(head):
        y = MARGIN + 0.19 * number
        write(MARGIN, y, label, 8, "left", color="#555")
        write(LEFT_COLUMN, y, line, 9, "left")
    for i, token in enumerate(graph.tokens):
        colour = colours(0.9 * graph.solved[i] / max(1, K - 1))
        write(middle[i], names + 0.15, token, TOKEN_SIZE, fontweight="bold", color=colour)
        j = graph.waits_for[i]
        if j < 0:
            axes.plot(middle[i], names - 0.05, marker="v", color=colour, markersize=4)
            continue
        bend = -2 * reach[i] / (middle[i] - middle[j])
        axes.add_patch(
            FancyArrowPatch(
                (middle[j], names),
                (middle[i], names),
                connectionstyle=f"arc3,rad={bend:.3f}",
                arrowstyle="-|>",
                mutation_scale=7,
                color=colour,
                lw=1.1,
                shrinkA=1,
                shrinkB=1,
            )
        )
    write(LEFT_COLUMN - 0.1, names + 0.15, "iteration", 7, "right", color="#555")
    for k, iteration in enumerate(graph.iterations):
        y = table + row * k
        write(LEFT_COLUMN - 0.1, y + row / 2, f"{k + 1}", 8, "right")
        for place, content in enumerate(iteration["cells"], iteration["first"]):
            shades = matplotlib.colormaps["Greens" if content["right"] else "Reds"]
            axes.add_patch(
                Rectangle(
                    (edges[place] + 0.03, y + 0.06 * row),
                    columns[place] - 0.06,
                    0.88 * row,
                    facecolor=shades(0.1 + 0.4 * content["probability"]),
                    edgecolor="#1b7837",
                    linewidth=1.8 * (graph.solved[place] == k),
                )
            )
            write(middle[place], y + 0.38 * row, content["token"], CELL_SIZE)
            probability = f"{content['probability']:.2f}"
            write(middle[place], y + 0.76 * row, probability, 6, color="#555")
    for number, line in enumerate(foot):
        write(MARGIN, table + row * K + 0.12 + 0.15 * number, line, 7, "left", color="#555")
    return figure


def widths(graph: Graph) -> list[float]:
    """Return the width of each position's column in inches: that of its widest token in any
    iteration."""
    found = [max(0.38, 0.14 + text_width(token, TOKEN_SIZE, True)) for token in graph.tokens]
    for iteration in graph.iterations:
        for place, cell in enumerate(iteration["cells"], iteration["first"]):
            found[place] = max(found[place], 0.14 + text_width(cell["token"], CELL_SIZE))
    return found


def wrap(text: str, width: float, size: int) -> list[str]:
    """Return a text in lines of at most `width` inches at this font size."""
    most = max(1, int(width * 72 / (0.5 * size)))
    while True:
        lines = textwrap.wrap(text, most) or [""]
        if most == 1 or max(text_width(line, size) for line in lines) <= width:
            return lines
        most = max(1, int(0.93 * most))


@cache
def text_width(text: str, size: int, bold: bool = False) -> float:
    """Return the width of a text at this font size, in inches."""
    from matplotlib.backends.backend_agg import RendererAgg
    from matplotlib.font_manager import FontProperties

    font = FontProperties(size=size, weight="bold" if bold else "normal")
    renderer = RendererAgg(1, 1, dpi=72)
    return renderer.get_text_width_height_descent(text, font, ismath=False)[0] / 72


def write(graph: Graph, folder: Path) -> None:
    """Write the picture of a graph into a folder, NAME.svg.

    Errors: UsageError without matplotlib, or if the folder cannot be written.
    """
    figure = draw(graph)
    from matplotlib import rc_context

    with writing(folder), rc_context({"svg.hashsalt": "ddg", "svg.fonttype": "none"}):
        with atomic_write(folder / f"{graph.name}.svg") as out:
            figure.savefig(out, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
