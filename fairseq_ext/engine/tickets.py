"""A request in an engine (`Ticket`), its errors, and the rate at which requests are answered."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from fairseq_ext.engine.callbacks import Reply, Threads


class Busy(RuntimeError):
    """The queue is full. retry_after: seconds after which there may be room."""

    def __init__(self, waiting: int, retry_after: float):
        super().__init__(
            f"{waiting} requests are waiting, which is all that the queue takes: try again in "
            f"{retry_after:.0f} seconds"
        )
        self.retry_after = retry_after


class Closed(RuntimeError):
    """The engine is closed, or was closed before it answered the request."""


class WorkerDied(RuntimeError):
    """Two workers died while they decoded a request."""


class Pace:
    """The rate at which the last requests were answered."""

    def __init__(self) -> None:
        self.last: deque[float] = deque(maxlen=64)  # time.monotonic() of each

    def count(self) -> None:
        """Note that a request is answered now."""
        self.last.append(time.monotonic())

    def until_half(self, waiting: int) -> float:
        """Return the seconds until half of the waiting requests are likely to be done, from 1 to
        60."""
        last = list(self.last)
        rate = (
            (len(last) - 1) / (last[-1] - last[0]) if len(last) > 1 and last[-1] > last[0] else 1.0
        )
        return min(60.0, max(1.0, 0.5 * waiting / rate))


class Ticket:
    """A request in the engine.

    payload: the message that gives it to a worker; size: a measure of its work. cancel: called
    in the thread that cancels the future, or whose callback has failed.
    """

    __slots__ = ("deaths", "is_cancelled", "number", "payload", "reply", "size", "worker")

    def __init__(
        self,
        number: int,
        payload: bytes,
        size: int,
        on_partial: Callable[[Any], None] | None,
        cancel: Callable[[], None],
        threads: Threads,
    ):
        self.number, self.payload, self.size = number, payload, size
        self.reply = Reply(threads, cancel, on_partial)
        # ---- of the state machine (dispatch.py)
        self.deaths = 0  # of workers that had it
        self.worker: Any = None  # that has it
        self.is_cancelled = False
