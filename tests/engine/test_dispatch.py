"""The state machine of an engine under random events: every future is answered once, with its own
answer, whatever the workers do. The machine is the real one; workers, clock and CPU times
are pretended."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sizes import examples

from fairseq_ext.core.dispatch import (
    CLOSED,
    FILL,
    TICK,
    Closed,
    Dispatch,
    Ticket,
    Worker,
    WorkerDied,
)
from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.supervision import LONGEST, MUCH, STARTS, State
from fairseq_ext.engine.callbacks import Reply, Threads

TIMEOUT, WIDTH = 10.0, 2
INDEX = st.integers(0, 99)


@dataclass(eq=False)
class Process:
    """A pretended process of a worker."""

    has: list[int] = field(default_factory=list)  # numbers of its requests
    inbox: list[tuple[str, int]] = field(default_factory=list)  # what it has not read
    is_loaded = False
    is_stopped = False
    is_silent = False  # it computes and sends nothing
    cpu = 0.0


class Engine(RuleBasedStateMachine):
    """Dispatch, and what its loop and its workers would do."""

    def __init__(self):
        super().__init__()
        self.now, self.number = 100.0, 0
        self.tickets: dict[int, Ticket] = {}
        self.answers: dict[int, list] = {}
        self.processes: dict[Worker, Process] = {}
        self.final_failure: dict[Worker, bool] = {}
        self.dispatch = Dispatch(3, TIMEOUT, self.now)
        self.carry_out()

    def carry_out(self):
        while actions := self.dispatch.take_actions():
            for kind, *rest in actions:
                if kind == "answer":
                    ticket, what = rest
                    self.answers[ticket.number].append(what)
                    assert not ticket.reply.cancelled(), "nobody waits for it"
                    ticket.reply.answer(what)
                elif kind == "start":
                    assert rest[0] not in self.processes
                    self.processes[rest[0]] = Process()
                elif kind == "partial":
                    assert not rest[0].reply.done() and rest[1] == rest[0].number
                elif kind == "kill":
                    self.end(rest[0])
                elif kind == "replace":
                    assert not rest[0].tickets and not self.processes.pop(rest[0]).has
                else:
                    process = self.processes.get(rest[0])
                    assert process is None or process.is_loaded
                    if process is not None:
                        process.inbox.append((kind, rest[1].number))

    def end(self, worker):
        if self.processes.pop(worker, None) is not None:
            self.dispatch.on_exit(worker, self.now, UsageError("it ended"))

    def chosen(self, index, is_loaded=None):
        found = [
            (worker, process)
            for worker, process in self.processes.items()
            if is_loaded is None or process.is_loaded is is_loaded and not process.is_stopped
        ]
        return found[index % len(found)] if found else None

    def read(self, worker, process):
        """A worker reads its messages, and says what is gone."""
        for kind, number in process.inbox:
            if kind == "send":
                process.has.append(number)
            else:
                process.has = [each for each in process.has if each != number]
                worker.on_message()
                self.dispatch.on_answer(worker, number, None)
        process.inbox.clear()

    # ---- events

    @rule(size=st.integers(1, 50))
    def submit(self, size):
        self.number += 1
        number = self.number
        reply = Reply(Threads(), lambda: self.dispatch.on_cancel(number))
        ticket = Ticket(number, b"", size, reply)
        self.tickets[number], self.answers[number] = ticket, []
        self.dispatch.on_submit(ticket)
        self.carry_out()

    @precondition(lambda self: self.tickets)
    @rule(index=INDEX)
    def cancel(self, index):
        self.tickets[1 + index % len(self.tickets)].reply.cancel()
        self.carry_out()

    @rule(index=INDEX)
    def load(self, index):
        if found := self.chosen(index, is_loaded=False):
            found[1].is_loaded = True
            self.dispatch.on_ready(found[0], WIDTH, self.now)
            self.carry_out()

    @rule(index=INDEX, is_final=st.booleans())
    def refuse_to_start(self, index, is_final):
        """Of a worker that is loaded, its fork server may not have said that it has forked it."""
        if found := self.chosen(index):
            worker, _ = found
            del self.processes[worker]
            self.dispatch.on_failed_start(worker, UsageError("no room"), self.now, is_final)
            self.carry_out()

    @rule(index=INDEX, which=INDEX, failed=st.booleans())
    def answer(self, index, which, failed):
        if found := self.chosen(index, is_loaded=True):
            worker, process = found
            self.read(worker, process)
            if process.has:
                number = process.has.pop(which % len(process.has))
                worker.on_message()
                own = UsageError(str(number)) if failed else number
                self.dispatch.on_answer(worker, number, own)
            self.carry_out()

    @rule(index=INDEX, which=INDEX)
    def partial(self, index, which):
        if (found := self.chosen(index, is_loaded=True)) and found[1].has:
            number = found[1].has[which % len(found[1].has)]
            found[0].on_message()
            self.dispatch.on_partial(found[0], number, number)
            self.carry_out()

    @rule(index=INDEX, how=st.sampled_from(["is_stopped", "is_silent"]), does=st.booleans())
    def stop(self, index, how, does):
        """A process is stopped, or computes and sends nothing, or goes on."""
        if found := self.chosen(index):
            setattr(found[1], how, does)

    @rule(index=INDEX)
    def kill(self, index):
        if found := self.chosen(index):
            self.end(found[0])
            self.carry_out()

    @rule(index=INDEX)
    def load_elsewhere(self, index):
        """A worker's weights are no longer those that new ones share."""
        if found := self.chosen(index, is_loaded=True):
            self.dispatch.on_outdated(found[0])
            self.carry_out()

    @rule(seconds=st.sampled_from([0.1, 1.0, 3.0, 30.0]))
    def pass_time(self, seconds):
        """Time in which the loop runs."""
        end = self.now + seconds
        while self.now < end and not self.dispatch.is_over:
            wait = self.dispatch.next_event(self.now)
            self.now = min(end, self.now + max(1e-3, end if wait is None else wait))
            for worker, process in self.processes.items():
                if process.is_stopped:
                    continue
                process.cpu += 0.1
                if not process.is_silent and process.is_loaded and worker.tickets:
                    self.read(worker, process)
                    worker.on_message()  # the heartbeat
            self.dispatch.on_time(self.now, lambda worker: self.processes[worker].cpu)
            self.carry_out()

    @rule(seconds=st.sampled_from([30.0, 1e5]))
    def suspend(self, seconds):
        """Time in which nothing runs, for which no worker is to blame."""
        before = {w: each for w, each in self.processes.items() if not w.is_outdated}
        self.now += seconds
        if not self.dispatch.is_closing and all(w.still < TIMEOUT / 2 for w in before):
            self.dispatch.on_time(self.now, lambda worker: self.processes[worker].cpu)
            self.carry_out()
            assert all(self.processes.get(worker) is before[worker] for worker in before)

    @precondition(lambda self: self.number > 12)
    @rule(grace=st.sampled_from([0.0, 20.0]))
    def close(self, grace):
        self.dispatch.on_close(self.now, grace)
        self.carry_out()

    # ---- what always holds

    @invariant()
    def each_request_is_in_one_place(self):
        with_workers = [pair for worker in self.dispatch.workers for pair in worker.tickets.items()]
        places = [number for number, ticket in with_workers if not ticket.is_cancelled]
        places += [*self.dispatch.waiting, *self.dispatch.suspects]
        open_ones = [n for n, ticket in self.tickets.items() if not ticket.reply.done()]
        assert sorted(places) == open_ones

    @invariant()
    def answers_are_given_once_and_are_the_requests_own(self):
        for number, found in self.answers.items():
            ticket = self.tickets[number]
            assert len(found) == (ticket.reply.done() and not ticket.reply.cancelled())
            for what in found:
                if isinstance(what, WorkerDied):
                    assert ticket.deaths == 2
                elif isinstance(what, Closed):
                    assert self.dispatch.is_closing
                elif isinstance(what, Exception):
                    assert str(what) in (str(number), "no room", "it ended")
                else:
                    assert what == number

    @invariant()
    def load_is_what_workers_have(self):
        for worker in self.dispatch.workers:
            if self.dispatch.is_over:
                continue
            assert worker.load == sum(ticket.size for ticket in worker.tickets.values())
            assert len(worker.tickets) <= math.ceil(FILL * WIDTH)
            assert not worker.tickets or worker.state is State.READY
            suspects = [t for t in worker.tickets.values() if t.deaths]
            assert not suspects or len(worker.tickets) == 1, "a suspect is alone"
            is_running = worker.state in (State.STARTING, State.READY)
            assert (worker in self.processes) is is_running

    def teardown(self):
        """Whatever has happened: when workers load and answer again, all requests get an answer,
        those of stopped workers too."""
        for _ in range(2000):
            if all(ticket.reply.done() for ticket in self.tickets.values()):
                break
            for index in range(len(self.dispatch.workers)):
                self.load(index)
                self.answer(index, 0, False)
            self.pass_time(1.0)
        self.each_request_is_in_one_place()
        self.answers_are_given_once_and_are_the_requests_own()
        left = [number for number, ticket in self.tickets.items() if not ticket.reply.done()]
        assert not left, f"requests {left} are never answered"
        self.dispatch.on_close(self.now, 0.0)
        self.carry_out()
        assert self.dispatch.is_over


