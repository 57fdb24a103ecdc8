"""Office files of our own, made part by part: what stands in paragraphs next to runs of text."""

import io
import zipfile
from pathlib import Path

PARTS = Path(__file__).parent / "text" / "office" / "parts"

W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
FIELD = (
    '<w:r><w:fldChar w:fldCharType="begin"/></w:r><w:r><w:instrText> {code} </w:instrText></w:r>'
    '<w:r><w:fldChar w:fldCharType="separate"/></w:r>{result}'
    '<w:r><w:fldChar w:fldCharType="end"/></w:r>'
)
BOX = (
    '<w:r><mc:AlternateContent><mc:Choice Requires="wps"><w:drawing><wp:anchor><wp:positionH>'
    "<wp:posOffset>123456</wp:posOffset></wp:positionH><a:graphic><wps:txbx><w:txbxContent><w:p>"
    "<w:r><w:t>Text im Kasten.</w:t></w:r></w:p></w:txbxContent></wps:txbx></a:graphic></wp:anchor>"
    "</w:drawing></mc:Choice></mc:AlternateContent></w:r>"
)
SPACES = (
    f'xmlns:w="{W}" xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships" '
    'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math" '
    'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006" '
    'xmlns:wp="http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing" '
    'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main" '
    'xmlns:wps="http://schemas.microsoft.com/office/word/2010/wordprocessingShape"'
)
HEAD = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'


def archive(parts: dict[str, str | bytes]) -> bytes:
    """A zip archive of these parts."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in parts.items():
            made.writestr(name, content)
    return out.getvalue()


def parts_of(content: bytes) -> dict[str, bytes]:
    """The parts of an archive, which is whole."""
    with zipfile.ZipFile(io.BytesIO(content)) as made:
        assert made.testzip() is None
        return {name: made.read(name) for name in made.namelist()}


def read(name: str) -> str:
    """A part as it stands in text/office/parts."""
    return (PARTS / name).read_text("utf-8")


# of each kind of paragraph, what stands in it
PARAGRAPHS = dict(line.split("\t") for line in read("paragraphs.tsv").split("\n")[:-1])
ODT = read("content.xml")


def docx(*paragraphs: str) -> bytes:
    """A docx with these paragraphs, a table, a header, a footnote, a comment and a chart."""
    cell = "<w:tbl><w:tr><w:tc><w:p><w:r><w:t>Eine Zelle</w:t></w:r></w:p></w:tc></w:tr></w:tbl>"
    body = "".join(f"<w:p>{each}</w:p>" for each in paragraphs)
    return archive(
        {
            "[Content_Types].xml": read("types.xml"),
            "_rels/.rels": read("rels.xml"),
            "word/document.xml": f"{HEAD}<w:document {SPACES}><w:body>{body}{cell}<w:p/><w:sectPr/>"
            "</w:body></w:document>",
            "word/header1.xml": read("header.xml"),
            "word/footnotes.xml": read("footnotes.xml"),
            "word/other.xml": "<keep  a='1'>Hund</keep>",
            "word/charts/chart1.xml": "<c>Diagramm</c>",
        }
    )


def pptx() -> bytes:
    """A pptx with one slide."""
    diagram = "<d>SmartArt</d>"
    return archive({"ppt/slides/slide1.xml": read("slide.xml"), "ppt/diagrams/data1.xml": diagram})


def odt() -> bytes:
    """An odt."""
    return archive({"mimetype": "application/vnd.oasis.opendocument.text", "content.xml": ODT})


def epub() -> bytes:
    """An e-book of one page."""
    pages = {"OEBPS/a.xhtml": read("page.xhtml"), "toc.ncx": read("toc.ncx"), "x.css": "p {}"}
    return archive({"mimetype": "application/epub+zip", **pages})
