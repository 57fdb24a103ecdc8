"""A request's own seed: its samples are those that the commands draw with that --seed, whatever
is decoded next to it."""

import functools
import io
import re
import zipfile
from concurrent.futures import Future
from pathlib import Path

import pytest
from conftest import warm_starts
from office_files import W
from serving import FLAGS, libre, listening, upload, v1

from fairseq_ext import Engine, Translator, UsageError
from fairseq_ext.engine.worker import load
from fairseq_ext.search.report import Report, Translation
from fairseq_ext.search.request import Request
from fairseq_ext.serve import Settings
from fairseq_ext.serve.models import pivoted
from fairseq_ext.text.__main__ import through_translator
from fairseq_ext.text.files import translate

SAMPLES = {k: v for k, v in FLAGS.items() if k not in ("stop", "stream_width")} | {"beam": 4}
LINE = "Die Ärztin öffnet den Ordner."
MANY = 2**32 - 1
# of a docx, paragraphs in each; their sentences are counted together
PARTS = {"word/document.xml": 4, "word/header1.xml": 2}


@functools.cache
def seeded(seed: int, backend: str = "auto") -> Translator:
    return Translator(**SAMPLES, select="sampling", seed=seed, decoder_backend=backend)


def drawn(seed: int, backend: str = "auto") -> list[tuple[str, float]]:
    """The samples of a run with --seed, the line being its first."""
    found = seeded(seed, backend).translate([LINE], nbest=4)[0]
    return [(h.text, round(h.score, 4)) for h in found]


@pytest.fixture(scope="module")
def sampling():
    """An engine that draws samples with seed 3, and a client of a server over it."""
    with warm_starts():
        engine = Engine(**SAMPLES, select="sampling", seed=3)
        engine.wait(180)
    with engine, listening(engine, Settings(max_lines=8)) as client:
        yield engine, client


def test_the_server_draws_by_a_requests_seed(sampling):
    _, client = sampling
    seeds = {None: 3, 7: 7, MANY: MANY}
    together = v1(client, [{"source": LINE, "nbest": 4, "seed": seed} for seed in seeds]).json()
    for seed, answer in zip(seeds.values(), together, strict=True):
        assert [(h["text"], round(h["score"], 4)) for h in answer["nbest"]] == drawn(seed)
    found = libre(client, LINE, alternatives=3)
    texts = list(dict.fromkeys(h["text"] for h in together[0]["nbest"]))
    assert [found["translatedText"], *found["alternatives"]] == texts and len(texts) > 1
    for seed, said in ((-1, "seed is -1: give a whole number from 0"), (MANY + 1, "whole number")):
        wrong = v1(client, {"source": LINE, "seed": seed})
        assert wrong.status_code == 400 and said in wrong.json()["error"]


def test_each_sentence_of_a_text_has_its_own_samples_by_every_entry(sampling, tmp_path):
    """The i-th draws as the i-th line of a file does, though all are equal."""
    engine, client = sampling
    line, format = "Der Patient hat einen Port.", "html"
    text, page = f"{line} {line}\n{line}  {line}", f"<p title='{line}'>{line} {line}</p>"
    three, found = (
        [nbest[0].text for nbest in seeded(seed).translate([line] * 6)] for seed in (3, 7)
    )
    assert len(set(found[:4])) > 1 and len(set(three)) > 1
    expected = "{} {}\n{}  {}".format(*found), "<p title='{}'>{} {}</p>".format(*found)
    there = tmp_path / "in.docx"
    with zipfile.ZipFile(there, "w") as archive:
        for name, times in PARTS.items():
            archive.writestr(
                name,
                f"<w:document xmlns:w='{W}'>{f'<w:p><w:r><w:t>{line}</w:t></w:r></w:p>' * times}"
                "</w:document>",
            )
    records = [{"source": text, "seed": 7}, {"source": page, "seed": 7, "format": format}]
    assert [answer["text"] for answer in v1(client, records).json()] == [*expected]
    assert engine.submit_text(text, seed=7).result(60).text == expected[0]
    made = upload(client, there.name, there.read_bytes()).json()
    made = client.get(made["translatedFileUrl"]).content
    assert texts_of(io.BytesIO(made)) == three
    assert [seeded(7).translate_text(*each).text for each in ((text,), (page, format))] == [
        *expected
    ]
    translate(str(there), str(tmp_path / "out.docx"), through_translator(seeded(7), (), []))
    assert texts_of(tmp_path / "out.docx") == found


def texts_of(docx: Path | io.BytesIO) -> list[str]:
    with zipfile.ZipFile(docx) as archive:
        return re.findall(
            "(?<=>)[^<>]+(?=</w:t>)", "".join(archive.read(name).decode() for name in PARTS)
        )


def test_both_models_of_a_pair_draw_by_the_seed():
    requested = []

    def submit(request):
        future = Future()
        future.set_result(Report([Translation(request.source + "'", [], 0.0, [])]))
        requested.append((request.source, request.seed, request.number))
        return future

    both = pivoted(submit, submit, lambda: lambda: None)
    assert both(Request(2, "a", seed=7)).result().text == "a''"
    assert both(Request(source="b")).result().text == "b''"
    seeds = [(source, seed) for source, seed, _ in requested]
    assert seeds == [("a", 7), ("a'", 7), ("b", None), ("b'", None)]
    numbers = [number for *_, number in requested]
    assert numbers[::2] == [2, 0] and len({*numbers}) == 4  # noise that is unrelated


def test_requests_of_one_search_and_calls_of_python_draw_by_their_seeds():
    """Of the loop, whose sentences come and go."""
    loop = "fairseq"  # a backend without a compiled search
    flags = {**SAMPLES, "select": "sampling", "decoder_backend": loop}
    decoding = load({**flags, "seed": 3, "stream_width": 2})
    for number, seed in enumerate((None, 7, 7)):
        decoding.add(number, Request(0, LINE, nbest=4, seed=seed))
    while decoding.busy:
        decoding.work()
    three, seven = seeded(3, loop), seeded(7, loop)
    for number, seed in enumerate((3, 7, 7)):
        found = [(h.text, round(h.score, 4)) for h in dict(decoding.events)[number].hypotheses]
        assert found == drawn(seed, loop) != drawn(10 - seed, loop)
    lines = ["Guten Morgen.", LINE]
    expected = [[h.text for h in nbest] for nbest in seven.translate(lines, nbest=4)]
    one_by_one = three.translate_iter(lines, 4, buffer=1, seed=7)
    for calls in (three.translate(lines, 4, seed=7), one_by_one):
        assert [[h.text for h in nbest] for nbest in calls] == expected
    with pytest.raises(UsageError, match="seed is 1.5"):
        three.translate([LINE], seed=1.5)
