"""Texts of the formats that are cut and spliced (samples.jsonl), with what people and attackers
write in them, and translators for the tests of files: what comes back equal, in capitals, or
marked."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from fairseq_ext.core.words import UNITS
from fairseq_ext.text.atoms import Segment
from fairseq_ext.text.files import TranslateText, translate
from fairseq_ext.text.formats import passes
from fairseq_ext.text.marks import Projection
from fairseq_ext.text.splitter import splitter

# (ending of the file, text)
SAMPLES = [
    tuple(json.loads(line))
    for line in Path(__file__).with_name("samples.jsonl").read_text("utf-8").split("\n")[:-1]
]
UNITS_12 = [
    'Ein <g id="1">Hund</g>.',
    'Drei<x id="1"/>Hunde. <bpt id="1">&lt;b&gt;</bpt>Fett<ept id="1">&lt;/b&gt;</ept> und '
    '<ph id="2">%s</ph>.',
    "Zeile eins\nzwei.\nDrei <mrk mtype='protected'>ACME</mrk>",
    "&lt;b&gt;Hund&lt;/b&gt; &amp;amp; <![CDATA[<i>Katze</i> & mehr]]>",
    '<k:g xmlns:k="u" id="1">Hund</k:g> &amp;Datei',
    "{count, plural, one {# Hund} other {# Hunde}}",
    'Eine Zeile<x id="lb" ctype="lb"/>Neue Zeile',
    "12",
    "",
]
UNITS_2 = [
    'Ein <pc id="1">Hund</pc> und <ph id="2"/> <sc id="3"/>fett<ec startRef="3"/> <mrk id="m" '
    'translate="no">ACME</mrk>.',
    "Zwei &amp; drei.",
    'Ein <pc id="1">Hund <pc id="2">innen</pc></pc>. Satz <cp hex="1b"/>zwei.',
]


def xliff(units: list[str], version: str = "1.2", target: str = "") -> str:
    """A file of these units. target: as it stands in each."""
    space = f"urn:oasis:names:tc:xliff:document:{version}"
    if version == "1.2":
        made = "\n".join(
            f'<trans-unit id="{i}"><source>{unit}</source>{target}<note>n</note></trans-unit>'
            for i, unit in enumerate(units)
        )
        inside = f'<file original="x" source-language="de"><body>\n{made}\n</body></file>'
    else:
        made = "\n".join(
            f'<unit id="u{i}"><segment><source>{unit}</source>{target}</segment></unit>'
            for i, unit in enumerate(units)
        )
        inside = f'<file id="f">{made}</file>'
    return f'<?xml version="1.0"?>\n<xliff version="{version}" xmlns="{space}">{inside}</xliff>\n'


PO = r"""# Kommentar
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"
"Plural-Forms: nplurals=2; plural=n != 1;\n"

#: a.c:1
#, c-format
msgid "Ein Hund %s sagt \"ja\".\tTab"
msgstr ""

msgid "Katze"
msgstr "cat"

msgctxt "menu"
msgid "_Hund öffnen"
msgstr ""

msgid ""
"Zeile eins\n"
"Zeile zwei. <b>Fett</b> hier.\n"
msgstr ""

msgid "ein Hund"
msgid_plural "%d Hunde"
msgstr[0] ""
msgstr[1] ""

#~ msgid "alt"
#~ msgstr "old"
#~| msgid "older"
"""


CAPITALS = str.maketrans(
    {chr(i): chr(i - 32) for i in range(ord("a"), ord("z") + 1)}
    | dict(zip("äöü", "ÄÖÜ", strict=True))
)
OPENS, CLOSES = "⟦", "⟧"


def capitals(text: str) -> str:
    """The text in capitals, of the same length."""
    return text.translate(CAPITALS)


def marked(text: str) -> str:
    """The text between two marks."""
    return f"{OPENS}{text}{CLOSES}"


def through(
    change: Callable[[str], str] = str,
    seen: list[str] | None = None,
    known: bool = True,
    language: str = "de",
) -> TranslateText:
    """A translation by a function of each sentence.

    seen: gets the sentences; known: whether it is known which word has become which.
    """

    def run(text: str, format: str) -> Iterator[str]:
        for items in passes(format, splitter(language)):
            out = []
            for item in items(text):
                if isinstance(item, Segment):
                    if seen is not None:
                        seen.append(item.plain)
                    words = [word.span() for word in UNITS.finditer(item.plain)]
                    offset = change("").find(CLOSES) if change("") else 0
                    pairs = [((a, b), (a + offset, b + offset)) for a, b in words]
                    made = Projection(item, change(item.plain), pairs if known else None)
                    out.append(made.rendered())
                else:
                    out.append(item)
            text = "".join(out)
        yield text

    return run


def done(folder: Path, name: str, content: bytes, way: TranslateText) -> bytes:
    """A file's translation."""
    (folder / name).write_bytes(content)
    translate(str(folder / name), str(folder / f"out-{name}"), way)
    return (folder / f"out-{name}").read_bytes()


def without_marks(text: str) -> str:
    """The text without the marks of `marked`."""
    return re.sub(f"[{OPENS}{CLOSES}]", "", text)