TestRandomEvents = Engine.TestCase
TestRandomEvents.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)


# ---- rules that random events seldom reach


def machine(workers=1, loaded=0, requests=0):
    """Of which this number of workers is loaded and has requests."""
    made = Engine()
    made.processes.clear()
    made.dispatch = Dispatch(workers, TIMEOUT, made.now)
    made.carry_out()
    for _ in range(loaded):
        made.load(0)
    for _ in range(requests):
        made.submit(1)
    return made, made.dispatch


def test_one_worker_that_cannot_be_started_again_ends_nothing():
    """Its starts are repeated for a minute; the other one goes on, and when it has been replaced
    once, the first one is tried again."""
    engine, dispatch = machine(2, 2)
    first, second = dispatch.workers
    engine.end(first)
    starts = 0
    begun = engine.now
    while first.state is not State.FAILED:
        engine.pass_time(1.0)
        if first in engine.processes:
            starts += 1
            del engine.processes[first]
            dispatch.on_failed_start(first, UsageError("no room"), engine.now)
            engine.carry_out()
    assert STARTS <= engine.now - begun <= STARTS + LONGEST + 1 and starts > 8
    assert dispatch.failure is None and dispatch.is_ready
    engine.submit(1), engine.answer(0, 0, False)
    assert engine.answers[1] == [1]
    engine.end(second)
    engine.carry_out()
    engine.pass_time(1.0)
    engine.load(0)
    engine.pass_time(1.0)
    assert first in engine.processes


