"""What is not translated stays as it is: with a translator that returns its input, every file comes
back equal; with one that writes capitals, all that has changed is letters; with one that marks each
sentence, all that is new is the marks.
"""

import html
import re
import unicodedata
from collections import Counter
from pathlib import Path

import office_files
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from lxml import etree
from office_files import BOX, FIELD, PARAGRAPHS, W, archive, docx, epub, odt, parts_of, pptx
from sizes import examples
from texts import (
    CLOSES,
    OPENS,
    PO,
    SAMPLES,
    XLIFF_UNITS,
    capitals,
    done,
    marked,
    rows,
    through,
    without_marks,
    xliff,
)

from fairseq_ext.text.__main__ import through_translator
from fairseq_ext.text.files import TEXTS
from fairseq_ext.text.office import Paragraph, Part

HERE = Path(__file__).parent
SENTENCES = dict(rows("office/sentences.tsv"))  # of office files


def run(text: str, format: str, change=str, known: bool = True) -> str:
    return "".join(through(change, known=known)(text, format))


def hold(text: str, format: str, spaces: bool = True) -> None:
    """All that is promised of a text of a format that is spliced.

    spaces: whether white space in tags at the end of a sentence is where it was, marks between.
    """
    assert run(text, format) == text
    for known in (True, False):
        assert small(run(text, format, capitals, known)) == small(text)
        out = run(text, format, marked, known)
        assert without_marks(out) == text or not spaces
        shown = [re.sub(r"\s|&nbsp;", "", each) for each in (without_marks(out), text)]
        assert shown[0] == shown[1]
        assert re.fullmatch(f"(?s)[^{OPENS}{CLOSES}]*(?:{OPENS}.*?{CLOSES}.*?)*", out)


def small(text: str) -> str:
    """The text in small letters, without what is lost with a word that has changed: hyphens at
    which it may be broken, and entities in it."""
    text = re.sub("&([aou])uml;", "\\1\u0308", text)
    return re.sub("\u00ad|&shy;", "", unicodedata.normalize("NFC", text)).lower()


@pytest.mark.parametrize(("ending", "text"), SAMPLES)
def test_texts_come_back_equal(ending, text, tmp_path):
    hold(text, TEXTS[ending])
    content = text.encode()
    assert done(tmp_path, f"a{ending}", content, through()) == content


@pytest.mark.parametrize("version", ["1.2", "2.0"])
@pytest.mark.parametrize("target", ["", "<target/>", "<target></target>", "<target state='new'/>"])
def test_xliff_gets_targets_and_nothing_else(version, target, tmp_path):
    """Without its targets it is what it was without them, and each target holds its source."""
    units = XLIFF_UNITS[version]
    text = xliff(units, version, target)
    out = done(tmp_path, "a.xlf", text.encode(), through()).decode()
    bare = [
        re.sub(r"(?s)<target[^>]*/>|<target[^>]*>.*?</target>", "", each) for each in (out, text)
    ]
    assert bare[0] == bare[1]
    assert re.findall(r"(?s)<target[^>]*>(.*?)</target>", out) == units
    etree.fromstring(out.encode())
    shouted = done(tmp_path, "a.xlf", text.encode(), through(marked)).decode()
    etree.fromstring(shouted.encode())
    assert without_marks(shouted) == out and shouted.count(OPENS) >= len(units) - 2


def test_xliff_of_many_units(tmp_path):
    """Each unit is a text of its own, though its lines look like those of two."""
    lines = [(f"Der Hund {i}.", f"Eine Katze {i}, und") for i in range(1500)]
    text = xliff(["\n".join(each) for each in lines])
    out = done(tmp_path, "a.xlf", text.encode(), through(marked)).decode()
    found = re.findall(r"(?s)<target>(.*?)</target>", out)
    assert found == ["\n".join(map(marked, each)) for each in lines]


