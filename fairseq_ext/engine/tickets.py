"""A request on its way through the engine, the errors that it may be answered with, and how fast requests are answered."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any

from fairseq_ext.engine.jobs import Answer, Job, Partial
from fairseq_ext.engine.processes import Worker


class Busy(RuntimeError):
    """The queue is full. retry_after: seconds after which there may be room."""

    def __init__(self, waiting: int, retry_after: float):
        super().__init__(f"{waiting} requests are waiting, which is all that the queue takes: ask again in {retry_after:.0f} seconds")
        self.retry_after = retry_after


class Closed(RuntimeError):
    """The engine is closed, or was before the request was answered."""


class WorkerDied(RuntimeError):
    """Two workers died over a request."""


class Pace:
    """How fast the last requests were answered."""

    def __init__(self) -> None:
        self.last: deque[float] = deque(maxlen=64)  # time.monotonic() of each

    def one_is_done(self) -> None:
        """A request was answered now."""
        self.last.append(time.monotonic())

    def until_half(self, waiting: int) -> float:
        """Seconds until half of so many requests are likely to be done, from 1 to 60."""
        last = self.last
        rate = (len(last) - 1) / (last[-1] - last[0]) if len(last) > 1 and last[-1] > last[0] else 1.0
        return min(60.0, max(1.0, 0.5 * waiting / rate))


class Ticket:
    """A request in the engine."""

    def __init__(self, number: int, job: Job, on_partial: Callable[[Partial], None] | None):
        self.number, self.job, self.on_partial = number, job, on_partial
        self.future: Future[Answer] = Future()
        self.deaths = 0  # of workers that had it
        self.worker: Worker | None = None
        self.size = 20 + len(job.source)


def resolve(future: Future, what: Any) -> None:
    """Give a future its answer or error, unless it was cancelled meanwhile."""
    try:
        if isinstance(what, Exception):
            future.set_exception(what)
        else:
            future.set_result(what)
    except InvalidStateError:
        pass
