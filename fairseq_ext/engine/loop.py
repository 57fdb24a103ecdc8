"""The I/O thread of an engine (`Loop`): it alone owns the queue, the workers and all pipes. No code
of users runs here.
"""

from __future__ import annotations

import logging
import math
import os
import pickle
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from fairseq_ext.core.dispatch import Closed, Ticket, Worker, fresh
from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.process_pool import Event, ForkServer, Process
from fairseq_ext.core.supervision import State
from fairseq_ext.core.worker_pool import ProcessWorkers
from fairseq_ext.engine.callbacks import RETRY, THREADS, Reply, resolve, when_done
from fairseq_ext.engine.tickets import Busy, Description, Pace, Partial, Work
from fairseq_ext.search.request import Request

logger = logging.getLogger("fairseq_ext")
MODULE = "fairseq_ext.engine.fork_server"  # that the fork server runs
TRIES = 3  # of a process that ends by itself before a model was ever loaded
END = 0.2  # seconds between the end of a pipe and that of its process
NO_PROCESS = (
    "no process that translates can be started ({}): end others, or allow more processes and "
    "open files"
)
ENDED = (
    "the processes that load the model ended before it was loaded: see their messages on standard "
    "error, and mend what they name"
)


class Loop(ProcessWorkers, threading.Thread):
    """One engine's queue and workers. Other threads call `submit`, `drop`, `close`, `ready`,
    `pending` and `waiting`, which put messages into an inbox or read counts.

    content: flags, and what else the fork server loads. timeout: seconds after which a worker with
    work is silent.
    """

    def __init__(self, content: object, workers: int, timeout: float):
        threading.Thread.__init__(self, name="fairseq_ext engine", daemon=True)
        ProcessWorkers.__init__(self, workers, timeout)
        self.process_id = os.getpid()
        self.fork_server = ForkServer(self.pool, MODULE, content)
        self.pace = Pace()
        # ---- of all threads, under the lock; no I/O happens and no code of users runs under it
        self.lock = threading.RLock()  # a finaliser may need it where it is held
        self.inbox: list[tuple[str, Any]] = []
        self.number = 0
        self.pending = 0  # requests whose future is not done
        self.arriving = 0  # requests in the inbox, or on their way from it into the queue
        self.queued = 0  # in the queue of the state machine, at the end of the last turn
        self.room = 0  # that workers had then
        self.ready = self.closed = self.has_ended = False
        self.failed: Exception | None = None
        self.description: Description | None = None
        self.loaded = Reply(THREADS, lambda: None)  # has the description, or why there is none
        self.loaded.set_running_or_notify_cancel()  # one who waits cannot cancel it for others
        self.done = Work()
        # ---- of this turn: `fail` answers what is left of them
        self.messages: list[tuple[str, Any]] = []  # out of the inbox
        self.answers: list[tuple[Reply, Any]] = []

    # ---- for other threads

    def submit(
        self,
        request: Request,
        on_partial: Callable[[Partial], None] | None,
        max_queue: int | None,
    ) -> Reply:
        """Return a future of the answer to a request. Errors: Busy, Closed, the error of a failed
        engine."""
        with self.lock:
            if self.failed is not None:
                raise fresh(self.failed)
            if self.closed:
                raise Closed("the engine is closed")
            if max_queue is not None and self.waiting >= max_queue:
                raise Busy(self.waiting, self.pace.until_half(self.waiting))
            self.number += 1
            number = self.number
            self.pending += 1
            self.arriving += 1
        reply = Reply(THREADS, partial(self.drop, number), on_partial)
        when_done(reply, self.count_done)
        try:
            message = pickle.dumps(("add", number, request))
            self.post("submit", Ticket(number, message, 20 + len(request.source), reply))
        except Exception as error:
            with self.lock:
                self.arriving -= 1
            reply.answer(
                UsageError(
                    f"the request cannot be sent to a process ({error}): give text and numbers"
                )
            )
        return reply

    def drop(self, number: int) -> None:
        """Drop a request; does nothing in a forked process."""
        if self.process_id == os.getpid():
            self.post("cancel", number)

    def forget_engine(self) -> None:
        """End when no request is left: no object refers to the engine any more. Does nothing in a
        forked process, whose engine is the parent's."""
        if self.process_id == os.getpid():
            self.post("close", math.inf)

    def post(self, kind: str, value: object) -> None:
        """Put a message into the inbox."""
        with self.lock:
            self.inbox.append((kind, value))
            has_ended = self.has_ended
        if has_ended:
            self.empty_inbox()
        else:
            self.pool.wake()

    def count_done(self, future: object) -> None:
        """Count down the pending requests: the future of one is done."""
        if self.process_id == os.getpid():  # else a thread that is not here may have the lock
            with self.lock:
                self.pending -= 1

    @property
    def waiting(self) -> int:
        """Number of requests that no worker has, or has room for."""
        return max(0, self.queued + self.arriving - self.room)

    # ---- the thread

    def run(self) -> None:
        """Call `turn` until the engine is closed and its processes have ended."""
        try:
            while not self.dispatch.is_over:
                self.turn()
        except BaseException as error:
            logger.exception("the thread of an engine has failed")
            self.fail(RuntimeError(f"the engine has failed: {type(error).__name__}: {error}"))
        finally:
            with self.lock:
                self.ready, self.closed, self.has_ended = False, True, True
            self.empty_inbox()
            resolve(
                self.loaded,
                self.failed or Closed("the engine was closed before its model was loaded"),
            )
            self.pool.end()

    def turn(self) -> None:
        """Wait for events and messages, and handle them."""
        seconds = self.dispatch.next_event(time.monotonic())
        if THREADS.is_short:
            seconds = min(RETRY, RETRY if seconds is None else seconds)
            THREADS.start_waiting()
        events = self.wait(seconds)
        now = time.monotonic()
        with self.lock:
            self.messages, self.inbox = self.inbox, []
        for kind, value in self.messages:
            if kind == "submit":
                self.dispatch.on_submit(value)
            elif kind == "cancel":
                self.dispatch.on_cancel(value)
            else:
                self.dispatch.on_close(now, value)
        # the fork server first: it says why the pipes of its workers are closed
        self.handle(
            sorted(events, key=lambda each: each.process is not self.fork_server.process), now
        )
        self.publish(sum(kind == "submit" for kind, _ in self.messages))
        for reply, answer in self.answers:  # after the counts, which callers then read
            reply.answer(answer)
        self.messages, self.answers = [], []

    def publish(self, arrived: int) -> None:
        """Store the counts and states that other threads read."""
        failed = self.dispatch.failure
        with self.lock:
            self.arriving -= arrived
            self.queued = len(self.dispatch.waiting) + len(self.dispatch.suspects)
            self.room = self.dispatch.room
            self.failed, self.ready = failed, self.dispatch.is_ready
        if failed is not None:
            resolve(self.loaded, failed)

    def on_event(self, event: Event, now: float) -> None:
        """Handle the messages of the fork server or of a worker, or the end of one."""
        if event.process is not self.fork_server.process:
            return super().on_event(event, now)
        status = event.process.wait(END) if event.is_over else None
        orphans, reason = self.fork_server.on_event(event)
        for each in orphans:
            # what ends by itself has said why on standard error, and will again
            is_passing = not status or status < 0 or self.workers[each].pauses < TRIES - 1
            error, is_passing = reason or (UsageError(ENDED), is_passing)
            self.on_failed_load(self.workers[each], error, is_passing, now)
        self.find_outdated()

    def on_failed_load(
        self, worker: Worker, error: Exception, is_passing: bool, now: float
    ) -> None:
        """Note that a model was not loaded. is_passing: another try may succeed, also if no model
        was loaded before."""
        self.on_failed_start(worker, error, now, self.description is None and not is_passing)

    def on_message(self, worker: Worker, message: Any, now: float) -> None:
        """Handle a message of a worker."""
        if isinstance(message, Description):
            self.dispatch.on_ready(worker, message.width, now)
            self.description, self.ready = message, True
            return resolve(self.loaded, message)
        if isinstance(message, tuple):
            _, error, is_passing = message
            return self.on_failed_load(worker, error, is_passing, now)
        for number, what in message:
            if isinstance(what, Work):
                self.done.add(what)
            elif isinstance(what, Partial):
                self.dispatch.on_partial(worker, number, what)
            else:
                self.dispatch.on_answer(worker, number, what)

    def new_process(self) -> Process:
        try:
            return self.fork_server.fork()
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise UsageError(NO_PROCESS.format(why)) from None

    def exit_error(self, process: Process) -> Exception:
        return UsageError(ENDED)

    def cancel(self, process: Process, ticket: Ticket) -> None:
        self.pool.send(process, pickle.dumps(("cancel", ticket.number)))

    def answer(self, ticket: Ticket, what: object) -> None:
        """Note an answer, which is given at the end of the turn."""
        self.pace.count()
        self.answers.append((ticket.reply, what))

    def partial(self, ticket: Ticket, part: object) -> None:
        ticket.reply.pass_partial(part)

    def kill(self, worker: Worker, process: Process, now: float) -> None:
        """End the process of a silent worker, or the one that is to fork it."""
        logger.warning(
            "a worker of the engine has been silent for %g seconds, and is replaced",
            worker.timeout,
        )
        for each in self.fork_server.end() if process.pid is None else [process]:
            self.on_end(each, now)

    def find_outdated(self) -> None:
        """Mark the workers that share weights with no process that forks, where another does."""
        current = self.fork_server.process
        if current is not None and any(each.shares is current for each in self.workers):
            for process, worker in self.workers.items():
                if process.shares not in (None, current):
                    self.dispatch.on_outdated(worker)

    def cpu_seconds(self, worker: Worker) -> float | None:
        """Return the CPU time of a worker's process, or of the one that is to fork it."""
        process = self.processes.get(worker)
        if process is not None and process.pid is None:
            process = self.fork_server.process
        is_starting = worker.state is State.STARTING
        return None if process is None else process.cpu_seconds(with_children=is_starting)

    def fail(self, error: Exception) -> None:
        """Answer every request with this error: the thread ends."""
        with self.lock:
            self.failed = error
        for reply, answer in self.answers:
            reply.answer(answer)
        taken = [value for kind, value in self.messages if kind == "submit"]
        for ticket in [*taken, *self.dispatch.tickets()]:
            ticket.reply.answer(fresh(error))

    def empty_inbox(self) -> None:
        """Answer the requests that came after the end with an error."""
        with self.lock:
            left, self.inbox = self.inbox, []
            error = self.failed or Closed("the engine is closed")
        for kind, value in left:
            if kind == "submit":
                value.reply.answer(fresh(error))
