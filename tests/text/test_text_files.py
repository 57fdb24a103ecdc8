"""Files of all kinds: read by other programs before and after, their text translated and
all else as it was."""

import io
import os
import re
import shutil
import subprocess
import zipfile
from collections import Counter
from pathlib import Path

import pytest
import warm
from lxml import etree
from office_files import archive
from serving import FLAGS
from sizes import ALL
from through import done, through

from fairseq_ext import UsageError
from fairseq_ext.text.files import ENDINGS, translate

W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
DOCX = f"""<?xml version="1.0" encoding="UTF-8" standalone="yes"?>
<w:document xmlns:w="{W}"><w:body><w:p w:rsidR="0A"><w:pPr><w:pStyle w:val="x"/></w:pPr>
<w:r w:rsidR="1"><w:t xml:space="preserve">Ein </w:t></w:r>\
<w:proofErr w:type="spellStart"/><w:r w:rsidR="2"><w:t>alter </w:t></w:r>
<w:r><w:rPr><w:b/></w:rPr><w:t>Hund</w:t></w:r><w:r><w:t> läuft &amp; </w:t></w:r>
<w:hyperlink r="1"><w:r><w:t>schläft</w:t></w:r></w:hyperlink><w:r>\
<w:t>. Er ist alt.</w:t><w:tab/><w:t>Ende</w:t></w:r></w:p><w:p/>
</w:body></w:document>"""
ODT = """<o:c xmlns:o="o" xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0">
<text:p><text:span>Ein </text:span>\
<text:span a="b">Hund</text:span> läuft.</text:p></o:c>"""
SRT = (
    "1\n"
    "00:00:01,000 --> 00:00:02,000\n"
    "Ein <i>alter</i>\n"
    "Hund.\n\n"
    "2\n"
    "00:00:03,000 --> 00:00:04,000\n"
    "- Ja!\n"
    "- Nein,\n"
    "nie!\n"
)


def upper(tmp_path, name: str, content: bytes) -> tuple[bytes, list[str]]:
    """Return a file in capitals, and its sentences."""
    seen: list[str] = []
    return done(tmp_path, name, content, through(str.upper, seen)), seen


def test_docx_keeps_its_formatting_and_everything_else(tmp_path):
    parts = {"word/document.xml": DOCX, "word/other.xml": "<keep>Hund</keep>"}
    out, seen = upper(tmp_path, "a.docx", archive(parts))
    assert seen == ["Ein alter Hund läuft & schläft.", "Er ist alt.", "Ende"]
    with zipfile.ZipFile(io.BytesIO(out)) as made:
        assert made.read("word/other.xml") == b"<keep>Hund</keep>"
        root = etree.fromstring(made.read("word/document.xml"))
    runs = [
        (
            "".join(run.itertext()),
            run.find(f"{{{W}}}rPr/{{{W}}}b") is not None,
            run.getparent().tag.endswith("link"),
        )
        for run in root.iter(f"{{{W}}}r")
    ]
    bold = [text for text, is_bold, _ in runs if is_bold]
    assert "".join(text for text, *_ in runs) == "EIN ALTER HUND LÄUFT & SCHLÄFT. ER IST ALT.ENDE"
    assert bold == ["HUND"] and [text for text, _, is_link in runs if is_link] == ["SCHLÄFT"]
    assert len(root.findall(f".//{{{W}}}tab")) == 1 and len(root.findall(f".//{{{W}}}pStyle")) == 1


def test_texts_of_other_files(tmp_path):
    parts = {"content.xml": ODT, "meta.xml": "<x>Hund</x>"}
    out, _ = upper(tmp_path, "a.odt", archive(parts))
    with zipfile.ZipFile(io.BytesIO(out)) as made:
        assert b'<text:span a="b">HUND</text:span>' in made.read("content.xml")
        assert made.read("meta.xml") == b"<x>Hund</x>"
    shouted = re.sub(r"(?m)^(?!.*-->).*$", lambda line: line[0].upper(), SRT)
    expected = shouted.replace("I>", "i>")
    assert upper(tmp_path, "a.srt", SRT.encode())[0].decode() == expected
    out, _ = upper(tmp_path, "a.txt", "Ein Hund.\n".encode("utf-16"))
    assert out == "EIN HUND.\n".encode("utf-16")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.pdf", b"x", "is none of the files that are read: .docx, .epub"),
        ("a.docx", b"x", "must be an archive without a password, as its ending says: save it"),
        ("a.txt", b"\xff", "is not valid UTF-8 (byte 1): save it as UTF-8"),
        ("a.xlf", b"<a>", "line 1 of"),
        ("a.po", b"x y", "must be a po file"),
    ],
)
def test_what_is_refused_leaves_no_file(tmp_path, name, content, message):
    with pytest.raises(UsageError) as error:
        upper(tmp_path, name, content)
    assert message in str(error.value) and not (tmp_path / f"out-{name}").exists()
    assert name == "a.pdf" or name[1:] in ENDINGS


