"""The phrase automata of search/phrases/phrase_table.py against the plainest reading of what they
say: look at all suffixes after every token."""

import itertools
import re
import unicodedata

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from required_phrases import required_phrases
from sizes import examples

from fairseq_ext.search.phrases.phrase_table import build_table
from fairseq_ext.search.phrases.pieces import is_letter
from fairseq_ext.search.phrases.places import (
    PhraseToFind,
    Text,
    find_phrase,
    match_phrases_in_order,
)

Alternatives = tuple[tuple[int, ...], ...]  # one constraint, met by any one of its phrases


class Automata:
    """One sentence's row, token by token."""

    def __init__(self, constraints, ordered: bool = False):
        self.table = build_table([required_phrases(constraints)], ordered, torch.device("cpu"))
        self.place, self.count = (x[None] for x in self.table.begin(torch.tensor([0])))  # (1, 1, G)

    def read(self, token: int) -> None:
        self.place, self.count = self.table.advance(self.place, self.count, torch.tensor([[token]]))

    def bank(self) -> int:
        return int(self.table.bank(self.place, self.count))

    def total(self) -> int:
        return int(self.table.total)

    def met(self) -> bool:
        return self.bank() == self.total()

    def wanted(self) -> set[int]:
        return set(self.table.next_token(self.place, self.count).flatten().tolist()) - {-1}


class Plain:
    """The same without automata: a constraint looks at the tokens read since it was last met
    (ordered: since it became current)."""

    def __init__(self, constraints, ordered: bool = False):
        self.ordered = ordered
        # [phrases, how often needed, how often met, first token that still counts]
        self.groups: list[list] = []
        for alternatives in constraints:
            phrases = sorted({tuple(p) for p in alternatives})
            known = None if ordered else next((g for g in self.groups if g[0] == phrases), None)
            if known:
                known[1] += 1
            else:
                self.groups.append([phrases, 1, 0, 0])
        self.tokens: list[int] = []

    def active(self) -> list[list]:
        open_ = [g for g in self.groups if g[2] < g[1]]
        return open_[:1] if self.ordered else open_

    def read(self, token: int) -> None:
        self.tokens.append(token)
        active = self.active()
        for group in active:
            phrases, *_, start = group
            if any(self.ends_with(p, len(p), start) for p in phrases):
                group[2] += 1
                group[3] = len(self.tokens)
                if self.ordered:
                    for other in self.groups:
                        other[3] = len(self.tokens)

    def ends_with(self, phrase, n: int, start: int) -> bool:
        return len(self.tokens) - n >= start and tuple(
            self.tokens[len(self.tokens) - n :]
        ) == tuple(phrase[:n])

    def place(self, phrase, start: int) -> int:
        return max(n for n in range(len(phrase)) if self.ends_with(phrase, n, start))

    def bank(self) -> int:
        """Tokens of met constraints, and what the closest phrase of an open one has."""
        partial = [
            min(map(len, g[0])) - len(p) + self.place(p, g[3]) for g in self.active() for p in g[0]
        ]
        return sum(times * min(map(len, phrases)) for phrases, _, times, _ in self.groups) + max(
            [0, *partial]
        )

    def total(self) -> int:
        return sum(need * min(map(len, phrases)) for phrases, need, *_ in self.groups)

    def wanted(self) -> set[int]:
        return {p[self.place(p, g[3])] for g in self.active() for p in g[0]}


def one(*phrases) -> list[Alternatives]:
    """Constraints without alternatives."""
    return [(tuple(p),) for p in phrases]


# ---- sequences


@pytest.mark.parametrize(
    "constraints, tokens, met",
    [
        # ALGORITHMS.md, section 1: sequences that both public implementations get wrong
        (one([1, 2, 3]), [1, 1, 2, 3], [True]),
        (one([1, 2, 3]), [1, 2, 1, 2, 3], [True]),
        (one([1, 1, 2]), [1, 1, 1, 2], [True]),
        (one([1, 2, 3], [2, 4]), [1, 2, 4], [False, True]),
        (one([1, 2], [2, 3]), [1, 2, 3], [True, True]),
        (one([11, 12]), [11, 11, 12], [True]),
        (one([1, 2], [1]), [1, 9], [False, True]),
        ([((1, 2, 3, 4), (2, 3, 5), (3, 6), (7,))], [1, 2, 3, 5], [True]),
        # more of the kind
        (one([1, 2, 1, 2, 3]), [1, 2, 1, 2, 1, 2, 3], [True]),
        (one([1, 2, 3], [2]), [1, 2, 3], [True, True]),
        (one([2, 3], [1, 2, 3, 4]), [1, 2, 3, 5], [True, False]),
    ],
)
def test_overlaps_and_broken_matches(constraints, tokens, met):
    row = Automata(constraints)
    for token in tokens:
        row.read(token)
    assert (row.count >= row.table.need).flatten().tolist() == met


