"""Glossary terms: where they are found, which of them win, and lines that must be refused."""

import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.glossary import Languages
from fairseq_ext.core.words import words_of
from fairseq_ext.search.constraints.glossary import Glossary, GlossaryOptions, encode_batch
from fairseq_ext.search.phrases.segmenter import Segmenter


class Spelled:
    """Stands in for the segmenter: a phrase's tokens are its code points, of which
    it has those up to ž."""

    def __init__(self, takes_pieces: bool = False):
        self.takes_pieces = takes_pieces

    alternatives = Segmenter.alternatives

    def phrases(self, text: str, where: str, suggest: bool = True):
        if not self.writable(text):
            raise UsageError(f"in {where}, the phrase '{text}' cannot be written")
        return (tuple(map(ord, text)),)

    def spellings(self, text: str, case: str):
        capital = text[:1].upper() + text[1:]
        return (
            (tuple(map(ord, capital)),)
            if case == "initial" and capital != text and self.writable(capital)
            else ()
        )

    def writable(self, text: str) -> bool:
        return max(text) <= "ž"

    def normalised(self, text: str) -> str:
        return text


@pytest.fixture
def glossary(tmp_path):
    def make(content: str, name="g", takes_pieces=False, **options) -> Glossary:
        (tmp_path / name).write_text(content, encoding="utf-8")
        return Glossary(GlossaryOptions(str(tmp_path / name), **options), Spelled(takes_pieces))

    return make


def found(glossary: Glossary, text: str) -> list[str]:
    return [
        each.term.text
        for each in glossary.required(words_of(text, glossary.segmenter.takes_pieces))
    ]


# --glossary-match and source language ("-": not given), a term, a text, whether it has the term
MATCHES = [
    line.split("\t")
    for line in Path(__file__).with_name("matches.tsv").read_text("utf-8").split("\n")[:-1]
]


@pytest.mark.parametrize(("match", "language", "term", "text", "has"), MATCHES)
def test_where_a_term_is_found(glossary, match, language, term, text, has):
    """At word boundaries in any script, in another letter case, and in another form."""
    given = {} if match == "-" else {"match": match}
    if language != "-":
        given["languages"] = Languages(language, "en" if language == "de" else "de")
    assert found(glossary(f"{term}\tx\n", **given), text) == ["x"] * (has == "yes")


@pytest.mark.parametrize(
    ("terms", "text", "answer"),
    [
        ("a b\t1\nb\t2\n", "a b", ["1"]),
        ("a b\t1\nb\t2\n", "a b b", ["1", "2"]),
        ("a b\t1\nb c d\t2\n", "a b c d", ["2"]),
        ("a b\t1\nb c\t2\n", "a b c", ["1"]),
        ("a\t1\na b c\t2\n", "a b a b c", ["1", "2"]),
        ("a\t1\na b c d\t2\n", "a b c", ["1"]),
        ("a b c\t1\na b\t2\nc a\t3\n", "c a b", ["3"]),
        ("a\t1\nb\t2\n", "b a b", ["2", "1"]),
        ("a\t1\n", "a a a", ["1"]),
        ("a\t1\nb\t1\n", "a b", ["1", "1"]),
        ("weg\t1\nWeg\t2\n", "Weg da", ["2"]),
        ("weg da\t1\nWeg\t2\n", "Weg da", ["1"]),
        ("weg\t1\nWeg da\t2\n", "Weg hier", ["1"]),
    ],
)
def test_the_longest_term_wins_and_each_counts_once(glossary, terms, text, answer):
    assert found(glossary(terms), text) == answer


def test_alternatives_and_repeated_lines(glossary):
    several = glossary("a\tx|y z\n\nb\tv\na\tw| x \n")
    (one,) = several.required(["a"])
    assert one.term.text == "x|y z|w" and several.merged == 1
    assert one.phrases == ((120,), (121, 32, 122), (119,))


def test_segmented_text_is_matched_piece_by_piece(glossary):
    pieces = glossary("▁A der\tx\n", takes_pieces=True)
    assert found(pieces, "▁Die ▁A der ▁ist") == ["x"]
    assert found(pieces, "▁Die ▁A dern") == []


@pytest.mark.parametrize(
    ("source", "match", "matches"),
    [("fr", None, True), ("xx", None, False), (None, None, False), ("fr", "surface", False)],
)
def test_forms_of_terms_are_found_where_there_are_lemmas(glossary, source, match, matches):
    given = glossary("cheval\tx\nœil\ty\n", match=match, languages=Languages(source, "en"))
    assert found(given, "deux chevaux et deux yeux") == ["x", "y"] * matches


def test_of_terms_with_the_same_lemmas_the_one_with_the_words_wins(glossary):
    both = glossary("haus\t3\nHaus\t1\nHäuser\t2\n", match="lemma", languages=Languages("de", "en"))
    texts = ("zwei Häuser", "ein Haus", "im haus", "in Häusern")
    assert [found(both, text) for text in texts] == [["2"], ["1"], ["3"], ["1"]]


