"""The files of a dependency graph: JSON, PNG, SVG and HTML."""

from __future__ import annotations

from pathlib import Path

from fairseq_ext.viz.draw import picture
from fairseq_ext.viz.graph import Graph
from fairseq_ext.viz.page import page


def write(graph: Graph, folder: Path) -> None:
    """Write NAME.json, NAME.png, NAME.svg and NAME.html of a graph into a folder. Raises UsageError without matplotlib."""
    folder.mkdir(parents=True, exist_ok=True)
    graph.save(folder / f"{graph.name}.json")
    picture(graph, [folder / f"{graph.name}.png", folder / f"{graph.name}.svg"])
    svg = (folder / f"{graph.name}.svg").read_text(encoding="utf-8")
    (folder / f"{graph.name}.html").write_text(page(graph, svg[svg.index("<svg") :]), encoding="utf-8")
