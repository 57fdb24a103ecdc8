"""Texts through an engine are what they are through a translator; the result of their segments
is reported as the text's. What no one waits for is not read on: within a file's first item,
between two passes, and in the detection of a file's language."""

import asyncio
import gc
import itertools
import threading
import time
import weakref
from concurrent.futures import Future

import pytest
from fastapi import HTTPException
from office_files import docx

from fairseq_ext import UsageError
from fairseq_ext.engine.text import MAX_RUNNING, MAX_SLOTS, TextRequest
from fairseq_ext.engine.tickets import Description
from fairseq_ext.search.report import Report, Translation
from fairseq_ext.search.request import Request
from fairseq_ext.serve import Settings
from fairseq_ext.serve.models import Model, Models
from fairseq_ext.serve.records import Text
from fairseq_ext.serve.service import Service
from fairseq_ext.text import files
from fairseq_ext.text.formats import passes
from fairseq_ext.text.splitter import plain_ends, splitter
from fairseq_ext.text.stopping import EVERY, Stopped, checked, until

TEXT = (
    "Der Patient hat einen Port. Die Ärztin öffnet den Ordner {name}.\n\n"
    "  Er ist sehr alt (https://a.example/b)!  "
)


def test_a_text_is_what_a_translator_makes_of_it(engine, translator, lines):
    long = " ".join(line.rstrip(".?!") + "," for line in lines * 4)
    page = f"<p title='{lines[2]}'>Er ist <b>sehr</b> alt.<p>{lines[0]} {lines[1]}"
    for text, format in (
        (TEXT, "text"),
        (f"{long}\n{lines[3]}", "text"),
        (page, "html"),
        ("", "text"),
        (" !\n", "text"),
    ):
        assert (
            engine.submit_text(text, format).result(120).text
            == translator.translate_text(text, format).text
        )


def test_places_are_of_the_whole_text(engine):
    answer = engine.submit_text(
        TEXT, terms={"Ärztin": "employee", "Patient": "house"}, align=True, nbest=2
    ).result(60)
    assert [c.phrase for c in answer.constraints] == ["house", "employee"] and len(
        answer.hypotheses
    ) == 2
    for constraint, source in zip(answer.constraints, ("Patient", "Ärztin"), strict=True):
        (span,), (of_source,) = constraint.spans, constraint.source_spans
        assert answer.text[slice(*span)] == constraint.phrase and TEXT[slice(*of_source)] == source
    words = {TEXT[slice(*a)]: answer.text[slice(*b)] for a, b in answer.hypotheses[0].words}
    assert words["Ordner"] in ("folder", "file", "binder") and words["alt"] == "old"


def test_partial_results_grow_to_the_text(engine):
    parts = []
    answer = engine.submit_text(TEXT, on_partial=parts.append).result(60)
    # those that come while the last one is shown are left out
    assert parts and all(answer.text.startswith(part.text) for part in parts)
    assert [part.tokens for part in parts] == sorted(part.tokens for part in parts)


def test_one_bad_segment_stays_and_a_text_of_them_is_refused(engine, translator):
    """The engine's search fails at sources of 5 tokens."""
    assert translator.encode("Er ist alt.").numel() == 5
    answer = engine.submit_text("Der Patient hat einen Port. Er ist alt.  Er ist sehr alt.").result(
        60
    )
    others = [
        found[0].text
        for found in translator.translate(["Der Patient hat einen Port.", "Er ist sehr alt."])
    ]
    assert answer.text == f"{others[0]} Er ist alt.  {others[1]}"
    ((source, reason),) = answer.untranslated
    assert source == "Er ist alt." and "no room for this one" in reason
    with pytest.raises(UsageError, match="a symbol that no translation holds"):
        engine.submit_text("Der Patient hat einen Port. Er ist sehr alt.", avoid=["</s>"]).result(
            60
        )
    with pytest.raises(
        UsageError, match="format must be one of text, html, xml, markdown, not 'pdf'"
    ):
        engine.submit_text("x", "pdf")


def test_what_of_markdown_cannot_be_cut_stays_and_is_said(engine, translator):
    text = f"Der Patient hat einen Port. {'[' * 300}Hund\n\nEr ist sehr alt.\n"
    answer = engine.submit_text(text, "markdown").result(60)
    whole = translator.translate_text(text, "markdown")
    assert (answer.text, answer.untranslated) == (whole.text, whole.untranslated)
    ((source, reason),) = whole.untranslated
    assert source == "[" * 300 + "Hund" and "has more than 200 signs of Markdown" in reason
    assert whole.text.count("[" * 300 + "Hund") == 1 and "alt" not in whole.text


def test_a_cancelled_text_leaves_the_engine(engine, lines):
    future = engine.submit_text("\n".join(lines * 30))
    future.cancel()
    assert engine.submit(lines[0]).result(60).text
    assert not engine.pending


def test_a_text_leaves_nothing_for_the_garbage_collector(engine):
    """It seldom runs in a server, so that circles would keep large requests."""
    gc.disable()
    try:
        request = TextRequest(engine.send, Request(source=TEXT), passes("text", plain_ends))
        future, kept = request.future, weakref.ref(request)
        del request
        assert future.result(60).text
        end = time.monotonic() + 20
        while kept() is not None and time.monotonic() < end:  # its last call is still returning
            time.sleep(0.01)
        assert kept() is None
    finally:
        gc.enable()


