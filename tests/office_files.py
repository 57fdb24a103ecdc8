"""Office files of our own, made part by part: what stands in paragraphs next to runs of text."""

import io
import zipfile

W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
TYPES = (
    '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
    '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships'
    '+xml"/><Default Extension="xml" ContentType="application/xml"/>{}</Types>'
)
RELS = (
    '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">'
    '<Relationship Id="r1" Type="http://schemas.openxmlformats.org/officeDocument/2006/'
    'relationships/officeDocument" Target="{}"/></Relationships>'
)
OVERRIDE = (
    '<Override PartName="/word/document.xml" ContentType="application/vnd.openxmlformats-'
    'officedocument.wordprocessingml.document.main+xml"/>'
)
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
PARAGRAPHS = {
    "runs": '<w:pPr><w:pStyle w:val="x"/></w:pPr><w:r w:rsidR="1"><w:t xml:space="preserve">Ein '
    '</w:t></w:r><w:proofErr w:type="spellStart"/><w:r><w:rPr><w:lang w:val="de-DE"/></w:rPr>'
    "<w:t>alter </w:t></w:r><w:r><w:rPr><w:b/></w:rPr><w:t>Hund</w:t></w:r><w:r><w:t> läuft "
    "&amp; schläft. Er ist alt.</w:t><w:tab/><w:t>Ende</w:t></w:r>",
    "link": '<w:r><w:t xml:space="preserve">Siehe </w:t></w:r><w:hyperlink r:id="h1"><w:r><w:rPr>'
    '<w:rStyle w:val="L"/></w:rPr><w:t>die Katze</w:t></w:r></w:hyperlink><w:r><w:t>.</w:t></w:r>',
    "field of a link": '<w:r><w:t xml:space="preserve">Hier: </w:t></w:r>'
    + FIELD.format(code='HYPERLINK "http://x.y"', result="<w:r><w:t>das Haus</w:t></w:r>")
    + "<w:r><w:t>!</w:t></w:r>",
    "field of a number": "<w:r><w:t>Abbildung </w:t></w:r>"
    + FIELD.format(code="SEQ Abb", result="<w:r><w:t>3</w:t></w:r>")
    + "<w:r><w:t>: Ein Hund</w:t></w:r>",
    "field in one run": '<w:r><w:t>Seite </w:t><w:fldChar w:fldCharType="begin"/><w:instrText>PAGE'
    '</w:instrText><w:fldChar w:fldCharType="separate"/><w:t>5</w:t><w:fldChar '
    'w:fldCharType="end"/><w:t> von vielen</w:t></w:r>',
    "simple field": '<w:r><w:t>Heute ist </w:t></w:r><w:fldSimple w:instr=" DATE "><w:r><w:t>1.1.'
    "</w:t></w:r></w:fldSimple><w:r><w:t>, Montag</w:t></w:r>",
    "footnote": '<w:r><w:t>Ein Satz</w:t></w:r><w:r><w:rPr><w:vertAlign w:val="superscript"/>'
    '</w:rPr><w:footnoteReference w:id="2"/></w:r><w:r><w:t> mit Fußnote.</w:t></w:r>',
    "break": "<w:r><w:t>Der Hund rennt über die</w:t><w:br/><w:t>lange Straße.</w:t><w:br "
    'w:type="page"/><w:t>Neue Seite</w:t></w:r>',
    "formula": "<w:r><w:t>Es gilt </w:t></w:r><m:oMath><m:r><m:t>a=b</m:t></m:r></m:oMath>"
    "<w:r><w:t> immer.</w:t></w:r>",
    "changes": '<w:r><w:t>Der </w:t></w:r><w:del w:id="1"><w:r><w:delText>alte</w:delText></w:r>'
    '</w:del><w:ins w:id="2"><w:r><w:t>neue</w:t></w:r></w:ins><w:r><w:rPr><w:b/><w:rPrChange '
    'w:id="3"><w:rPr/></w:rPrChange></w:rPr><w:t xml:space="preserve"> Hund</w:t></w:r>',
    "comment": '<w:commentRangeStart w:id="0"/><w:r><w:t>Ein Wort</w:t></w:r><w:commentRangeEnd '
    'w:id="0"/><w:r><w:commentReference w:id="0"/></w:r><w:r><w:t> und mehr.</w:t></w:r>',
    "box": "<w:r><w:t>Vor dem Kasten</w:t></w:r>" + BOX + "<w:r><w:t> und danach.</w:t></w:r>",
    "content control": "<w:r><w:t>Name: </w:t></w:r><w:sdt><w:sdtPr><w:alias "
    'w:val="n"/></w:sdtPr><w:sdtContent><w:r><w:t>Der Kunde</w:t></w:r></w:sdtContent></w:sdt>'
    "<w:r><w:t> zahlt.</w:t></w:r>",
    "characters": "<w:r><w:t>E</w:t><w:noBreakHyphen/><w:t>Mail und Donau</w:t><w:softHyphen/>"
    '<w:t>dampf </w:t><w:sym w:font="Wingdings" w:char="F04A"/><w:t>.</w:t></w:r>',
    "ruby": "<w:r><w:t>Das </w:t></w:r><w:r><w:ruby><w:rt><w:r><w:t>oben</w:t></w:r></w:rt>"
    "<w:rubyBase><w:r><w:t>unten</w:t></w:r></w:rubyBase></w:ruby></w:r><w:r><w:t> "
    "Wort</w:t></w:r>",
    "bookmark in a word": '<w:r><w:t>Wort</w:t></w:r><w:bookmarkStart w:id="9" w:name="b"/><w:r>'
    '<w:t>teil</w:t></w:r><w:bookmarkEnd w:id="9"/><w:r><w:t xml:space="preserve"> und </w:t></w:r>'
    "<w:r><w:rPr><w:i/></w:rPr><w:t>schräg. Nächster</w:t></w:r><w:r><w:t> Satz.</w:t></w:r>",
    "empty": "",
    "numbers": "<w:r><w:t>12.5</w:t></w:r>",
}
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


