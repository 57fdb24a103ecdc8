"""Code of users in an engine: what it raises is its own request's, what it waits for delays no one
else, and no listener dies of it."""

import os
import signal
import threading
from types import SimpleNamespace

import pytest
from conftest import warm_starts
from test_decoding import FLAGS, LINES
from test_engine import PATIENCE, until, workers_of

from fairseq_ext import Engine, Translator, UsageError
from fairseq_ext.engine.callbacks import Threads
from fairseq_ext.engine.tickets import Partial

SOURCE = " ".join(LINES[:4])
STREAMED = {"source": SOURCE, "prefix": "The"}  # so that something is certain at once


@pytest.fixture(scope="module")
def engine():
    with warm_starts():
        made = Engine(**FLAGS, stream_width=4)
        made.wait(PATIENCE)
    with made:
        yield made


@pytest.fixture(scope="module")
def expected() -> list[str]:
    return [found[0].text for found in Translator(**FLAGS).translate(LINES[:8])]


def answers(engine: Engine, lines: list[str]) -> list[str]:
    return [future.result(PATIENCE).text for future in [engine.submit(line) for line in lines]]


@pytest.mark.parametrize("error", [RuntimeError("no screen"), SystemExit(3)])
def test_what_a_callback_raises_is_the_error_of_its_own_request(engine, expected, error):
    def raising(part: Partial) -> None:
        raise error

    restarts = engine.restarts
    wrong = engine.submit(**STREAMED, on_partial=raising)
    assert answers(engine, LINES[:8]) == expected
    with pytest.raises(type(error)) as found:
        wrong.result(PATIENCE)
    assert found.value is error
    assert answers(engine, LINES[:8]) == expected
    assert engine.ready and engine.pending == 0 and engine.restarts == restarts


def test_callbacks_that_wait_delay_no_one_and_are_called_in_order(engine, expected):
    """More of them than the engine decodes at once; each is in a callback until all
    others are answered."""
    go, received = threading.Event(), []

    def waiting(part: Partial) -> None:
        received.append(part)
        assert go.wait(PATIENCE)

    slow = [engine.submit(**STREAMED, on_partial=waiting) for _ in range(6)]
    held = [engine.submit(line) for line in LINES[:6]]
    order: list[str] = []
    for future in held:
        future.add_done_callback(lambda _: go.wait(PATIENCE))
    held[0].add_done_callback(lambda _: order.append("second"))
    held[0].add_done_callback(lambda _: order.append("third"))
    assert answers(engine, LINES[:8]) == expected
    assert [future.result(PATIENCE).text for future in held] == expected[:6], (
        "a future is done before its callbacks are called"
    )
    assert len(received) == 6 and not order and not any(future.done() for future in slow)
    go.set()
    assert len({future.result(PATIENCE).text for future in slow}) == 1
    until(lambda: len(order) == 2)
    assert order == ["second", "third"] and engine.pending == 0


def test_a_callback_may_call_the_engine(engine, expected):
    """It holds no lock, and the thread that hears the worker is free."""
    requested: list[str] = []
    future = engine.submit(
        **STREAMED,
        on_partial=lambda part: (
            requested.extend(answers(engine, LINES[:1])) if not requested else None
        ),
    )
    assert future.result(PATIENCE).text and requested == expected[:1]


def test_a_done_callback_that_raises_costs_no_one_anything(engine, expected, caplog):
    def leaving(future) -> None:
        raise SystemExit(1)

    futures = [engine.submit(line) for line in LINES[:8]]
    for future in futures:
        future.add_done_callback(leaving)
    assert [future.result(PATIENCE).text for future in futures] == expected
    assert answers(engine, LINES[:8]) == expected
    until(lambda: "has failed" in caplog.text)


def test_partial_results_end_with_the_future(engine):
    received: list[Partial] = []
    future = engine.submit(
        **STREAMED, on_partial=lambda part: (received.append(part), future.cancel())
    )
    with pytest.raises((Exception, BaseException)):
        future.result(PATIENCE)
    until(lambda: engine.pending == 0)
    assert len(received) == 1