def test_code_of_users_runs_without_a_lock_of_the_text(engine, lines):
    """Another thread can cancel it meanwhile, and the code can wait for another text."""
    entered, go = threading.Event(), threading.Event()

    def waiting(part) -> None:
        entered.set()
        assert go.wait(60)

    future = engine.submit_text(" ".join(lines[:4]), on_partial=waiting)
    assert entered.wait(60)
    thread = threading.Thread(target=future.cancel)
    thread.start()
    thread.join(5)
    assert not thread.is_alive() and future.cancelled()
    go.set()
    found: list[str] = []
    done = threading.Event()

    def query(_) -> None:
        found.append(engine.submit_text(TEXT).result(60).text)
        done.set()

    first = engine.submit_text(TEXT)
    first.add_done_callback(query)
    assert done.wait(60) and found == [first.result(60).text]


def test_a_long_text_is_read_and_reported_as_it_goes():
    """No more of it is read than the engine has at once, the first parts are there when later ones
    are not, and what is reported is let go."""
    requested, reported, read = [], [], 0

    def submit(request, on_partial):
        requested.append((request.source, Future()))
        return requested[-1][1]

    def items(text):
        nonlocal read
        for item in passes("text", plain_ends)[0](text):
            read += 1
            yield item

    def answer(number: int) -> None:
        source, future = requested[number]
        future.set_result(Report([Translation(source.upper(), [source], -1.0, [-1.0])]))
        while request.calls.running:  # in another thread
            time.sleep(0)

    text = "".join(f"Satz {chr(97 + i % 26)} {i}.\n" for i in range(2000))
    request = TextRequest(submit, Request(source=text), [items], on_text=reported.append)
    assert len(requested) == MAX_RUNNING and read < 3 * MAX_RUNNING and not reported
    for number in range(1, 1500):  # all but the first: it takes its time
        if number < len(requested):
            answer(number)
    assert not reported and len(requested) < 2 * MAX_SLOTS and len(request.slots) < 2 * MAX_SLOTS
    answer(0)
    assert (
        "".join(reported).startswith("SATZ A 0.\nSATZ B 1.\n")
        and not request.future.done()
        and len(request.slots) < 2 * MAX_SLOTS
    )
    number = next(i for i, (_, future) in enumerate(requested) if not future.done())
    while number < len(requested):
        if not requested[number][1].done():
            answer(number)
        number += 1
    assert "".join(reported) == text.upper() and request.future.result(1).untranslated == []


LONG = {
    "html": "<b>x</b>, ",
    "markdown": "- x\n",
    "xml": "<a>x</a>",
    "xliff": '<trans-unit id="1"><source>x</source></trans-unit>',
    "text": "{a} ",
}


def long(format: str) -> str:
    text = LONG[format] * 3 * EVERY
    around = {"xml": "<r>{}</r>", "xliff": '<xliff version="1.2">{}</xliff>'}
    return around.get(format, "{}").format(text)


@pytest.mark.parametrize("format", LONG)
def test_the_first_item_is_not_waited_for(format):
    ways = passes(format, splitter("de"))
    with until(lambda: True), pytest.raises(Stopped):
        for way in ways:
            list(way(long(format)))
    assert list(ways[-1](long(format)))  # behind it, everything is read


def test_an_office_file_is_not_read_on(tmp_path):
    paragraph = "<w:r><w:t>Ein Hund.</w:t></w:r>"
    (tmp_path / "a.docx").write_bytes(docx(*[paragraph] * EVERY))
    with until(lambda: True), pytest.raises(Stopped):
        files.translate(str(tmp_path / "a.docx"), str(tmp_path / "b.docx"), lambda text, _: [text])
    assert not (tmp_path / "b.docx").exists()


def test_a_second_pass_ends_with_its_request():
    begun, ended = threading.Event(), threading.Event()

    def endless(text: str):
        begun.set()
        try:
            for _ in checked(itertools.count()):
                pass
        finally:
            ended.set()
        yield text

    def submit(request: Request, on_partial) -> Future[Report]:
        future, source = Future[Report](), request.source
        future.set_result(Report([Translation(source, [source], -1.0, [-1.0])]))
        return future

    first = passes("text", plain_ends)[0]
    request = TextRequest(submit, Request(source="Ein Hund."), [first, endless])
    assert begun.wait(20) and not ended.is_set()
    request.future.cancel()
    assert ended.wait(20)


def test_the_deadline_holds_while_a_request_is_read():
    model = Model(pytest.fail, Description("", "de", "en", 1, 1, 1, None, ""))
    service = Service(Models(), Settings(deadline=0.0))
    with pytest.raises(HTTPException) as error:
        asyncio.run(service.submitted(model, Text(Request(source=long("html")), "html")))
    assert error.value.status_code == 504 and "took more than 0 seconds" in error.value.detail


def test_the_beginning_of_a_file_is_all_that_is_read_of_it(tmp_path, monkeypatch):
    read = 0

    def counted(text: str):
        nonlocal read
        for item in passes("text", plain_ends)[0](text):
            read += 1
            yield item

    monkeypatch.setattr(files, "passes", lambda format, ends: [counted])
    (tmp_path / "a.txt").write_text("Ein Hund.\n" * 1000)
    assert files.beginning(str(tmp_path / "a.txt"), 25) == "Ein Hund.\nEin Hund.\nEin H"
    assert read < 10
