"""Engine: worker processes that come and go, one queue, futures; every request is answered once.
And code of users in it: what it raises is its own request's, what it waits for delays no one else.
"""

import os
import random
import signal
import sys
import threading
import time
from concurrent.futures import CancelledError
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from sizes import part_of
from test_decoding import FLAGS, LINES
from test_translator_types import values

from fairseq_ext import Engine, Translator, UsageError
from fairseq_ext.engine.callbacks import Threads
from fairseq_ext.engine.tickets import Busy, Closed, WorkerDied
from fairseq_ext.search.report import Report

HERE = Path(__file__).parent
PATIENCE = 120  # seconds for anything, on a machine that does much else


@pytest.fixture(scope="module")
def translator():
    return Translator(**FLAGS)


@pytest.fixture(scope="module")
def engine():
    """Two workers that die over a source of 4 tokens, and fail at one of 5 (deadly.py)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAIRSEQ_EXT_STRATEGIES", str(HERE / "deadly.py"))
        with Engine(**FLAGS, stop="deadly", stream_width=4, cpu_workers=2) as made:
            made.wait(PATIENCE)
            yield made


@pytest.fixture(scope="module")
def sources(translator):
    """Lines that nothing dies over."""
    return [line for line in LINES if translator.encode(line).numel() > 7][:12]


@pytest.fixture(scope="module")
def expected(translator, sources):
    """Of the first eight."""
    return texts(translator, sources[:8])


def submitted(engine, lines):
    return [engine.submit(line) for line in lines]


def texts_of(futures):
    return [future.result(PATIENCE).text for future in futures]


def answers(engine, lines):
    return texts_of(submitted(engine, lines))


class OfTheCaller(str):
    """A text of a class that is not there where a worker reads it."""

    __module__ = "of_the_caller"


sys.modules["of_the_caller"] = SimpleNamespace(OfTheCaller=OfTheCaller)


def of_tokens(translator, tokens):
    """A source of `tokens` tokens, EOS included."""
    parts = (" ".join(line.split()[:n]) for line in LINES for n in range(1, 8))
    return next(part for part in parts if translator.encode(part).numel() == tokens)


def workers_of(engine):
    """Process ids of the workers that are there, also where the fork server started warm."""
    processes = [*engine.loop.pool.processes]
    return [
        each.pid
        for each in processes
        if each.pid is not None
        and each is not engine.fork_server.process
        and Path(f"/proc/{each.pid}").exists()
    ]


def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def texts(translator, lines):
    return [found[0].text for found in translator.translate(lines)]


def test_threads_get_what_the_translator_gives(engine, translator, sources):
    given = dict(zip(sources, texts(translator, sources), strict=True))
    found = []

    def query(lines):
        found.extend((line, engine.submit(line).result(PATIENCE)) for line in lines)

    threads = [threading.Thread(target=query, args=(sources[i::3] * 2,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2 * len(sources) and engine.pending == 0
    for line, answer in found:
        assert answer.text == given[line] and answer.queued >= 0 and answer.decoded > 0


@pytest.mark.parametrize(
    ("tokens", "error", "says", "deaths"),
    [
        (4, WorkerDied, "two worker processes died over it", 2),
        (5, RuntimeError, "LookupError: no room for this one", 0),
    ],
    ids=["it kills its worker twice", "its step fails"],
)
def test_a_request_among_others_has_an_error_and_these_have_their_answers(
    engine, translator, sources, expected, tokens, error, says, deaths
):
    """The others of a step that fails run again, each alone."""
    before = engine.restarts
    good = submitted(engine, sources[:4])
    wrong = engine.submit(of_tokens(translator, tokens))
    good += submitted(engine, sources[4:8])
    with pytest.raises(error, match=says):
        wrong.result(PATIENCE)
    assert texts_of(good) == expected
    assert engine.restarts == before + deaths and engine.pending == 0


def test_cancelled_requests_make_room(engine, sources):
    futures = [engine.submit(" ".join(sources[:3])) for _ in range(30)]
    assert engine.pending == 30
    assert all(future.cancel() for future in futures[1:])
    with pytest.raises(CancelledError):
        futures[5].result()
    assert engine.pending <= 1 and futures[0].result(PATIENCE).text
    start = time.monotonic()
    assert engine.submit(sources[0]).result(PATIENCE).text
    assert time.monotonic() - start < 20


def test_a_full_queue_says_when_to_try_again(engine, sources, monkeypatch):
    monkeypatch.setattr(engine, "max_queue", 3)
    futures = []
    with pytest.raises(Busy) as error:
        for _ in range(40):
            futures.append(engine.submit(sources[0]))
    assert error.value.retry_after >= 1 and "3 requests are waiting" in str(error.value)
    assert len({future.result(PATIENCE).text for future in futures}) == 1


def test_parallel_decoding_streams_what_is_verified_while_it_runs(warm_processes, sources):
    source = " ".join(sources[:6])
    with Engine(**{**FLAGS, "beam": 1}, decoding="window", block_size=4) as engine:
        engine.wait(PATIENCE)
        *parts, answer = engine.stream(source)
        assert len(parts) > 3 and all(answer.text.startswith(part.text) for part in parts)
        counts = [part.tokens for part in parts]
        assert counts == sorted({*counts}) and isinstance(answer, Report)


def test_what_cannot_be_loaded_is_reported_to_all(warm_processes):
    with pytest.raises(UsageError, match="^nbest is <function .*: give text or a path, a number"):
        Engine(**FLAGS, nbest=lambda: 1)  # type: ignore[arg-type]
    with Engine(**(FLAGS | {"path": "none.pt"}), cpu_workers=8) as engine:
        waiting = engine.submit("Ja.")
        for call in (engine.wait, waiting.result, lambda _: engine.submit("Ja.")):
            with pytest.raises(UsageError, match="none"):
                call(PATIENCE)
        children = Path(f"/proc/self/task/{engine.loop.native_id}/children")
        until(lambda: not children.read_text().split())


def test_closing_with_grace_finishes_what_runs_and_without_it_says_the_rest(
    warm_processes, translator, sources
):
    engine = Engine(**FLAGS)
    futures = submitted(engine, sources[:3])  # before the model is loaded
    engine.close(grace=PATIENCE)
    assert [future.result(0).text for future in futures] == texts(translator, sources[:3])
    with pytest.raises(Closed):
        engine.submit("Ja.")
    engine = Engine(**FLAGS)
    left = engine.submit(sources[0])
    engine.close()
    with pytest.raises(Closed, match="closed before the request was answered"):
        left.result(0)


def test_processes_that_cannot_start_are_reported(monkeypatch):
    monkeypatch.setenv("FAIRSEQ_EXT_STRATEGIES", "/nowhere/none.py")
    said = "ended before it was loaded: see their messages on standard error"
    with Engine(**FLAGS) as engine, pytest.raises(UsageError, match=said):
        engine.wait(PATIENCE)


OF_TEXT = ({"text": None}, {"format": "htlm"}, {"protect": "a"}, {"protect": ["("]})
OF_TEXT += ({"languages": [5, 5]}, {"on_partial": 5})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"constraints": "bandage"}, "constraints is 'bandage': give a list of phrases"),
        ({"constraints": [""]}, "the request has an empty phrase"),
        ({"source": ["Ja."]}, "the source is list, and a sentence is a text"),
        ({"any_of": ["bandage"]}, "an entry of any_of is 'bandage': give a list of phrases"),
        ({"avoid": [None]}, 'the request has null for a phrase in "avoid"'),
        ({"glossaries": ["a.tsv"]}, "glossaries has 'a.tsv': give each as a GlossaryFile"),
        ({"terms": ["a"]}, "terms is ['a']: give a dictionary of terms"),
        ({"terms": {"a": 5}}, "terms has 5: give text"),
        ({"number": None}, "number is None: give a whole number"),
        ({"number": -1}, "number is -1: count sentences from 0"),
        ({"languages": {"de", "en"}}, "languages is {"),
        ({"languages": ["\ud800", "en"]}, "languages is ['\\ud800', 'en']: give source and"),
        ({"languages": "de"}, "languages is one string, and a list is needed"),
        ({"on_partial": 5}, "on_partial is 5: give a function"),
        ({"seed": OfTheCaller("1")}, "seed is '1': give a whole number"),
        ({"align": OfTheCaller("x")}, "align is 'x': give True or False"),
        *(({"text": "Ja.", **wrong}, "") for wrong in OF_TEXT),
    ],
)
def test_arguments_of_wrong_types_are_refused_at_once(engine, given, said):
    with pytest.raises(UsageError) as raised:
        engine.submit_text(**given) if "text" in given else engine.submit(
            **{"source": "Ja.", **given}
        )
    assert str(raised.value).startswith(said)


def test_texts_may_be_of_a_class_that_the_workers_lack(engine, sources):
    """A class of a program's own, as those of texts that know whether they are safe HTML."""
    before, of_caller = engine.restarts, OfTheCaller(sources[0])
    given = {
        "constraints": [OfTheCaller("bandage")],
        "terms": {OfTheCaller("Ja"): OfTheCaller("yes")},
        "languages": [OfTheCaller("de"), "en"],
    }
    found = engine.submit(of_caller, **given).result(PATIENCE)
    usual = engine.submit(sources[0], constraints=["bandage"]).result(PATIENCE)
    assert (found.text, engine.restarts) == (usual.text, before)
    plain = engine.submit_text(of_caller, languages=np.array(["de", "en"])).result(PATIENCE)
    assert plain.text == answers(engine, sources[:1])[0]
    terms = {"nothing\nPatient": "house"}  # a line break in a term begins no second one
    assert not engine.submit("Der Patient hat einen Port.", terms=terms).result(60).constraints


