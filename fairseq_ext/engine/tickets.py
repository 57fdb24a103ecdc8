"""The errors of requests in an engine, and the rate at which requests are answered."""

from __future__ import annotations

import time
from collections import deque

from fairseq_ext.core.dispatch import Closed as Closed
from fairseq_ext.core.dispatch import WorkerDied as WorkerDied


class Busy(RuntimeError):
    """The queue is full. retry_after: seconds after which there may be room."""

    def __init__(self, waiting: int, retry_after: float):
        super().__init__(
            f"{waiting} requests are waiting, which is all that the queue takes: try again in "
            f"{retry_after:.0f} seconds"
        )
        self.retry_after = retry_after


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