# ---- brute force on random strings over tiny alphabets

letters = st.integers(1, 3)


phrase = st.lists(letters, min_size=1, max_size=4).map(tuple)


constraint = st.lists(phrase, min_size=1, max_size=3).map(tuple)


constraints_ = st.one_of(
    st.lists(phrase.map(lambda p: (p,)), min_size=0, max_size=4),  # plain, copies likely
    st.lists(constraint, min_size=0, max_size=3),
)


@settings(max_examples=examples(400), deadline=None)
@given(constraints_, st.lists(letters, max_size=14), st.booleans())
def test_equals_looking_at_every_suffix(constraints, tokens, ordered):
    row, plain = Automata(constraints, ordered), Plain(constraints, ordered)
    assert row.total() == plain.total()
    for token in tokens:
        row.read(token)
        plain.read(token)
        assert row.bank() == plain.bank()
        assert row.count[0, 0, : len(plain.groups)].tolist() == [g[2] for g in plain.groups]
        assert row.wanted() == plain.wanted()


@settings(max_examples=examples(200), deadline=None)
@given(constraints_, st.lists(letters, max_size=10), st.booleans())
def test_some_wanted_token_always_brings_a_row_closer(constraints, tokens, ordered):
    """What the deadline rests on: total - bank steps are enough, wherever a row stands."""
    row = Automata(constraints, ordered)
    for token in tokens:
        row.read(token)
    while not row.met():
        before = (row.place, row.count, row.bank())
        banks = {}
        for token in row.wanted():
            row.place, row.count = before[:2]
            row.read(token)
            banks[token] = row.bank()
        assert max(banks.values()) > before[2]
        row.place, row.count = before[:2]
        row.read(max(banks, key=banks.__getitem__))


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(constraints_, min_size=1, max_size=4),
    st.lists(st.lists(letters, min_size=6, max_size=6), min_size=3, max_size=3),
)
def test_sentences_and_rows_do_not_touch_each_other(batch, rows):
    """A table of several sentences, three rows each, equals one row at a time."""
    table = build_table([required_phrases(each) for each in batch], False, torch.device("cpu"))
    place, count = (x[:, None].expand(-1, 3, -1) for x in table.begin(torch.arange(len(batch))))
    for token in zip(*rows, strict=True):
        place, count = table.advance(place, count, torch.tensor([token] * len(batch)))
    banks = table.bank(place, count).tolist()
    for constraints, got in zip(batch, banks, strict=True):
        for tokens, bank in zip(rows, got, strict=True):
            alone = Automata(constraints)
            for token in tokens:
                alone.read(token)
            assert alone.bank() == bank


# ---- Places of phrases that must come in order, by trying every choice of places; the others ar


@pytest.mark.parametrize(
    ("phrase", "text"),
    [
        ("コーヒー", "コーヒー2杯"),
        ("コーヒー", "熱いコーヒーを2杯"),
        ("ラーメン", "3ラーメン"),
        ("人々", "5人々"),
        ("ｶﾚｰ", "ｶﾚｰ1"),
    ],
)
def test_signs_of_scripts_without_spaces_are_part_of_no_word(phrase, text):
    """The long mark of Katakana is of no script of its own (Unicode Standard Annex 24)."""
    at = text.index(phrase)
    assert find_phrase(phrase, text, 0, True) == (at, at + len(phrase))


@given(st.characters(min_codepoint=0x3000, max_codepoint=0x30FF) | st.sampled_from("ｰｱﾝ一龥"))
def test_no_sign_of_these_scripts_joins_a_word(sign):
    script = unicodedata.name(sign, "")
    if re.match("(HALFWIDTH )?(HIRAGANA|KATAKANA)|CJK UNIFIED|IDEOGRAPHIC", script):
        assert not is_letter(sign), script


def comes(words: list[str], phrases: list[set[str]]) -> bool:
    """Whether some words stand for the phrases one after another."""
    choices = itertools.combinations(words, len(phrases))
    return any(
        all(word in each for word, each in zip(chosen, phrases, strict=True)) for chosen in choices
    )


@given(
    st.lists(st.sampled_from("abc"), max_size=5),
    st.lists(st.sets(st.sampled_from("abc"), min_size=1), max_size=4),
)
def test_phrases_in_order_have_places_as_far_as_they_come(words, phrases):
    text = " ".join(words)
    found = match_phrases_in_order(
        Text(text, segmented=False), [PhraseToFind(sorted(each), "exact") for each in phrases]
    )
    come = [comes(words, phrases[:n]) for n in range(1, len(phrases) + 1)]
    assert [place is not None for place in found] == come
    spans = [place[1] for place in found if place is not None]
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(spans))
    for place, each in zip(found, phrases, strict=True):
        assert place is None or text[slice(*place[1])] == sorted(each)[place[0]] in each
