"""What a server keeps on disk: two that write at once, and a disk without room; and files that
take long to read: within the deadline, for their owner alone, and no longer than the server runs.
"""

import errno
import itertools
import os
import resource
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from conftest import limited
from office_files import docx
from serving import JSON, TSV, ended, upload, v1

from fairseq_ext.serve import documents
from fairseq_ext.text import files as text_files
from fairseq_ext.text.stopping import checked

DICTIONARY = {"source_lang": "de", "target_lang": "en", "entries_format": "tsv"}
TERMS = {**DICTIONARY, "entries": "Port\tport"}
TERMS_2000 = "".join(f"Wort{i}\tword\n" for i in range(2000))
ROOM = 4096  # bytes a file may have on the full disk


def full_disk():
    """A disk without room for a file of more than ROOM bytes."""
    return limited(resource.RLIMIT_FSIZE, ROOM)


def refused(response, field="error"):
    """Hold that it says in one sentence that the disk is full."""
    assert response.status_code == 507, response.text
    (found,) = response.json().items()
    assert found[0] == field and "disk" in found[1] and "/" not in found[1]


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def made(client):
    """The identifier of a glossary of DeepL's API."""
    found = client.post("/v2/glossaries", json={"name": "a", **TERMS}).json()["glossary_id"]
    yield found
    client.delete(f"/v2/glossaries/{found}", headers=TSV)


def test_one_glossary_is_replaced_by_several_at_once(client, settings):
    def put(number):
        return client.put("/v1/glossaries/shared", content=f"a\t{number % 7}\n", headers=TSV)

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(put, range(400)))
    assert {response.status_code for response in found} <= {200, 201}
    assert client.get("/v1/glossaries/shared").text in {f"a\t{i}\n" for i in range(7)}
    client.delete("/v1/glossaries/shared", headers=TSV)
    assert not list(settings.glossary_folder.glob(".*"))