def test_the_command(tmp_path):
    (tmp_path / "a.md").write_text(
        "# Der Patient hat einen Port.\n\nEr ist *sehr* alt. {x}\n", encoding="utf-8"
    )
    # flags with a value may stand in front of IN
    command = [warm.python(), "-m", "fairseq_ext.text", "translate", "--beam", "2", "a.md"]
    model = ["--data", FLAGS["data"], "--cpu"]
    ran = subprocess.run([*command, "b.md", *model], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    head, _, text = (tmp_path / "b.md").read_text(encoding="utf-8").splitlines()
    assert (
        head.startswith("# The patient")
        and text.count("*") == 2
        and text.count("{x}") == 1
        and "characters" in ran.stderr
    )
    same = subprocess.run([*command, "a.md", *model], cwd=tmp_path, capture_output=True, text=True)
    assert (
        same.returncode == 1
        and same.stderr.startswith("error: OUT would be written over")
        and "Traceback" not in same.stderr
    )
    none = [*command, "c.md", *model, "--max-unpacked", "0"]
    ran = subprocess.run(none, cwd=tmp_path, capture_output=True, text=True)
    said = "error: --max-unpacked 0 allows nothing: use a number above 0\n"
    assert (ran.returncode, ran.stderr) == (1, said) and not (tmp_path / "c.md").exists()


def test_the_command_says_what_of_a_file_is_not_translated(tmp_path):
    """Parts that are never, with status 0; parts that cannot be read, with status 3."""
    parts = {"word/document.xml": DOCX, "word/charts/chart1.xml": "<c>Hund</c>"}
    command = [warm.python(), "-m", "fairseq_ext.text", "translate", "a.docx", "b.docx"]
    model = ["--data", FLAGS["data"], "--cpu", "--beam", "2"]
    for more, status in (({}, 0), ({"word/header1.xml": "<w:p>"}, 3)):
        (tmp_path / "a.docx").write_bytes(archive(parts | more))
        ran = subprocess.run([*command, *model], cwd=tmp_path, capture_output=True, text=True)
        assert ran.returncode == status, ran.stderr
        assert ran.stderr.count("a.docx holds text that is not read: charts\n") == 1
        assert ("left as it was: word/header1.xml of a.docx (it is not " in ran.stderr) == bool(
            more
        )
        assert b"alter" not in zipfile.ZipFile(tmp_path / "b.docx").read("word/document.xml")


LETTER = """<html><head><meta charset="utf-8"></head><body><h1>Der Bericht</h1>
<p>Der Hund <b>l&auml;uft</b>. Die <i>alte Katze</i> schl&auml;ft, \
und <u>alles</u> ist <span style="color:blue">gut</span>.<br>Ende</p>
<ul><li>Das <a href="https://example.org/">Kabel</a> ist neu.</li></ul>\
<table><tr><td>Name</td><td>12 Euro</td></tr></table>
</body></html>"""
SLIDES = """<?xml version="1.0" encoding="UTF-8"?>
<office:document office:mimetype="application/vnd.oasis.opendocument.presentation"
 xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0" \
xmlns:draw="urn:oasis:names:tc:opendocument:xmlns:drawing:1.0"
 xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0" \
xmlns:svg="urn:oasis:names:tc:opendocument:xmlns:svg-compatible:1.0">
<office:body><office:presentation><draw:page>\
<draw:frame svg:width="9cm" svg:height="9cm"><draw:text-box>
<text:p>Der Hund schläft.</text:p><text:p>Die Katze nicht.</text:p>\
</draw:text-box></draw:frame></draw:page></office:presentation>
</office:body></office:document>"""


def office(folder, given, ending: str) -> str:
    """A file in another form, as LibreOffice writes it."""
    profile = f"-env:UserInstallation=file://{folder}/profile"
    form = ending + ":Impress MS PowerPoint 2007 XML" * (ending == "pptx")
    command = ["soffice", profile, "--headless", "--convert-to", form, "--outdir", folder, given]
    subprocess.run(list(map(str, command)), check=True, capture_output=True, timeout=120)
    return str(folder / f"{given.stem}.{ending}")


@pytest.mark.skipif(
    shutil.which("soffice") is None,
    reason="no LibreOffice: apt-get install libreoffice-writer libreoffice-impress",
)
@pytest.mark.skipif(not os.environ.get(ALL), reason="LibreOffice takes 30 seconds: --all")
@pytest.mark.parametrize(
    ("ending", "source"), [("docx", LETTER), ("odt", LETTER), ("epub", LETTER), ("pptx", SLIDES)]
)
def test_files_of_libreoffice(tmp_path, ending, source):
    """They open again in it, with all text translated, and with as many of all elements
    but runs as before."""
    given = tmp_path / ("given.html" if source is LETTER else "given.fodp")
    given.write_text(source, encoding="utf-8")
    if ending in ("docx", "epub"):  # which it does not write from a page
        given = Path(office(tmp_path, given, "odt"))
    there, out = office(tmp_path, given, ending), tmp_path / f"out.{ending}"
    translate(there, str(out), through(str.upper))
    parts = []
    for file in (there, out):
        with zipfile.ZipFile(file) as made:
            assert made.testzip() is None
            trees = [
                etree.fromstring(made.read(name))
                for name in sorted(made.namelist())
                if re.search(r"(xml|html|rels)$", name)
            ]
        tags = Counter(
            str(each.tag)
            for tree in trees
            for each in tree.iter()
            if not re.search(r"\}(r|t|rPr|lang|span)$", str(each.tag))
        )
        parts.append(tags)
    assert parts[0] == parts[1]
    if ending in ("docx", "odt"):
        before, after = (
            Path(office(tmp_path, Path(file), "txt")).read_text(encoding="utf-8")
            for file in (there, out)
        )
        assert after == before.upper() != before
    elif ending == "pptx":
        assert office(tmp_path, out, "pdf") and b"DER HUND SCHL" in zipfile.ZipFile(out).read(
            "ppt/slides/slide1.xml"
        )
