"""Markup: every tag once, nested as it was, whatever the words do; around the translation of what it stood around."""

import html
import re
import sys
from collections import Counter
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree
from serving import FLAGS, ROOT
from sizes import part_of

from fairseq_ext import Translator, UsageError
from fairseq_ext.text.formats import passes
from fairseq_ext.text.marks import Projection
from fairseq_ext.text.segments import Segment
from fairseq_ext.text.splitter import splitter

PAGE = """<!DOCTYPE html>
<html><head><title>Der Port</title><style>p {x: "</b>"}</style><script>if (a<b) "</p>";</script></head><body class='x'>
<p>Ein <b>Hund</b> l&auml;uft &amp; <a href="x?a=1&amp;b=2" title="Der Patient">die <i>kleine</i> Katze</a> schl\u00e4ft.<br>
Noch <code>x = 1</code> ein   Satz. <b>Ganz fett. Zwei Sätze.</b> Ende</p><!-- Hund. --><ul><li>eins<li>zwei</ul>
<img src=y alt='Ein Bild'> <span translate="no">Ein Hund</span> 10&nbsp;km</body></html>
"""


def items_of(text: str, format: str = "html", protect=()) -> list:
    found = list(passes(format, splitter("de"), protect)[-1](text))
    assert "".join(each if isinstance(each, str) else each.source for each in found) == text
    return found


def sentences(text: str, format: str = "html") -> list[str]:
    return [each.plain for each in items_of(text, format) if isinstance(each, Segment)]


class Tags(HTMLParser):
    """The path of open tags above each tag; a closing tag that closes no open one is wrong."""

    def __init__(self, text: str):
        super().__init__()
        self.open, self.seen = [], Counter()
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.seen[(*self.open, tag)] += 1
        self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen[(*self.open, tag)] += 1

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@st.composite
def marked(draw, depth: int = 0) -> str:
    """Well-formed inline markup, each tag with another name."""
    parts = draw(st.lists(st.sampled_from(["Hund ", "Katze", " ", ", ", ".", "{x} ", "&amp;", "&nbsp;"]) | st.just(None), max_size=6))
    inside = (f"<{name}>{draw(marked(depth + 1))}</{name}>" if depth < 3 else "" for name in iter(lambda: draw(NAMES), None))
    return "".join(next(inside) if part is None else part for part in parts)


NAMES = st.sampled_from(["b", "i", "u", "em", "span", "sup"])


@settings(max_examples=80)
@given(marked(), st.randoms(use_true_random=False))
def test_every_tag_comes_out_once_and_nested_as_it_was(text, draw):
    out = ""
    for item in items_of(text):
        if isinstance(item, str):
            out += item
            continue
        words = re.findall(r"\w+|\S", item.plain) + ["more"] * draw.randrange(3)
        draw.shuffle(words)
        target = " ".join(words)
        spans = [[m.span() for m in re.finditer(r"\S+", each)] for each in (item.plain, target)]
        pairs = [(draw.choice(spans[0]), span) for span in spans[1] if draw.random() < 0.8]
        projection = Projection(item, target, None if draw.random() < 0.1 else pairs)
        rendered = projection.rendered()
        assert re.sub(r"\s", "", html.unescape(re.sub(r"<[^>]*>|\{x\}|&nbsp;", "", rendered))) == "".join(words).replace("{x}", "")
        out += rendered
    assert Tags(out).seen == Tags(text).seen
    assert out.count("{x}") == text.count("{x}") and out.count("&nbsp;") == text.count("&nbsp;")