def test_where_all_have_failed_requests_get_the_error_which_has_no_growing_traceback():
    engine, dispatch = machine(2, 0, 1)
    for _ in range(2):
        engine.refuse_to_start(0, is_final=True)
    engine.submit(1)
    assert [str(found[0]) for found in engine.answers.values()] == ["no room"] * 2
    for _ in range(3):
        with pytest.raises(UsageError) as raised:
            raise dispatch.failure
        assert len(raised.traceback) == 1


def test_what_is_silence_and_what_is_not():
    engine, dispatch = machine()
    ((worker, process),) = engine.processes.items()
    engine.pass_time(TIMEOUT * (MUCH + 5))  # it loads, and uses CPU time
    assert engine.processes[worker] is process
    engine.load(0)
    process.is_stopped = True
    engine.pass_time(30.0)  # it is stopped, and has nothing to do
    assert engine.processes[worker] is process
    process.is_stopped, process.is_silent = False, True
    engine.submit(1)
    engine.pass_time(TIMEOUT * (MUCH - 1))  # one long step
    assert engine.processes[worker] is process
    engine.pass_time(TIMEOUT * 1.5)  # too long
    assert engine.processes.get(worker) is not process and dispatch.restarts == 1
    engine.pass_time(1.0)
    process = engine.processes[worker]
    engine.load(0)
    process.is_stopped = True
    engine.pass_time(TIMEOUT - 2 * TICK)
    assert engine.processes[worker] is process
    engine.pass_time(3 * TICK)
    assert engine.processes.get(worker) is not process
    assert isinstance(engine.answers[1][0], WorkerDied), "it has silenced two workers"
    engine.pass_time(1.0)
    process = engine.processes[worker]
    process.is_stopped = True  # it is to load, and cannot
    engine.pass_time(TIMEOUT + 2 * TICK)
    assert engine.processes.get(worker) is not process


