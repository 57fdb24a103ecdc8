"""Code of users runs in threads of its own: a slow callback delays no other request, and what one
raises stays with its own. No lock of ours is held meanwhile."""

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
    """Threads that are started when all others have something to do, and end when there
    is nothing for a while."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.idle: list[queue.SimpleQueue] = []
        self.waiting: deque[Callable[[], None]] = deque()  # for which there was no thread

    def run(self, work: Callable[[], None]) -> None:
        """Have it done at once in some thread, never in this one; where the system gives no
        thread, as soon as there is one (`start_waiting`)."""
        if self.process != os.getpid():  # forked: the threads are not here
            self.process, self.idle, self.waiting = os.getpid(), [], deque()
        try:
            self.idle.pop().put(work)
        except IndexError:
            self.start(work)

    def start(self, work: Callable[[], None]) -> None:
        """Start a thread for it."""
        try:
            threading.Thread(
                target=self.live, args=(work,), name="fairseq_ext callback", daemon=True
            ).start()
        except RuntimeError:  # the system gives no more threads
            self.waiting.append(work)

    def start_waiting(self) -> None:
        """Try again to start a thread for work that had none."""
        try:
            work = self.waiting.popleft()
        except IndexError:
            return
        self.start(work)

    def live(self, work: Callable[[], None]) -> None:
        """A thread's life."""
        mine: queue.SimpleQueue = queue.SimpleQueue()
        while True:
            work()
            try:
                work = self.waiting.popleft()
                continue
            except IndexError:
                pass
            self.idle.append(mine)
            try:
                work = mine.get(timeout=IDLE)
            except queue.Empty:
                try:
                    return self.idle.remove(mine)
                except ValueError:  # it has just been given something
                    work = mine.get()


THREADS = Threads()  # of all engines


class Calls:
    """The calls of one request, one after another."""

    def __init__(self, threads: Threads = THREADS):
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

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Inside of this context, in one thread that is like a call, others wait."""
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
        """Call all that wait."""
        while True:
            with self.lock:
                if not self.waiting:
                    self.running = False
                    return
                call = self.waiting.popleft()
            call()


class Reply(Future):
    """A future whose callbacks, and `on_partial`, are calls of its own request.

    cancel: called at once in the thread that cancels it, and where `on_partial` has failed,
    whose error is then its own.
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
        self.latest: Any = None  # partial result that on_partial has not seen
        super().add_done_callback(lambda future: cancel() if future.cancelled() else None)

    def add_done_callback(self, fn: Callable[[Future], Any]) -> None:
        """Call `fn` as any future does, in another thread than the one that completes it."""
        # subtle: a future keeps its callbacks, so that one that knew it would make a circle
        # for the garbage collector
        calls = self.calls
        super().add_done_callback(lambda future: calls.add(partial(called, fn, future)))

    def pass_partial(self, part: Any) -> None:
        """Have `on_partial` called with it; one that is slow gets the latest."""
        if self.on_partial is None:
            return
        with self.calls.lock:
            known, self.latest = self.latest, part
        if known is None:  # else a call for it waits
            self.calls.add(self.call_on_partial)

    def call_on_partial(self) -> None:
        """Call the user's function with what is certain now."""
        with self.calls.lock:
            part, self.latest = self.latest, None
        if part is None or self.on_partial is None or self.done():
            return
        try:
            self.on_partial(part)
        except BaseException as error:
            resolve(self, error)
            self.cancel_request()

    def answer(self, what: Any) -> None:
        """Complete it with an answer or error, behind the partial results."""
        if self.on_partial is not None:
            self.calls.add(lambda: resolve(self, what))
        else:
            resolve(self, what)


def called(fn: Callable[[Future], Any], future: Future) -> None:
    """Call what must not raise; what it raises is logged, as futures do."""
    try:
        fn(future)
    except BaseException:
        logger.exception("a callback of %r has failed", future)


def resolve(future: Future, what: Any) -> None:
    """Give a future its answer or error, unless it was cancelled meanwhile."""
    try:
        if isinstance(what, BaseException):
            future.set_exception(what)
        else:
            future.set_result(what)
    except InvalidStateError:
        pass


def when_done(future: Future, fn: Callable[[Future], Any]) -> None:
    """Call code of ours, which is quick and does not raise, in the thread that completes a
    future."""
    Future.add_done_callback(future, fn)