def test_xliff_units_that_are_not_open_stay(tmp_path):
    text = xliff(["Ein Hund."]).replace(
        "<body>",
        '<body><trans-unit id="n" translate="no"><source>Nein</source></trans-unit><group '
        'translate="no"><trans-unit id="m"><source>Nie</source></trans-unit></group>'
        '<trans-unit id="t"><source>Katze</source><target>cat</target></trans-unit>'
        '<trans-unit id="o"><source>Ja.</source><seg-source><mrk mtype="seg" mid="1">Ja.</mrk>'
        "</seg-source><alt-trans><source>Alt</source><target>old</target></alt-trans></trans-unit>",
    )
    seen: list[str] = []
    out = done(tmp_path, "a.xlf", text.encode(), through(str, seen)).decode()
    assert seen == ["Ja.", "Ein Hund."]
    assert "</seg-source><target>Ja.</target><alt-trans>" in out


@pytest.mark.parametrize("eol", ["\n", "\r\n"])
@pytest.mark.parametrize(("count", "forms"), [(1, 2), (2, 2), (3, 3)])
def test_po_gets_translations_and_nothing_else(eol, count, forms, tmp_path):
    polib = pytest.importorskip("polib")
    text = PO.replace("nplurals=2", f"nplurals={count}").replace("\n", eol)
    out = done(tmp_path, "a.po", text.encode(), through()).decode()
    entries = {entry.msgid: entry for entry in polib.pofile(out)}
    (plural,) = (entry for entry in entries.values() if entry.msgid_plural)
    found = [plural.msgstr_plural[i] for i in range(forms)]
    assert found == {1: ["%d Hunde", ""], 2: ["ein Hund", "%d Hunde"]}.get(
        count, ["ein Hund", "%d Hunde", "%d Hunde"]
    )
    assert all(e.msgstr == e.msgid or e.msgid == "Katze" for e in entries.values() if e != plural)
    blank = re.compile(r'(?m)^msgstr.*\r?\n(?:".*\r?\n)*')
    assert blank.sub("", out) == blank.sub("", text)


def shape(content: bytes) -> list[str]:
    """Names and attributes of a part's elements, but for runs and their text and formatting, and
    characters of words that are elements."""
    left = re.compile(r"\}(r|t|rPr|lang|b|i|rPrChange|rStyle|vertAlign|softHyphen|noBreakHyphen)$")
    return sorted(
        f"{each.tag} {sorted(each.attrib.items())}"
        for each in etree.fromstring(content).iter(etree.Element)
        if not left.search(each.tag)
    )


OFFICE = {
    **{f"{name}.docx": docx(body) for name, body in PARAGRAPHS.items()},
    "all.docx": docx(*PARAGRAPHS.values()),
    "a.pptx": pptx(),
    "a.odt": odt(),
    "a.epub": epub(),
}


def hold_archive(
    folder: Path, name: str, content: bytes, seen: list[str], is_ours: bool = True
) -> None:
    """All that is promised of an archive. seen: gets the sentences; is_ours: no white space is
    around its texts, and no formatting has elements of its own, which new runs repeat."""
    before = parts_of(content)
    assert parts_of(done(folder, name, content, through(str, seen))) == before
    for change in (capitals, marked)[: 1 + is_ours]:
        after = parts_of(done(folder, name, content, through(change)))
        assert list(after) == list(before)
        for part, old in before.items():
            if old == after[part]:
                continue
            assert shape(old) == shape(after[part])
            texts = [
                "".join(text for text in etree.fromstring(each).itertext() if text.strip())
                for each in (old, after[part])
            ]
            texts = [without_marks(text).lower() for text in texts]
            texts = texts if is_ours else [re.sub(r"\s", "", text) for text in texts]
            assert texts[0] == texts[1]


@pytest.mark.parametrize("name", OFFICE)
def test_archives_come_back_equal(name, tmp_path):
    hold_archive(tmp_path, name, OFFICE[name], [])


