"""Office files of our own, made part by part: what stands in paragraphs next to runs of text."""

import io
import zipfile
from pathlib import Path

PARTS = Path(__file__).parent / "text" / "office" / "parts"

W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"


def archive(parts):
    """A zip archive of these parts."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in parts.items():
            made.writestr(name, content)
    return out.getvalue()


def parts_of(content):
    """The parts of an archive, which is whole."""
    with zipfile.ZipFile(io.BytesIO(content)) as made:
        assert made.testzip() is None
        return {name: made.read(name) for name in made.namelist()}


def read(name):
    """A part as it stands in text/office/parts."""
    return (PARTS / name).read_text("utf-8")


FIELD, BOX, DOCUMENT = map(read, ("field.xml", "box.xml", "document.xml"))
SPACES = DOCUMENT.partition("<w:document ")[2].partition(">")[0]
# of each kind of paragraph, what stands in it
PARAGRAPHS = dict(line.split("\t") for line in read("paragraphs.tsv").split("\n")[:-1])
ODT = read("content.xml")


def docx(*paragraphs):
    """A docx with these paragraphs, a table, a header, a footnote, a comment and a chart."""
    body = "".join(f"<w:p>{each}</w:p>" for each in paragraphs)
    return archive(
        {
            "[Content_Types].xml": read("types.xml"),
            "_rels/.rels": read("rels.xml"),
            "word/document.xml": DOCUMENT.replace("{paragraphs}", body),
            "word/header1.xml": read("header.xml"),
            "word/footnotes.xml": read("footnotes.xml"),
            "word/other.xml": "<keep  a='1'>Hund</keep>",
            "word/charts/chart1.xml": "<c>Diagramm</c>",
        }
    )


def pptx():
    """A pptx with one slide."""
    diagram = "<d>SmartArt</d>"
    return archive({"ppt/slides/slide1.xml": read("slide.xml"), "ppt/diagrams/data1.xml": diagram})


def odt():
    """An odt."""
    return archive({"mimetype": "application/vnd.oasis.opendocument.text", "content.xml": ODT})


def epub():
    """An e-book of one page."""
    pages = {"OEBPS/a.xhtml": read("page.xhtml"), "toc.ncx": read("toc.ncx"), "x.css": "p {}"}
    return archive({"mimetype": "application/epub+zip", **pages})