def test_a_listener_that_fails_reports_its_worker_as_lost(engine, expected, caplog, monkeypatch):
    """Whatever the reason: here, a message that cannot be dealt with."""
    restarts, failed = engine.restarts, []

    def once(work) -> None:
        if not failed:
            failed.append(work)
            raise KeyError("a fault of ours")

    with monkeypatch.context() as patch:
        patch.setattr(engine.loop.done, "add", once, raising=False)
        futures = [engine.submit(line) for line in LINES[:8]]
        assert [future.result(PATIENCE).text for future in futures] == expected
    until(lambda: engine.restarts == restarts + 1 and engine.ready)
    for said in ("a message of a worker cannot be read, and the worker is replaced", "of ours"):
        assert said in caplog.text


def test_where_no_worker_can_be_started_every_request_has_the_error(
    warm_processes, expected, monkeypatch
):
    """None waits for ever."""
    monkeypatch.setattr("fairseq_ext.core.supervision.STARTS", 1.0)

    def failing() -> None:
        raise OSError("too many processes")

    with Engine(**FLAGS, stream_width=4) as engine:
        assert answers(engine, LINES[:1]) == expected[:1]
        monkeypatch.setattr(engine.fork_server, "fork", failing)
        os.kill(workers_of(engine)[0], signal.SIGKILL)
        waiting = engine.submit(LINES[0])
        said = "no process that translates can be started .OSError: too many processes."
        with pytest.raises(UsageError, match=said):
            waiting.result(PATIENCE)
        until(lambda: engine.loop.failed is not None)
        sizes = set()
        for _ in range(3):  # a traceback that grew would keep all that it has seen
            with pytest.raises(UsageError, match="no process that translates") as raised:
                engine.submit(LINES[0])
            sizes.add(len(raised.traceback))
        assert len(sizes) == 1


def test_a_request_that_cannot_be_sent_has_an_error_and_others_an_answer(
    engine, expected, monkeypatch
):
    """Whatever the reason: what is known to have none is refused before."""

    def failing(message) -> bytes:
        raise MemoryError("no room for a copy")

    with monkeypatch.context() as patch:
        patch.setattr("fairseq_ext.engine.loop.pickle", SimpleNamespace(dumps=failing))
        wrong = engine.submit(LINES[0])
    with pytest.raises(UsageError, match="the request cannot be sent to a process"):
        wrong.result(PATIENCE)
    assert answers(engine, LINES[:8]) == expected and engine.pending == 0


def test_threads_are_shared_and_end(monkeypatch):
    monkeypatch.setattr("fairseq_ext.engine.callbacks.IDLE", 0.2)
    threads, names, gate = Threads(), set(), threading.Event()

    others = {*threading.enumerate()}

    def alive() -> int:
        threads_of_test = {*threading.enumerate()} - others
        return sum(each.name == "fairseq_ext callback" for each in threads_of_test)

    def note() -> None:
        names.add(threading.current_thread().ident)

    for _ in range(20):
        threads.run(note)
        until(lambda: len(threads.idle) == 1)
    assert len(names) == 1
    started = alive()
    for _ in range(5):
        threads.run(gate.wait)
    assert alive() == started + 4
    gate.set()
    until(lambda: not threads.idle and alive() == started - 1)
    with monkeypatch.context() as patch:
        patch.setattr(
            threading.Thread,
            "start",
            lambda self: (_ for _ in ()).throw(RuntimeError("can't start new thread")),
        )
        names.clear()
        threads.run(note)
        threads.start_waiting()
        assert not names, "the I/O thread may call this, in which no user's code runs"
        gate.clear()
        threads.run(lambda: gate.wait(PATIENCE))  # it waits for the next one
        threads.run(gate.set)

    def served() -> bool:
        """As the loop of an engine calls it."""
        if threads.is_short:
            threads.start_waiting()
        return gate.is_set()

    until(served)
    assert threading.get_ident() not in names and not threads.waiting
