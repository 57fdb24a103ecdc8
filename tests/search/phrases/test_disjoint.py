"""Occurrences that an automaton counts are disjoint: when a phrase is met, all start over."""

import random

import pytest

from fairseq_ext.search.phrases.automaton import Automaton, Pattern, token_automaton
from fairseq_ext.search.phrases.pieces import OUT, START


def counted(automaton: Automaton, tokens: list[int]) -> list[int]:
    """How often phrases are met by each token, at once or by what comes next; none of tokens
    waits for that."""
    at, out = START, []
    for token in tokens:
        roots = automaton.arcs[automaton.context[at]]
        hits, at = automaton.arcs[at].get(token) or roots.get(token) or (0, OUT)
        out.append(hits + automaton.pending[at])
    return out


def by_hand(phrases: list[tuple[int, ...]], tokens: list[int]) -> list[int]:
    """The same: a phrase is met where it ends, if all of it lies behind the last that was met."""
    begin, out = 0, []
    for i in range(len(tokens)):
        met = any(tuple(tokens[max(begin, i + 1 - len(p)) : i + 1]) == p for p in phrases)
        out.append(int(met))
        begin = i + 1 if met else begin
    return out


@pytest.mark.parametrize("seed", range(200))
def test_occurrences_are_disjoint(seed):
    draw = random.Random(seed)
    phrases = sorted(
        {
            tuple(draw.randint(4, 6) for _ in range(draw.randint(1, 4)))
            for _ in range(draw.randint(1, 4))
        }
    )
    automaton = token_automaton([Pattern(phrase) for phrase in phrases])
    for _ in range(20):
        tokens = [draw.randint(4, 7) for _ in range(draw.randint(1, 15))]
        assert counted(automaton, tokens) == by_hand(phrases, tokens), (phrases, tokens)
