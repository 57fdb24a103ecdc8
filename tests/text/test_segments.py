"""Segments: nothing of a text is lost, whatever it holds, and sentences are distinguished as
their language's rules say (sentences.tsv: 200 cases and more in ten languages and some others);
sources that hold several are named: in Python, and in a server's answers (tests/serve).

In sentences.tsv a bar stands where a sentence ends; behind it, the white space is the sentence's
before it. § is a placeholder.
"""

import sys
import warnings
from pathlib import Path

import pytest
from demo_model import FLAGS
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import examples
from texts import rows

from fairseq_ext import Translator
from fairseq_ext.core.errors import UsageError
from fairseq_ext.text.atoms import Segment
from fairseq_ext.text.formats import passes
from fairseq_ext.text.reading import KINDS, find
from fairseq_ext.text.segments import halves
from fairseq_ext.text.splitter import PLACEHOLDER, plain_ends, splitter, warning

PARTS = (
    "Zwei Hunde. ¦Er kam ¦Dr. Müller¦z.B. ¦\n¦\n\n¦  ¦\t¦{name}¦https://a.b/c?d=e¦%s¦%1$d¦&nbsp;¦a@b.de¦"
    "(¦)¦„¦“¦!¦?¦.¦,¦漢字。¦\u00a0¦\u2028¦é¦0¦5 km¦<¦>¦{¦\r\n¦🙂"
).split("¦")
TEXTS = st.lists(st.sampled_from(PARTS), max_size=25).map("".join) | st.text(max_size=60)


def source(item) -> str:
    return item if isinstance(item, str) else item.source


def items_of(text: str, ends, format: str = "text"):
    return passes(format, ends)[-1](text)


def sentences(text: str, language: str = "de") -> list[str]:
    return [item.source for item in items_of(text, splitter(language)) if isinstance(item, Segment)]


@settings(max_examples=examples(60))
@given(TEXTS)
@pytest.mark.parametrize("ends", [splitter("de"), plain_ends], ids=["rules", "plain"])
def test_every_character_belongs_to_one_segment(ends, text):
    items = list(items_of(text, ends))
    assert "".join(map(source, items)) == text
    for item in items:
        if isinstance(item, Segment):
            assert item.plain.strip() == item.plain != "" and not any(
                end in item.plain for end in "\r\n\u2028"
            )
            hidden = {i for m in item.marks for i in range(m.start, m.end)}  # read as a number
            assert [
                item.source[i] if not c.isspace() else " "
                for at, (c, i) in enumerate(zip(item.plain, item.origin, strict=True))
                if at not in hidden
            ] == [c for at, c in enumerate(item.plain) if at not in hidden]
            pieces = halves(item)
            assert "".join(map(source, pieces)) == item.source
            longest = max(
                (len(each.plain) for each in pieces if isinstance(each, Segment)), default=0
            )
            assert longest < len(item.plain) or len(pieces) == 1


@settings(max_examples=examples(60))
@given(TEXTS)
def test_placeholders_are_taken_out_and_stand_in_the_marks(text):
    for item in items_of(text, plain_ends):
        if isinstance(item, Segment):
            assert [mark.opening for mark in item.marks] == [
                item.source[a:b] for a, b in find(item.source)
            ]
            assert not find(item.plain)


def test_a_language_in_front_of_a_sentence_is_that_of_those_behind_it():
    text = (
        ">>fra<< Zwei Hunde. Eine {name} Katze.\n\n"
        ">>deu<<\n"
        "Drei {name} Vögel, vier lange Fische.\n"
        ">>deu<<Fünf.\n"
        ">>xxx<< Ende."
    )
    items = list(passes("text", plain_ends, leads={">>fra<<", ">>deu<<"})[-1](text))
    assert "".join(map(source, items)) == text
    found = [item for item in items if isinstance(item, Segment)]
    assert [item.plain for item in found] == [
        ">>fra<< Zwei Hunde.",
        ">>fra<< Eine 17 Katze.",
        ">>deu<< Drei 17 Vögel, vier lange Fische.",
        ">>deu<<Fünf.",
        ">>deu<< >>xxx<< Ende.",
    ]
    for item in found[1:3]:
        text = "".join(item.source[i] for i in item.origin[8:])
        assert text.replace("{{", "17") == item.plain[8:]
        assert item.marks[0].start == len(">>deu<< Drei ")
    assert [each.plain for each in halves(found[2]) if isinstance(each, Segment)] == [
        ">>deu<< Drei 17 Vögel,",
        ">>deu<< vier lange Fische.",
    ]
    # of other models it is text
    assert not any(item.lead for item in items_of(text, plain_ends) if isinstance(item, Segment))