def test_lemmas_of_an_unknown_language_are_refused(glossary):
    with pytest.raises(
        UsageError, match="--glossary-match lemma: simplemma has no lemmas for the language 'xx'"
    ):
        glossary("a\tb\n", match="lemma", languages=Languages("xx", "en"))


def test_each_mention_requests_the_term_once_more(glossary):
    text = "a b a c a b"
    assert found(glossary("a\t1\na b\t2\n"), text) == ["2", "1"]
    assert found(glossary("a\t1\na b\t2\n", repeat="each"), text) == ["2", "1", "2"]
    (once,) = glossary("a\t1\n").required(["a", "b", "a"])
    assert [(match.start, match.end) for match in once.matches] == [(0, 1), (2, 3)]


def test_an_encoder_that_loses_the_sign_between_terms_gets_each_by_itself():
    calls = []

    def step(text):
        calls.append(text)
        return text.replace("‖", "").upper()

    assert encode_batch(["a", "b c"], step) == ["A", "B C"] and len(calls) == 3
    assert [text.strip() for text in encode_batch(["a", "b c"], str.upper)] == ["A", "B C"]


def test_an_unwritable_target_is_its_line_s_error_when_the_file_is_read(glossary):
    lines = [f"w{i}\tx\n" for i in range(600)]
    lines[400], lines[590] = "here\tx|☃\n", "there\t☃\n"
    with pytest.raises(
        UsageError,
        match=r"in line 401 of .*, the phrase '☃' cannot be written \(1 more such line "
        r"in the file\)",
    ):
        glossary("".join(lines), strict=True)


def test_lines_that_cannot_be_used_are_left_out_and_named(glossary, caplog, tmp_path):
    """The others are terms; with --strict, and where no line can be used, they are refused."""
    lines = "a\tb\nc\n" + "d\n" * 9 + "there\tx|☃\nHaus, Hof\thouse\n"
    found = glossary(lines)
    assert [term.source for term in found.terms] == ["a", "Haus, Hof"]
    reported = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert reported[0] == (
        f"line 2 of {tmp_path / 'g'} has 1 column and needs 2: write the source term, one tab, the "
        "target term. The line is left out"
    )
    assert (
        reported[5] == f"{tmp_path / 'g'} has 6 more such lines that cannot be used, left out too"
    )
    for content, options in ((lines, {"strict": True}), ("c\nd\n", {})):
        with pytest.raises(UsageError, match="has 1 column and needs 2"):
            glossary(content, **options)


def test_many_lines_of_one_source_term_take_time_in_proportion(glossary):
    def seconds(lines: int) -> float:
        start = time.process_time()
        merged = glossary("".join(f"a\tx{i}\n" for i in range(lines))).merged
        assert merged == lines - 1
        return time.process_time() - start

    seconds(100)
    assert seconds(20_000) < 60 * max(seconds(1_000), 1e-3)


def naive(terms: list[str], text: str) -> list[str]:
    """Every term at every place; then again and again the longest, leftmost one that
    touches none before."""
    spans = []
    for term in terms:
        for match in re.finditer(rf"(?=(?<!\w){re.escape(term)}(?!\w))", text):
            spans.append((len(term.split()), match.start(), match.start() + len(term), term))
    chosen: list = []
    for span in sorted(spans, key=lambda s: (-s[0], s[1])):
        if all(span[2] <= other[1] or span[1] >= other[2] for other in chosen):
            chosen.append(span)
    return list(dict.fromkeys(term for *_, term in sorted(chosen, key=lambda s: s[1])))


phrase = st.lists(st.sampled_from(["a", "b", "ab", "ba"]), min_size=1, max_size=4).map(" ".join)


@given(
    st.lists(phrase, min_size=1, max_size=6, unique=True),
    st.lists(phrase, min_size=1, max_size=4).map(" ".join),
)
def test_matching_equals_trying_every_term_at_every_place(tmp_path_factory, terms, text):
    path = tmp_path_factory.mktemp("glossary") / "g"
    path.write_text("".join(f"{t}\t{t}\n" for t in terms))
    assert found(Glossary(GlossaryOptions(str(path)), Spelled()), text) == naive(terms, text)


def test_a_sentence_costs_the_same_with_fifty_thousand_terms(glossary):
    def seconds(terms: int) -> float:
        full = glossary("".join(f"w{i} v{i % 7}\tx{i}\n" for i in range(terms)))
        words = [f"w{i % 60} v{i % 7}"[: 2 + i % 3] for i in range(40)]
        times = []
        for _ in range(20):
            start = time.perf_counter()
            full.required(words)
            times.append(time.perf_counter() - start)
        return min(times)

    assert seconds(50_000) < 20 * seconds(50)
