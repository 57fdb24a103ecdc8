"""The decoding dependency graph of a translation, on demand (fairseq_ext/viz/): of a hypothesis, or of the greedy translation.

One more process does it, which loads the model when the first graph is asked for: drawing takes a second, and the engine's workers decode.
"""

from __future__ import annotations

import asyncio
import dataclasses
import multiprocessing
import tempfile
import threading
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from fairseq.dataclass.configs import GenerationConfig

from fairseq_ext.tasks import Flags
from fairseq_ext.translator import Translator
from fairseq_ext.viz.draw import picture
from fairseq_ext.viz.of_hypothesis import graph_of

JACOBI: dict[str, Any] = {"beam": 1, "decoding": "jacobi", "draft": "pad", "cpu": True}  # as in the paper
drawing: tuple[Translator, Path] | None = None  # in the process that draws


def load(flags: dict[str, Any]) -> None:
    """Load the model in the process that draws."""
    global drawing
    folder = Path(tempfile.mkdtemp(prefix="fairseq_ext-graphs-"))
    drawing = (Translator(**flags, **JACOBI, ddg_dir=str(folder)), folder)


def draw(source: str, tokens: list[str] | None) -> str:
    """The SVG of a graph (raises UsageError); tokens: of the hypothesis, None for the greedy translation."""
    assert drawing is not None
    translator, folder = drawing
    if tokens is None:
        translator.translate([source])
    else:
        picture(graph_of(translator, source, tokens), [folder / "hypothesis.svg"])
    (file,) = folder.glob("*.svg")
    svg = file.read_text(encoding="utf-8")
    for file in folder.iterdir():
        file.unlink()
    return svg


class Graphs:
    """The process that draws. flags: the engine's; those that choose a search are left out."""

    def __init__(self, flags: dict[str, Any]):
        names = {field.name for kind in (Flags, GenerationConfig) for field in dataclasses.fields(kind)}
        self.flags = {name: value for name, value in flags.items() if name not in names and name not in JACOBI}
        self.process: ProcessPoolExecutor | None = None
        self.lock = threading.Lock()

    def start(self) -> ProcessPoolExecutor:
        """The process, started where there is none."""
        with self.lock:
            if self.process is None:
                context = multiprocessing.get_context("spawn")
                self.process = ProcessPoolExecutor(1, context, initializer=load, initargs=(self.flags,))
            return self.process

    async def svg(self, source: str, tokens: list[str] | None = None) -> str:
        """As `draw`. Errors: UsageError, RuntimeError where the process has died."""
        try:
            return await asyncio.wrap_future(self.start().submit(draw, source, tokens))
        except BrokenProcessPool:
            self.stop()
            raise RuntimeError("the graph could not be drawn: its process has died") from None

    def stop(self) -> None:
        """End the process."""
        with self.lock:
            process, self.process = self.process, None
        if process is not None:
            process.shutdown(wait=False, cancel_futures=True)
