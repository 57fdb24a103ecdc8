"""The live rows of a search: tokens, scores, their attention, and numbers on their way to a device.

Shapes: S live sentences, n live rows, L tokens so far.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

NOT_YET = -1  # stands before the first token of a row that is shorter than others


@dataclass
class Beam:
    """Live hypotheses; rows of one sentence are neighbours, best first, and have the
    same number of tokens.

    Sentences that have fewer tokens than others (they started later) stand on the right, so that
    the last column is always the last token.
    """

    live: list[int]  # S pool numbers, in row order
    width: int  # rows of every sentence, or the most of any when counts is given
    counts: Tensor | None  # (S,) rows of each sentence when they differ
    tokens: Tensor  # (n, L) target tokens, the first one included
    score: Tensor  # (n, L - 1) cumulative log-probability of each token
    # (n, ...) what strategies know of each row; reordered with it
    aux: dict[str, Tensor] = field(default_factory=dict)
    attention: Attention | None = None  # to the source, where it is asked for
    # S, by how many tokens each sentence is shorter than the longest; None: by none
    lags: list[int] | None = None
    layout: dict[str, Tensor] = field(default_factory=dict)  # what `once` has made
    # what `of_sentences` has made; handed on while the same sentences live
    of_live: dict[str, Any] = field(default_factory=dict)

    @property
    def longest(self) -> int:
        """Tokens that the longest rows have chosen so far."""
        return self.tokens.size(1) - 1

    @property
    def step(self) -> int | Tensor:
        """Tokens chosen so far: a number, or (S, 1) where sentences differ."""
        return (
            self.longest
            if self.lags is None
            else self.once("step", lambda: self.longest - self.lag()[:, None])
        )

    def steps(self) -> list[int]:
        """Tokens chosen so far, by sentence."""
        return (
            [self.longest] * len(self.live)
            if self.lags is None
            else [self.longest - lag for lag in self.lags]
        )

    def lag(self) -> Tensor:
        """(S,) by how many tokens each sentence is shorter than the longest."""
        return self.once("lag", lambda: upload(self.lags or [0] * len(self.live), self.device))

    def chosen(self) -> Tensor:
        """(n, L - 1) the tokens after the first one; NOT_YET where a shorter row has none."""
        tokens = self.tokens[:, 1:]
        if self.lags is None:
            return tokens
        before = (
            torch.arange(self.longest, device=self.device)
            < self.lag()[self.sentence_of_row()][:, None]
        )
        return tokens.masked_fill(before, NOT_YET)

    @property
    def rows(self) -> int:
        return self.tokens.size(0)

    @property
    def device(self) -> torch.device:
        return self.tokens.device

    def once(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        """A tensor that follows from the rows' layout, made when first asked for."""
        if name not in self.layout:
            self.layout[name] = make()
        return self.layout[name]

    def live_index(self) -> Tensor:
        """(S,) pool number of each live sentence."""
        return self.of_sentences("live", lambda: upload(self.live, self.device))

    def of_sentences(self, name: str, make: Callable[[], Any]) -> Any:
        """What follows from which sentences live, made when first asked for."""
        if name not in self.of_live:
            self.of_live[name] = make()
        return self.of_live[name]

    def sentence_of_row(self) -> Tensor:
        """(n,) place in `live` of each row's sentence."""

        counts = self.counts
        if counts is None:
            return repeated(len(self.live), self.width, self.device)
        return self.once(
            "sentence",
            lambda: numbers(len(self.live), self.device).repeat_interleave(
                counts, output_size=self.rows
            ),
        )

    def first_row(self) -> Tensor:
        """(S,) first row of each sentence."""
        counts = self.counts
        if counts is None:
            return self.bounds()[:-1]
        return self.once("first", lambda: counts.cumsum(0) - counts)

    def bounds(self) -> Tensor:
        """(S + 1,) first row of each sentence, and the number of rows."""
        if self.counts is None:
            return numbers(len(self.live) + 1, self.device, self.width or 1)
        return self.once(
            "bounds",
            lambda: torch.cat([self.first_row(), self.first_row().new_tensor([self.rows])]),
        )

    def by_sentence(self, value: Tensor, fill: float) -> Tensor:
        """Lay row values (n, ...) out as (S, width, ...), filled up where a sentence
        has fewer rows."""
        if self.counts is None:
            return value.unflatten(0, (len(self.live), self.width))
        out = value.new_full((len(self.live), self.width, *value.shape[1:]), fill)
        out[self.sentence_of_row(), self.rank_of_row()] = value
        return out

    def by_row(self, value: Tensor) -> Tensor:
        """The rows (n, ...) of what `by_sentence` has laid out (S, width, ...)."""
        return (
            value.flatten(0, 1)
            if self.counts is None
            else value[self.sentence_of_row(), self.rank_of_row()]
        )

    def rank_of_row(self) -> Tensor:
        """(n,) rank of each row in its sentence's beam, from 0."""
        if self.counts is None:
            return ranks(len(self.live), self.width, self.device)
        return self.once(
            "rank",
            lambda: numbers(self.rows, self.device) - self.first_row()[self.sentence_of_row()],
        )

    def last_score(self) -> Tensor:
        """(n,) cumulative log-probability of each row; zeros at the first step."""
        return self.score[:, -1] if self.longest else self.score.new_zeros(self.rows)

    def select(
        self,
        row: Tensor,
        live: list[int],
        width: int,
        counts: Tensor | None,
        known: dict[str, Tensor] | None = None,
    ) -> Beam:
        """The rows at the indices row (m,), in this order, as a beam of the sentences `live`.

        known: row state that has been chosen.
        """
        aux = {
            name: value[row] for name, value in self.aux.items() if name not in (known or {})
        } | (known or {})
        attention = None if self.attention is None else self.attention.select(row)
        out = Beam(live, width, counts, self.tokens[row], self.score[row], aux, attention)
        if live == self.live:
            out.of_live = self.of_live
        if self.lags is not None and live:
            of = dict(zip(self.live, self.lags, strict=True))
            out.lags = [of[s] for s in live]
            out.trim_()
        return out

    def part(self, places: list[int]) -> tuple[Beam, Tensor]:
        """The sentences at these places of `live` as a beam of their own, and its rows (m,)
        among the present ones."""
        place = upload(places, self.device)
        live = [self.live[i] for i in places]
        if self.counts is None:
            row = (
                place[:, None] * self.width + torch.arange(self.width, device=self.device)
            ).flatten()
            return self.select(row, live, self.width, None), row
        counts = self.counts[place]
        row = torch.cat(
            [
                torch.arange(a, a + n)
                for a, n in zip(self.first_row()[place].tolist(), counts.tolist(), strict=True)
            ]
        )
        row = row.to(self.device)
        return self.select(row, live, int(counts.max()), counts), row

    @staticmethod
    def join(a: Beam, b: Beam) -> Beam:
        """Both beams' rows as one, a's first."""
        longest = max(a.longest, b.longest)

        def both(x: Tensor, y: Tensor, fill: float) -> Tensor:
            """Rows of different lengths (., L), the shorter ones to the right."""
            wide = max(x.size(1), y.size(1))
            return torch.cat(
                [
                    torch.cat([z.new_full((z.size(0), wide - z.size(1)), fill), z], dim=1)
                    for z in (x, y)
                ]
            )

        aux = {name: torch.cat([value, b.aux[name]]) for name, value in a.aux.items()}
        attention = (
            None
            if a.attention is None or b.attention is None
            else Attention.join(a.attention, b.attention)
        )
        counts = None
        if a.counts is not None or b.counts is not None or a.width != b.width:
            counts = torch.cat(
                [
                    torch.full((len(x.live),), x.width, device=x.device)
                    if x.counts is None
                    else x.counts
                    for x in (a, b)
                ]
            )
        lags = [longest - step for x in (a, b) for step in x.steps()]
        return Beam(
            a.live + b.live,
            max(a.width, b.width),
            counts,
            both(a.tokens, b.tokens, NOT_YET),
            both(a.score, b.score, 0.0),
            aux,
            attention,
            lags if any(lags) else None,
        )

    def trim_(self) -> None:
        """Drop the columns that no sentence uses any more."""
        assert self.lags is not None
        unused = min(self.lags)
        if unused:
            self.tokens, self.score = self.tokens[:, unused:], self.score[:, unused:]
            if self.attention is not None:
                self.attention.trim_(unused)
            self.lags = [lag - unused for lag in self.lags]
        if not any(self.lags):
            self.lags = None

    def extend_(self, token: Tensor, score: Tensor) -> None:
        """Append one token (n,) with its cumulative score (n,) to every row."""
        self.tokens = torch.cat([self.tokens, token[:, None]], dim=1)
        self.score = torch.cat([self.score, score[:, None]], dim=1)

    def empty(self) -> Beam:
        """A beam without rows, on the same device."""
        return Beam([], 0, None, self.tokens[:0], self.score[:0])

    @staticmethod
    def start(sentences: list[int], bos: int, device: torch.device, dtype: torch.dtype) -> Beam:
        """One row a sentence: before the first token all rows of a beam would be the same."""
        tokens = torch.full((len(sentences), 1), bos, dtype=torch.long, device=device)
        return Beam(
            list(sentences),
            1,
            None,
            tokens,
            torch.zeros(len(sentences), 0, dtype=dtype, device=device),
        )