@pytest.mark.parametrize(
    "file",
    sorted((HERE / "office").glob("text.*")) + [HERE / "office" / "slides.pptx"],
    ids=lambda file: file.name,
)
def test_files_of_libreoffice(file, tmp_path):
    """With fields, footnotes, tables, pictures, formulas, changes, comments, boxes, controls."""
    seen: list[str] = []
    hold_archive(tmp_path, file.name, file.read_bytes(), seen, is_ours=False)
    assert set(SENTENCES[file.name].split("|")) <= set(seen)


def forms(part: bytes) -> list[list[str]]:
    """Of each paragraph with runs, the formatting that there are letters in, in any order."""
    found = []
    for paragraph in etree.fromstring(part).iter(f"{{{W}}}p"):
        here = set()
        for run in paragraph.iter(f"{{{W}}}r"):
            text = "".join(each.text or "" for each in run.findall(f"{{{W}}}t"))
            around = [each.tag for each in run.iterancestors() if each.tag != f"{{{W}}}p"]
            properties = run.find(f"{{{W}}}rPr")
            named = [] if properties is None else [each.tag for each in properties]
            if re.search(r"\w", text):
                here.add(str((around[:1], [tag for tag in named if not tag.endswith("lang")])))
        found.append(sorted(here))
    return found


@pytest.mark.parametrize("name", ["ours", "LibreOffice's"])
def test_runs_keep_their_formatting_in_a_real_translation(name, translator, tmp_path):
    """Each formatting of a paragraph is that of some of its words, and all else is there once."""
    content = docx(*PARAGRAPHS.values())
    if name != "ours":
        content = (HERE / "office" / "text.docx").read_bytes()
    left: list[tuple[str, str]] = []
    way = through_translator(translator, (), left)
    before, after = parts_of(content), parts_of(done(tmp_path, "a.docx", content, way))
    assert not left and list(before) == list(after)
    for part, old in before.items():
        if old != after[part]:
            assert shape(old) == shape(after[part]) and forms(old) == forms(after[part])
    assert before["word/document.xml"] != after["word/document.xml"]


def test_a_document_of_the_strict_form_is_read_too(tmp_path):
    content = docx(PARAGRAPHS["runs"])
    strict = archive(
        {
            name: re.sub(
                rb"http://schemas.openxmlformats.org/(\w+)/2006/(main|math)",
                rb"http://purl.oclc.org/ooxml/\1/\2",
                part,
            )
            for name, part in parts_of(content).items()
        }
    )
    after = parts_of(done(tmp_path, "a.docx", strict, through(capitals)))
    text = after["word/document.xml"].decode()
    assert "LÄUFT" in text and "purl.oclc.org" in text and W not in text


def test_a_paragraph_that_cannot_be_written_stays_as_it_was():
    for content in (
        parts_of(odt())["content.xml"],
        parts_of(docx(*PARAGRAPHS.values()))["word/document.xml"],
    ):
        part = Part(content)
        marks = [
            (each, number)
            for element, _ in part.paragraphs
            for each in [Paragraph(element)]
            for number, mark in enumerate(each.table)
            if getattr(mark, "kind", "r") not in "rn"
        ]
        assert len(marks) > 1
        for each, number in marks:
            assert not each.write(f'Neu {each.text}<o i="{number}"/>')
        made = (
            etree.tostring(part.tree, method="c14n"),
            etree.tostring(Part(content).tree, method="c14n"),
        )
        assert made[0] == made[1]


def test_all_that_people_read_in_a_document_is_translated(tmp_path):
    seen: list[str] = []
    out = parts_of(done(tmp_path, "a.docx", docx(*PARAGRAPHS.values()), through(capitals, seen)))
    assert seen == SENTENCES["ours.docx"].split("|")
    assert out["word/other.xml"] == b"<keep  a='1'>Hund</keep>"
    for run in ('<w:b/></w:rPr><w:t xml:space="preserve">HUND<', "DIE KATZE</w:t></w:r></w:hyperl"):
        assert run in out["word/document.xml"].decode()  # each formatting has its own words


