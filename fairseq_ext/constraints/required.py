"""Phrases that rows must contain: what each row has of them so far, as tensors.

Every phrase has its own prefix automaton (Knuth, Morris, Pratt 1977), so a token that breaks a partial match is itself looked at
again and overlapping matches are found. A phrase needed m times counts disjoint occurrences. A constraint may have alternatives,
any one of which meets it; it then has the size of its shortest.

Shapes: N sentences, Q phrases of a sentence at most, L tokens of a phrase at most, G constraints of a sentence at most; a row's
state is place (..., Q), tokens matched of each phrase, and count (..., G), how often each constraint is met.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

Phrase = Sequence[int]


@dataclass
class PhraseTable:
    """The phrases of N sentences."""

    token: Tensor  # (N, Q, L) padded with -1
    length: Tensor  # (N, Q) 0: no phrase
    fail: Tensor  # (N, Q, L) longest proper border of the first p tokens, for p = 0 .. L - 1
    group: Tensor  # (N, Q) the constraint of each phrase
    need: Tensor  # (N, G) how often each constraint must be met
    size: Tensor  # (N, G) tokens that a constraint takes
    total: Tensor  # (N,) tokens of all constraints: the highest bank
    depth: int  # longest chain of borders in any phrase
    ordered: bool  # constraints must be met one after the other

    def of(self, sentence: Tensor) -> PhraseTable:
        """The table of these sentences (S,)."""
        parts = ("token", "length", "fail", "group", "need", "size", "total")
        return replace(self, **{name: getattr(self, name)[sentence] for name in parts})

    def start(self, rows: int) -> tuple[Tensor, Tensor]:
        """State of rows (n,) that have no tokens yet: place (n, Q) and count (n, G)."""
        place = self.length.new_zeros(rows, self.length.size(1))
        return place, place.new_zeros(rows, self.need.size(1))

    def active(self, count: Tensor) -> Tensor:
        """(S, c, Q): phrases that still matter, given count (S, c, G)."""
        open_ = count < self.need[:, None]
        if self.ordered:
            open_ = open_ & (open_.cumsum(-1) == 1)
        phrase = self.group[:, None].expand(-1, count.size(1), -1)
        return open_.gather(2, phrase) & (self.length[:, None] > 0)

    def next_token(self, place: Tensor, count: Tensor) -> Tensor:
        """(S, c, Q): the token that continues each active phrase, -1 for the others."""
        token = self.token[:, None].expand(-1, place.size(1), -1, -1).gather(3, place[..., None])[..., 0]
        return token.masked_fill(~self.active(count), -1)

    def advance(self, place: Tensor, count: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        """State (S, c, ...) after token (S, c)."""
        active = self.active(count)
        tokens = self.token[:, None].expand(-1, place.size(1), -1, -1)
        fail = self.fail[:, None].expand(-1, place.size(1), -1, -1)
        fits = tokens.gather(3, place[..., None])[..., 0] == token[..., None]
        for _ in range(self.depth):
            place = torch.where(fits, place, fail.gather(3, place[..., None])[..., 0])
            fits = tokens.gather(3, place[..., None])[..., 0] == token[..., None]
        place = torch.where(fits & active, place + 1, 0)
        # a finished phrase meets its constraint once, and its constraint's phrases start over
        hit = active & (place == self.length[:, None])
        group = self.group[:, None].expand(-1, count.size(1), -1)
        hits = torch.zeros_like(count).scatter_reduce(2, group, hit.long(), "amax")
        place = place.masked_fill(hits.gather(2, group) > 0, 0)
        return place, count + hits

    def bank(self, place: Tensor, count: Tensor) -> Tensor:
        """(S, c): tokens of met constraints plus the longest live partial match of an unmet one."""
        group = self.group[:, None].expand(-1, count.size(1), -1)
        # of alternatives, the one that lacks the fewest tokens counts
        partial = self.size[:, None].expand(-1, count.size(1), -1).gather(2, group) - self.length[:, None] + place
        partial = partial.masked_fill(~self.active(count), 0).clamp(min=0)
        return (count * self.size[:, None]).sum(-1) + partial.amax(-1)

    def bank_after(self, prefixes: Sequence[Phrase]) -> Tensor:
        """(N,): the bank of each sentence's prefix."""
        place, count = (state[:, None] for state in self.start(self.total.size(0)))  # (N, 1, ...)
        for i in range(max(map(len, prefixes), default=0)):
            token = torch.tensor([[prefix[i] if i < len(prefix) else -1] for prefix in prefixes], device=self.token.device)
            after = self.advance(place, count, token)
            place, count = (torch.where(token[:, :, None] >= 0, new, old) for new, old in zip(after, (place, count), strict=True))
        return self.bank(place, count)[:, 0]


def borders(phrase: Phrase) -> list[int]:
    """For p = 0 .. len(phrase) - 1: length of the longest proper border of the first p tokens."""
    fail = [0] * len(phrase)
    k = 0
    for p in range(2, len(phrase)):
        while k and phrase[p - 1] != phrase[k]:
            k = fail[k]
        if phrase[p - 1] == phrase[k]:
            k += 1
        fail[p] = k
    return fail


def build_table(sentences: Sequence[Sequence[Sequence[Phrase]]], ordered: bool, device: torch.device) -> PhraseTable:
    """The table for each sentence's constraints, each a sequence of alternative phrases (one for a plain constraint)."""
    groups: list[list[tuple[tuple[Phrase, ...], int]]] = []  # per sentence: alternatives and how often they are needed
    for constraints in sentences:
        merged: dict = {}
        for number, alternatives in enumerate(constraints):
            key = tuple(sorted({tuple(p) for p in alternatives}))
            name = (number, key) if ordered else key
            merged[name] = (key, merged.get(name, (key, 0))[1] + 1)
        groups.append(list(merged.values()))
    N = len(groups)
    G = max([1, *(len(g) for g in groups)])
    Q = max([1, *(sum(len(alternatives) for alternatives, _ in g) for g in groups)])
    L = max([1, *(len(p) for g in groups for alternatives, _ in g for p in alternatives)])
    token, fail = torch.full((N, Q, L), -1), torch.zeros(N, Q, L, dtype=torch.long)
    length, group = torch.zeros(N, Q, dtype=torch.long), torch.zeros(N, Q, dtype=torch.long)
    need, size = torch.zeros(N, G, dtype=torch.long), torch.zeros(N, G, dtype=torch.long)
    depth = 1
    for n, constraints_of in enumerate(groups):
        q = 0
        for g, (alternatives, times) in enumerate(constraints_of):
            need[n, g], size[n, g] = times, min(len(p) for p in alternatives)
            for phrase in alternatives:
                links = borders(phrase)
                token[n, q, : len(phrase)] = torch.tensor(phrase)
                fail[n, q, : len(phrase)] = torch.tensor(links)
                length[n, q], group[n, q] = len(phrase), g
                for p in range(1, len(phrase)):
                    chain, at = 1, links[p]
                    while at:
                        chain, at = chain + 1, links[at]
                    depth = max(depth, chain)
                q += 1
    total = (need * size).sum(1)
    token, length, fail, group, need, size, total = (x.to(device) for x in (token, length, fail, group, need, size, total))
    return PhraseTable(token, length, fail, group, need, size, total, depth, ordered)
