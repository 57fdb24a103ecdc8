"""Glossary terms: where they are found, which of them win, and lines that must be refused."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_ext.constraints.glossary import Glossary, words_of
from fairseq_ext.errors import UsageError


def spelled(text: str, where: str):
    """Stands in for the segmenter: a phrase's tokens are its code points."""
    return (tuple(map(ord, text)),)


@pytest.fixture
def glossary(tmp_path):
    def make(content: str, words=words_of) -> Glossary:
        (tmp_path / "g").write_text(content, encoding="utf-8")
        return Glossary(str(tmp_path / "g"), words, spelled)

    return make


def found(glossary: Glossary, text: str) -> list[str]:
    return [term.text for term in glossary.terms_in(glossary.words(text))]


@pytest.mark.parametrize(
    ("term", "text", "matches"),
    [
        ("Ader", "Die Ader ist blau.", True),
        ("Ader", "Ader", True),
        ("Ader", "Die Ader.", True),
        ("Ader", "(Ader)", True),
        ("Ader", "Ader-Test", True),
        ("Ader", "Die Adern", False),
        ("Ader", "Schlagader", False),
        ("Ader", "Ader_2", False),
        ("Ader", "ader", False),
        ("ader", "Ader hier", True),  # the first word of a sentence
        ("ader", "„Ader“ hier", True),
        ("ader", "eine Ader", False),
        ("US", "us too", False),
        ("us", "US too", False),
        ("grüne Ader", "die grüne  Ader", True),
        ("grüne Ader", "die grüne, Ader", False),
        ("U.S.", "the U.S. army", True),
        ("3,5", "3,5 mm", True),
        ("C++", "in C++ or C", True),
        ("café", "un cafe\u0301 noir", True),  # composed and decomposed
        ("cafe", "un cafe\u0301 noir", False),
        ("ﬁnal", "the final word", True),  # a ligature
        ("हिन्द", "मैं हिन्दी में", False),  # a vowel sign is part of the word
        ("हिन्दी", "मैं हिन्दी में", True),
        ("слово", "Это слово.", True),
        ("слов", "Это слово.", False),
        ("東京", "私は東京に住む", True),
        ("东京塔", "东京铁塔", False),
        ("タワー", "東京タワーです", True),
        ("ロン", "マロンです", False),
        ("ไทย", "ภาษาไทย", True),
    ],
)
def test_terms_are_found_on_word_boundaries_in_any_script(glossary, term, text, matches):
    assert found(glossary(f"{term}\tx\n"), text) == ["x"] * matches


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
    (term,) = glossary("a\tx|y z\n\nb\tv\na\tw| x \n").terms_in(["a"])
    assert term.text == "x|y z|w"
    assert term.phrases == ((120,), (121, 32, 122), (119,))


def test_segmented_text_is_matched_piece_by_piece(glossary):
    pieces = glossary("▁A der\tx\n", lambda text: words_of(text, segmented=True))
    assert found(pieces, "▁Die ▁A der ▁ist") == ["x"]
    assert found(pieces, "▁Die ▁A dern") == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\tb\nc\n", "line 2 of FILE has 1 column and needs 2"),
        ("a\tb\tc\n", "line 1 of FILE has 3 columns and needs 2: write the source term, one tab, the target term"),
        ("a\t\n", "has no target for the term 'a'"),
        ("\tb\n", "line 1 of FILE has no source term"),
        ("a\tb|\n", "has an empty alternative in 'b|'"),
        ("a\nb\nc\td\ne\n", "line 1 of FILE has 1 column and needs 2: write the source term, one tab, the target term (2 more such"),
        ("a\nb\n", "(1 more such line in the file)"),
    ],
)
def test_bad_lines_are_refused_and_counted(glossary, tmp_path, content, message):
    with pytest.raises(UsageError) as error:
        glossary(content)
    assert message in str(error.value).replace(str(tmp_path / "g"), "FILE")


def naive(terms: list[str], text: str) -> list[str]:
    """Every term at every place; then again and again the longest, leftmost one that touches none before."""
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


@given(st.lists(phrase, min_size=1, max_size=6, unique=True), st.lists(phrase, min_size=1, max_size=4).map(" ".join))
def test_matching_equals_trying_every_term_at_every_place(tmp_path_factory, terms, text):
    path = tmp_path_factory.mktemp("glossary") / "g"
    path.write_text("".join(f"{t}\t{t}\n" for t in terms))
    assert found(Glossary(str(path), words_of, spelled), text) == naive(terms, text)


def test_a_sentence_costs_the_same_with_fifty_thousand_terms(glossary):
    def seconds(terms: int) -> float:
        full = glossary("".join(f"w{i} v{i % 7}\tx{i}\n" for i in range(terms)))
        words = [f"w{i % 60} v{i % 7}"[: 2 + i % 3] for i in range(40)]
        times = []
        for _ in range(20):
            start = time.perf_counter()
            full.terms_in(words)
            times.append(time.perf_counter() - start)
        return min(times)

    assert seconds(50_000) < 20 * seconds(50)