# ---- Texts that a generator writes

WORDS = st.sampled_from("Hund Ein rennt. Ja! z.B. über 10 km {x} %s".split())
SPACES = st.sampled_from(" |  |\n|\t|\u00a0|&nbsp;||&shy;".split("|"))


def inline(children):
    tags = st.sampled_from("b|i|span|a href='x'|em class=\"y\"|code|br|wbr".split("|"))
    return st.one_of(
        st.tuples(WORDS, SPACES).map("".join),
        st.builds(
            lambda tag, inside: (
                f"<{tag}>"
                if tag in ("br", "wbr")
                else f"<{tag}>{''.join(inside)}</{tag.split()[0]}>"
            ),
            tags,
            st.lists(children, max_size=4),
        ),
        st.sampled_from("<!-- k -->|&amp;|<|&|</i>|<img alt='Ein Bild'>".split("|")),
    )


PIECES = st.recursive(st.tuples(WORDS, SPACES).map("".join), inline, max_leaves=12)
BLOCKS = st.builds(
    lambda tag, inside, close: f"<{tag}>{''.join(inside)}" + f"</{tag.split()[0]}>" * close,
    st.sampled_from(["p", "div", "li", "td class=x", "h1"]),
    st.lists(PIECES, max_size=5),
    st.booleans(),
)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(BLOCKS, max_size=4).map("".join))
def test_generated_pages(text):
    assert run(text, "html") == text
    hold(text.replace("&shy;", ""), "html", spaces=False)


PIECES_OF_LINES = (
    "Hund ¦rennt. ¦*¦**¦_¦`¦[¦](x)¦[a](b)¦<b>¦</b>¦|¦\\*¦![¦$¦~~¦&amp;¦{x}¦https://a.b/c_d ¦ü¦[^1]¦"
    "<!--¦\u00a0"
)
LINES = st.builds(
    lambda lead, parts: lead + "".join(parts) + "\n",
    st.sampled_from("¦- ¦> ¦# ¦1. ¦  ¦    ¦> - ¦| ¦\n¦```\n¦::: x\n".split("¦")),
    st.lists(st.sampled_from(PIECES_OF_LINES.split("¦")), max_size=8),
)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(LINES, max_size=6).map("".join))
def test_generated_markdown(text):
    hold(text, "markdown", spaces=False)


RUN = st.builds(
    lambda form, text, more: (
        f"<w:r>{form}{more[0]}<w:t xml:space='preserve'>{text}</w:t>{more[1]}</w:r>"
    ),
    st.sampled_from(["", "<w:rPr><w:b/></w:rPr>", "<w:rPr><w:i/><w:lang w:val='de'/></w:rPr>"]),
    st.sampled_from("Ein Hund| rennt. |Eine| |K|atze &amp; x|Ja! Nein|, ".split("|")),
    st.tuples(
        *[st.sampled_from(["", "", "<w:tab/>", "<w:br/>", "<w:footnoteReference w:id='2'/>"])] * 2
    ),
)
POINTS = st.sampled_from(
    [
        "<w:bookmarkStart w:id='1' w:name='x'/>",
        "<w:proofErr w:type='spellStart'/>",
        BOX,
        FIELD.format(code="PAGE", result="<w:r><w:t>3</w:t></w:r>"),
        FIELD.format(code="HYPERLINK x", result="<w:r><w:t>hier</w:t></w:r>"),
        "<w:r><w:fldChar w:fldCharType='begin'/></w:r>",
        "<w:del><w:r><w:delText>x</w:delText></w:r></w:del>",
    ]
)
AROUND = [
    "<w:hyperlink>{}</w:hyperlink>",
    "<w:ins>{}</w:ins>",
    "<w:fldSimple w:instr='SEQ'>{}</w:fldSimple>",
    "<w:sdt><w:sdtPr/><w:sdtContent>{}</w:sdtContent></w:sdt>",
]
CONTENT = st.recursive(
    RUN | POINTS,
    lambda inside: st.builds(
        lambda around, parts: around.format("".join(parts)),
        st.sampled_from(AROUND),
        st.lists(inside, max_size=4),
    ),
    max_leaves=10,
)


