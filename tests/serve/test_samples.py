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
MANY = 2**32 - 1


@functools.cache
def seeded(select: str, seed: int) -> Translator:
    return Translator(**SAMPLES, select=select, seed=seed)


def drawn(select: str, seed: int) -> list[tuple[str, float]]:
    """The samples of a run with --seed, the line being its first."""
    return [(h.text, round(h.score, 4)) for h in seeded(select, seed).translate([LINE], nbest=4)[0]]


def test_the_server_draws_by_a_requests_seed():
    with Engine(**SAMPLES, select="sampling", seed=3) as engine, listening(engine, Settings(max_lines=8)) as client:
        engine.wait(180)
        records = [{"source": LINE, "nbest": 4, "seed": seed} for seed in (None, 7, 7, MANY)]
        together = client.post("/v1/translate", json=records).json()
        for seed, answer in zip((3, 7, 7, MANY), together, strict=True):
            assert [(h["text"], round(h["score"], 4)) for h in answer["nbest"]] == drawn("sampling", seed)
        assert client.post("/v1/translate", json=records[1]).json()["nbest"] == together[1]["nbest"] != together[0]["nbest"]
        found = client.post("/translate", json={"q": LINE, "source": "de", "target": "en", "alternatives": 3}).json()
        texts = list(dict.fromkeys(h["text"] for h in together[0]["nbest"]))
        assert [found["translatedText"], *found["alternatives"]] == texts and len(texts) > 1
        for seed, said in ((-1, "seed is -1: give a whole number from 0"), (MANY + 1, "a whole number"), (True, 'has true for "seed"')):
            wrong = client.post("/v1/translate", json={"source": LINE, "seed": seed})
            assert wrong.status_code == 400 and said in wrong.json()["error"]


def test_a_server_that_draws_nothing_refuses_a_seed(client):
    wrong = client.post("/v1/translate", json={"source": LINE, "seed": 1})
    said = "seed is of samples, and this search draws none: leave it out, or use --select sampling or gumbel"
    assert (wrong.status_code, wrong.json()) == (400, {"error": said})


def test_requests_of_one_search_and_calls_of_python_draw_by_their_seeds():
    """Of the loop, whose sentences come and go."""
    decoding = load({**SAMPLES, "select": "gumbel", "seed": 3, "stream_width": 2})
    for number, seed in enumerate((None, 7, 7)):
        decoding.add(number, Job(LINE, nbest=4, seed=seed))
    while decoding.busy:
        decoding.work()
    three, seven = seeded("gumbel", 3), seeded("gumbel", 7)
    for number, seed in enumerate((3, 7, 7)):
        found = [(h.text, round(h.score, 4)) for h in dict(decoding.events)[number].hypotheses]
        assert found == drawn("gumbel", seed) != drawn("gumbel", 10 - seed)
    lines = ["Guten Morgen.", LINE]
    expected = [[h.text for h in nbest] for nbest in seven.translate(lines, nbest=4)]
    for calls in (three.translate(lines, 4, seed=7), three.translate_iter(lines, 4, buffer=1, seed=7)):
        assert [[h.text for h in nbest] for nbest in calls] == expected
    with pytest.raises(UsageError, match="seed is 1.5"):
        three.translate([LINE], seed=1.5)
