"""The files of a dependency graph: JSON, PNG, SVG and HTML."""

from __future__ import annotations

from pathlib import Path

from fairseq_ext.core.files import replace
from fairseq_ext.search.parallel.graph import Graph, writing
from fairseq_ext.viz.draw import picture
from fairseq_ext.viz.page import page


def write(graph: Graph, folder: Path) -> None:
    """Write NAME.json, NAME.png, NAME.svg and NAME.html of a graph into a folder.

    Errors: UsageError without matplotlib, and where the folder cannot be written.
    """
    with writing(folder):
        graph.save(folder / f"{graph.name}.json")
        picture(graph, [folder / f"{graph.name}.png", folder / f"{graph.name}.svg"])
        svg = (folder / f"{graph.name}.svg").read_text(encoding="utf-8")
        replace(folder / f"{graph.name}.html", [page(graph, svg[svg.index("<svg") :]).encode()])
