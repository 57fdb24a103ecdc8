"""Callbacks of users run beside the engine's own threads: a slow one delays no other request, and
what one raises stays with its own."""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

logger = logging.getLogger("fairseq_ext")
IDLE = 10.0  # seconds for which a thread waits for more to do


class Threads:
    """Threads that are started when all others have something to do, and end when there
    is nothing for a while."""

    def __init__(self) -> None:
        self.idle: list[queue.SimpleQueue] = []

    def run(self, work: Callable[[], None]) -> None:
        """Have it done at once, in some thread."""
        try:
            self.idle.pop().put(work)
        except IndexError:
            try:
                threading.Thread(
                    target=self.live, args=(work,), name="fairseq_ext callback", daemon=True
                ).start()
            except RuntimeError:  # the system gives no more threads
                work()

    def live(self, work: Callable[[], None]) -> None:
        """A thread's life."""
        mine: queue.SimpleQueue = queue.SimpleQueue()
        while True:
            work()
            self.idle.append(mine)
            try:
                work = mine.get(timeout=IDLE)
            except queue.Empty:
                try:
                    return self.idle.remove(mine)
                except ValueError:  # it has just been given something
                    work = mine.get()


class Calls:
    """The calls of one request, one after another."""

    def __init__(self, threads: Threads):
        self.threads = threads
        self.waiting: deque[Callable[[], None]] = deque()
        self.lock = threading.Lock()
        self.running = False

    def add(self, call: Callable[[], None]) -> None:
        """Call it, which must not raise, when those before it have returned."""
        with self.lock:
            self.waiting.append(call)
            if self.running:
                return
            self.running = True
        self.threads.run(self.run)

    def run(self) -> None:
        """Call all that wait."""
        while True:
            with self.lock:
                if not self.waiting:
                    self.running = False
                    return
                call = self.waiting.popleft()
            call()


class Reply(Future):
    """A future whose callbacks are among the calls of its request.

    cancelled: called at once, in the thread of the one who cancels.
    """

    def __init__(self, calls: Calls, cancelled: Callable[[], None]):
        super().__init__()
        self.calls = calls
        super().add_done_callback(lambda future: cancelled() if future.cancelled() else None)

    def add_done_callback(self, fn: Callable[[Future], Any]) -> None:
        """As of any future, in another thread than the engine's."""
        # subtle: a future keeps its callbacks, so that one that knew it would make a circle
        # for the garbage collector
        calls = self.calls
        super().add_done_callback(lambda future: calls.add(partial(called, fn, future)))


def called(fn: Callable[[Future], Any], future: Future) -> None:
    """Call what must not raise; what it raises is logged, as futures do."""
    try:
        fn(future)
    except BaseException:
        logger.exception("a callback of %r has failed", future)
