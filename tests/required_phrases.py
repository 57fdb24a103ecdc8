"""Constraints of tests."""

from itertools import repeat

import torch

from fairseq_ext.search.phrases.phrase_table import build_table
from fairseq_ext.search.phrases.sentence import EXACT, Constraint


def required_phrases(any_of, text=(), cased=()):
    """A constraint for each sequence of alternative phrases."""
    any_of = list(any_of)
    each = zip(any_of, list(text) or repeat(""), list(cased) or repeat(EXACT), strict=False)
    return tuple(Constraint(written, tuple(phrases), case) for phrases, written, case in each)


def prefix_of(phrase, text=""):
    """A sentence's prefix; none for an empty phrase."""
    return (Constraint(text or str(phrase), (phrase,)),) if phrase else ()


def accepts(automaton, tokens):
    """Whether an automaton allows an output of these tokens, without EOS."""
    state = 0
    for token in tokens:
        state = automaton.next_state(state, token)
        if state < 0:
            return False
    return bool(automaton.final[state])


class Row:
    """The state of one sentence's hypothesis, token by token."""

    def __init__(self, required, ordered=False, compiler=None):
        self.table = build_table([required], ordered, torch.device("cpu"), compiler)
        self.total = int(self.table.total)
        self.state = [
            x[None] for x in self.table.begin(torch.tensor([0]))
        ]  # place, count (1, 1, G)

    def read(self, token):
        """Read a token; return the constraint tokens that are still to come."""
        self.state = self.table.advance(*self.state, torch.tensor([[token]]))
        return self.total - self.bank()

    def bank(self):
        return int(self.table.bank(*self.state))

    def counts(self):
        """How often each constraint is met if the text ends."""
        return self.table.meet_pending(*self.state, None)[1].flatten().tolist()

    def proposed(self):
        return set(self.table.next_token(*self.state).flatten().tolist()) - {-1}

    def step(self):
        """Read the proposed token that leaves the fewest, which must be fewer than before."""
        before, lacks = self.state, {}
        for token in self.proposed():
            self.state = before
            lacks[token] = self.read(token)
        self.state = before
        assert min(lacks.values()) < self.total - self.bank()
        self.read(min(lacks, key=lacks.__getitem__))
