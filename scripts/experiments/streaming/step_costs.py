"""What decoder steps cost, measured inside a search: the time from one step to the next, of the
encoder, and of what refilling adds.

A step's time runs from one call of the decoder to the next, so that it has beam expansion, stopping
and reordering in it. Steps that sentences were admitted, set aside or joined after are kept apart:
what they take beyond the encoder and a step of their rows is a change.

A step's cells are its rows x the positions that their attention runs over, of the KV cache and of
the source, masked ones included. All sentences of a group have as many positions as the one that
has most. So a stream, whose sentences are of different ages, has more cells for the same rows than
batches have, whose sentences start together. The compiled search (search/compiled.py) makes its
steps without the decoder's methods; its rows attend to their own tokens and source alone, and the
clocks let it make one step a call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_ext.kernels.beam import CompiledBatch, SearchResult
from fairseq_ext.search.compiled import CompiledSearch
from fairseq_ext.search.scheduler import Entry

CHANGES = ("admit", "set_aside", "join", "resume")


@dataclass
class Line:
    """seconds = a + b x size, by least squares, so that the sum over the measured points
    is the measured sum."""

    a: float
    b: float
    r2: float
    points: int

    @classmethod
    def fit(cls, points: Sequence[tuple[float, float]]) -> Line:
        """Return the line through (size, seconds); a constant where all sizes are equal.

        Errors: ValueError without points.
        """
        if not points:
            raise ValueError("no steps were measured: take more lines of text")
        size, seconds = np.array(points, dtype=float).T
        spread = size.var()
        b = (
            float(((size - size.mean()) * (seconds - seconds.mean())).mean() / spread)
            if spread
            else 0.0
        )
        a = float(seconds.mean() - b * size.mean())
        left = ((seconds - a - b * size) ** 2).sum()
        total = ((seconds - seconds.mean()) ** 2).sum()
        return cls(a, b, float(1 - left / total) if total else 1.0, len(points))

    def of(self, calls: float, size: float) -> float:
        """Seconds of calls whose sizes sum to `size`."""
        return self.a * calls + self.b * size


@dataclass
class Plane:
    """seconds = a + b x rows + c x cells, by least squares."""

    a: float
    b: float
    c: float
    r2: float

    @classmethod
    def fit(cls, points: Sequence[Point]) -> Plane:
        """Return the plane through (rows, cells, seconds). Errors: ValueError without points."""
        if not points:
            raise ValueError("no steps were measured: take more lines of text")
        rows, cells, seconds = np.array(points, dtype=float).T
        sizes = np.stack([np.ones_like(rows), rows, cells], axis=1)
        found = np.linalg.lstsq(sizes, seconds, rcond=None)[0]
        left, total = (
            ((seconds - sizes @ found) ** 2).sum(),
            ((seconds - seconds.mean()) ** 2).sum(),
        )
        return cls(*map(float, found), float(1 - left / total) if total else 1.0)

    def of(self, calls: float, rows: float, cells: float) -> float:
        """Seconds of calls whose rows and cells sum to these."""
        return self.a * calls + self.b * rows + self.c * cells


Point = tuple[int, int, float]  # rows, cells, seconds


@dataclass
class Measured:
    """Points of one search: plain steps, (source positions, seconds) of the encoder, and
    steps with a change."""

    steps: list[Point] = field(default_factory=list)
    encoder: list[tuple[int, float]] = field(default_factory=list)
    changed: list[Point] = field(default_factory=list)  # seconds without the encoder's

    def change(self, step: Callable[[int, int], float]) -> float:
        """Seconds that a change takes beyond a step of as many rows and cells, in the mean."""
        if not self.changed:
            return 0.0
        return sum(seconds - step(rows, cells) for rows, cells, seconds in self.changed) / len(
            self.changed
        )

    @property
    def cells(self) -> int:
        """Of all steps but the last."""
        return sum(cells for _, cells, _ in [*self.steps, *self.changed])


def positions(decoder: Any) -> int:
    """The positions that the attention of a row runs over, once the row has been read: of the
    KV cache and of the source."""
    group = getattr(decoder, "group", None)
    if group is not None:
        return group.cache.positions + group.cache.models[0].source.size(4)
    live = getattr(decoder.models[0], "live", None) if hasattr(decoder, "models") else None
    # an LSTM's
    return live.source[0].size(0) if live is not None and isinstance(live.source, tuple) else 0


def compiled_search(driver: Any) -> CompiledSearch | None:
    """The compiled search of a driver, where its flags have one."""
    return next(
        (searcher for searcher in driver.compiled if isinstance(searcher, CompiledSearch)), None
    )


class StepCosts:
    """Wraps a decoder's methods while a search runs, and a compiled search's: `with
    StepCosts(decoder, search) as found: decode()`, then found.measured()."""

    def __init__(
        self,
        decoder: Any,
        search: CompiledSearch | None = None,
        clock: Callable[[], float] = time.process_time,
    ):
        self.decoder, self.search, self.clock = decoder, search, clock
        # tokens of the source of each sentence of the search, by its address
        self.source: dict[int, int] = {}
        self.events: list[tuple[str, int, float, float]] = []  # what, rows or positions, begin, end
        self.cells: dict[int, int] = {}  # of the steps, by their place among the events

    def __enter__(self) -> StepCosts:
        for name in ("step", *CHANGES):
            if hasattr(self.decoder, name):
                setattr(self.decoder, name, self.timed(name, getattr(self.decoder, name)))
        if self.search is not None:
            search: Any = self.search
            search.admit = self.measured_sources(search, search.admit)
            search.batch.run_steps = self.one_step(search.batch, search.batch.run_steps)
        return self

    def __exit__(self, *_: object) -> None:
        self.events.append(("end", 0, self.clock(), self.clock()))
        for name in ("step", *CHANGES):
            self.decoder.__dict__.pop(name, None)
        if self.search is not None:
            del self.search.admit, self.search.batch.run_steps

    def measured_sources(self, search: CompiledSearch, admit: Callable) -> Callable:
        def call(requests: Sequence[Entry]) -> None:
            admit(requests)
            for request in requests:
                self.source[search.sentences[request]] = int(request.batch.length[request.sentence])

        return call

    def one_step(self, batch: CompiledBatch, go_on: Callable) -> Callable:
        def call(most: int, *arguments: Any) -> SearchResult:
            live = [(sentence.struct, self.source[sentence]) for sentence in batch.live]
            cells = sum(state.rows * (state.length + 1 + source) for state, source in live)
            rows, begin = batch.rows, self.clock()
            result = go_on(1, *arguments)
            if result != SearchResult.NO_ROOM:
                self.cells[len(self.events)] = cells
                self.events.append(("step", rows, begin, self.clock()))
            return result

        return call

    def timed(self, name: str, method: Callable) -> Callable:
        def call(*arguments: Any, **named: Any) -> Any:
            size = (
                arguments[0].size(0)
                if name == "step"
                else arguments[0]["src_tokens"].numel()
                if name == "admit"
                else 0
            )
            begin = self.clock()
            out = method(*arguments, **named)
            self.events.append((name, size, begin, self.clock()))
            if name == "step":
                self.cells[len(self.events) - 1] = size * positions(self.decoder)
            return out

        return call

    def measured(self) -> Measured:
        """Sort the events; what comes before the first step and behind the last is left
        out, but for the encoder."""
        found = Measured(
            encoder=[
                (size, end - begin) for name, size, begin, end in self.events if name == "admit"
            ]
        )
        places = [i for i, event in enumerate(self.events) if event[0] in ("step", "end")]
        for i, j in zip(places, places[1:], strict=False):
            _, rows, begin, _ = self.events[i]
            between = self.events[i + 1 : j]
            if self.events[j][0] == "end":
                continue
            admitted = sum(end - start for name, _, start, end in between if name == "admit")
            seconds = self.events[j][2] - begin - admitted
            (found.changed if between else found.steps).append((rows, self.cells[i], seconds))
        # the last step has no next one; a row sees its source, at least
        assert len(found.steps) + len(found.changed) == max(0, len(places) - 2)
        assert all(cells > rows for rows, cells, _ in found.steps if cells)
        return found


class Launches(TorchDispatchMode):
    """Counts torch operations that compute or copy; views are none."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))