def test_arguments_of_any_type_give_an_answer_or_one_sentence(engine, sources):
    names = "source constraints any_of avoid prefix glossaries terms nbest align"
    names += " languages seed number"
    chance, refused = random.Random(59), 0
    for _ in part_of(3000, 300):
        drawn = chance.sample(names.split(), chance.randint(1, 2))
        given = {"source": sources[0]} | {name: values(chance) for name in drawn}
        try:
            engine.submit(**given).result(PATIENCE)
        except UsageError as error:
            refused += 1
            assert "\n" not in str(error), given
        except Exception as error:
            raise AssertionError(f"submit(**{given}) raises {error!r}") from error
    assert refused > 200


@pytest.mark.parametrize("given", [{"cpu_workers": "2"}, {"max_queue": "9"}, {"longest": 2.5}])
def test_numbers_of_an_engine_are_whole(given):
    with pytest.raises(UsageError, match=next(iter(given)).replace("_", ".")):
        Engine(**FLAGS, **given)


# ---- code of users


@pytest.fixture(scope="module")
def streamed(sources):
    """A request of which something is certain at once."""
    return {"source": " ".join(sources[:4]), "prefix": "The"}


@pytest.mark.parametrize("error", [RuntimeError("no screen"), SystemExit(3)])
def test_what_a_callback_raises_is_the_error_of_its_own_request(
    engine, expected, sources, streamed, error, caplog
):
    """And one of a future that is done costs no one anything."""

    def raising(_):
        raise error

    restarts = engine.restarts
    wrong = engine.submit(**streamed, on_partial=raising)
    good = submitted(engine, sources[:8])
    for future in good:
        future.add_done_callback(raising)
    with pytest.raises(type(error)) as found:
        wrong.result(PATIENCE)
    assert found.value is error and texts_of(good) == expected
    until(lambda: "has failed" in caplog.text)
    assert answers(engine, sources[:8]) == expected
    assert engine.ready and engine.pending == 0 and engine.restarts == restarts


