"""Banned phrases that are read as a tree are met where they are when each is read by itself."""

import random

import pytest
import torch
from sizes import drawn

from fairseq_ext.search.phrases import automaton
from fairseq_ext.search.phrases.automaton import (
    NO_ITEMS,
    Pattern,
    PatternReader,
    PhraseAutomata,
    compile_automaton,
)
from fairseq_ext.search.phrases.pieces import IN, LED, OUT, SPACE, START, Boundaries, Pieces

TEXTS = [
    "a",
    "b",
    "ab",
    "ba",
    " a",
    " b",
    " ab",
    " ba",
    " ",
    "!",
    " !",
    "a!",
    "aa",
    " aab",
    "-",
    "b a",
    "b-",
]


class OneByOne(PatternReader):
    """Reads tokens unit by unit, each pattern by itself: an item is (pattern, units
    of it that have come)."""

    def __init__(self, patterns, boundaries, any_case):
        super().__init__(patterns, boundaries, any_case)
        self.lengths = [len(pattern.units) for pattern in patterns]
        self.pends = [
            self.whole_words and self.is_letter(pattern.units[-1]) for pattern in patterns
        ]
        self.starting = {}
        for p, pattern in enumerate(patterns):
            self.starting.setdefault(pattern.units[0], []).append(p)

    def context_after(self, token):
        """The context behind a token with which nothing has begun."""
        last = self.units(token)[-1]
        return SPACE if last == " " else IN if self.is_letter(last) else OUT

    def is_pending(self, items):
        """Whether all of a pattern has come."""
        return any([at == self.lengths[p] for p, at in items])

    def continuing(self, items):
        """Tokens that may lead on with one of the items."""
        found = set()
        for p, at in items:
            units = self.patterns[p].units
            if at < len(units):
                found.update(self.next_tokens(units[at:], False))
                if units[at - 1] == " ":  # several spaces are one
                    found.update(self.next_tokens(" " + str(units[at:]), False))
        return found

    def advance_token(self, items, context, token):
        """How often the patterns are met inside a token, and the items and context behind it."""
        units = self.units(token)
        hits = 0
        for unit in units:
            met, items, context = self.advance_unit(items, context, unit)
            hits += met
        return hits, items, context

    def advance_unit(self, items, context, unit):
        """The same of one unit."""
        blank = unit == " "
        if blank and context in (START, LED):
            return 0, items, LED
        letter = self.is_letter(unit)
        hits = 0
        after = set()
        for p, at in items:
            units = self.patterns[p].units
            if at == len(units):
                hits |= not letter
            elif units[at] == unit:
                after.add((p, at + 1))
            elif blank and units[at - 1] == " ":
                after.add((p, at))
        if hits:
            after.clear()
        if not (letter and context == IN):
            for p in self.starting.get(unit, ()):
                if not self.patterns[p].at_start or context in (START, LED):
                    after.add((p, 1))
        if any(at == self.lengths[p] and not self.pends[p] for p, at in after):
            hits += 1
            after.clear()
        return (
            int(hits),
            frozenset(after) if after else NO_ITEMS,
            SPACE if blank else IN if letter else OUT,
        )


def shared(patterns, boundaries) -> PhraseAutomata:
    """The automaton of patterns as a table."""
    made = compile_automaton(patterns, boundaries, False).automaton
    return PhraseAutomata([made], boundaries, torch.device("cpu"))


@pytest.fixture
def one_by_one(monkeypatch):
    """`shared` by the plain reader."""

    def make(patterns, boundaries) -> PhraseAutomata:
        with monkeypatch.context() as patch:
            patch.setattr(automaton, "PatternReader", OneByOne)
            return shared(patterns, boundaries)

    return make


def met(automata, tokens: list[list[int]]) -> list[list[tuple[bool, bool]]]:
    """Of each token of translations: whether a pattern is met in it, and whether the next one
    decides."""
    state, out = torch.full((len(tokens),), START), []
    for column in torch.tensor(tokens).T:
        state, hits, _ = automata.advance(state, column)
        out.append([*zip((hits > 0).tolist(), automata.pending[state].tolist(), strict=True)])
    return out


@drawn(10)
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("seed", range(25))
def test_texts_are_met_in_the_same_tokens(seed, whole, one_by_one):
    chance = random.Random(seed)
    texts = {
        "".join(chance.choice("aab! -") for _ in range(chance.randint(1, 6))).strip()
        for _ in range(chance.randint(1, 12))
    }
    patterns = [
        Pattern(" ".join(text.split()), at_start=chance.random() < 0.2)
        for text in sorted(texts)
        if text
    ]
    boundaries = Boundaries(Pieces(TEXTS), whole, "sentencepiece")
    tokens = [[chance.randrange(len(TEXTS)) for _ in range(12)] for _ in range(300)]
    expected = met(one_by_one(patterns, boundaries), tokens)
    assert met(shared(patterns, boundaries), tokens) == expected, patterns
    assert any(hit for each in expected for hit, _ in each) or len(patterns) < 4


@pytest.mark.parametrize("seed", range(10))
def test_rows_of_tokens_are_met_in_the_same_places(seed, one_by_one):
    chance = random.Random(seed)
    rows = {tuple(chance.randrange(5) for _ in range(chance.randint(1, 4))) for _ in range(12)}
    patterns = [Pattern(row) for row in sorted(rows)]
    tokens = [[chance.randrange(5) for _ in range(12)] for _ in range(200)]
    assert met(shared(patterns, None), tokens) == met(one_by_one(patterns, None), tokens)
