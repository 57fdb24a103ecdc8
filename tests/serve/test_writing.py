"""What a server keeps on disk: two that write at once, and a disk without room; and files that
take long to read: within the deadline, for their owner alone, and no longer than the server runs.
"""

import contextlib
import errno
import itertools
import os
import resource
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from office_files import docx
from serving import JSON, TSV, ended, upload, v1

from fairseq_ext.serve import documents
from fairseq_ext.text import files as text_files
from fairseq_ext.text.stopping import checked

DICTIONARY = {"source_lang": "de", "target_lang": "en", "entries_format": "tsv"}
TERMS = {**DICTIONARY, "entries": "Port\tport"}
TERMS_2000 = "".join(f"Wort{i}\tword\n" for i in range(2000))
ROOM = 4096  # bytes a file may have on the full disk


@contextlib.contextmanager
def full_disk():
    """A disk without room for a file of more than ROOM bytes."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def refused(response, field: str = "error") -> None:
    """Hold that it says in one sentence that the disk is full."""
    assert response.status_code == 507, response.text
    (found,) = response.json().items()
    assert found[0] == field and "disk" in found[1] and "/" not in found[1]


def files(folder) -> dict:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_one_glossary_is_replaced_by_several_at_once(client, settings):
    def put(number: int):
        return client.put("/v1/glossaries/shared", content=f"a\t{number % 7}\n", headers=TSV)

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(put, range(400)))
    assert {response.status_code for response in found} <= {200, 201}
    assert client.get("/v1/glossaries/shared").text in {f"a\t{i}\n" for i in range(7)}
    client.delete("/v1/glossaries/shared", headers=TSV)
    assert not list(settings.glossary_folder.glob(".*"))


def test_a_glossary_that_is_deleted_while_it_is_read(client, monkeypatch):
    assert client.put("/v1/glossaries/a", content="a\tb\n", headers=TSV).is_success
    body = {"source": "a", "glossary": "a"}
    assert v1(client, body).is_success  # its digest is known

    def gone(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", gone)
        answer = client.get("/v1/glossaries/a")
    assert answer.status_code == 404 and "there is no glossary 'a'" in answer.json()["error"]
    client.delete("/v1/glossaries/a", headers=TSV)


def test_a_glossary_without_room(client, settings):
    assert client.put("/v1/glossaries/a", content="a\tb\n", headers=TSV).is_success
    before = files(settings.glossary_folder)
    with full_disk():
        refused(client.put("/v1/glossaries/a", content=TERMS_2000, headers=TSV))
        refused(client.put("/v1/glossaries/a?file=a.tsv", content=TERMS_2000, headers=TSV))
        body = {"name": "a.tsv", "content": TERMS_2000}
        refused(client.post("/v1/terms", json=body, headers=JSON))
    assert files(settings.glossary_folder) == before
    assert client.put("/v1/glossaries/a", content=TERMS_2000, headers=TSV).is_success
    client.delete("/v1/glossaries/a", headers=TSV)


def test_a_glossary_of_deepl_s_api_without_room(client, settings):
    made = client.post("/v2/glossaries", json={"name": "a", **TERMS}).json()["glossary_id"]
    before = files(settings.glossary_folder)
    folders = list(settings.glossary_folder.rglob("*"))
    many = {**DICTIONARY, "entries": TERMS_2000}
    with full_disk():
        refused(client.post("/v2/glossaries", json={"name": "b", **many}), "message")
        changed = client.put(f"/v3/glossaries/{made}/dictionaries", json=many)
        refused(changed, "message")
    assert files(settings.glossary_folder) == before
    assert list(settings.glossary_folder.rglob("*")) == folders
    assert client.put(f"/v3/glossaries/{made}/dictionaries", json=many).is_success
    client.delete(f"/v2/glossaries/{made}", headers=TSV)


def test_a_server_killed_while_it_replaces_a_dictionary_leaves_the_old_or_the_new_one(
    client, serving, settings, tmp_path, monkeypatch
):
    """Each step is followed by a copy of the folder: what SIGKILL leaves there."""
    copies = []

    def copied(step):
        def act(*arguments, **more):
            done = step(*arguments, **more)
            copies.append(tmp_path / str(len(copies)))
            shutil.copytree(settings.glossary_folder, copies[-1])
            return done

        return act

    made = client.post("/v2/glossaries", json={"name": "a", **TERMS}).json()["glossary_id"]
    new = {**DICTIONARY, "entries": "Patient\tquokka\nHafen\tharbour"}
    with monkeypatch.context() as patch:
        for name in ("replace", "unlink"):
            patch.setattr(os, name, copied(getattr(os, name)))
        assert client.put(f"/v3/glossaries/{made}/dictionaries", json=new).is_success
    states = []
    for folder in copies:
        with serving(glossary_folder=folder) as later:
            counts = later.get(f"/v2/glossaries/{made}").json()["entry_count"]
            entries = later.get(f"/v2/glossaries/{made}/entries").text
            given = {"text": ["Der Patient ist hier."], "source_lang": "DE", "target_lang": "EN"}
            answer = later.post("/v2/translate", json={**given, "glossary_id": made})
            text = answer.json()["translations"][0]["text"]
            states.append((counts, entries, "quokka" in text))
    old = 1, TERMS["entries"], False
    assert {*states} == {old, (2, new["entries"], True)}
    client.delete(f"/v2/glossaries/{made}", headers=TSV)


def test_an_earlier_version_of_a_dictionary_stays_for_the_requests_that_read_it(client, settings):
    made = client.post("/v2/glossaries", json={"name": "a", **TERMS}).json()["glossary_id"]
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
    client.delete(f"/v2/glossaries/{made}", headers=TSV)


@pytest.fixture
def alone(serving, tmp_path, monkeypatch):
    """A client of a server whose uploads are in tmp_path."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with serving() as made:
        yield made


@pytest.mark.parametrize("route", ["/translate_file", "/v2/document"])
def test_an_upload_without_room(alone, tmp_path, route):
    with full_disk():
        response = upload(alone, "a.txt", b"Port.\n" * 2000, route=route)
    refused(response, "message" if route.startswith("/v2") else "error")
    assert not files(tmp_path)
    assert upload(alone, "a.txt", b"Port.\n", route=route).is_success


def no_room(handle):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_translated_file_without_room(alone, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_room)
        refused(upload(alone, "a.txt", b"Port.\n"))
    assert not files(tmp_path)


def test_a_document_without_room_for_its_translation(alone, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_room)
        found = ended(alone, upload(alone, "a.txt", b"Port.\n", route="/v2/document").json())
    assert found["status"] == "error" and found["message"] == os.strerror(errno.ENOSPC)
    assert {path.parent.name for path in files(tmp_path)} == {"given"}  # for the hour it is kept


def test_files_are_translated_after_the_temporary_folder_was_cleared(alone, tmp_path):
    for _ in range(2):
        answer = upload(alone, "a.txt", b"Port.\n")
        assert alone.get(answer.json()["translatedFileUrl"]).text
        answer = upload(alone, "a.txt", b"Port.\n", route="/v2/document")
        assert answer.status_code == 200, answer.text
        for folder in tmp_path.iterdir():
            shutil.rmtree(folder)


# ---- Files that take long to read

TEXT = b"Guten Tag, Frau Nowak.\n"


def both(client, *given) -> tuple:
    """The answers of both APIs to one file."""
    return upload(client, *given), upload(client, *given, route="/v2/document")


@pytest.fixture
def endless(monkeypatch) -> set:
    """Markdown has no end; the threads that read it."""
    reading, known = set(), text_files.passes

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
