"""The picture of a dependency graph: the graph above, the table of iterations below, over the same positions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fairseq_ext.errors import UsageError, counted
from fairseq_ext.files import replacing
from fairseq_ext.viz.graph import Graph

MANY = 14  # with more positions cells are small, and colour alone tells the probability
LONGEST = 10  # characters of a token that are shown
DPI = 110


def picture(graph: Graph, files: list[Path]) -> None:
    """Draw into every file, in the format of its ending. Raises UsageError without matplotlib."""
    figure = draw(graph)
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "ddg", "svg.fonttype": "none"}):
        for file in files:
            with replacing(file) as out:
                form = file.suffix.removeprefix(".")
                figure.savefig(out, format=form, dpi=DPI, metadata={"Date": None} if form == "svg" else None)


def draw(graph: Graph) -> Any:
    """The matplotlib figure. Raises UsageError without matplotlib."""
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
    shown = {shortened(cell["token"]) for iteration in graph.iterations for cell in iteration["cells"]}
    # inches
    cell = 0.12 + max(widest({shortened(token) for token in graph.tokens}, name_size, "bold"), widest(shown, size))
    cell = max(cell, 0.26 if small else 0.38)
    row = 0.2 if small else 0.42
    reach = [0.0 if j < 0 else min(0.2 + 0.1 * (i - j), 1.6) for i, j in enumerate(graph.waits_for)]  # height of each arrow
    arcs, names = 0.2 + max(reach), 0.3
    width, height = 1.4 + cell * L, 0.7 + arcs + names + row * K
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    colours = matplotlib.colormaps["viridis"]
    axes = figure.add_axes((1.0 / width, 0.35 / height, cell * L / width, (arcs + names + row * K) / height))
    # x: positions; y: iterations downwards from 0, the graph above 0; one unit of y is a row
    top = (arcs + names) / row
    axes.set_xlim(0, L)
    axes.set_ylim(K, -top)
    axes.axis("off")
    for i, token in enumerate(graph.tokens):
        colour = colours(0.9 * graph.solved[i] / max(1, K - 1))
        axes.text(
            i + 0.5,
            -names / row / 2,
            shortened(token),
            ha="center",
            va="center",
            fontsize=name_size,
            fontweight="bold",
            color=colour,
            parse_math=False,
        )
        j = graph.waits_for[i]
        if j >= 0:
            start, end = (j + 0.5, -names / row), (i + 0.5, -names / row)
            bend = -2 * reach[i] / ((i - j) * cell)
            style: dict = dict(arrowstyle="-|>", mutation_scale=7, color=colour, lw=1.1)
            axes.add_patch(FancyArrowPatch(start, end, connectionstyle=f"arc3,rad={bend:.3f}", shrinkA=1, shrinkB=1, **style))
        else:
            axes.plot(i + 0.5, -(names + 0.05) / row, marker="v", color=colour, markersize=4, clip_on=False)
    for k, iteration in enumerate(graph.iterations):
        axes.text(-0.15, k + 0.5, f"{k + 1}", ha="right", va="center", fontsize=8)
        for place, content in enumerate(iteration["cells"], iteration["first"]):
            shade = 0.15 + 0.6 * content["probability"]
            face = (1 - shade * 0.75, 1 - shade * 0.15, 1 - shade * 0.7) if content["right"] else (1, 1 - shade * 0.35, 1 - shade * 0.4)
            solved = graph.solved[place] == k
            edge: dict = dict(edgecolor="#1b7837", linewidth=1.8, zorder=3) if solved else dict(edgecolor="white", linewidth=0.6)
            axes.add_patch(Rectangle((place + 0.04, k + 0.06), 0.92, 0.88, facecolor=face, **edge))
            middle = 0.5 if small else 0.38
            centred: dict = dict(ha="center", va="center", zorder=4, parse_math=False)
            axes.text(place + 0.5, k + middle, shortened(content["token"]), fontsize=size, **centred)
            if not small:
                axes.text(
                    place + 0.5, k + 0.76, f"{content['probability']:.2f}", ha="center", va="center", fontsize=6, color="#555", zorder=4
                )
    axes.text(-0.15, -0.15 / row, "iteration", ha="right", va="center", fontsize=7, color="#555")
    head = f"{graph.method}: {counted(L, 'token')} in {counted(K, 'iteration')}.  "
    head += "▼ needs the source alone; an arrow comes from what a token had to wait for."
    figure.text(0.1 / width, 1 - 0.1 / height, head, fontsize=8, va="top")
    figure.text(
        0.1 / width,
        0.08 / height,
        "green: final token, darker is surer; framed: right for good; red: still wrong",
        fontsize=7,
        color="#555",
    )
    return figure


def widest(texts: set[str], size: int, weight: str = "normal") -> float:
    """The widest of the texts at this font size, in inches."""
    from matplotlib.backends.backend_agg import RendererAgg
    from matplotlib.font_manager import FontProperties

    font, renderer = FontProperties(size=size, weight=weight), RendererAgg(1, 1, dpi=72)
    return max(renderer.get_text_width_height_descent(text, font, ismath=False)[0] for text in texts) / 72


def shortened(token: str) -> str:
    """The token, cut where it is longer than what is shown."""
    return token if len(token) <= LONGEST else token[: LONGEST - 1] + "…"
