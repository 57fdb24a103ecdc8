"""Phrases that rows must contain: what each row has of them so far, as tensors.

Every phrase has its own prefix automaton (Knuth, Morris, Pratt 1977), so a token that breaks a partial match is itself looked at
again and overlapping matches are found. A phrase needed m times counts disjoint occurrences. A constraint may have alternatives,
any one of which meets it; it then has the size of its shortest.

Where the target's words are known (boundaries.py), a phrase starts only at a word boundary, and one whose last token may be
continued *waits* behind that token: it is met when a token comes that does not continue the word, EOS included, and unwinds when one
does. Its place is then its length. A waiting phrase counts as met in the bank.

Shapes: N sentences, Q phrases of a sentence at most, L tokens of a phrase at most plus one, V vocabulary, G constraints of a sentence
at most; a row's state is place (..., Q), tokens matched of each phrase, and count (..., G), how often each constraint is met.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fairseq_ext.constraints.boundaries import Boundaries

Phrase = Sequence[int]
GLUED, BEGUN = 1, 2  # what may stand before a token: a word that it would continue, any token
PARTS = ("token", "length", "fail", "group", "first", "waits", "need", "size", "total")


@dataclass
class PhraseTable:
    """The phrases of N sentences."""

    token: Tensor  # (N, Q, L) padded with -1
    length: Tensor  # (N, Q) 0: no phrase
    fail: Tensor  # (N, Q, L) longest proper border of the first p tokens that starts at a boundary, for p = 0 .. L - 1
    group: Tensor  # (N, Q) the constraint of each phrase
    first: Tensor  # (N, Q) where it must not start: GLUED to the word before, BEGUN: behind any token
    waits: Tensor  # (N, Q) 1 where the token behind the last decides
    need: Tensor  # (N, G) how often each constraint must be met
    size: Tensor  # (N, G) tokens that a constraint takes
    total: Tensor  # (N,) tokens of all constraints: the highest bank
    glued: Tensor  # (V,) bool: tokens that continue a word; (1,) where that is not known
    open: Tensor  # (V,) bool: tokens that may be continued
    depth: int  # longest chain of borders in any phrase
    ordered: bool  # constraints must be met one after the other

    def of(self, sentence: Tensor) -> PhraseTable:
        """The table of these sentences (S,)."""
        return replace(self, **{name: getattr(self, name)[sentence] for name in PARTS})

    def start(self, rows: int) -> tuple[Tensor, Tensor]:
        """State of rows (n,) that have no tokens yet: place (n, Q) and count (n, G)."""
        place = self.length.new_zeros(rows, self.length.size(1))
        return place, place.new_zeros(rows, self.need.size(1))

    def behind(self, last: Tensor, steps: int | Tensor) -> Tensor:
        """What stands before the next token of rows whose last token is `last` (any shape), after so many tokens: GLUED, BEGUN or both."""
        if not self.is_bounded:
            return torch.zeros_like(last)
        begun = torch.as_tensor(steps, device=last.device).expand_as(last) > 0
        return GLUED * (self.open[last] & begun).long() + BEGUN * begun.long()

    @property
    def is_bounded(self) -> bool:
        """Whether it matters what stands around a phrase."""
        return self.glued.numel() > 1

    def continues(self, token: Tensor) -> Tensor:
        """Which tokens (any shape) continue the word before them."""
        return self.glued[token] if self.is_bounded else torch.zeros_like(token, dtype=torch.bool)

    def by_group(self, hit: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Constraints (S, c, G) of which a phrase is hit (S, c, Q), and all phrases (S, c, Q) of these constraints."""
        group = self.group[:, None].expand(-1, count.size(1), -1)
        hits = torch.zeros_like(count).scatter_reduce(2, group, hit.long(), "amax")
        return hits, hits.gather(2, group) > 0

    def active(self, count: Tensor) -> Tensor:
        """(S, c, Q): phrases that still matter, given count (S, c, G)."""
        open_ = count < self.need[:, None]
        if self.ordered:
            open_ = open_ & (open_.cumsum(-1) == 1)
        phrase = self.group[:, None].expand(-1, count.size(1), -1)
        return open_.gather(2, phrase) & (self.length[:, None] > 0)

    def waiting(self, place: Tensor, count: Tensor) -> Tensor:
        """(S, c, Q): phrases whose last token has come and whose next decides."""
        return (place == self.length[:, None]) & (self.length[:, None] > 0) & self.active(count)

    def next_token(self, place: Tensor, count: Tensor, behind: Tensor) -> Tensor:
        """(S, c, Q): the token that continues each active phrase, -1 for the others; behind (S, c): as `behind` says."""
        if self.is_bounded:
            hits, same = self.by_group(self.waiting(place, count), count)
            count, place = count + hits, place.masked_fill(same, 0)
        token = self.token[:, None].expand(-1, place.size(1), -1, -1).gather(3, place[..., None])[..., 0]
        barred = (place == 0) & ((self.first[:, None] & behind[..., None]) > 0)
        return token.masked_fill(~self.active(count) | barred, -1)

    def advance(self, place: Tensor, count: Tensor, token: Tensor, behind: Tensor) -> tuple[Tensor, Tensor]:
        """State (S, c, ...) after token (S, c); behind (S, c): what stands before it, as `behind` says."""
        if self.is_bounded:  # what waits is met by a token that does not continue the word
            hits, same = self.by_group(self.waiting(place, count) & ~self.continues(token)[..., None], count)
            count, place = count + hits, place.masked_fill(same, 0)
        active = self.active(count)
        tokens = self.token[:, None].expand(-1, place.size(1), -1, -1)
        fail = self.fail[:, None].expand(-1, place.size(1), -1, -1)
        barred = (self.first[:, None] & behind[..., None]) > 0
        matches = tokens.gather(3, place[..., None])[..., 0] == token[..., None]
        for _ in range(self.depth):
            place = torch.where(matches, place, fail.gather(3, place[..., None])[..., 0])
            matches = tokens.gather(3, place[..., None])[..., 0] == token[..., None]
        place = torch.where(matches & active & ~(barred & (place == 0)), place + 1, 0)
        # a finished phrase meets its constraint once, and its constraint's phrases start over
        hit = active & (place == self.length[:, None]) & (self.waits[:, None] == 0)
        hits, same = self.by_group(hit, count)
        return place.masked_fill(same, 0), count + hits

    def bank(self, place: Tensor, count: Tensor) -> Tensor:
        """(S, c): tokens of met and waiting constraints plus the longest live partial match of an unmet one."""
        if self.is_bounded:
            hits, same = self.by_group(self.waiting(place, count), count)
            count, place = count + hits, place.masked_fill(same, 0)
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
            last = torch.tensor([[prefix[i - 1] if 0 < i <= len(prefix) else 0] for prefix in prefixes], device=self.token.device)
            after = self.advance(place, count, token.clamp(min=0), self.behind(last, i))
            place, count = (torch.where(token[:, :, None] >= 0, new, old) for new, old in zip(after, (place, count), strict=True))
        return self.bank(place, count)[:, 0]