def test_a_cancelled_request_is_load_until_its_worker_says_that_it_is_gone():
    engine, dispatch = machine(1, 1)
    for _ in range(4):
        engine.submit(7)
    worker = dispatch.workers[0]
    assert (len(worker.tickets), len(dispatch.waiting)) == (3, 1)
    engine.cancel(0)
    assert worker.load == 21 and len(dispatch.waiting) == 1
    engine.read(worker, engine.processes[worker])
    engine.carry_out()
    assert len(worker.tickets) == 3 and not dispatch.waiting


def test_suspects_do_not_wait_for_ever_behind_others():
    """One worker cannot be started again, and the other one always has more to do."""
    engine, dispatch = machine(2, 2, 8)
    first, second = dispatch.workers
    suspects = [*first.tickets]
    engine.end(first)
    engine.carry_out()
    for _ in range(20):
        engine.submit(1)
        index = list(engine.processes).index(second)
        engine.answer(index if len(engine.processes) == 1 else 0, 0, False)
    assert len(suspects) == 3 and all(engine.answers[number] == [number] for number in suspects)


def test_closing_with_grace_ends_when_all_is_answered_or_the_time_is_over():
    for answers in (True, False):
        engine, dispatch = machine(1, 1, 1)
        dispatch.on_close(engine.now, 20.0)
        engine.submit(1)
        assert isinstance(engine.answers[2][0], Closed) and not dispatch.is_over
        if answers:
            engine.answer(0, 0, False)
            assert dispatch.is_over and engine.answers[1] == [1]
        else:
            engine.processes[dispatch.workers[0]].is_silent = True
            engine.pass_time(30.0)
            assert dispatch.is_over and str(engine.answers[1][0]) == CLOSED


def test_an_outdated_worker_gets_no_request_and_is_replaced_where_another_is_ready():
    engine, dispatch = machine(2, 1, 1)
    outdated, other = dispatch.workers
    dispatch.on_outdated(outdated)
    before = engine.processes[outdated]
    engine.submit(1)
    engine.pass_time(1.0)
    assert before.has == [1, 2], "no other one is ready"
    engine.answer(0, 0, False)
    engine.answer(0, 0, False)
    engine.pass_time(1.0)
    assert engine.processes[outdated] is before
    engine.load(0)
    engine.submit(1)
    assert list(other.tickets) == [3]
    engine.pass_time(1.0)
    assert engine.processes[outdated] is not before and not outdated.is_outdated
    assert dispatch.restarts == 0


def test_outdated_workers_are_replaced_one_after_another():
    """The new process that forks them may end or be stopped, too."""
    engine, dispatch = machine(3, 3)
    new, *outdated = dispatch.workers
    before = [engine.processes[worker] for worker in outdated]
    for worker in outdated:
        dispatch.on_outdated(worker)
    engine.pass_time(3.0)
    assert [w.state for w in outdated] == [State.STARTING, State.READY]
    engine.end(outdated[0])
    engine.pass_time(3.0)
    assert engine.processes[outdated[1]] is before[1]
    engine.load(0)
    engine.pass_time(1.0)
    assert engine.processes[outdated[1]] is not before[1]


def test_an_outdated_worker_goes_on_while_the_new_one_has_a_suspect():
    engine, dispatch = machine(2, 1, 1)
    new, outdated = dispatch.workers
    engine.end(new)
    engine.pass_time(1.0)
    engine.load(1)
    assert new.has_suspect
    engine.load(0)
    engine.submit(1)
    dispatch.on_outdated(outdated)
    engine.submit(1)
    assert list(outdated.tickets) == [2, 3] and dispatch.room == 1
