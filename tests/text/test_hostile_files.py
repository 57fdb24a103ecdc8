"""Files that are wrong, or made to take time or memory: one sentence each, and nothing written."""

import gc
import io
import os
import re
import time
import zipfile

import pytest
from office_files import PARAGRAPHS, archive, docx, parts_of
from sizes import drawn
from texts import capitals, done, marked, rows, through

from fairseq_ext import UsageError
from fairseq_ext.text.__main__ import main
from fairseq_ext.text.files import translate
from fairseq_ext.text.formats import passes
from fairseq_ext.text.office import LO, O_TEXT, Part, TooMany, W
from fairseq_ext.text.splitter import splitter

INNER = "b <trans-unit><source>c</source></trans-unit>"


def refused(tmp_path, name: str, content: bytes, **settings) -> str:
    """The one sentence of a file that is not translated."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError) as error:
        translate(str(tmp_path / name), str(tmp_path / "out"), through(), f"my {name}", **settings)
    assert str(tmp_path) not in str(error.value) and not (tmp_path / "out").exists()
    return str(error.value)


O_SPACES = "".join(
    f' xmlns:{prefix}="{space[1:-1]}"' for prefix, space in dict(text=O_TEXT, loext=LO, w=W).items()
)


@pytest.mark.parametrize(
    "paragraph",
    [
        *(
            f"<text:p><{tag}>x</{tag}></text:p>"
            for tag in ("text:span", "text:a", "text:meta", "text:meta-field", "w:hyperlink")
        ),
        "<text:p><loext:content-control>x</loext:content-control></text:p>",
        "<text:p><text:s/>x</text:p>",
        "<text:p>x<text:p>x<text:p>x</text:p></text:p></text:p>",
        "<w:p><w:r><w:t>x</w:t></w:r><w:p><w:r><w:t>x</w:t></w:r></w:p></w:p>",
    ],
)
def test_all_that_is_read_of_a_paragraph_counts_for_the_limit(paragraph):
    """With letters, and ten times as many without."""
    whole = f"<a{O_SPACES}>{paragraph * 60}</a>".encode()
    count = len(Part(whole).paragraphs)
    assert count == 60 * paragraph.count(">x")
    for content, most in ((whole, count), (whole.replace(b">x", b">7"), count // 10)):
        assert len(Part(content, most).paragraphs) == count
        with pytest.raises(TooMany):
            Part(content, most - 1)


def test_inner_paragraphs_stand_behind_those_around_them():
    nested = "<text:p>1<text:p>2<text:p>3</text:p></text:p><text:p>4</text:p></text:p>"
    part = Part(f"<a{O_SPACES}>{nested}<text:p>5</text:p></a>".encode())
    assert [re.sub("<.*?>", "", text) for _, text in part.paragraphs] == [*"12345"]


def test_parts_without_text_are_copied_as_they_are_packed(tmp_path):
    """One that cannot even be unpacked comes back."""
    parts = parts_of(docx(PARAGRAPHS["runs"])) | {"word/media/a.png": b"picture" * 100}
    broken = bytearray(archive(parts))
    with zipfile.ZipFile(io.BytesIO(broken)) as made:
        info = made.getinfo("word/media/a.png")
    start = info.header_offset + 30 + len(info.filename)
    broken[start : start + 4] = b"\xff\xff\xff\xff"
    result = done(tmp_path, "a.docx", bytes(broken), through(capitals))
    with zipfile.ZipFile(io.BytesIO(result)) as made:
        assert b"HUND" in made.read("word/document.xml")
        there = made.getinfo("word/media/a.png")
        at = there.header_offset + 30 + len(there.filename)
        assert result[at : at + there.compress_size] == broken[start : start + info.compress_size]


@pytest.mark.parametrize("flag", [0, os.O_APPEND])
def test_an_archive_through_a_file_that_is_open(flag, tmp_path):
    """Which may write at its end alone."""
    (tmp_path / "a.docx").write_bytes(docx(PARAGRAPHS["runs"]))
    number = os.open(tmp_path / "b.docx", os.O_CREAT | os.O_WRONLY | flag)
    try:
        translate(str(tmp_path / "a.docx"), f"/dev/fd/{number}", through(capitals))
    finally:
        os.close(number)
    with zipfile.ZipFile(tmp_path / "b.docx") as made:
        assert made.testzip() is None and b"HUND" in made.read("word/document.xml")


def changed(content: bytes, **fields: int) -> bytes:
    """An archive whose parts say otherwise how they are packed."""
    made, at = bytearray(content), 0
    while (at := made.find(b"PK\1\2", at)) >= 0:
        where = {"flag": 8, "utf_8": 9, "method": 10}
        for name, value in fields.items():
            made[at + where[name]] = value
        at += 4
    at = 0
    while (at := made.find(b"PK\3\4", at)) >= 0:
        where = {"flag": 6, "utf_8": 7, "method": 8}
        for name, value in fields.items():
            made[at + where[name]] = value
        at += 4
    return bytes(made)


TEXT = archive({"word/document.xml": "".join(f"<a{i}/>" for i in range(99))})


NAMED = docx("x").replace(b"word/document.xml", b"\xff" * 17)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (changed(docx("x"), flag=1), "needs a password: save it without"),
        (changed(docx("x"), method=97), "packed in a way that is not read: save it again"),
        (docx("x")[:-40], "without a password, as its ending says: save it again as docx with"),
        (TEXT[:60] + b"\0" * 60 + TEXT[120:], "is damaged, or packed in a way"),
        (b"", "must be an archive"),
        (changed(NAMED, utf_8=8), "must be an archive"),
        (docx("x").replace(b"word/document.xml", b"n" * 17, 1), "is damaged, or packed in a way"),
        (docx("<w:p><w:r><w:t>" + "Hund " * 500), "unpacks to more than is allowed: raise --max"),
    ],
)
def test_archives_that_are_wrong(content, message, tmp_path, monkeypatch, capsys):
    """With one sentence and status 1."""
    assert message in refused(tmp_path, "a.docx", content, max_unpacked=2000)
    monkeypatch.setattr("fairseq_ext.text.__main__.through_translator", lambda *_: through())
    monkeypatch.setattr("fairseq_ext.translator.Translator", lambda **flags: None)
    monkeypatch.chdir(tmp_path)
    files, flags = ["a.docx", "b.docx"], ["--data", ".", "--path", "x", "--max-unpacked", "2000"]
    assert main(["translate", *files, *flags]) == 1
    assert re.fullmatch(rf"error: .*a\.docx.*{message}.*\n", capsys.readouterr().err)
    assert not (tmp_path / "b.docx").exists()


MANIFEST = (
    '<manifest xmlns:m="urn:oasis:names:tc:opendocument:xmlns:manifest:1.0"><m:file-entry '
    'm:full-path="{}"><m:encryption-data/></m:file-entry></manifest>'
)
ENCRYPTION = (
    '<encryption xmlns:e="http://www.w3.org/2001/04/xmlenc#"><e:EncryptedData><e:CipherData>'
    '<e:CipherReference URI="{}"/></e:CipherData></e:EncryptedData></encryption>'
)


@pytest.mark.parametrize(
    ("name", "manifest", "text", "part", "refuses"),
    [
        ("a.odt", "META-INF/manifest.xml", MANIFEST, "content.xml", True),
        ("a.epub", "META-INF/encryption.xml", ENCRYPTION, "a/b.xhtml", True),
        ("a.epub", "META-INF/encryption.xml", ENCRYPTION, "a/font.otf", False),  # obfuscated
    ],
)
def test_encrypted_parts_of_archives(name, manifest, text, part, refuses, tmp_path):
    """As LibreOffice saves an odt with a password, and as books are protected from copies."""
    content = archive({manifest: text.format(part), part: b"\x8f\xa2" * 20})
    if refuses:
        assert "needs a password: save it without" in refused(tmp_path, name, content)
    else:
        assert done(tmp_path, name, content, through()) == content


def test_what_is_not_translated_is_said_once(tmp_path):
    (tmp_path / "a.docx").write_bytes(docx(*PARAGRAPHS.values()))
    report = translate(str(tmp_path / "a.docx"), str(tmp_path / "b.docx"), through())
    assert report.kinds == ["deletions", "charts"] and not report.parts


def test_an_odt_that_is_nested_too_deeply_says_so(tmp_path):
    """A part of it: it stays as it is, and the others are translated."""
    deep = "<text:span>" * 3000 + "Hund" + "</text:span>" * 3000
    content = f"<a{O_SPACES}><text:p>{deep}</text:p></a>"
    (tmp_path / "a.odt").write_bytes(archive({"content.xml": content}))
    report = translate(str(tmp_path / "a.odt"), str(tmp_path / "b.odt"), through())
    ((part, reason),) = report.parts
    assert part == "content.xml"
    assert reason == "its elements are nested too deeply: remove the formatting of its text"


LAUGHS = '<!DOCTYPE a [<!ENTITY a "ha">' + "".join(
    f'<!ENTITY {chr(98 + i)} "{("&" + chr(97 + i) + ";") * 20}">' for i in range(12)
)


@pytest.mark.parametrize(("name", "text", "message"), rows("wrong.tsv"))
def test_texts_that_are_wrong(name, text, message, tmp_path):
    """In the table, ␀ is a byte that is no UTF-8, and § a document type of many entities."""
    content = text.replace("§", LAUGHS).encode().replace("␀".encode(), b"\xff")
    assert message in refused(tmp_path, name, content)


def test_entities_of_a_document_type_are_not_read(tmp_path):
    content = (LAUGHS + "]><a>Ein Hund &m; bellt.</a>").encode()
    out = done(tmp_path, "a.xml", content, through(marked)).decode()
    assert out.endswith("<a>⟦Ein Hund &m; bellt.⟧</a>")


# ---- Time: it grows with a text, whatever it begins and does not end


def seconds(format: str, text: str) -> float:
    """Processor time of the passes over a text."""
    gc.collect()
    gc.disable()
    try:
        start = time.process_time()
        for each in passes(format, splitter("de")):
            for _ in each(text):
                pass
        return time.process_time() - start
    finally:
        gc.enable()


@drawn(1)
@pytest.mark.parametrize(("format", "opening"), rows("openings.tsv"))
def test_the_time_of_a_text_grows_as_its_length(format, opening):
    count = 500
    while seconds(format, opening * count) < 0.05:
        count *= 2
        if count * len(opening) > 4_000_000:
            return  # no time at all
    for _ in range(3):
        times = [min(seconds(format, opening * n) for _ in range(3)) for n in (count, 4 * count)]
        if times[1] < 8 * times[0]:  # 16 if each of them looked at all
            return
    raise AssertionError(times)


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("po", 'msgid "a"\nmsgid_plural "b"\nmsgstr[0] ""\nmsgstr[1] "§b§"\nmsgstr[0] "§a§"\n'),
        ("po", 'msgid ""\nmsgstr "nplurals=2\\n"\n\nmsgid "a"\nmsgstr[0] "§a§"\n'),
        ("xliff", f"<source>{INNER}</source>§<target>{INNER}</target>§"),
        ("xliff", f"{INNER}<source>a</source>§<target>a</target>§"),
        ("xliff", f"<source>a</source><target>{INNER}</target>"),
    ],
)
def test_a_keyword_twice_and_a_unit_in_a_unit_leave_the_rest_as_it_is(format, text):
    """Neither is allowed. Between § stands what is new."""
    if format == "xliff":
        text = f"<xliff><trans-unit>{text}</trans-unit></xliff>"
    out = "".join(through()(re.sub("§.*?§", "", text), format))
    assert out == text.replace("§", "")
