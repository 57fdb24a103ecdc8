"""What readers once lost, doubled or changed: a row of a table for each kind, and tables of
Markdown made at random."""

import itertools
import random
import re
import sys

import pytest
from office_files import FIELD, ODT, archive, docx, parts_of
from test_making import shuffled
from texts import OPENS, done, marked, rows, through, without_marks, xliff

from fairseq_ext import UsageError
from fairseq_ext.text.atoms import Segment
from fairseq_ext.text.files import translate
from fairseq_ext.text.formats import passes
from fairseq_ext.text.in_lines import translated
from fairseq_ext.text.splitter import splitter

CUE = "1\n00:00:01,000 --> 00:00:02,000\n"


@pytest.mark.parametrize(("ending", "text", "read", "made", "expected"), rows("examples.tsv", 5))
def test_examples(ending, text, read, made, expected, tmp_path):
    """Of a text (examples.tsv), the sentences that are read, with ¦ between them; where a row has
    more, a translation of each, and what comes out."""
    seen: list[str] = []
    out = done(tmp_path, f"a{ending}", text.encode(), through(marked, seen)).decode()
    assert list(filter(None, seen)) == list(filter(None, read.split("¦")))
    assert out.count(OPENS) == len(seen) if ending == ".po" else without_marks(out) == text
    if made:
        way = through(lambda _: made, known=False)
        assert done(tmp_path, f"a{ending}", text.encode(), way).decode() == expected


@pytest.mark.parametrize("protect", ["am", r"\w+ &", "[a-z]+;"])
def test_protected_text_takes_no_part_of_an_entity(protect):
    text, found = "<p>Tom &amp; Jerry &auml;hm</p>", []
    for items in passes("html", splitter("de"), (protect,)):
        found = list(items(text))
    atoms = [atom.raw for item in found if not isinstance(item, str) for atom in item.atoms]
    assert not any(re.search(r"&\w*$|^\w*;", raw) for raw in atoms)


RUN = "<w:r><w:t>{}</w:t></w:r>"
NUMBER = FIELD.format(code="PAGE", result=RUN.format(3))
# of each paragraph, what is read and the parts of it that are not
WORD = [
    (RUN.format("Ein <!-- c -->alter <?p?>Hund"), "Ein alter Hund", []),
    (RUN.format("Ein <w:x>y</w:x>Hund"), "Ein Hund", []),
    (NUMBER + RUN.format("te Seite"), "te Seite", []),
    (RUN.format("Seite ") + NUMBER, "Seite 3", []),
    (
        RUN.format("Ein Hund")
        + "<mc:AlternateContent><mc:Choice>"
        + RUN.format("Katze")
        + "</mc:Choice></mc:AlternateContent>",
        "Ein Hund",
        ["AlternateContent"],
    ),
]


@pytest.mark.parametrize(("paragraph", "plain", "kinds"), WORD)
def test_paragraphs_of_word(paragraph, plain, kinds, tmp_path):
    """All text is read, or named; a number that a field shows is there once."""
    for change in (marked, lambda text: text.replace("3", "3rd")):
        seen: list[str] = []
        out = done(tmp_path, "a.docx", docx(paragraph), through(change, seen, known=False))
        report = translate(str(tmp_path / "a.docx"), str(tmp_path / "b.docx"), through())
        assert seen[0] == plain and report.kinds == [*kinds, "charts"]
        text = parts_of(out)["word/document.xml"].decode()
        assert re.sub("<[^>]*>", "", text.partition("PAGE")[2]).count("3") == ("PAGE" in text)


@pytest.mark.parametrize("many", ["-5", "0", "x"])
def test_spaces_of_an_odt_stay(many, tmp_path):
    text = ODT.replace('text:c="2"', f'text:c="{many}"')
    out = done(tmp_path, "a.odt", archive({"content.xml": text}), through(marked))
    assert f'<text:s text:c="{many}"/>'.encode() in parts_of(out)["content.xml"]


