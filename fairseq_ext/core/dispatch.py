"""The state machine of a pool of workers (`Dispatch`): which requests wait, which worker has which,
and when a worker is started, killed or given up. It does no I/O and reads no clock: its methods get
events with their time and return a list of actions. docs/architecture.md has the states.
"""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from fairseq_ext.core.supervision import State, Supervision

FILL = 1.25  # times as many requests as a worker decodes at once are with it
TICK = 1.0  # seconds between two looks at the workers; a longer gap counts as two of them
DIED = "the sentence could not be translated: two worker processes died over it"
CLOSED = "the engine was closed before the request was answered"


class Closed(RuntimeError):
    """The engine is closed, or was closed before it answered the request."""


class WorkerDied(RuntimeError):
    """Two workers died while they decoded a request."""


@dataclass(eq=False, slots=True)
class Ticket:
    """A request of a pool. payload: what a worker gets; size: a measure of its work; reply: what
    gets the answer, for the pool's `answer`."""

    number: int
    payload: Any
    size: int
    reply: Any = None
    # ---- of the state machine
    deaths: int = 0  # of workers that had it
    worker: Worker | None = None  # that has it
    is_cancelled: bool = False


class Worker(Supervision):
    """A worker of a pool, whose process may be replaced several times."""

    def __init__(self, timeout: float):
        super().__init__(timeout)
        self.tickets: dict[int, Ticket] = {}  # that it has, cancelled ones included, by number
        self.load = 0  # of them
        self.has_answered = False  # since its process was started
        self.is_outdated = False  # its process holds weights that no new one shares

    @property
    def is_watched(self) -> bool:
        """Whether the worker must send messages: it is starting or has requests."""
        return self.state is State.STARTING or self.state is State.READY and bool(self.tickets)

    @property
    def has_suspect(self) -> bool:
        """Whether the worker's only request was in another worker that died."""
        return len(self.tickets) == 1 and next(iter(self.tickets.values())).deaths > 0


# ---- What is to be done: (name, ...)
#
# ("start", worker) start a process        ("send", worker, ticket) give it a request
# ("kill", worker) end its process         ("cancel", worker, ticket) take the request away
# ("answer", ticket, answer or error)      ("partial", ticket, partial result)
# ("replace", worker) drop its process, which has no request
Action = tuple[Any, ...]
E = TypeVar("E", bound=BaseException)


