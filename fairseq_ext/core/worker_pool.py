"""Workers that answer requests (`WorkerPool`): each request is answered once, although processes
die or become silent.

dispatch.py decides, and a pool carries out what it decides. An engine and `--cpu-workers` have
processes of ours, on pipes (`ProcessWorkers`); in a corpus run Ray starts the processes.
"""

from __future__ import annotations

import logging
import pickle
import time
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from fairseq_ext.core.dispatch import Dispatch, Ticket, Worker
from fairseq_ext.core.process_pool import Event, Pool, Process
from fairseq_ext.core.supervision import State

logger = logging.getLogger("fairseq_ext")
P = TypeVar("P")  # the process of a worker


class WorkerPool(ABC, Generic[P]):
    """The workers of `dispatch` and their processes. workers, timeout: as for Dispatch.

    A subclass starts processes, reaches and ends them, and reports events to `dispatch`. All
    methods belong to one thread.
    """

    def __init__(self, workers: int, timeout: float):
        self.dispatch = Dispatch(workers, timeout, time.monotonic())
        self.processes: dict[Worker, P] = {}
        self.workers: dict[P, Worker] = {}

    # ---- of subclasses

    @abstractmethod
    def new_process(self) -> P:
        """Start a process (raises the error for its users if the system has no room for it)."""

    @abstractmethod
    def exit_error(self, process: P) -> Exception:
        """Return the error of a process that has ended."""

    def send(self, process: P, ticket: Ticket) -> None:
        """Give a request to a process."""

    def cancel(self, process: P, ticket: Ticket) -> None:
        """Take a request from a process."""

    def end(self, process: P) -> None:
        """Kill a process, and read nothing more of it."""

    def answer(self, ticket: Ticket, what: object) -> None:
        """Answer a request with its result or its error."""

    def partial(self, ticket: Ticket, part: object) -> None:
        """Pass a partial result on."""

    # ---- of all

    def carry_out(self, now: float) -> None:
        """Carry out the actions of the state machine."""
        while actions := self.dispatch.take_actions():
            for kind, subject, *rest in actions:
                if kind == "answer":
                    self.answer(subject, *rest)
                elif kind == "partial":
                    self.partial(subject, *rest)
                elif kind == "start":
                    self.start_process(subject, now)
                elif (process := self.processes.get(subject)) is None:
                    continue  # it has ended meanwhile, which the state machine knows
                elif kind == "send":
                    self.send(process, *rest)
                elif kind == "cancel":
                    self.cancel(process, *rest)
                elif kind == "replace":
                    self.forget(process)
                else:
                    self.kill(subject, process, now)

    def start_process(self, worker: Worker, now: float) -> None:
        """Start the process of a worker."""
        try:
            process = self.new_process()
        except Exception as error:  # the system gives no process, no memory or no file
            self.on_failed_start(worker, error, now)
        else:
            self.processes[worker], self.workers[process] = process, worker

    def on_failed_start(
        self, worker: Worker, error: Exception, now: float, is_final: bool = False
    ) -> None:
        """Note that a process could not be started, or could not load the model, and drop it.
        is_final: another try would fail in the same way."""
        if (process := self.processes.get(worker)) is not None:
            self.forget(process)
        self.dispatch.on_failed_start(worker, error, now, is_final)
        if worker.state is State.FAILED and self.dispatch.failure is None:
            logger.error("going on without a worker: %s", error)

    def kill(self, worker: Worker, process: P, now: float) -> None:
        """End the process of a silent worker."""
        self.on_end(process, now)

    def on_end(self, process: P, now: float) -> None:
        """Note that a process has ended, or end it."""
        if process in self.workers:
            error = self.exit_error(process)
            self.dispatch.on_exit(self.forget(process), now, error)

    def forget(self, process: P) -> Worker:
        """Kill and drop the process of a worker; return the worker."""
        worker = self.workers.pop(process)
        del self.processes[worker]
        self.end(process)
        return worker


class ProcessWorkers(WorkerPool[Process]):
    """Workers whose processes have pipes, which `pool` reads and writes."""

    def __init__(self, workers: int, timeout: float):
        super().__init__(workers, timeout)
        self.pool = Pool()

    def send(self, process: Process, ticket: Ticket) -> None:
        self.pool.send(process, ticket.payload)

    def end(self, process: Process) -> None:
        self.pool.remove(process)

    def on_message(self, worker: Worker, message: object, now: float) -> None:
        """Handle a message of a worker."""

    def on_event(self, event: Event, now: float) -> None:
        """Handle the messages of a worker's process, or its end."""
        worker, is_over = self.workers.get(event.process), event.is_over
        if worker is None:  # it was removed by an event before
            return
        try:
            if event.messages:
                worker.on_message()
            for message in event.messages:
                self.on_message(worker, pickle.loads(message), now)
        except Exception:
            # a message that cannot be read, or a fault of ours: who waits must not wait for ever
            logger.exception("a message of a worker cannot be read, and the worker is replaced")
            is_over = True
        if is_over:
            self.on_end(event.process, now)

    def cpu_seconds(self, worker: Worker) -> float | None:
        """Return the CPU time of a worker's process."""
        process = self.processes.get(worker)
        return None if process is None else process.cpu_seconds()

    def wait(self, seconds: float | None) -> list[Event]:
        """Wait for events until the state machine has something to do, at most `seconds`."""
        return self.pool.wait(0 if self.dispatch.actions else seconds)

    def handle(self, events: list[Event], now: float) -> None:
        """Handle events, and carry out what follows from them."""
        for event in events:
            self.on_event(event, now)
        self.dispatch.on_time(now, self.cpu_seconds)
        self.carry_out(now)
