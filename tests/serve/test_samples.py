"""A request's own seed: its samples are those that the commands draw with that --seed, whatever is decoded beside it."""

import functools

import pytest
from serving import FLAGS, listening

from fairseq_ext import Engine, Translator, UsageError
from fairseq_ext.engine.jobs import Job
from fairseq_ext.engine.worker import load
from fairseq_ext.serve.settings import Settings

SAMPLES = {name: value for name, value in FLAGS.items() if name not in ("stop", "stream_width")} | {"beam": 4}
LINE = "Die Ärztin öffnet die Akte."
SEEDS = (None, 7, 7, 2**32 - 1)


@functools.cache
def drawn(select: str, seed: int) -> list[tuple[str, float]]:
    """The samples of a run with --seed, the line being its first."""
    translator = Translator(**SAMPLES, select=select, seed=seed)
    return [(h.text, round(h.score, 4)) for h in translator.translate([LINE], nbest=4)[0]]


def test_the_server_draws_by_a_requests_seed():
    with Engine(**SAMPLES, select="sampling", seed=3) as engine, listening(engine, Settings(max_lines=8)) as client:
        engine.wait(180)
        records = [{"source": LINE, "nbest": 4, "seed": seed} for seed in SEEDS]
        together = client.post("/v1/translate", json=records).json()
        for seed, answer in zip(SEEDS, together, strict=True):
            assert [(h["text"], round(h["score"], 4)) for h in answer["nbest"]] == drawn("sampling", 3 if seed is None else seed)
        assert client.post("/v1/translate", json=records[1]).json()["nbest"] == together[1]["nbest"] != together[0]["nbest"]
        found = client.post("/translate", json={"q": LINE, "source": "de", "target": "en", "alternatives": 3}).json()
        texts = list(dict.fromkeys(h["text"] for h in together[0]["nbest"]))
        assert [found["translatedText"], *found["alternatives"]] == texts and len(texts) > 1
        for seed, said in ((-1, "seed is -1: give a whole number from 0"), (2**32, "give a whole number"), (True, 'has true for "seed"')):
            wrong = client.post("/v1/translate", json={"source": LINE, "seed": seed})
            assert wrong.status_code == 400 and said in wrong.json()["error"]


def test_a_server_that_draws_nothing_refuses_a_seed(client):
    wrong = client.post("/v1/translate", json={"source": LINE, "seed": 1})
    said = "seed is of samples, and this search draws none: leave it out, or use --select sampling or gumbel"
    assert (wrong.status_code, wrong.json()) == (400, {"error": said})
    with pytest.raises(UsageError, match="seed is of samples"):
        Translator(**SAMPLES).translate([LINE], seed=1)


@pytest.mark.parametrize("select", ["sampling", "gumbel"])
def test_requests_in_one_search_and_calls_of_python_draw_by_their_seeds(select):
    decoding = load({**SAMPLES, "select": select, "seed": 3, "stream_width": 3})
    for number, seed in enumerate(SEEDS):
        decoding.add(number, Job(LINE, nbest=4, seed=seed))
    while decoding.busy:
        decoding.work()
    answers = dict(decoding.events)
    translator = Translator(**SAMPLES, select=select, seed=3)
    other = translator.translate(["Guten Morgen.", LINE], nbest=4, seed=7)
    for number, seed in enumerate(SEEDS):
        expected = drawn(select, 3 if seed is None else seed)
        assert [(h.text, round(h.score, 4)) for h in answers[number].hypotheses] == expected
        called = translator.translate([LINE], nbest=4, seed=seed)[0]
        assert [(h.text, round(h.score, 4)) for h in called] == expected
    assert [h.text for h in next(translator.translate_iter([LINE], nbest=4, seed=7))] == [text for text, _ in drawn(select, 7)]
    seven = Translator(**SAMPLES, select=select, seed=7).translate(["Guten Morgen.", LINE], nbest=4)
    assert [[h.text for h in nbest] for nbest in other] == [[h.text for h in nbest] for nbest in seven]