class Dispatch:
    """The requests of a pool that are not answered, and its workers.

    Callers call one event after another, then carry out `take_actions()`.
    """

    def __init__(self, workers: int, timeout: float, now: float):
        self.workers = [Worker(timeout) for _ in range(workers)]
        self.waiting: OrderedDict[int, Ticket] = OrderedDict()
        self.suspects: OrderedDict[int, Ticket] = OrderedDict()  # that were in a worker that died
        self.width = 0  # sentences that a worker decodes at once, 0 while no model is loaded
        self.restarts = 0
        self.closes_at: float | None = None  # the end of the grace, once it is closing
        self.is_over = False
        self.actions: list[Action] = []
        self.tick = min(TICK, timeout / 4)
        self.last_tick = now
        self.start_workers(now)

    # ---- what callers read

    @property
    def is_closing(self) -> bool:
        """Whether the engine takes no more requests."""
        return self.closes_at is not None

    @property
    def failure(self) -> Exception | None:
        """The error of the last start where all workers have failed; it is a new object
        each time, as a raised one keeps what raised it."""
        for worker in self.workers:
            if worker.state is not State.FAILED:
                return None
        return fresh(next(each.error for each in reversed(self.workers) if each.error is not None))

    @property
    def is_ready(self) -> bool:
        """Whether any worker can decode."""
        return not self.is_closing and any(w.state is State.READY for w in self.workers)

    def tickets(self) -> Iterator[Ticket]:
        """Yield all requests that are not answered."""
        yield from self.waiting.values()
        yield from self.suspects.values()
        for worker in self.workers:
            yield from (each for each in worker.tickets.values() if not each.is_cancelled)

    @property
    def room(self) -> int:
        """Number of further requests that the workers can take now."""
        if self.suspects:
            return 0
        most = math.ceil(FILL * self.width)
        return sum(max(0, most - len(w.tickets)) for w in self.free_workers())

    def next_event(self, now: float) -> float | None:
        """Return the seconds until `on_time` must be called; None if no time limit runs."""
        soonest = math.inf if self.closes_at is None else self.closes_at
        for worker in self.workers:
            if worker.state is State.PAUSED:
                soonest = min(soonest, worker.start_at)
            elif worker.is_watched:
                soonest = min(soonest, self.last_tick + self.tick)
        return None if soonest == math.inf else max(0.0, soonest - now)

    def take_actions(self) -> list[Action]:
        """Give waiting requests to workers that have room; return the actions to carry out."""
        self.end_if_done()
        if not self.is_over:
            self.assign_waiting()
        actions, self.actions = self.actions, []
        return actions

    # ---- events

    def on_submit(self, ticket: Ticket) -> None:
        """Note a new request."""
        error = Closed("the engine is closed") if self.is_closing else self.failure
        if error is not None:
            self.actions.append(("answer", ticket, error))
        else:
            self.waiting[ticket.number] = ticket

    def on_cancel(self, number: int) -> None:
        """Note that the future of a request was cancelled, or its callback has failed."""
        if self.waiting.pop(number, None) or self.suspects.pop(number, None):
            return
        for worker in self.workers:
            ticket = worker.tickets.get(number)
            if ticket is not None and not ticket.is_cancelled:
                ticket.is_cancelled = True
                self.actions.append(("cancel", worker, ticket))

    def on_ready(self, worker: Worker, width: int, now: float) -> None:
        """Note that the process of a worker has loaded its model."""
        self.width = width
        worker.on_ready()
        for other in self.workers:
            other.on_recovery(now)

    def on_outdated(self, worker: Worker) -> None:
        """Note that the process that forked a worker has ended, and that another one, with weights
        of its own, forks now: memory holds the weights twice until the worker is replaced."""
        worker.is_outdated = True

    def on_failed_start(
        self, worker: Worker, error: Exception, now: float, is_final: bool = False
    ) -> None:
        """Note that a process could not be started, or could not load the model. is_final: another
        try would fail in the same way."""
        if worker.state is State.READY:  # it was faster than the news that it was forked
            return self.on_exit(worker, now, error)
        worker.on_failed_start(now, error, is_final)
        self.start_workers(now)
        if (failure := self.failure) is not None:
            left = [*self.waiting.values(), *self.suspects.values()]
            self.waiting.clear()
            self.suspects.clear()
            self.actions += [("answer", ticket, fresh(failure)) for ticket in left]

    def on_partial(self, worker: Worker, number: int, part: object) -> None:
        """Note that the certain beginning of a translation has grown."""
        ticket = worker.tickets.get(number)
        if ticket is not None and not ticket.is_cancelled:
            self.actions.append(("partial", ticket, part))

    def on_answer(self, worker: Worker, number: int, answer: object) -> None:
        """Note the answer or the error of a request; None: it was cancelled."""
        ticket = worker.tickets.get(number)
        if ticket is None or answer is None and not ticket.is_cancelled:
            return
        self.unassign(worker, ticket)
        worker.has_answered = True
        worker.on_answer()
        if not ticket.is_cancelled:
            self.actions.append(("answer", ticket, answer))

    def on_exit(self, worker: Worker, now: float, error: Exception) -> None:
        """Note that the process of a worker has ended. error: why a starting process has failed."""
        if worker.state is State.STARTING:
            return self.on_failed_start(worker, error, now)
        self.restarts += 1
        for ticket in list(worker.tickets.values()):
            self.unassign(worker, ticket)
            ticket.deaths += 1
            if ticket.is_cancelled:
                continue
            if ticket.deaths < 2:
                self.suspects[ticket.number] = ticket
            else:
                self.actions.append(("answer", ticket, WorkerDied(DIED)))
        worker.on_exit(now, worker.has_answered)
        self.start_workers(now)

    def on_time(self, now: float, cpu: Callable[[Worker], float | None]) -> None:
        """Kill silent workers, and start those whose pause is over. cpu: reads the CPU time of a
        worker's process."""
        if self.closes_at is not None and now >= self.closes_at:
            return self.end()
        if now >= self.last_tick + self.tick:
            # subtle: of a gap in which this thread did not run, no worker is to blame
            elapsed, self.last_tick = min(now - self.last_tick, 2 * self.tick), now
            for worker in self.workers:
                if worker.is_watched and worker.is_silent(elapsed, cpu(worker)):
                    self.actions.append(("kill", worker))
        self.replace_outdated(now)
        self.start_workers(now)

    def on_close(self, now: float, grace: float) -> None:
        """Take no more requests, and end when there are none, or after `grace` seconds."""
        if self.closes_at is None or now + grace < self.closes_at:
            self.closes_at = now + grace
        if grace <= 0:
            self.end()

    def end(self) -> None:
        """Answer all requests with Closed."""
        if self.is_over:
            return
        self.is_over = True
        self.actions += [("answer", ticket, Closed(CLOSED)) for ticket in self.tickets()]
        self.waiting.clear()
        self.suspects.clear()
        for worker in self.workers:
            worker.tickets.clear()

    # ---- decisions

    def end_if_done(self) -> None:
        """End where it is closing and no request is left."""
        if self.is_closing and next(self.tickets(), None) is None:
            self.end()

    def start_workers(self, now: float) -> None:
        """Start the workers whose pause is over."""
        for worker in self.workers:
            if worker.state is State.PAUSED and now >= worker.start_at and not self.is_over:
                worker.on_start()
                worker.has_answered = worker.is_outdated = False
                self.actions.append(("start", worker))

    def replace_outdated(self, now: float) -> None:
        """Start an outdated worker again that has no request, where all others are ready and one of
        them is not outdated: should the start fail, the others remain."""
        if any(w.state is not State.READY for w in self.workers):
            return
        outdated = [w for w in self.workers if w.is_outdated]
        idle = next((w for w in outdated if not w.tickets), None)
        if idle is not None and len(outdated) < len(self.workers):
            self.actions.append(("replace", idle))
            idle.pause(now, 0.0)

    def free_workers(self) -> list[Worker]:
        """Return the ready workers that may take requests.

        The worker that decodes a suspect, or is kept free for one, takes none; outdated workers
        take some only if there is no other.
        """
        ready = [w for w in self.workers if w.state is State.READY]
        alone = [w for w in ready if w.has_suspect]
        if self.suspects and not alone and ready:
            alone = [min(ready, key=lambda w: w.load)]
        free = [w for w in ready if w not in alone]
        return [w for w in free if not w.is_outdated] or free

    def assign_waiting(self) -> None:
        """Give waiting requests to workers that have room."""
        if not self.waiting and not self.suspects:
            return
        ready = [worker for worker in self.workers if worker.state is State.READY]
        while self.suspects and (idle := next((w for w in ready if not w.tickets), None)):
            self.assign(self.suspects.popitem(last=False)[1], idle)
        free = self.free_workers()
        while self.waiting and (room := [w for w in free if len(w.tickets) < FILL * self.width]):
            self.assign(self.waiting.popitem(last=False)[1], min(room, key=lambda w: w.load))

    def assign(self, ticket: Ticket, worker: Worker) -> None:
        """Give a request to a worker."""
        if not worker.tickets:
            worker.on_message()  # it was idle: its time counts from here
        worker.tickets[ticket.number] = ticket
        worker.load += ticket.size
        ticket.worker = worker
        self.actions.append(("send", worker, ticket))

    def unassign(self, worker: Worker, ticket: Ticket) -> None:
        """Take a request from a worker."""
        del worker.tickets[ticket.number]
        worker.load -= ticket.size
        ticket.worker = None


def fresh(error: E) -> E:
    """Return a copy of an error that has no traceback yet."""
    copied = copy.copy(error)
    copied.__traceback__ = copied.__context__ = copied.__cause__ = None
    return copied