def test_callbacks_that_wait_delay_no_one_and_are_called_in_order(
    engine, expected, sources, streamed
):
    """More of them than the engine decodes at once; each is in a callback until all
    others are answered."""
    go, received = threading.Event(), []

    def waiting(part):
        received.append(part)
        assert go.wait(PATIENCE)

    slow = [engine.submit(**streamed, on_partial=waiting) for _ in range(10)]
    held = submitted(engine, sources[:6])
    order = []
    for future in held:
        future.add_done_callback(lambda _: go.wait(PATIENCE))
    held[0].add_done_callback(lambda _: order.append("second"))
    held[0].add_done_callback(lambda _: order.append("third"))
    assert answers(engine, sources[:8]) == expected
    assert texts_of(held) == expected[:6], "a future is done before its callbacks are called"
    assert len(received) == 10 and not order and not any(future.done() for future in slow)
    go.set()
    assert len({future.result(PATIENCE).text for future in slow}) == 1
    until(lambda: len(order) == 2)
    assert order == ["second", "third"] and engine.pending == 0


def test_a_callback_may_call_the_engine(engine, expected, sources, streamed):
    """It holds no lock, and the thread that hears the worker is free."""
    requested = []

    def call(part):
        if not requested:
            requested.extend(answers(engine, sources[:1]))

    future = engine.submit(**streamed, on_partial=call)
    assert future.result(PATIENCE).text and requested == expected[:1]


