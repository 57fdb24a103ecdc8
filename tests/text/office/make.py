"""Makes the office files next to it, by LibreOffice, from a text and slides of our own: `python
make.py` (Debian: apt-get install libreoffice-writer libreoffice-impress libreoffice-math)."""

import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
SPACES = " ".join(
    f'xmlns:{prefix}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"'
    for prefix, name in (
        ("office", "office"),
        ("text", "text"),
        ("table", "table"),
        ("style", "style"),
        ("draw", "drawing"),
        ("svg", "svg-compatible"),
        ("fo", "xsl-fo-compatible"),
        ("presentation", "presentation"),
        ("loext", "loext"),
    )
)
SPACES += (
    ' xmlns:xlink="http://www.w3.org/1999/xlink" xmlns:dc="http://purl.org/dc/elements/1.1/" '
    'xmlns:math="http://www.w3.org/1998/Math/MathML"'
)
SPACES = SPACES.replace(
    "urn:oasis:names:tc:opendocument:xmlns:loext:1.0",
    "urn:org:documentfoundation:names:experimental:office:xmlns:loext:1.0",
)
PICTURE = (  # one red pixel
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
)
STYLES = """<office:automatic-styles>
<style:style style:name="B" style:family="text"><style:text-properties fo:font-weight="bold"/>
</style:style>
<style:style style:name="I" style:family="text"><style:text-properties fo:font-style="italic"/>
</style:style>
<style:style style:name="G" style:family="graphic"/>
</office:automatic-styles>"""
TEXT = f"""<?xml version="1.0" encoding="UTF-8"?>
<office:document {SPACES} office:version="1.3"
 office:mimetype="application/vnd.oasis.opendocument.text">{STYLES}
<office:master-styles><style:master-page style:name="Standard"><style:header><text:p>Das Handbuch
</text:p></style:header><style:footer><text:p>Seite <text:page-number>1</text:page-number> von
<text:page-count>2</text:page-count></text:p></style:footer></style:master-page>
</office:master-styles>
<office:body><office:text><text:tracked-changes><text:changed-region text:id="c1"><text:deletion>
<office:change-info><dc:creator>A</dc:creator><dc:date>2024-01-01T00:00:00</dc:date>
</office:change-info><text:p>alte</text:p></text:deletion></text:changed-region>
<text:changed-region text:id="c2"><text:insertion><office:change-info><dc:creator>A</dc:creator>
<dc:date>2024-01-01T00:00:00</dc:date></office:change-info></text:insertion></text:changed-region>
</text:tracked-changes>
<text:h text:outline-level="1">Der Bericht</text:h>
<text:p>Der Hund <text:span text:style-name="B">läuft</text:span>. Die <text:span
 text:style-name="I">alte Katze</text:span> schläft, und <text:span text:style-name="B">alles ist
 gut. Das</text:span> Haus steht am See<text:note text:note-class="footnote" text:id="n1">
<text:note-citation>1</text:note-citation><text:note-body><text:p>Der See ist tief.</text:p>
</text:note-body></text:note>, sagt die Frau.</text:p>
<text:p>Heute ist der <text:date text:date-value="2024-05-01">01.05.2024</text:date>, ein Mittwoch.
 Siehe <text:a xlink:type="simple" xlink:href="https://example.org/">diese Seite</text:a>.</text:p>
<text:p>Der <text:change text:change-id="c1"/><text:change-start text:change-id="c2"/>neue
<text:change-end text:change-id="c2"/> Zug kommt<office:annotation><dc:creator>A</dc:creator>
<dc:date>2024-01-01T00:00:00</dc:date><text:p>Ist das so?</text:p></office:annotation> um acht.
</text:p>
<text:p>Die Formel <draw:frame text:anchor-type="as-char" svg:width="1cm" svg:height="1cm">
<draw:object><math:math><math:mrow><math:mi>a</math:mi><math:mo>=</math:mo><math:mi>b</math:mi>
</math:mrow></math:math></draw:object></draw:frame> gilt immer.</text:p>
<text:p>Vor dem Kasten.<draw:frame text:anchor-type="paragraph" svg:width="4cm" svg:height="2cm">
<draw:text-box><text:p>Der Text im Kasten.</text:p></draw:text-box></draw:frame> Nach dem Kasten.
</text:p>
<text:p><draw:frame text:anchor-type="as-char" svg:width="2cm" svg:height="2cm"><draw:image>
<office:binary-data>{PICTURE}</office:binary-data></draw:image></draw:frame></text:p>
<text:p>Abbildung <text:sequence text:name="Illustration" text:formula="ooow:Illustration+1"
 style:num-format="1">1</text:sequence>: Ein rotes Bild</text:p>
<text:p>Der Name ist <loext:content-control><text:span text:style-name="I">Die Firma</text:span>
</loext:content-control> in Berlin.</text:p>
<table:table><table:table-column table:number-columns-repeated="2"/><table:table-row>
<table:table-cell><text:p>Der Name</text:p></table:table-cell><table:table-cell><text:p>Das
 Alter</text:p></table:table-cell></table:table-row><table:table-row><table:table-cell>
<text:p>Der Hund</text:p></table:table-cell><table:table-cell><text:p>12</text:p>
</table:table-cell></table:table-row></table:table>
<text:list><text:list-item><text:p>Das erste<text:tab/>Ende<text:line-break/>neue Zeile</text:p>
</text:list-item><text:list-item><text:p>Das <text:bookmark text:name="m"/>zweite</text:p>
</text:list-item></text:list>
</office:text></office:body></office:document>"""
SLIDES = f"""<?xml version="1.0" encoding="UTF-8"?>
<office:document {SPACES} office:version="1.3"
 office:mimetype="application/vnd.oasis.opendocument.presentation">{STYLES}
<office:body><office:presentation><draw:page draw:name="p1"><draw:frame svg:width="9cm"
 svg:height="9cm"><draw:text-box><text:p>Der <text:span text:style-name="B">Hund</text:span>
 schläft. Die Katze nicht.</text:p><text:list><text:list-item><text:p>Der erste Punkt</text:p>
</text:list-item></text:list></draw:text-box></draw:frame><draw:frame svg:width="9cm"
 svg:height="3cm" svg:y="10cm"><draw:text-box><text:p>Seite <text:page-number/> am Ende, siehe
 <text:a xlink:href="https://example.org/">hier</text:a></text:p></draw:text-box></draw:frame>
<presentation:notes><draw:frame svg:width="9cm" svg:height="9cm" presentation:class="notes">
<draw:text-box><text:p>Eine Notiz für die Rede.</text:p></draw:text-box></draw:frame>
</presentation:notes></draw:page></office:presentation></office:body></office:document>"""


def made(folder: Path, given: Path, ending: str) -> Path:
    """A file in another form, as LibreOffice writes it."""
    form = ending + ":Impress MS PowerPoint 2007 XML" * (ending == "pptx")
    command = ["soffice", f"-env:UserInstallation=file://{folder}/profile", "--headless"]
    command += ["--convert-to", form, "--outdir", str(folder), str(given)]
    subprocess.run(command, check=True, capture_output=True, timeout=180)
    return folder / f"{given.stem}.{ending}"


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for stem, text, endings in (
            ("text.fodt", TEXT, ("odt", "docx", "epub")),
            ("slides.fodp", SLIDES, ("pptx",)),
        ):
            (folder / stem).write_text(text, encoding="utf-8")
            for ending in endings:
                out = made(folder, folder / stem, ending)
                (HERE / out.name).write_bytes(out.read_bytes())
    return 0


if __name__ == "__main__":
    sys.exit(main())