def test_segments_of_a_page():
    assert sentences(PAGE) == [
        "Der Port", "Ein Hund läuft & die kleine Katze schläft.", "Noch ein Satz.", "Ganz fett.", "Zwei Sätze.", "Ende", "eins",
        "zwei", "10 km",
    ]  # fmt: skip
    assert sentences("<r><p>Ein <x>Hund</x>.</p><q>Nur</q><c><![CDATA[Hund]]></c></r>", "xml") == ["Ein Hund.", "Nur"]
    with pytest.raises(UsageError, match="line 1 of the XML is not well-formed"):
        sentences("<a><b></a>", "xml")
    text = "Ein Absatz mit [Link](http://x.y) und `code`,\nder weiter geht. Zwei."
    markdown = f"# Ein **Titel**\n\n{text}\n\n- eins\n\n```\nx\n```\n| a | b |\n|---|---|\n"
    assert sentences(markdown, "markdown") == ["Ein Titel", "Ein Absatz mit Link und, der weiter geht.", "Zwei.", "eins", "a", "b"]


@pytest.fixture(scope="module")
def translator() -> Translator:
    return Translator(**{**FLAGS, "stop": "count", "stream_width": None, "schedule": None})


def test_a_page_is_translated_with_its_attributes(translator):
    found = translator.translate_text(PAGE, "html")
    assert (
        not found.left and Tags(re.sub("<(li|br|img|!)[^>]*>", "", found.text)).seen == Tags(re.sub("<(li|br|img|!)[^>]*>", "", PAGE)).seen
    )
    for kept in ('<style>p {x: "</b>"}</style>', '<script>if (a<b) "</p>";</script>', "<code>x = 1</code>",
                 '<span translate="no">Ein Hund</span>', "<!-- Hund. -->", "&nbsp;", 'href="x?a=1&amp;b=2"'):  # fmt: skip
        assert found.text.count(kept) == 1, kept
    title = translator.translate(["Der Patient"])[0][0].text
    assert f'title="{title}"' in found.text
    sheet = translator.translate_text("<r>Der <x>Patient</x> ist sehr alt &amp; müde.</r>", "xml").text
    assert etree.fromstring(sheet).find("x").text and sheet.count("&amp;") == sheet.count("&")


def nouns() -> dict[str, set[str]]:
    """German nouns of the demo's lexicon, singular and plural, and all of their translations."""
    sys.path.insert(0, str(ROOT / "data" / "demo"))
    try:
        import domains
        import english
        import lexicon
        from vocabulary import read_nouns
    finally:
        sys.path.pop(0)
    found: dict[str, set[str]] = {}
    for table in (domains.TERMS, lexicon.NOUNS):
        for noun in (noun for domain in domains.DOMAINS for noun in read_nouns(table, domain)):
            for german in (noun.german.singular, noun.german.plural):
                found.setdefault(german, set()).update(form for word in noun.english for form in (word, english.plural(word)))
    return found


def test_a_tag_around_a_word_comes_around_its_translation(translator):
    """Where the translation of a noun of the lexicon stands once in the output, the tag is around it in 9 of 10 cases."""
    known = nouns()
    lines = (ROOT / "data" / "demo" / "test.de").read_text(encoding="utf-8").splitlines()
    lines = [lines[i] for i in part_of(len(lines), 40)]
    cases = []
    for line in lines:
        words = re.findall(r"\w+", line)
        cases += [(line, word) for word in dict.fromkeys(words) if word in known and words.count(word) == 1]
    text = "\n".join(re.sub(rf"\b{word}\b", f"<p>{'<b>'}\\g<0></b>", line, count=1).replace("<p>", "") for line, word in cases)
    found = translator.translate_text("".join(f"<p>{line}</p>\n" for line in text.split("\n")), "html").text.splitlines()
    right = total = 0
    for (_, word), out in zip(cases, found, strict=True):
        plain = re.sub("<[^>]*>", "", out)
        there = [each for each in known[word] if len(re.findall(rf"\b{re.escape(each)}\b", plain)) == 1]
        there = [each for each in there if not any(each != other and each in other for other in there)]
        if len(there) == 1:
            total += 1
            right += f"<b>{there[0]}</b>" in out
    assert total > len(cases) / 2 and right / total >= 0.9
