"""Phrases that rows must contain: what each row has of them so far, as tensors.

Every constraint has an automaton over tokens (requirement.py), so a token that breaks a partial match is itself looked at again and
overlapping matches are found; where the target's words are known, every segmentation of a phrase's text leads through it. A phrase
needed m times counts disjoint occurrences. A constraint may have alternatives, any one of which meets it; it then has the size of its
shortest. A constraint that is *pending* (automaton.py) counts as met in the bank; it is met when a token comes that does not continue
the word, EOS included, and unwinds when one does.

Shapes: N sentences, G constraints of a sentence at most, M states of all automata, W tokens proposed in a state at most, V vocabulary,
S sentences of c rows; a row has state (..., G), of each constraint's automaton, and count (..., G), how often each is met.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_ext.search.phrases.boundaries import Boundaries
from fairseq_ext.search.phrases.phrase import Phrase
from fairseq_ext.search.phrases.pieces import IN, OUT, START
from fairseq_ext.search.phrases.requirement import Requirement, compiled_requirement, never
from fairseq_ext.search.phrases.sentence import EXACT, Cased

PARTS = ("start", "need", "size", "total")
KEPT = 1 << 15  # automata that a compiler keeps


class Compiler:
    """Makes the automata of constraints, each once."""

    def __init__(self, boundaries: Boundaries | None):
        self.boundaries = boundaries
        self.known: dict[tuple[tuple[Phrase, ...], Cased], Requirement] = {}

    def __call__(self, alternatives: tuple[Phrase, ...], cased: Cased) -> Requirement:
        """The automaton of phrases any of which meets the constraint."""
        if (alternatives, cased) not in self.known:
            if len(self.known) >= KEPT:
                self.known.clear()
            self.known[alternatives, cased] = compiled_requirement(alternatives, cased, self.boundaries)
        return self.known[alternatives, cased]


@dataclass
class PhraseTable:
    """The constraints of N sentences."""

    start: Tensor  # (N, G) the state of each constraint before the first token
    need: Tensor  # (N, G) how often each constraint must be met; 0: no constraint
    size: Tensor  # (N, G) tokens that a constraint takes
    total: Tensor  # (N,) tokens of all constraints: the highest bank
    first: Tensor  # (M + 1,) number of each state's first arc
    token: Tensor  # (E,) of each arc, ascending within a state
    target: Tensor  # (E,) the state it leads to
    hits: Tensor  # (E,) how often it meets the constraint
    key: Tensor  # (E,) ascending: state x span + token
    base: Tensor  # (M,) the first root of each state's automaton
    root: Tensor  # (M,) the root whose arcs count where a state has none
    pending: Tensor  # (M,) 1 where the next token decides
    value: Tensor  # (M,) tokens of its constraint that a row has
    proposed: Tensor  # (M, W) tokens that continue the phrases, padded with -1
    behind: Tensor  # (V,) the root behind each token; (1,) where the target's words are not known
    glued: Tensor  # (V,) bool: tokens that continue a word, and BOS, which ends none; (1,) where that is not known
    span: int  # above every token that has an arc
    longest: Tensor  # (N,) tokens of the longest phrase proposed
    ordered: bool  # constraints must be met one after the other

    def of(self, sentence: Tensor) -> PhraseTable:
        """The table of these sentences (S,)."""
        return replace(self, **{name: getattr(self, name)[sentence] for name in (*PARTS, "longest")})

    def begin(self, sentence: Tensor) -> tuple[Tensor, Tensor]:
        """State of rows (n,) of these sentences that have no tokens yet: state (n, G) and count (n, G)."""
        state = self.start[sentence]
        return state, torch.zeros_like(state)

    @property
    def is_bounded(self) -> bool:
        """Whether it matters what stands around a phrase."""
        return self.glued.numel() > 1

    def inactive(self, count: Tensor) -> Tensor:
        """(S, c, G): constraints that do not matter any more, or not yet, given count (S, c, G)."""
        met = count >= self.need[:, None]
        return met | ((~met).cumsum(-1) != 1) if self.ordered else met

    def is_pending(self, state: Tensor, count: Tensor) -> Tensor:
        """(S, c, G): constraints that the next token decides on."""
        return (self.pending[state] > 0) & ~self.inactive(count)

    def meet_pending(self, state: Tensor, count: Tensor, token: Tensor | None) -> tuple[Tensor, Tensor]:
        """State (S, c, G) once what is pending is met, where token (S, c) does not continue the word; None: the text ends."""
        if not self.is_bounded:
            return state, count
        met = self.is_pending(state, count)
        if token is not None:
            met &= ~self.glued[token][..., None]
        return torch.where(met, self.base[state] + IN, state), count + met

    def next_token(self, state: Tensor, count: Tensor) -> Tensor:
        """(S, c, G x W): the tokens that continue active constraints, -1 for others."""
        state, count = self.meet_pending(state, count, None)
        return self.proposed[state].masked_fill(self.inactive(count)[..., None], -1).flatten(2)

    @cached_property
    def arcs(self) -> Tensor:
        """(E + 1, 3): key, target and hits of each arc, and a last one of no state."""
        return F.pad(torch.stack([self.key, self.target, self.hits], dim=1), (0, 0, 0, 1), value=-1)

    def arc(self, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Whether states have an arc of their own for tokens, its target and its hits (all of one shape)."""
        key = token.clamp(max=self.span - 1) + state * self.span
        found, target, hits = self.arcs[torch.searchsorted(self.key, key)].unbind(-1)
        return found == key, target, hits

    def advance(self, state: Tensor, count: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        """State (S, c, G) after token (S, c)."""
        state, count = self.meet_pending(state, count, token)
        inactive = self.inactive(count)
        behind = self.base[state] + (self.behind[token][..., None] if self.is_bounded else self.behind)
        token = token[..., None].expand_as(state)
        # an arc of its own, else one of the root, else none
        (own, known), (target, at_root), (hits, root_hits) = self.arc(torch.stack([state, self.root[state]]), token)
        after = torch.where(own, target, torch.where(known, at_root, behind))
        hits = torch.where(own, hits, root_hits * known)
        count = torch.where(inactive, count, (count + hits).minimum(self.need[:, None]))
        return torch.where(inactive, behind, after), count

    def bank(self, state: Tensor, count: Tensor) -> Tensor:
        """(S, c): tokens of met and pending constraints plus the longest live partial match of an unmet one."""
        state, count = self.meet_pending(state, count, None)
        partial = self.value[state].masked_fill(self.inactive(count), 0)
        return (count * self.size[:, None]).sum(-1) + partial.amax(-1)

    def bank_after(self, prefixes: Sequence[Phrase]) -> Tensor:
        """(N,): the bank of each sentence's prefix."""
        sentences = torch.arange(self.total.size(0), device=self.total.device)
        state, count = (state[:, None] for state in self.begin(sentences))  # (N, 1, G)
        for i in range(max(map(len, prefixes), default=0)):
            token = torch.tensor([[prefix[i] if i < len(prefix) else -1] for prefix in prefixes], device=state.device)
            after = self.advance(state, count, token.clamp(min=0))
            state, count = (torch.where(token[:, :, None] >= 0, new, old) for new, old in zip(after, (state, count), strict=True))
        return self.bank(state, count)[:, 0]


def build_table(
    sentences: Sequence[Sequence[Sequence[Phrase]]],
    ordered: bool,
    device: torch.device,
    boundaries: Boundaries | None = None,
    cased: Sequence[Sequence[Cased]] | None = None,
    compiler: Compiler | None = None,
) -> PhraseTable:
    """The table for each sentence's constraints, each a sequence of alternative phrases (one for a plain constraint).

    cased: in which case each constraint counts; None: all as written. compiler: of these boundaries, where automata are kept.
    """
    compiler = Compiler(boundaries) if compiler is None else compiler
    known: dict[int, int] = {}  # automaton -> its first state
    parts = [never()]
    states = len(parts[0].context)
    groups: list[list[tuple[int, int, Requirement]]] = []  # per sentence: first state, how often it is needed, the automaton
    for n, constraints in enumerate(sentences):
        merged: dict = {}
        for number, alternatives in enumerate(constraints):
            key = (tuple(sorted({tuple(p) for p in alternatives})), cased[n][number] if cased else EXACT)
            name = (number, key) if ordered else key
            merged[name] = (key, merged.get(name, (key, 0))[1] + 1)
        groups.append([])
        for key, times in merged.values():
            automaton = compiler(*key)
            if id(automaton) not in known:
                known[id(automaton)] = states
                parts.append(automaton)
                states += len(automaton.context)
            groups[-1].append((known[id(automaton)], times, automaton))
    N, G = len(groups), max([1, *map(len, groups)])
    start, need, size = torch.zeros(3, N, G, dtype=torch.long)
    longest = torch.ones(N, dtype=torch.long)
    for n, group in enumerate(groups):
        for g, (state, times, automaton) in enumerate(group):
            start[n, g], need[n, g], size[n, g] = state + START, times, automaton.size
            longest[n] = max(int(longest[n]), automaton.longest)
    bases = np.cumsum([0, *(len(part.context) for part in parts[:-1])])
    arcs = np.cumsum([0, *(len(part.arcs.token) for part in parts[:-1])])
    W = max(part.proposed.shape[1] for part in parts)
    base = np.repeat(bases, [len(part.context) for part in parts])
    first = np.concatenate([part.arcs.first + arc for part, arc in zip(parts, arcs, strict=True)])
    token = np.concatenate([part.arcs.token for part in parts])
    first = np.append(first, len(token))
    span = int(token.max(initial=0)) + 2
    proposed = np.full((states, W), -1)
    for part, at in zip(parts, bases, strict=True):
        proposed[at : at + len(part.context), : part.proposed.shape[1]] = part.proposed
    behind = torch.tensor([OUT]) if boundaries is None else boundaries.behind

    def tensor(values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64)).to(device)

    return PhraseTable(
        start=start.to(device), need=need.to(device), size=size.to(device), total=(need * size).sum(1).to(device),
        first=tensor(first), token=tensor(token),
        target=tensor(np.concatenate([part.arcs.target + at for part, at in zip(parts, bases, strict=True)])),
        hits=tensor(np.concatenate([part.arcs.hits for part in parts])),
        key=tensor(np.repeat(np.arange(states), np.diff(first)) * span + token),
        base=tensor(base), root=tensor(base + np.concatenate([part.context for part in parts])),
        pending=tensor(np.concatenate([part.pending for part in parts])), value=tensor(np.concatenate([part.value for part in parts])),
        proposed=tensor(proposed), behind=behind.to(device),
        glued=(torch.zeros(1, dtype=torch.bool) if boundaries is None else boundaries.ends_no_word).to(device),
        span=span, longest=longest.to(device), ordered=ordered,
    )  # fmt: skip