def first_word(text: str) -> str:
    return text.partition(" ")[0]


@settings(max_examples=examples(120), deadline=None)
@given(st.lists(CONTENT, max_size=7).map("".join), st.booleans())
def test_generated_paragraphs(body, known):
    """All nodes but runs are there once, and all text, be it shorter than the source's formats."""
    body = f"<w:body><w:p>{body}</w:p></w:body>"
    part = f"<w:document {office_files.SPACES}>{body}</w:document>".encode()
    made = Part(part)
    text = "".join(through(first_word, known=known)(made.text(), "paragraphs"))
    assert made.write(text) == 0 and shape(made.content()) == shape(part)
    texts = [each.text for each in etree.fromstring(made.content()).iter(f"{{{W}}}t")]
    words = html.unescape(re.sub("<[^>]*>", " ", text)).split()
    assert Counter("".join(words)) <= Counter("".join(texts))
    for change in (capitals, marked):
        made = Part(part)
        text = made.text()
        assert made.write("".join(through(change, known=known)(text, "paragraphs"))) == 0
        out = made.content()
        assert shape(out) == shape(part)
        shown = ["".join(etree.fromstring(each).itertext()) for each in (out, part)]
        assert "".join(without_marks(shown[0]).lower().split()) == "".join(shown[1].lower().split())


MESSAGES = st.lists(
    st.text(max_size=20) | st.sampled_from('Hund\n|"|\\|%s |\t|_Hund|<b>x</b> '.split("|")),
    max_size=5,
).map("".join)


@settings(max_examples=examples(80), deadline=None)
@given(MESSAGES, st.booleans())
def test_generated_messages(text, lines):
    polib = pytest.importorskip("polib")
    assume(text.strip())
    assume(not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]", text))
    raw = polib.escape(text)
    given = f'msgid ""\n"{raw}"\n' if lines else f'msgid "{raw}"\n'
    (entry,) = polib.pofile(run(f'{given}msgstr ""\n', "po"))
    assert entry.msgid == text == entry.msgstr


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.text(max_size=40), max_size=3),
    st.sampled_from(["text", "html", "markdown", "subtitles"]),
)
def test_any_text(texts, format):
    assert run("".join(texts), format) == "".join(texts)


MADE = {
    "§po": PO.replace("UTF-8", "ISO-8859-1"),
    "§xlf": xliff(["Käse"]).replace('"1.0"', '"1.0" encoding="windows-1252"', 1),
}


@pytest.mark.parametrize(("name", "encoding", "text"), rows("encodings.tsv"))
def test_encodings_stay(name, encoding, text, tmp_path):
    text = MADE.get(text, text)
    content = text.encode(encoding)
    out = done(tmp_path, name, content, through())
    if name.endswith(("po", "xlf")):
        assert out.decode(encoding).startswith(text[:40]) and len(out) > len(content)
    else:
        assert out == content
    assert (
        "KÄSE" in done(tmp_path, name, content, through(capitals)).decode(encoding) or "K" in text
    )


def test_characters_that_an_encoding_lacks(tmp_path):
    def snow(text: str) -> str:
        return "☃ " + text

    page = "<meta charset=iso-8859-1><p>Käse</p>".encode("latin-1")
    assert done(tmp_path, "a.html", page, through(snow)) == page.replace(b"<p>", b"<p>&#9731; ")
    out = done(tmp_path, "a.po", PO.replace("UTF-8", "ISO-8859-1").encode("latin-1"), through(snow))
    assert "charset=UTF-8" in out.decode() and "☃ Hund öffnen" in out.decode()