def borders(phrase: Phrase, starts_behind: Callable[[int], bool] = lambda token: True) -> list[int]:
    """For p = 0 .. len(phrase): length of the longest proper border of the first p tokens whose start may stand behind the token
    before it."""
    fail = [0] * (len(phrase) + 1)
    for p in range(2, len(phrase) + 1):
        borders = (n for n in range(p - 1, 0, -1) if tuple(phrase[p - n : p]) == tuple(phrase[:n]) and starts_behind(phrase[p - n - 1]))
        fail[p] = next(borders, 0)
    return fail


def build_table(
    sentences: Sequence[Sequence[Sequence[Phrase]]],
    ordered: bool,
    device: torch.device,
    boundaries: Boundaries | None = None,
    initial: Sequence[Collection[Phrase]] = (),
) -> PhraseTable:
    """The table for each sentence's constraints, each a sequence of alternative phrases (one for a plain constraint).

    initial: of each sentence, the phrases that count only at its start; nothing for none.
    """
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
    L = max([1, *(len(p) for g in groups for alternatives, _ in g for p in alternatives)]) + 1
    token, fail = torch.full((N, Q, L), -1), torch.zeros(N, Q, L, dtype=torch.long)
    length, group, first, waits = torch.zeros(4, N, Q, dtype=torch.long)
    need, size = torch.zeros(2, N, G, dtype=torch.long)
    depth = 1
    for n, constraints_of in enumerate(groups):
        q = 0
        for g, (alternatives, times) in enumerate(constraints_of):
            need[n, g], size[n, g] = times, min(len(p) for p in alternatives)
            for phrase in alternatives:
                at_start = bool(initial) and phrase in initial[n]
                links = borders(phrase, starts_behind(phrase, boundaries, at_start))
                token[n, q, : len(phrase)] = torch.tensor(phrase)
                fail[n, q, : len(phrase) + 1] = torch.tensor(links)
                length[n, q], group[n, q] = len(phrase), g
                if boundaries is not None:
                    first[n, q] = GLUED * int(boundaries.glued[phrase[0]]) + BEGUN * at_start
                    waits[n, q] = int(boundaries.whole and boundaries.open[phrase[-1]])
                for p in range(1, len(phrase) + 1):
                    chain, at = 1, links[p]
                    while at:
                        chain, at = chain + 1, links[at]
                    depth = max(depth, chain)
                q += 1
    total = (need * size).sum(1)
    unknown = torch.zeros(1, dtype=torch.bool)
    glued, open_ = (unknown, unknown) if boundaries is None else (boundaries.glued, boundaries.open)
    values = (token, length, fail, group, first, waits, need, size, total, glued, open_)
    parts: dict[str, Any] = {name: x.contiguous().to(device) for name, x in zip((*PARTS, "glued", "open"), values, strict=True)}
    return PhraseTable(**parts, depth=depth, ordered=ordered)


def starts_behind(phrase: Phrase, boundaries: Boundaries | None, at_start: bool) -> Callable[[int], bool]:
    """Whether a phrase may start behind a token."""
    if at_start:
        return lambda token: False
    return lambda token: boundaries is None or boundaries.between(token, phrase[0])
