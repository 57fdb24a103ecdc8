"""The decoding dependency graph of a translation, on demand (fairseq_ext/viz/): of a hypothesis, or of the greedy translation.

One more process does it, which loads the model when the first graph is asked for: drawing takes a second, and the engine's workers decode.
"""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fairseq.dataclass.configs import GenerationConfig

from fairseq_ext.compat import child
from fairseq_ext.errors import UsageError
from fairseq_ext.tasks import Flags
from fairseq_ext.translator import Translator
from fairseq_ext.viz.draw import picture
from fairseq_ext.viz.of_hypothesis import graph_of

JACOBI: dict[str, Any] = {"beam": 1, "decoding": "jacobi", "draft": "pad", "cpu": True}  # as in the paper


def draw(translator: Translator, folder: Path, source: str, tokens: list[str] | None) -> str:
    """The SVG of a graph (raises UsageError); tokens: of the hypothesis, None for the greedy translation. folder: the translator's."""
    if tokens is None:
        translator.translate([source])
    else:
        picture(graph_of(translator, source, tokens), [folder / "hypothesis.svg"])
    (file,) = folder.glob("*.svg")
    svg = file.read_text(encoding="utf-8")
    for file in folder.iterdir():
        file.unlink()
    return svg


def main(fd: int) -> None:
    """The process that draws: it answers each (source, tokens) with an SVG or a UsageError, until the server is gone."""
    pipe = Connection(fd)
    flags = pipe.recv()
    translator = Translator(**flags, **JACOBI)
    while True:
        try:
            asked = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(draw(translator, Path(flags["ddg_dir"]), *asked))
        except UsageError as error:
            pipe.send(error)


class Graphs:
    """The process that draws, for one model at a time."""

    def __init__(self) -> None:
        self.flags: dict[str, Any] | None = None  # of the process
        self.process: subprocess.Popen | None = None
        self.pipe: Connection | None = None
        self.folder: tempfile.TemporaryDirectory | None = None
        self.thread = ThreadPoolExecutor(1)  # one graph at a time

    def ask(self, flags: dict[str, Any], source: str, tokens: list[str] | None) -> str:
        """As `draw`, by the process, which is started where there is none of these flags; those that choose a search are left out."""
        names = {field.name for kind in (Flags, GenerationConfig) for field in dataclasses.fields(kind)} | JACOBI.keys()
        flags = {name: value for name, value in flags.items() if name not in names}
        if flags != self.flags:
            self.stop()
            self.flags = flags
        try:
            if self.process is None:
                self.folder = tempfile.TemporaryDirectory(prefix="fairseq_ext-graphs-")
                self.pipe, theirs = Pipe()
                command = child.python(__name__, str(theirs.fileno()))
                self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
                theirs.close()
                self.pipe.send({**flags, "ddg_dir": self.folder.name})
            assert self.pipe is not None
            self.pipe.send((source, tokens))
            answer = self.pipe.recv()
        except (EOFError, OSError):
            self.stop()
            raise RuntimeError("the graph could not be drawn: its process has died") from None
        if isinstance(answer, UsageError):
            raise answer
        return answer

    async def svg(self, flags: dict[str, Any], source: str, tokens: list[str] | None = None) -> str:
        """As `draw`, for the model of an engine's flags. Errors: UsageError, RuntimeError where the process has died."""
        return await asyncio.wrap_future(self.thread.submit(self.ask, flags, source, tokens))

    def stop(self) -> None:
        """End the process."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()
        if self.folder is not None:
            self.folder.cleanup()


if __name__ == "__main__":
    main(int(child.argument()))
