"""Files that take long to read: within the deadline, for their owner alone, and no longer than the
server runs."""

import hashlib
import itertools
import threading
import time

import pytest
from serving import ended, upload
from text.office_files import docx

from fairseq_ext.serve import documents
from fairseq_ext.text import files, office
from fairseq_ext.text.stopping import checked

TEXT = b"Guten Tag, Frau Nowak.\n"


def both(client, *given) -> tuple:
    """The answers of both APIs to one file."""
    return upload(client, *given), upload(client, *given, route="/v2/document")


@pytest.fixture
def endless(monkeypatch) -> set:
    """Markdown has no end; the threads that read it."""
    reading, known = set(), files.passes

    def forever(text: str):
        reading.add(threading.current_thread().ident)
        try:
            for _ in checked(itertools.count()):
                pass
        finally:
            reading.discard(threading.current_thread().ident)
        yield text

    def passes(format, *more):
        return [forever] if format == "markdown" else known(format, *more)

    for module in (files, documents):
        monkeypatch.setattr(module, "passes", passes)
    return reading


def test_a_file_has_so_many_sentences(serving):
    with serving(max_segments=9) as client:
        for content, is_refused in ((TEXT * 9, False), (TEXT * 10, True)):
            answer, made = both(client, "a.txt", content)
            status = ended(client, made.json())
            assert answer.status_code == (413 if is_refused else 200)
            assert status["status"] == ("error" if is_refused else "done")
    said = "the file has more than 9 sentences: divide it"
    assert answer.json() == {"error": said} and status["message"] == said


@pytest.mark.parametrize("source", ["de", "auto"])
def test_no_paragraph_of_a_file_with_too_many_is_read(serving, monkeypatch, source):
    """Some kilobytes unpack to millions of them, and what is read of each is a hundred times as
    large."""
    read, known = [], office.Paragraph
    monkeypatch.setattr(office, "Paragraph", lambda element: read.append(element) or known(element))
    with serving(max_segments=9) as client:
        answer, made = both(
            client, "a.docx", docx(*["<w:r><w:t>a</w:t></w:r>"] * 10), (source, "en")
        )
        assert answer.status_code == 413 and not read
        if source == "auto":
            assert made.json() == {"message": answer.json()["error"]}
        else:
            assert ended(client, made.json())["message"] == answer.json()["error"]
        assert upload(client, "a.docx", docx("<w:r><w:t>a</w:t></w:r>")).is_success and read


@pytest.mark.parametrize("source", ["de", "auto"])
def test_a_file_is_read_until_the_deadline(serving, endless, source):
    with serving(deadline=0.3) as client:
        answer, made = both(client, "a.md", TEXT, (source, "en"))
        assert answer.status_code == 504 and "0.3 seconds" in answer.json()["error"]
        if source == "auto":
            assert made.status_code == 504 and "0.3 seconds" in made.json()["message"]
        else:
            assert "0.3 seconds" in ended(client, made.json())["message"]
        assert not endless


def test_long_files_of_one_owner_hold_those_of_no_other(serving, endless, tmp_path):
    hashes = (hashlib.sha256(key.encode()).hexdigest() for key in ("one", "two"))
    (tmp_path / "keys").write_text("\n".join(hashes), encoding="utf-8")
    with serving(api_keys=str(tmp_path / "keys"), deadline=20.0) as client:
        for _ in range(documents.AT_ONCE + 1):
            made = upload(client, "a.md", TEXT, route="/v2/document", key="one")
            assert made.is_success
        made = upload(client, "a.txt", TEXT, route="/v2/document", key="two").json()
        assert ended(client, made, "two")["status"] == "done"
        assert len(endless) == documents.AT_ONCE
    begin = time.monotonic()
    while endless:  # the server has ended, long before the deadline
        assert time.monotonic() - begin < 10
        time.sleep(0.02)