@lru_cache(maxsize=256)
def numbers(n: int, device: torch.device, step: int = 1) -> Tensor:
    """(n,) 0, step, 2 step, ..., made once, as what follows is, since each step would launch
    it again. To be read only."""
    return torch.arange(0, n * step, step, device=device)


@lru_cache(maxsize=64)
def repeated(n: int, times: int, device: torch.device) -> Tensor:
    """(n x times,) each number below n so many times. To be read only."""
    return numbers(n, device).repeat_interleave(times)


@lru_cache(maxsize=64)
def ranks(n: int, width: int, device: torch.device) -> Tensor:
    """(n x width,) the numbers below width, n times. To be read only."""
    return numbers(width, device).repeat(n)


@lru_cache(maxsize=64)
def first_of(n: int, few: int, device: torch.device) -> Tensor:
    """(n,) bool: the first few. To be read only."""
    return numbers(n, device) < few


# ---- The attention of live rows to their source
#
# Kept for `--print-alignment`.
#
# Shapes: n live rows, L tokens so far, T source columns of the pool, t source columns of the
# decoder's present group.


@dataclass
class Attention:
    """Row tensors, reordered with their beam's rows."""

    weights: Tensor  # (n, L, T) each source token in the pool's own column
    first: Tensor  # (n,) pool column at which the columns of the row's group begin

    @staticmethod
    def start(rows: int, columns: int, first: int, device: torch.device) -> Attention:
        """Rows that have no token yet."""
        return Attention(
            torch.zeros(rows, 0, columns, device=device), torch.full((rows,), first, device=device)
        )

    def add_(self, step: Tensor) -> None:
        """Append the attention (n, t) of one step."""
        past = self.weights
        column = self.first[:, None] + torch.arange(step.size(1), device=step.device)
        # what lies beyond the last column is padding, whose attention is 0
        wide = past.new_zeros(past.size(0), past.size(2), dtype=step.dtype)
        wide.scatter_add_(1, column.clamp_(max=past.size(2) - 1), step)
        self.weights = torch.cat([past.to(step.dtype), wide[:, None]], dim=1)

    def select(self, row: Tensor) -> Attention:
        """The rows at the indices row (n',), in this order."""
        return Attention(self.weights[row], self.first[row])

    def trim_(self, unused: int) -> None:
        """Drop the first tokens, which no row uses."""
        self.weights = self.weights[:, unused:]

    @staticmethod
    def join(a: Attention, b: Attention) -> Attention:
        """The rows of both, a's first, shorter ones to the right."""
        wide = max(a.weights.size(1), b.weights.size(1))
        weights = [F.pad(x.weights, (0, 0, wide - x.weights.size(1), 0)) for x in (a, b)]
        return Attention(torch.cat(weights), torch.cat([a.first, b.first]))


# ---- Numbers of the host on their way to a device


def upload(values: Any, device: torch.device) -> Tensor:
    """Return a list, an array or a tensor of the host as a tensor of a device, without waiting for
    all that the device still has to do, as `torch.tensor(values, device=device)` would."""
    return (
        torch.from_numpy(values) if isinstance(values, np.ndarray) else torch.as_tensor(values)
    ).to(device, non_blocking=True)
