"""Occurrences that an automaton counts are disjoint: when a phrase is met, all start over."""

import random

import pytest
import torch

from fairseq_ext.search.phrases.automaton import Pattern, PhraseAutomata, compile_automaton
from fairseq_ext.search.phrases.pieces import START


def counted(automata: PhraseAutomata, tokens: list[int]) -> list[int]:
    """How often phrases are met by each token; none of tokens waits for what comes next."""
    at, out = torch.tensor(START), []
    for token in tokens:
        at, hits, _ = automata.advance(at, torch.tensor(token))
        out.append(int(hits))
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
    automaton = compile_automaton([Pattern(phrase) for phrase in phrases], None, False).automaton
    automata = PhraseAutomata([automaton], None, torch.device("cpu"))
    for _ in range(20):
        tokens = [draw.randint(4, 7) for _ in range(draw.randint(1, 15))]
        assert counted(automata, tokens) == by_hand(phrases, tokens), (phrases, tokens)