def docx(*paragraphs: str) -> bytes:
    """A docx with these paragraphs, a table, a header, a footnote, a comment and a chart."""
    cell = "<w:tbl><w:tr><w:tc><w:p><w:r><w:t>Eine Zelle</w:t></w:r></w:p></w:tc></w:tr></w:tbl>"
    body = "".join(f"<w:p>{each}</w:p>" for each in paragraphs)
    note = (
        '<w:footnotes {}><w:footnote w:id="2"><w:p><w:r><w:footnoteRef/></w:r><w:r><w:t> Die '
        "Fußnote.</w:t></w:r></w:p></w:footnote></w:footnotes>"
    )
    return archive(
        {
            "[Content_Types].xml": HEAD + TYPES.format(OVERRIDE),
            "_rels/.rels": HEAD + RELS.format("word/document.xml"),
            "word/document.xml": f"{HEAD}<w:document {SPACES}><w:body>{body}{cell}<w:p/><w:sectPr/>"
            "</w:body></w:document>",
            "word/header1.xml": f"{HEAD}<w:hdr {SPACES}><w:p><w:r><w:t>Der Kopf</w:t></w:r></w:p>"
            "</w:hdr>",
            "word/footnotes.xml": HEAD + note.format(SPACES),
            "word/other.xml": "<keep  a='1'>Hund</keep>",
            "word/charts/chart1.xml": "<c>Diagramm</c>",
        }
    )


P = "http://schemas.openxmlformats.org/presentationml/2006/main"
A = "http://schemas.openxmlformats.org/drawingml/2006/main"
SLIDE = f"""{HEAD}<p:sld xmlns:p="{P}" xmlns:a="{A}"><p:cSld><p:spTree><p:sp><p:txBody><a:bodyPr/>
<a:p><a:pPr lvl="1"/><a:r><a:rPr lang="de-DE" dirty="0"/><a:t>Ein </a:t></a:r><a:r><a:rPr
 lang="de-DE" b="1"/><a:t>alter Hund</a:t></a:r><a:r><a:rPr lang="de-DE"/><a:t> läuft.</a:t></a:r>
<a:br/>
<a:r><a:rPr/><a:t>Zeile zwei</a:t></a:r><a:endParaRPr lang="de-DE"/></a:p>
<a:p><a:r><a:t>Folie </a:t></a:r>
<a:fld id="x" type="slidenum"><a:rPr/><a:t>3</a:t></a:fld><a:r>
<a:t> von vielen</a:t></a:r></a:p></p:txBody></p:sp></p:spTree></p:cSld></p:sld>"""
OFFICE = "urn:oasis:names:tc:opendocument:xmlns:office:1.0"
TEXT = "urn:oasis:names:tc:opendocument:xmlns:text:1.0"
ODT = f"""{HEAD}<office:document-content xmlns:office="{OFFICE}" xmlns:text="{TEXT}"
 xmlns:draw="urn:d"><office:body><office:text><text:tracked-changes><text:changed-region>
<text:deletion><text:p>Gelöscht</text:p></text:deletion></text:changed-region>\
</text:tracked-changes>
<text:h text:outline-level="1">Der <text:bookmark text:name="b"/>Titel</text:h>
<text:p>Ein <text:span text:style-name="T1">alter</text:span> Hund<text:s text:c="2"/>läuft.\
<text:tab/>Ende<text:line-break/>neu. <text:a href="x">Ein <text:span>Link</text:span></text:a>, \
<text:change text:change-id="c"/>Seite <text:page-number>3</text:page-number>.</text:p>
<text:p>Ein Satz<text:note><text:note-citation>1</text:note-citation><text:note-body><text:p>Die \
Fußnote.</text:p></text:note-body></text:note> mit Note. <draw:frame><draw:text-box><text:p>Im \
Kasten</text:p></draw:text-box></draw:frame></text:p>
<text:list><text:list-item><text:p><text:span text:style-name="T2">Ganz fett.</text:span></text:p>\
</text:list-item></text:list></office:text></office:body></office:document-content>"""
PAGE = """<?xml version="1.0" encoding="utf-8"?>
<html xmlns="http://www.w3.org/1999/xhtml"><head><title>Das Buch</title><script src="x"/></head>
<body><p>Ein <i>alter</i> Hund.<br/>Neue Zeile &#228;.</p></body></html>"""
NCX = """<?xml version="1.0" encoding="UTF-8"?>
<ncx xmlns="http://www.daisy.org/z3986/2005/ncx/"><docTitle>
<text>Das Buch</text></docTitle></ncx>"""


def pptx() -> bytes:
    """A pptx with one slide."""
    return archive({"ppt/slides/slide1.xml": SLIDE, "ppt/diagrams/data1.xml": "<d>SmartArt</d>"})


def odt() -> bytes:
    """An odt."""
    return archive({"mimetype": "application/vnd.oasis.opendocument.text", "content.xml": ODT})


def epub() -> bytes:
    """An e-book of one page."""
    return archive(
        {"mimetype": "application/epub+zip", "OEBPS/a.xhtml": PAGE, "toc.ncx": NCX, "x.css": "p {}"}
    )
