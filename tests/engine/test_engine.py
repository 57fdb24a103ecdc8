"""Engine: worker processes that come and go, one queue, futures; every request is answered once."""

import random
import sys
import threading
import time
from concurrent.futures import CancelledError
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from sizes import drawn, part_of
from test_decoding import FLAGS, LINES
from test_translator_types import values

from fairseq_ext import Engine, Translator, UsageError
from fairseq_ext.engine.tickets import Busy, Closed, WorkerDied
from fairseq_ext.search.report import Report

HERE = Path(__file__).parent
PATIENCE = 120  # seconds for anything, on a machine that does much else


@pytest.fixture(scope="module")
def translator() -> Translator:
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
def sources(translator) -> list[str]:
    """Lines that nothing dies over."""
    return [line for line in LINES if translator.encode(line).numel() > 7][:12]


class OfTheCaller(str):
    """A text of a class that is not there where a worker reads it."""

    __module__ = "of_the_caller"


sys.modules["of_the_caller"] = SimpleNamespace(OfTheCaller=OfTheCaller)


def of_tokens(translator: Translator, tokens: int) -> str:
    """A source of `tokens` tokens, EOS included."""
    parts = (" ".join(line.split()[:n]) for line in LINES for n in range(1, 8))
    return next(part for part in parts if translator.encode(part).numel() == tokens)


def workers_of(engine: Engine) -> list[int]:
    """Process ids of the workers that are there, also where the fork server started warm."""
    processes = [*engine.loop.pool.processes]
    return [
        each.pid
        for each in processes
        if each.pid is not None
        and each is not engine.fork_server.process
        and Path(f"/proc/{each.pid}").exists()
    ]


