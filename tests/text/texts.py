"""Texts of the formats that are cut and spliced, with what people and attackers write in them, and
translators for the tests of files: what comes back equal, in capitals, or marked."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from fairseq_ext.core.words import UNITS
from fairseq_ext.text.atoms import Segment
from fairseq_ext.text.files import TranslateText, translate
from fairseq_ext.text.formats import passes
from fairseq_ext.text.marks import Projection
from fairseq_ext.text.splitter import splitter

MARKDOWN = [
    '---\ntitle: \'Ein Titel: gut\'\ndescription: "Sagt \\"ja\\"."\nlayout: x\n---\n\n'
    "# Kopf {#anker}\n",
    '+++\ntitle = "Ein Titel"\nweight = 3\n+++\n\nEin Hund.\n',
    "---\r\ntitle: Ein Titel\r\n---\r\n\r\nEin Hund\r\nrennt. Eine Katze.\r\n",
    "---\ndescription: >\n  Ein langer\n  Text.\nx: y\n---\nText\n",
    "- eins\n\n  ```js\n  x = 'Hund'\n  ```\n\n  Ein Absatz.\n- zwei\n  - drei\n\n    vier\n",
    "> Ein Hund\n> rennt.\n>\n> ```\n> Code\n> ```\n",
    "> [!NOTE]\n> Ein Hinweis.\n> Noch einer.\n\n:::note\nEin Text.\n:::\n\n:::tip "
    "Mein Titel\nText\n"
    ":::\n",
    "<!-- Ein\nHund -->\n\nText. <!-- k --> Hier.\n\n[^1]: Fußnote hier.\n\nEin "
    "Satz[^1] mit Note.\n",
    "<div>\nEin Hund\n</div>\n\n<b>Hund</b> rennt. <i>Zwei</i> auch.\n",
    "2*3*4 ist 24. ***beides*** und ~~weg~~ und $$a_b*c$$ oder $x_1$.\n\n$$\na*b*c\n$$\n\n"
    "Es kostet $5 und $6.\n",
    "[`Code`](x.md) und [![Bild](b.png)](y) und [{x}](z) und [http://a.b](http://a.b).\n",
    "`hotmail.com`, `live.com` sind gut.\n",
    "`.export` [ `async` ] [ `compressed` ] `to` Ziel\n",
    "Siehe [!INCLUDE [name](path)] hier.\n",
    'Ein [Ref][1] und [Text] und [eins].\n\n[1]: http://x.y "Der Titel"\n[eins]: http://z\n',
    "| a | b \\| c |\n|---|---|\n| Ein *Hund* | `x|y` |\n",
    "Zeile eins  \nZeile zwei\\\ndrei\n",
    "Titel\n=====\n\nZwei\n---\n\n## Ein Kopf ##\n",
    "Ein Text mit snake_case_name und http://a.b/_x_/c_d_e und __fett__.\n",
    "1. Eins\n2. Zwei\n\n   Mehr.\n\n* [ ] Aufgabe\n* [x] Fertig\n",
    '!!! note "Ein Titel"\n    Ein Hinweis.\n\n    Noch ein Absatz.\n\nEnde.\n',
    "Begriff\n: Die Erklärung.\n",
    "Text\n***\nText\n\n    Code hier\n\nText \\* \\_ \\[ &nbsp; © x.\n",
    '![Ein Bild](a.png "Der Titel") und [L](b "Titel zwei")\n',
    ':::image type="content" source="a.png" alt-text="Ein Bild mit Text.":::\n',
    "Ein <kbd>Strg</kbd>+<code>C</code> und <span title='Der Hund'>Hund</span>. Wasser. "
    "<b>Ein Mädchen</b> schaut.\n",
    "* Ein\n  langer Punkt\n  weiter. Neuer Satz.\n",
    "Hund.\n{% include x.html %}\n{{ var }} Katze.\n",
    "<details>\n<summary>Mehr</summary>\n\nText **fett**.\n\n</details>\n",
    "Ein **Hund,** der *„bellt“* (laut) – [hier](x).\n",
    'a\n\n<p align="center">\n  <img src="x" alt="Ein Logo">\n</p>\n',
    "**Hinweis:** Der Hund. **Fett.** Ende\n",
    "Text<br>weiter<br/>Ende. Ein  doppelter   Abstand.\n",
    "> - Punkt in Zitat\n>   weiter\n> - zwei\n>   > tief\n>   > tiefer\n",
    "Hund\u00a0eins 10\u00a0km.\n\n\tCode mit Tab\n",
    "",
    "\n\n",
    "Ohne Ende",
]
HTML = [
    '<!DOCTYPE html>\n<html><head><meta charset=utf-8><title>Der Port</title><style>p {x: "</b>"}'
    "</style><script>if (a<b) \"</p>\";</script></head><body class='x'>\n<p>Ein "
    "<b>Hund</b> läuft & "
    '<a href="x?a=1&b=2" title="Der Patient">die <i>kleine</i> Katze</a> '
    "schläft.<br>\nNoch <code>x "
    "= 1</code> ein   Satz. <b>Ganz fett. Zwei Sätze.</b> Ende</p><!-- Hund. --><ul><li>eins<li>"
    "zwei</ul>\n<img src=y alt='Ein Bild'> 10&nbsp;km</body></html>",
    "<p>a < b und c > d. x<y</p>",
    "<p>Ein<b> fetter</b> Hund<span> </span>bellt<wbr>laut. Donau<wbr>dampf</p>",
    "<p>Der Hund rennt über die<br>Straße. Max<br>Moritz<br><br>Ende</p>",
    "<p>Wasser. <b>Ein Mädchen</b> schaut. <a href=x><img src=y></a> Bild.</p>",
    "<p>Text <b title='Ein Titel mit \"Quote\"'>x</p>",
    "<ul><li>Ein <b>Punkt<li>Zwei</b></ul>",
    "<table><tr><td>Zelle<td>Zwei</table>",
    "<p>H<sub>2</sub>O und 5<sup>1</sup> und Text<sup>a</sup>.</p>",
    '<button>Senden</button><input type=submit value="Los gehts"><select><option>Eins<option>Zwei'
    "</select><textarea>Ein Text</textarea>",
    "<p>Ein „<i>Hund</i>“, (<b>laut</b>) bellt!</p>",
    '<?xml version="1.0"?><html xmlns="http://www.w3.org/1999/xhtml"><head><script src="x"/><title>'
    "Titel</title></head><body><p>Ein <br/>Hund</p></body></html>",
    "<my-tag>Ein Hund</my-tag> bellt. <P CLASS=x>Groß</P>",
    "<p>Ein <!-- Kommentar --> Hund. <b></b> Ende</p>",
    "<p>&copy; &foo; AT&T &amp; Co, Müller&thinsp;und&nbsp;Sohn</p>",
    "<p><b>Ein Hund</b></p>\n<p>\n  Eingerückt\n  über Zeilen.\n</p>",
    "<div>Text<div>Innen</div>Danach</div>",
    "<p>{{ name }} ist da. %s Katzen. Siehe https://a.de/x zeigt.</p>",
    "<p>Er sagte: <q>Nein.</q> Sie auch.</p>",
    "<p><em>Er</em><strong>Sie</strong> x<b>y</b>z</p>",
    "<meta name=description content=\"Eine Seite\"><meta property='og:title' content='Titel'>",
    "<p>a</p",
    "<p>Ein</b> Hund</i></p>",
    "</ x>Hund",
    "<p>Ein<!>Hund</p>",
    "<pre>Code</pre> Text <samp>x</samp> Text <a href='#'>mehr</a>.",
    '<p><?php echo "a > b"; ?> Ein Hund <%= x > 1 %> bellt. 5 <% 6</p>',
    "<p>\r\nEin Hund\r\nrennt.\r\n</p>\r\n",
    "",
]
XML = [
    "<a><b>Ein <i>Hund</i>.</b><c/><d>Zwei &amp; drei <![CDATA[Ein Hund]]></d></a>",
    '<!DOCTYPE a [<!ENTITY x "y">]>\n<a>Ein &x; Hund <e>innen</e>.</a>',
    '<?xml version="1.0" encoding="UTF-8"?>\r\n<a xmlns:k="u">\r\n <k:b at=\'1\' >Ein Hund</k:b >'
    '\r\n <p translate="no">12</p>\r\n <!-- k --><?pi x?>\r\n</a>\r\n',
    "<a>Ein <!-- c --> Hund <b/> rennt.</a>",
    '<!DOCTYPE a SYSTEM "x.dtd"><a b="c  d"><e >Hund &foo; Katze</e\n></a>',
]
SUBTITLES = [
    "1\n00:00:01,000 --> 00:00:02,000\nEin <i>alter</i>\nHund.\n\n2\n00:00:03,000 "
    "--> 00:00:04,000\n"
    "- Ja!\n- Nein,\nnie!\n\n3\n00:00:05,000 --> 00:00:06,000\n{\\an8}Tom & Jerry < Katze\n4\n"
    "00:00:07,000 --> 00:00:08,000\nOhne Leerzeile\n",
    "WEBVTT - Titel\n\nNOTE Kommentar\nnoch\n\nSTYLE\n::cue { color: red }\n\nid 1\n00:01.000 --> "
    "00:02.000 align:start\n<v Roger>Der &amp; Hund & <c.x>Katze</c></v>\nrennt <00:01.500>weg.\n",
    "1\r\n00:00:01,000 --> 00:00:02,000\r\nEin Hund.\r\nZwei.\r\n\r\n",
]
PLAIN = [
    "Ein Hund.\tEine Spalte\tZwei\r\n\r\n - Punkt {a} - {b}: %s & %d.\n\n\n„Ja.“ – Nein!  Ende",
    "Hund\u00a0eins läuft 10\u00a0km. Soft\u00adhyphen?\n",
    "20 % d'ici, 20 % i 30 %.\x0bNeu\x0cSeite\n",
]
CORPUS = {
    ".md": MARKDOWN,
    ".html": HTML,
    ".xml": XML,
    ".srt": SUBTITLES[:1] + SUBTITLES[2:],
    ".vtt": SUBTITLES[1:2],
    ".txt": PLAIN,
}
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
