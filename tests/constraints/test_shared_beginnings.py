"""Banned phrases that are read as a tree are met where they are when each is read by itself."""

import random

import pytest

from fairseq_ext.constraints.automaton import IN, OUT, SPACE, START, Pattern, Reader, of_texts, of_tokens
from fairseq_ext.constraints.pieces import Pieces, is_letter
from fairseq_ext.constraints.shared_beginnings import SharedReader

TEXTS = ["a", "b", "ab", "ba", " a", " b", " ab", " ba", " ", "!", " !", "a!", "aa", " aab", "-", "b a", "b-"]


def met(automaton, tokens: list[int], behind) -> list[tuple[bool, bool]]:
    """Of each token of a translation: whether a pattern is met in it, and whether the next one decides."""
    state, out = START, []
    for token in tokens:
        arcs = automaton.arcs[state].get(token) or automaton.arcs[automaton.context[state]].get(token) or (0, behind(token))
        state = arcs[1]
        out.append((bool(arcs[0]), automaton.pending[state]))
    return out


def behind(token: int) -> int:
    last = TEXTS[token][-1]
    return SPACE if last == " " else IN if is_letter(last) else OUT


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("seed", range(25))
def test_texts_are_met_in_the_same_tokens(seed, whole):
    chance = random.Random(seed)
    texts = {"".join(chance.choice("aab! -") for _ in range(chance.randint(1, 6))).strip() for _ in range(chance.randint(1, 12))}
    patterns = [Pattern(" ".join(text.split()), at_start=chance.random() < 0.2) for text in sorted(texts) if text]
    index = Pieces(TEXTS).as_written
    one, shared = (of_texts(patterns, index, whole, reader) for reader in (Reader, SharedReader))
    hits = 0
    for _ in range(300):
        tokens = [chance.randrange(len(TEXTS)) for _ in range(12)]
        expected = met(one, tokens, behind)
        assert met(shared, tokens, behind) == expected, (patterns, [TEXTS[t] for t in tokens])
        hits += sum(hit for hit, _ in expected)
    assert hits or len(patterns) < 4


@pytest.mark.parametrize("seed", range(10))
def test_rows_of_tokens_are_met_in_the_same_places(seed):
    chance = random.Random(seed)
    rows = {tuple(chance.randrange(5) for _ in range(chance.randint(1, 4))) for _ in range(12)}
    one, shared = (of_tokens([Pattern(row) for row in sorted(rows)], reader) for reader in (Reader, SharedReader))
    for _ in range(200):
        tokens = [chance.randrange(5) for _ in range(12)]
        assert met(shared, tokens, lambda token: OUT) == met(one, tokens, lambda token: OUT)