def test_a_glossary_that_is_deleted_while_it_is_read(client, monkeypatch):
    path = "/v1/glossaries/a"
    assert client.put(path, content="a\tb\n", headers=TSV).is_success
    assert v1(client, {"source": "a", "glossary": "a"}).is_success  # its digest is known

    def gone(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", gone)
        answer = client.get(path)
    assert answer.status_code == 404 and "there is no glossary 'a'" in answer.json()["error"]
    client.delete(path, headers=TSV)


def test_glossaries_without_room(client, settings, made):
    """Of both APIs: those that are there stay as they are."""
    kept, folder = "/v1/glossaries/a", settings.glossary_folder
    assert client.put(kept, content="a\tb\n", headers=TSV).is_success
    before, folders = files(folder), [*folder.rglob("*")]
    many, dictionary = {**DICTIONARY, "entries": TERMS_2000}, f"/v3/glossaries/{made}/dictionaries"
    with full_disk():
        for path in (kept, f"{kept}?file=a.tsv"):
            refused(client.put(path, content=TERMS_2000, headers=TSV))
        body = {"name": "a.tsv", "content": TERMS_2000}
        refused(client.post("/v1/terms", json=body, headers=JSON))
        refused(client.post("/v2/glossaries", json={"name": "b", **many}), "message")
        refused(client.put(dictionary, json=many), "message")
    assert files(folder) == before and [*folder.rglob("*")] == folders
    assert client.put(kept, content=TERMS_2000, headers=TSV).is_success
    assert client.put(dictionary, json=many).is_success
    client.delete(kept, headers=TSV)


def test_a_server_killed_while_it_replaces_a_dictionary_leaves_the_old_or_the_new_one(
    client, serving, settings, made, tmp_path, monkeypatch
):
    """Each step is followed by a copy of the folder: what SIGKILL leaves there."""
    copies = []

    def copied(step, *arguments, **more):
        step(*arguments, **more)
        copies.append(tmp_path / str(len(copies)))
        shutil.copytree(settings.glossary_folder, copies[-1])

    new = {**DICTIONARY, "entries": "Patient\tquokka\nHafen\tharbour"}
    with monkeypatch.context() as patch:
        for name in ("replace", "unlink"):
            patch.setattr(os, name, partial(copied, getattr(os, name)))
        assert client.put(f"/v3/glossaries/{made}/dictionaries", json=new).is_success
    states = set()
    given = {"text": ["Der Patient ist hier."], "source_lang": "DE", "target_lang": "EN"}
    for folder in copies:
        with serving(glossary_folder=folder) as later:
            counts = later.get(f"/v2/glossaries/{made}").json()["entry_count"]
            entries = later.get(f"/v2/glossaries/{made}/entries").text
            answer = later.post("/v2/translate", json={**given, "glossary_id": made}).text
            states.add((counts, entries, "quokka" in answer))
    old = 1, TERMS["entries"], False
    assert states == {old, (2, new["entries"], True)}


def test_an_earlier_version_of_a_dictionary_stays_for_the_requests_that_read_it(
    client, settings, made
):
    folder = next(settings.glossary_folder.rglob(made))
    versions = []
    for number in range(4):
        for path in folder.iterdir():
            os.utime(path, (0, 0))
        body = {**DICTIONARY, "entries": f"Port\t{number}"}
        assert client.put(f"/v3/glossaries/{made}/dictionaries", json=body).is_success
        versions.append(sorted(path.read_text() for path in folder.glob("*.jsonl")))
    targets = ["port", *map(str, range(4))]
    before = [f'{{"source": "Port", "target": ["{target}"]}}\n' for target in targets]
    assert versions == [sorted(before[number : number + 2]) for number in range(4)]


@pytest.fixture
def alone(serving, tmp_path, monkeypatch):
    """A client of a server whose uploads are in tmp_path."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with serving() as made:
        yield made


def no_room(*given):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_files_without_room(alone, tmp_path, monkeypatch):
    """For the upload, and for its translation."""
    with full_disk():
        answer, made = both(alone, "a.txt", b"Port.\n" * 2000)
    refused(answer)
    refused(made, "message")
    assert not files(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_room)
        refused(upload(alone, "a.txt", b"Port.\n"))
        assert not files(tmp_path)
        found = ended(alone, upload(alone, "a.txt", b"Port.\n", route="/v2/document").json())
    assert found["status"] == "error" and found["message"] == os.strerror(errno.ENOSPC)
    assert {path.parent.name for path in files(tmp_path)} == {"given"}  # for the hour it is kept


def test_files_are_translated_after_the_temporary_folder_was_cleared(alone, tmp_path):
    for _ in range(2):
        answer, made = both(alone, "a.txt", b"Port.\n")
        assert alone.get(answer.json()["translatedFileUrl"]).text
        assert made.status_code == 200, made.text
        for folder in tmp_path.iterdir():
            shutil.rmtree(folder)


# ---- Files that take long to read

TEXT = b"Guten Tag, Frau Nowak.\n"


def both(client, *given):
    """The answers of both APIs to one file."""
    return upload(client, *given), upload(client, *given, route="/v2/document")


@pytest.fixture
def endless(monkeypatch):
    """Markdown has no end; the threads that read it."""
    reading, known = set(), text_files.passes

    def forever(text):
        reading.add(threading.current_thread().ident)
        try:
            for _ in checked(itertools.count()):
                pass
        finally:
            reading.discard(threading.current_thread().ident)
        yield text

    def passes(format, *more):
        return [forever] if format == "markdown" else known(format, *more)

    for module in (text_files, documents):
        monkeypatch.setattr(module, "passes", passes)
    return reading


RUN = "<w:r><w:t>{}</w:t></w:r>"
MANY = [
    ("a.txt", TEXT * 10, "9 sentences"),
    ("a.docx", docx(*[RUN.format("a")] * 500), "9 sentences"),
    ("a.docx", docx(*[RUN.format("7")] * 91), "90 paragraphs without letters"),
]


def test_a_file_has_so_many_sentences(serving):
    with serving(max_segments=9) as client:
        for name, content in (("a.txt", TEXT * 9), ("a.docx", docx(RUN.format("a")))):
            answer, made = both(client, name, content)
            assert answer.status_code == 200 and ended(client, made.json())["status"] == "done"
        for name, content, most in MANY:
            for source in ("de", "auto"):
                answer, made = both(client, name, content, (source, "en"))
                said = f"the file has more than {most}: divide it"
                assert (answer.status_code, answer.json()) == (413, {"error": said})
                found = made.json()
                assert (found if "message" in found else ended(client, found))["message"] == said


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


def test_long_files_of_one_owner_hold_those_of_no_other(guarded, endless):
    with guarded("one", "two", deadline=20.0) as client:
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