LINKS = [f"[Hund {number}](http://a.b/{number})" for number in range(210)]
BOLD = f"**Hier {', '.join(LINKS)}!**"
MANY_SIGNS = (
    f"Hier {', '.join(LINKS[:110])} und mehr.",
    f"Hier {''.join(LINKS)}.",
    "Hier " + ",".join(f"[Hund {i}](http://x/{i} (t u {i}))" for i in range(110)) + ".",
    "Hier " + ",".join(f'[Hund {i}](http://x/{i} "t \\" u")' for i in range(99)) + ".",
)
OPEN_SIGNS = (
    " ".join(f"**Hund {number}** 2 * 3 _ [" for number in range(99)),
    "[" * 300 + "Hund",
    "![[" * 100,
)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        *((each, each) for each in MANY_SIGNS),
        ("|Hier " + ", ".join(LINKS) + "|b|", "Hier " + ", ".join(LINKS)),
        (BOLD, BOLD),
        *((each, f"{each} Nein.") for each in OPEN_SIGNS),
        (" ".join(f"**Hund {i}** [Hund](http://x/{i}). *Hund*!" for i in range(99)), ""),
        (f"![Bild](data:image/png;base64,{'aB3+' * 3000}) hier", ""),
    ],
)
def test_many_signs_in_a_line(text, left):
    """What cannot be cut stays and says so; what stands around it is translated."""
    row = text[0] == "|"
    text = f"{text}\n|-|-|\n|Nein.|x|\n" if row else f"Ja.\nDer Hund bellt. {text} Nein.\n"
    first, last = passes("markdown", splitter("de"))
    items, untranslated = list(last(text)), list[tuple[str, str]]()
    read = [item for item in items if isinstance(item, Segment)]
    plain = " ".join(item.plain for item in read)
    words = re.findall(r"(?<!\w)(?:Hund|Hier|Ja|Nein)\b", text.replace(left, "") if left else text)
    assert len(re.findall(r"Hund|Hier|Ja|Nein", plain)) == len(words)
    assert all(mark.half == "" for item in read for mark in item.marks)
    out = "".join(translated(items, lambda them: [UsageError("no")] * len(them), untranslated))
    assert out == text == "".join(i if isinstance(i, str) else i.source for i in first(text))
    assert [source.strip() for source, reason in untranslated if reason != "no"] == (
        [left] if left else []
    )
    shown = [item.plain for item in first(text) if isinstance(item, Segment)]
    assert shown == (["Bild"] if "![Bild]" in text else [])


def table(seed: int) -> str:
    """Return a table of Markdown and text behind it; some have too many cells, empty rows, or no
    pipes around them, or are in quotes and lists."""
    draw, number = random.Random(seed), itertools.count(seed * 100)
    pieces = ("Hund", "Ein Satz. Noch einer.", "\\|", "&#124;", "<br>", "**fett**", "[Wort](a.md)")
    code = ("{}/", "{};", "{}|", "{}<*Name*>", "{} {{a}}", "{}$", "{}\\|", "{}_*")

    def cell() -> str:
        words = draw.choices([*pieces, *(f"`{each}`" for each in code)], k=draw.randint(0, 4))
        return draw.choice([" ", ", "]).join(word.format(next(number)) for word in words)

    width = draw.randint(2, 4)
    rows = [["Kopf"] * width, [draw.choice(["--", ":-:"])] * (width - draw.randint(0, 1))]
    rows += [[cell() for _ in range(width + draw.randint(-1, 1))] for _ in range(4)]
    rows.append(["Schluss"] * width)
    for _ in range(draw.randint(0, 2)):
        rows.insert(draw.randint(2, len(rows)), [draw.choice(["", " "])] * width)
    way = draw.choice(["| {} |", "|{}|", "{}"])
    lead, rest = draw.choice(
        [("", ""), ("> ", "> "), ("Text.\n\n", ""), ("- ", "  "), ("6. Text.\n\n    ", "    ")]
    )
    lines = f"\n{rest}".join(way.format(" | ".join(row)) for row in rows)
    return f"{lead}{lines}\n\n{rest}Der Rest.\n\nDas Ende.\n"


