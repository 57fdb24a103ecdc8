"""Threads for the callbacks of users. A slow callback delays no other request, an error of a
callback affects only its own request, and no lock of ours is held while one runs."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from functools import partial
from typing import Any

logger = logging.getLogger("fairseq_ext")
IDLE = 10.0  # seconds for which a thread waits for more to do
RETRY = 0.1  # seconds after which a thread is requested again that the system did not give


class Threads:
    """A pool of threads: one is started when all others are busy, and ends when it has had no work
    for IDLE seconds."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.idle: list[queue.SimpleQueue] = []
        self.waiting: deque[Callable[[], None]] = deque()  # that no thread has taken
        self.is_short = False  # the system gave no thread for some of it

    def run(self, work: Callable[[], None]) -> None:
        """Run `work` in another thread; at once, or, if the system has no thread left, as soon as
        one is free (`start_waiting`)."""
        if self.process != os.getpid():  # forked: the threads are not here
            self.process, self.idle, self.waiting = os.getpid(), [], deque()
        try:
            self.idle.pop().put(work)
        except IndexError:
            self.waiting.append(work)
            self.start_waiting()

    def start_waiting(self) -> None:
        """Start a thread for work that has none, if the system gives one."""
        # more may wait than this thread takes, whose work may last: then it is called once more
        self.is_short = self.is_short and bool(self.waiting)
        if self.waiting:
            thread = threading.Thread(target=self.live, name="fairseq_ext callback", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                self.is_short = True

    def live(self) -> None:
        """Run work after work: the main function of a thread."""
        mine: queue.SimpleQueue = queue.SimpleQueue()
        while True:
            try:
                work = self.waiting.popleft()
            except IndexError:
                self.idle.append(mine)
                try:
                    work = mine.get(timeout=IDLE)
                except queue.Empty:
                    try:
                        return self.idle.remove(mine)
                    except ValueError:  # it has just been given something
                        work = mine.get()
            work()


THREADS = Threads()  # of all engines


class Calls:
    """The calls of one request, one after another."""

    def __init__(self, threads: Threads = THREADS):
        self.threads = threads
        self.waiting: deque[Callable[[], None]] = deque()
        self.lock = threading.Lock()
        self.running = False

    def add(self, call: Callable[[], None]) -> None:
        """Add a call, which runs when those before it have returned. It must not raise."""
        with self.lock:
            self.waiting.append(call)
            if self.running:
                return
            self.running = True
        self.threads.run(self.run)

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Return a context in which the calls of other threads wait, as during a call."""
        with self.lock:
            assert not self.running
            self.running = True
        try:
            yield
        finally:
            with self.lock:
                self.running = goes_on = bool(self.waiting)
            if goes_on:
                self.threads.run(self.run)

    def run(self) -> None:
        """Run all waiting calls."""
        while True:
            with self.lock:
                if not self.waiting:
                    self.running = False
                    return
                call = self.waiting.popleft()
            call()


class Reply(Future):
    """A future whose callbacks, and `on_partial`, are calls of its own request.

    cancel: called in the thread that cancels the future, and after an error of `on_partial`, which
    becomes the error of the future.
    """

    def __init__(
        self,
        threads: Threads,
        cancel: Callable[[], None],
        on_partial: Callable[[Any], None] | None = None,
    ):
        super().__init__()
        self.calls = Calls(threads)
        self.on_partial, self.cancel_request = on_partial, cancel
        self.latest: object = None  # partial result that on_partial has not seen
        super().add_done_callback(lambda future: cancel() if future.cancelled() else None)

    def add_done_callback(self, fn: Callable[[Future], object]) -> None:
        """Call `fn` as any future does, in another thread than the one that completes it."""
        # subtle: a future keeps its callbacks, so that one that knew it would make a circle
        # for the garbage collector
        calls = self.calls
        super().add_done_callback(lambda future: calls.add(partial(called, fn, future)))

    def pass_partial(self, part: object) -> None:
        """Call `on_partial` with a partial result; a slow one gets only the latest."""
        if self.on_partial is None:
            return
        with self.calls.lock:
            known, self.latest = self.latest, part
        if known is None:  # else a call for it waits
            self.calls.add(self.call_on_partial)

    def call_on_partial(self) -> None:
        """Call the user's function with the latest partial result."""
        with self.calls.lock:
            part, self.latest = self.latest, None
        if part is None or self.on_partial is None or self.done():
            return
        try:
            self.on_partial(part)
        except BaseException as error:
            resolve(self, error)
            self.cancel_request()

    def answer(self, what: object) -> None:
        """Complete the future with an answer or error, after its partial results."""
        if self.on_partial is not None:
            self.calls.add(lambda: resolve(self, what))
        else:
            resolve(self, what)


def called(fn: Callable[[Future], object], future: Future) -> None:
    """Call a callback of a future; an error is logged, as by other futures."""
    try:
        fn(future)
    except BaseException:
        logger.exception("a callback of %r has failed", future)


def resolve(future: Future, what: object) -> None:
    """Give a future its answer or error, unless it was cancelled meanwhile."""
    try:
        if isinstance(what, BaseException):
            future.set_exception(what)
        else:
            future.set_result(what)
    except InvalidStateError:
        pass


def when_done(future: Future, fn: Callable[[Future], object]) -> None:
    """Call a function of ours in the thread that completes a future; it must be quick and not
    raise."""
    Future.add_done_callback(future, fn)