def test_without_sentencex_the_plain_rule_is_used_and_says_so(caplog, monkeypatch):
    splitter.cache_clear()
    assert sentences("Foo bar. Baz qux.", "xx") == ["Foo bar.", "Baz qux."] and not caplog.records
    monkeypatch.setitem(sys.modules, "sentencex", None)
    splitter.cache_clear()
    assert sentences("Foo bar. Baz qux.", "de") == ["Foo bar.", "Baz qux."]
    (record,) = caplog.records
    assert record.getMessage() == (
        "sentences are told apart by a plain rule, which knows few abbreviations: pip install "
        "'fairseq_ext[text]'"
    )
    splitter.cache_clear()


@pytest.mark.parametrize(("text", "placeholders"), rows("placeholders.tsv", 2))
def test_what_is_a_placeholder(text, placeholders):
    assert [text[a:b] for a, b in find(text)] == placeholders.split(" ")


def test_kinds_of_placeholders():
    """Each example is one, and running text that looks like it has none."""
    examples = rows("kinds.tsv")
    assert [kind for kind, *_ in examples] == [*KINDS]
    for _, ones, others in examples:
        for example in (each.replace("·", " ") for each in ones.split(" ")):
            for text in (f"Ein {example} Hund", f"({example})", example):
                assert len(find(text)) == 1 and example in text[slice(*find(text)[0])], text
        for text in others.split(", "):
            assert not find(f"Ein {text} Hund"), text


@pytest.mark.parametrize("sign", [" - ", " – ", ": ", " & ", " / ", "", "@", " = "])
def test_a_sign_between_two_placeholders_stays_there(sign):
    text = f"Der Hund {{a}}{sign}{{b}} bellt"
    assert [text[a:b] for a, b in find(text)] == [f"{{a}}{sign}{{b}}"]


def test_protected_expressions():
    assert [(a, b) for a, b in find("in 5 km und ACME", ["\\d+ km", "ACME"])] == [(3, 7), (12, 16)]
    with pytest.raises(UsageError, match=r"--protect \( must be a regular expression"):
        find("x", ["("])
    with pytest.raises(UsageError, match="matches nothing at all as well"):
        find("x", ["a*"])


@pytest.mark.parametrize("format", ["text", "html"])
def test_each_segment_and_each_piece_of_one_has_its_own_number(format):
    """Whether there are pieces changes nothing for the segments behind them."""
    text = "<p title='Ein Hund.'>Zwei Hunde. " + "ha, " * 40 + "ha. Zwei Hunde."
    numbers, whole = [], []
    for each in passes(format, plain_ends):
        waiting = [item for item in each(text) if isinstance(item, Segment)]
        whole += [item.number for item in waiting]
        while waiting:
            item = waiting.pop()
            numbers.append(item.number)
            waiting += [piece for piece in halves(item) if isinstance(piece, Segment)]
    assert (
        whole == list(range(len(whole)))
        and len(numbers) == len({*numbers}) > 80
        and max(numbers) < 2**63
    )


LINES = [
    tuple(line.split("\t"))
    for line in Path(__file__).with_name("sentences.tsv").read_text("utf-8").splitlines()
]


@pytest.mark.parametrize(("language", "line"), LINES)
def test_sentence_ends(language, line):
    text = line.replace("§", PLACEHOLDER)
    plain = text.replace("|", "")
    ends = splitter(language)(plain)
    assert "|".join(plain[a:b] for a, b in zip([0, *ends], ends, strict=False)) == text


def test_no_character_is_lost_where_a_long_line_is_read_in_parts():
    line = "Ein Hund rennt. " * 3000
    assert splitter("de")(line) == list(range(16, len(line) + 1, 16))
    letters = "x" * 300_000
    assert splitter("de")(letters) == [300_000]


ONE = (
    "Ein Mann.|Dr. Smith kam um 3 Uhr.|Am 3. Mai kam er.|z. B. Hunde|Prof. Müller usw. Das|"
    'Er sagte: "Nein."|J. R. R. Tolkien|Das kostet 3.50 Euro.|the U.S. Army|Nr. 5 ist da|'
    "Warten... Er kam|| "
).split("|")
TWO = (
    "Er kam. Sie ging.|Wer ist das? Ich war es.|A\n\nB|これはペンです。あれは本です。|"
    'Halt! (Nein.)|Er rief: "Halt!" Sie hielt.'
).split("|")


@pytest.mark.parametrize("text", [*ONE, *TWO])
def test_what_counts_as_several(text):
    assert bool(warning(text, "it")) == (text in TWO)


def test_a_translator_warns_where_it_is_called():
    translator = Translator(**FLAGS, beam=1)
    with pytest.warns(
        UserWarning,
        match=r"line 2 holds 3 sentences, and the model may merge .* \(1 more such line\)",
    ) as reported:
        translator.translate(["Ein Mann.", "Er kam. Sie ging. Er auch.", "Er kam. Sie ging."])
    assert reported[0].filename == __file__
    with pytest.warns(UserWarning, match="line 3 holds 2 sentences"):
        list(translator.translate_iter(["Ein Mann."] * 2 + ["Er kam. Sie ging."], buffer=1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        translator.translate(["Ein Mann."])
