"""A request on its way through the engine, the errors that it may be answered with, and how
fast requests are answered."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any

from fairseq_ext.core.process_pool import Worker
from fairseq_ext.engine.callbacks import Calls, Reply, Threads
from fairseq_ext.engine.jobs import Answer, Job, Partial


class Busy(RuntimeError):
    """The queue is full. retry_after: seconds after which there may be room."""

    def __init__(self, waiting: int, retry_after: float):
        super().__init__(
            f"{waiting} requests are waiting, which is all that the queue takes: ask again in "
            f"{retry_after:.0f} seconds"
        )
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
        rate = (
            (len(last) - 1) / (last[-1] - last[0]) if len(last) > 1 and last[-1] > last[0] else 1.0
        )
        return min(60.0, max(1.0, 0.5 * waiting / rate))


class Ticket:
    """A request in the engine. cancel: takes it out of the engine."""

    def __init__(
        self,
        number: int,
        job: Job,
        on_partial: Callable[[Partial], None] | None,
        cancel: Callable[[], None],
        threads: Threads,
    ):
        self.number, self.job, self.on_partial, self.cancel = number, job, on_partial, cancel
        self.calls = Calls(threads)
        self.future: Future[Answer] = Reply(self.calls, cancel)
        self.latest: Partial | None = None  # that on_partial has not been told
        self.deaths = 0  # of workers that had it
        self.worker: Worker | None = None
        self.size = 20 + len(job.source)

    def tell(self, what: Partial | Answer | BaseException) -> None:
        """Say what has come of it. No code of the user's runs here."""
        if isinstance(what, Partial):
            with self.calls.lock:
                known, self.latest = self.latest, what
            if known is None:  # else a call for it waits
                self.calls.add(self.tell_latest)
        elif self.on_partial is not None:
            self.calls.add(lambda: resolve(self.future, what))  # behind what it has been told
        else:
            resolve(self.future, what)

    def tell_latest(self) -> None:
        """Call the user's function with what is certain now; what that raises is
        the request's error."""
        with self.calls.lock:
            part, self.latest = self.latest, None
        if part is None or self.on_partial is None or self.future.done():
            return
        try:
            self.on_partial(part)
        except BaseException as error:
            resolve(self.future, error)
            self.cancel()


def resolve(future: Future, what: Any) -> None:
    """Give a future its answer or error, unless it was cancelled meanwhile."""
    try:
        if isinstance(what, BaseException):
            future.set_exception(what)
        else:
            future.set_result(what)
    except InvalidStateError:
        pass
