"""What no one waits for is not read on: within a file's first item, between two passes, and in the
detection of a file's language."""

import asyncio
import itertools
import threading
from concurrent.futures import Future

import pytest
from fastapi import HTTPException
from office_files import docx

from fairseq_ext.engine.jobs import Description
from fairseq_ext.engine.text import TextRequest
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