def until(condition, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def texts(translator: Translator, lines: list[str]) -> list[str]:
    return [found[0].text for found in translator.translate(lines)]


def test_threads_get_what_the_translator_gives(engine, translator, sources):
    expected = dict(zip(sources, texts(translator, sources), strict=True))
    found: list[tuple[str, Report]] = []

    def query(lines: list[str]) -> None:
        for line in lines:
            found.append((line, engine.submit(line).result(PATIENCE)))

    threads = [threading.Thread(target=query, args=(sources[i::3] * 2,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2 * len(sources)
    for line, answer in found:
        assert answer.text == expected[line] and answer.queued >= 0 and answer.decoded > 0
    assert engine.pending == 0


@pytest.mark.parametrize(
    ("tokens", "error", "says", "deaths"),
    [
        (4, WorkerDied, "two worker processes died over it", 2),
        (5, RuntimeError, "LookupError: no room for this one", 0),
    ],
    ids=["it kills its worker twice", "its step fails"],
)
def test_a_request_among_others_has_an_error_and_these_have_their_answers(
    engine, translator, sources, tokens, error, says, deaths
):
    """The others of a step that fails run again, each alone."""
    sources, before, bad = sources[:8], engine.restarts, of_tokens(translator, tokens)
    half = len(sources) // 2
    good = [engine.submit(line) for line in sources[:half]]
    wrong = engine.submit(bad)
    good += [engine.submit(line) for line in sources[half:]]
    with pytest.raises(error, match=says):
        wrong.result(PATIENCE)
    assert [future.result(PATIENCE).text for future in good] == texts(translator, sources)
    assert engine.restarts == before + deaths and engine.pending == 0


def test_cancelled_requests_make_room(engine, sources):
    futures = [engine.submit(" ".join(sources[:3])) for _ in range(30)]
    assert engine.pending == 30
    for future in futures[1:]:
        assert future.cancel()
    with pytest.raises(CancelledError):
        futures[5].result()
    assert engine.pending <= 1
    assert futures[0].result(PATIENCE).text
    start = time.monotonic()
    assert engine.submit(sources[0]).result(PATIENCE).text
    assert time.monotonic() - start < 20


def test_a_full_queue_says_when_to_try_again(engine, sources):
    engine.max_queue = 3
    try:
        futures = []
        with pytest.raises(Busy) as error:
            for _ in range(40):
                futures.append(engine.submit(sources[0]))
        assert error.value.retry_after >= 1 and "3 requests are waiting" in str(error.value)
        assert len({future.result(PATIENCE).text for future in futures}) == 1
    finally:
        engine.max_queue = None


def test_parallel_decoding_streams_what_is_verified_while_it_runs(warm_processes, sources):
    source = " ".join(sources[:6])
    with Engine(**{**FLAGS, "beam": 1}, decoding="window", block_size=4) as engine:
        engine.wait(PATIENCE)
        *parts, answer = engine.stream(source)
        assert len(parts) > 3 and all(answer.text.startswith(part.text) for part in parts)
        counts = [part.tokens for part in parts]
        assert counts == sorted({*counts}) and isinstance(answer, Report)
        running, behind = engine.submit(source), engine.submit(sources[0])
        running.cancel()
        assert (
            behind.result(PATIENCE).text
            == Translator(**{**FLAGS, "beam": 1}).translate([sources[0]])[0][0].text
        )


def test_what_cannot_be_loaded_is_reported_to_all(warm_processes):
    with pytest.raises(UsageError, match="^nbest is <function .*: give text or a path, a number"):
        Engine(**FLAGS, nbest=lambda: 1)  # type: ignore[arg-type]
    with Engine(**(FLAGS | {"path": FLAGS["path"] + ".none"}), cpu_workers=8) as engine:
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
    futures = [engine.submit(line) for line in sources[:3]]  # before the model is loaded
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
    with (
        Engine(**FLAGS) as engine,
        pytest.raises(
            UsageError, match="ended before it was loaded: see their messages on standard error"
        ),
    ):
        engine.wait(PATIENCE)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"constraints": "bandage"}, "constraints is 'bandage': give a list of phrases"),
        ({"constraints": 5}, "constraints is 5: give a list of phrases"),
        ({"constraints": [""]}, "the request has an empty phrase"),
        ({"source": ["Ja."]}, "the source is list, and a sentence is a text"),
        ({"constraints": [{1}]}, 'the request has "{1}" for a phrase in "constraints"'),
        ({"any_of": ["bandage"]}, "an entry of any_of is 'bandage': give a list of phrases"),
        ({"avoid": [None]}, 'the request has null for a phrase in "avoid"'),
        ({"prefix": 0}, 'the request has 0 for a phrase in "prefix"'),
        ({"prefix": np.ones(2)}, "the request has "),
        ({"glossaries": ["a.tsv"]}, "glossaries has 'a.tsv': give each as a GlossaryFile"),
        ({"terms": ["a"]}, "terms is ['a']: give a dictionary of terms"),
        ({"terms": {"a": 5}}, "terms has 5: give text"),
        ({"nbest": "2"}, "nbest is '2': give a whole number"),
        ({"number": None}, "number is None: give a whole number"),
        ({"number": 10**30}, "number is 1000"),
        ({"number": -1}, "number is -1: count sentences from 0"),
        ({"languages": {"de", "en"}}, "languages is {"),
        ({"languages": ["\ud800", "en"]}, "languages is ['\\ud800', 'en']: give source and"),
        ({"languages": "de"}, "languages is one string, and a list is needed"),
        ({"on_partial": 5}, "on_partial is 5: give a function"),
        ({"seed": OfTheCaller("1")}, "seed is '1': give a whole number"),
        ({"align": OfTheCaller("x")}, "align is 'x': give True or False"),
    ],
)
def test_arguments_of_wrong_types_are_refused_at_once(engine, given, said):
    with pytest.raises(UsageError) as raised:
        engine.submit(**{"source": "Ja.", **given})
    assert str(raised.value).startswith(said)


def test_the_languages_of_a_text_may_be_an_array(engine):
    found = [
        engine.submit_text("Ja.", languages=given).result(PATIENCE).text
        for given in (np.array(["de", "en"]), ("de", "en"))
    ]
    assert found[0] == found[1]


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
    assert engine.submit_text(of_caller).result(PATIENCE).text


def test_a_line_break_in_a_term_makes_no_other_term(engine):
    found = engine.submit("Der Patient hat einen Port.", terms={"nothing\nPatient": "house"})
    assert found.result(PATIENCE).constraints == []


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


@pytest.mark.parametrize(
    "given",
    [
        *({"text": None}, {"format": "htlm"}, {"protect": "a"}, {"protect": ["("]}),
        *({"languages": [5, 5]}, {"on_partial": 5}),
    ],
    ids=str,
)
def test_texts_of_wrong_types_are_refused(engine, given):
    with pytest.raises(UsageError):
        engine.submit_text(**{"text": "Ja.", **given})


@drawn(1)
@pytest.mark.parametrize("given", [{"cpu_workers": "2"}, {"max_queue": "9"}, {"longest": 2.5}])
def test_numbers_of_an_engine_are_whole(warm_processes, given):
    with pytest.raises(UsageError, match=next(iter(given)).replace("_", ".")):
        Engine(**FLAGS, **given)