def test_generated_tables():
    """Whatever a translation says, each row has its cells and each code span is there."""
    for seed in range(200):
        text = table(seed)
        # else it is a heading, or a paragraph, and a paragraph below
        is_table = re.search(r"\|[ :]*-|-[ :]*\|", text) is not None
        for change, known in ((str, True), (marked, True), (marked, False)):
            seen: list[str] = []
            out = "".join(through(change, seen, known)(text, "markdown"))
            assert without_marks(out) == text, seed
            assert seen[-2:] == ["Der Rest.", "Das Ende."], seed
            assert not is_table or " ".join(seen).count("Schluss") == text.count("Schluss"), seed
        out = "".join(shuffled(random.Random(seed))(text, "markdown"))
        code, rows = (
            [re.findall(pattern, each) for each in (text, out)]
            for pattern in ("`[^`]*`", r"(?m)^.*(?<!\\)\|.*$")
        )
        assert sorted(code[0]) == sorted(code[1]), (seed, out)
        cells = [[row.count("|") - row.count("\\|") for row in each] for each in rows]
        assert not is_table or cells[0] == cells[1], (seed, out)


NESTED = "<i>a " * 1500 + "</i> a" * 1500
MANY = [("html", NESTED), ("xml", f"<a>b{NESTED}</a>"), ("markdown", NESTED)]


@pytest.mark.parametrize(
    ("format", "text"), [*MANY, ("html", "<i>a</b>" * 1500), ("html", "</i>a" * 1500)]
)
def test_1500_tags_nested_and_not(format, text):
    assert without_marks("".join(through(marked)(text, format))) == text


BEGIN, END = (
    "<w:r><w:fldChar w:fldCharType='begin'/></w:r>",
    "<w:r><w:fldChar w:fldCharType='end'/></w:r>",
)
# of each ending, what is repeated in front of a sentence, and behind it
REPEATED = {
    ".docx": [
        *((BEGIN, ""), (BEGIN, END)),
        *((f"</w:p><w:p>{RUN.format('a')}", ""), (RUN.format("a</w:t><w:br/><w:t>"), "")),
    ],
    ".xlf": [
        ("<g>", "</g>"),
        ("<g>a </g>", ""),
        ("<x/>a ", ""),
        ("<x/>", ""),
        ("<sub>a", "</sub>"),
    ],
    ".html": [
        *(("<i>a</i>b", ""), ("<i>a</b>", ""), ("<!-- -->a", ""), ("<br>a", "")),
        ("<b>a. </b>", ""),
    ],
    ".md": [("a  \n", "")],
    ".srt": [("<i>a</i> ", ""), ("{\\an8}a", "")],
}
FILES = {
    ".docx": docx,
    ".xlf": lambda text: xliff([text]).encode(),
    ".srt": lambda text: f"{CUE}{text}".encode(),
}


@pytest.mark.parametrize(
    ("ending", "before", "behind"),
    [(ending, *each) for ending, rows in REPEATED.items() for each in rows],
)
def test_the_steps_of_a_file_grow_as_its_length(ending, before, behind, tmp_path):
    """By the lines of Python that run."""
    way = through(marked)

    def steps(count: int) -> int:
        lines = itertools.count()

        def trace(*_):
            next(lines)
            return trace

        text = before * count + (RUN.format("Ein Hund") if ending == ".docx" else "Ein Hund")
        text += behind * count
        (tmp_path / f"a{ending}").write_bytes(FILES.get(ending, str.encode)(text))
        sys.settrace(trace)
        try:
            translate(str(tmp_path / f"a{ending}"), str(tmp_path / f"b{ending}"), way)
        finally:
            sys.settrace(None)
        return next(lines)

    steps(1)
    assert steps(600) < 2.3 * steps(300)