def test_partial_results_end_with_the_future(engine, streamed):
    received = []
    future = engine.submit(
        **streamed, on_partial=lambda part: (received.append(part), future.cancel())
    )
    with pytest.raises(CancelledError):
        future.result(PATIENCE)
    until(lambda: engine.pending == 0)
    assert len(received) == 1


def test_a_listener_that_fails_reports_its_worker_as_lost(
    engine, expected, sources, caplog, monkeypatch
):
    """Whatever the reason: here, a message that cannot be dealt with."""
    restarts, faults = engine.restarts, [KeyError("a fault of ours")]

    def once(work):
        if faults:
            raise faults.pop()

    with monkeypatch.context() as patch:
        patch.setattr(engine.loop.done, "add", once, raising=False)
        assert answers(engine, sources[:8]) == expected
    until(lambda: engine.restarts == restarts + 1 and engine.ready)
    for said in ("a message of a worker cannot be read, and the worker is replaced", "of ours"):
        assert said in caplog.text


def test_where_no_worker_can_be_started_every_request_has_the_error(
    warm_processes, expected, sources, monkeypatch
):
    """None waits for ever."""
    monkeypatch.setattr("fairseq_ext.core.supervision.STARTS", 1.0)

    def failing():
        raise OSError("too many processes")

    with Engine(**FLAGS, stream_width=4) as engine:
        assert answers(engine, sources[:1]) == expected[:1]
        monkeypatch.setattr(engine.fork_server, "fork", failing)
        os.kill(workers_of(engine)[0], signal.SIGKILL)
        waiting = engine.submit(sources[0])
        said = "no process that translates can be started .OSError: too many processes."
        with pytest.raises(UsageError, match=said):
            waiting.result(PATIENCE)
        until(lambda: engine.loop.failed is not None)
        with pytest.raises(UsageError, match="no process that translates"):
            engine.submit(sources[0])


def test_a_request_that_cannot_be_sent_has_an_error_and_others_an_answer(
    engine, expected, sources, monkeypatch
):
    """Whatever the reason: what is known to have none is refused before."""

    def failing(message):
        raise MemoryError("no room for a copy")

    with monkeypatch.context() as patch:
        patch.setattr("fairseq_ext.engine.loop.pickle", SimpleNamespace(dumps=failing))
        wrong = engine.submit(sources[0])
    with pytest.raises(UsageError, match="the request cannot be sent to a process"):
        wrong.result(PATIENCE)
    assert answers(engine, sources[:8]) == expected and engine.pending == 0


def test_threads_are_shared_and_end(monkeypatch):
    monkeypatch.setattr("fairseq_ext.engine.callbacks.IDLE", 0.2)
    threads, names, gate = Threads(), set(), threading.Event()
    others = {*threading.enumerate()}

    def alive():
        own = {*threading.enumerate()} - others
        return sum(each.name == "fairseq_ext callback" for each in own)

    def note():
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

    def refuses(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuses)
        names.clear()
        threads.run(note)
        threads.start_waiting()
        assert not names, "the I/O thread may call this, in which no user's code runs"
        gate.clear()
        threads.run(lambda: gate.wait(PATIENCE))  # it waits for the next one
        threads.run(gate.set)

    def served():
        """As the loop of an engine calls it."""
        if threads.is_short:
            threads.start_waiting()
        return gate.is_set()

    until(served)
    assert threading.get_ident() not in names and not threads.waiting
