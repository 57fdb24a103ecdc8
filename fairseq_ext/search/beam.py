"""The live rows of a search: tokens and scores; small tensors that are made once.

Shapes: S live sentences, n live rows, L tokens so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

Cached = TypeVar("Cached")
NOT_YET = -1  # fills the columns before the first token of a row that is shorter than others


@dataclass
class Beam:
    """Live hypotheses. The rows of a sentence are next to each other, best first, with the same
    number of tokens.

    The rows of sentences that started later are shorter: they are padded on the left, so that the
    last column always has the last tokens.
    """

    live: list[int]  # S pool numbers, in row order
    width: int  # rows of every sentence; the largest number of rows if counts is given
    counts: Tensor | None  # (S,) rows of each sentence if they differ
    tokens: Tensor  # (n, L) target tokens, the first one included
    score: Tensor  # (n, L - 1) cumulative log-probability of each token
    # (n, ...) row state of strategies, reordered with the rows
    aux: dict[str, Tensor] = field(default_factory=dict)
    # S numbers: by how many tokens each sentence is shorter than the longest; None: 0 for all
    lags: list[int] | None = None
    layout_cache: dict[str, Tensor] = field(default_factory=dict)  # cache of `cached_layout`
    # cache of `cached_for_live`, kept while the same sentences live
    live_cache: dict[str, Any] = field(default_factory=dict)

    @property
    def longest(self) -> int:
        """Number of tokens that the longest rows have chosen so far."""
        return self.tokens.size(1) - 1

    @property
    def step(self) -> int | Tensor:
        """Number of tokens chosen so far: an int, or (S, 1) if sentences differ."""
        return (
            self.longest
            if self.lags is None
            else self.cached_layout("step", lambda: self.longest - self.lag()[:, None])
        )

    def steps(self) -> list[int]:
        """Return the number of tokens chosen so far, by sentence."""
        return (
            [self.longest] * len(self.live)
            if self.lags is None
            else [self.longest - lag for lag in self.lags]
        )

    def lag(self) -> Tensor:
        """Return (S,) the number of tokens by which each sentence is shorter than the longest."""
        return self.cached_layout(
            "lag", lambda: upload(self.lags or [0] * len(self.live), self.device)
        )

    def generated_tokens(self) -> Tensor:
        """Return (n, L - 1) the tokens after the first one; NOT_YET where a row is shorter."""
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

    def cached_layout(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        """Return a tensor that depends on the rows' layout; `make` is called the first time."""
        if name not in self.layout_cache:
            self.layout_cache[name] = make()
        return self.layout_cache[name]

    def live_index(self) -> Tensor:
        """Return (S,) pool number of each live sentence."""
        return self.cached_for_live("live", lambda: upload(self.live, self.device))

    def cached_for_live(self, name: str, make: Callable[[], Cached]) -> Cached:
        """Return a value that depends on the live sentences; `make` is called the first time."""
        if name not in self.live_cache:
            self.live_cache[name] = make()
        found: Cached = self.live_cache[name]
        return found

    def sentence_of_row(self) -> Tensor:
        """Return (n,) place in `live` of each row's sentence."""

        counts = self.counts
        if counts is None:
            return repeated(len(self.live), self.width, self.device)
        return self.cached_layout(
            "sentence",
            lambda: numbers(len(self.live), self.device).repeat_interleave(
                counts, output_size=self.rows
            ),
        )

    def first_row(self) -> Tensor:
        """Return (S,) first row of each sentence."""
        counts = self.counts
        if counts is None:
            return self.bounds()[:-1]
        return self.cached_layout("first", lambda: counts.cumsum(0) - counts)

    def bounds(self) -> Tensor:
        """Return (S + 1,) first row of each sentence, and the number of rows."""
        if self.counts is None:
            return numbers(len(self.live) + 1, self.device, self.width or 1)
        counts = self.counts
        return self.cached_layout("bounds", lambda: F.pad(counts.cumsum(0), (1, 0)))

    @property
    def decoder_width(self) -> int:
        """The width as a decoder reads it: negative if the numbers of rows differ."""
        return self.width if self.counts is None else -self.width

    def by_sentence(self, value: Tensor, fill: float) -> Tensor:
        """Return row values (n, ...) as (S, width, ...), filled up if a sentence has fewer rows."""
        if self.counts is None:
            return value.unflatten(0, (len(self.live), self.width))
        out = value.new_full((len(self.live), self.width, *value.shape[1:]), fill)
        out[self.sentence_of_row(), self.rank_of_row()] = value
        return out

    def by_row(self, value: Tensor) -> Tensor:
        """Return the rows (n, ...) of values (S, width, ...) in the layout of `by_sentence`."""
        return (
            value.flatten(0, 1)
            if self.counts is None
            else value[self.sentence_of_row(), self.rank_of_row()]
        )

    def rank_of_row(self) -> Tensor:
        """Return (n,) rank of each row in its sentence's beam, from 0."""
        if self.counts is None:
            return ranks(len(self.live), self.width, self.device)
        return self.cached_layout(
            "rank",
            lambda: numbers(self.rows, self.device) - self.first_row()[self.sentence_of_row()],
        )

    def last_score(self) -> Tensor:
        """Return (n,) cumulative log-probability of each row; zeros at the first step."""
        return self.score[:, -1] if self.longest else self.score.new_zeros(self.rows)

    def select(
        self,
        row: Tensor,
        live: list[int],
        width: int,
        counts: Tensor | None,
        known: dict[str, Tensor] | None = None,
    ) -> Beam:
        """Return the rows at indices row (m,), in this order, as a beam of the sentences `live`.

        known: row state that is selected already.
        """
        aux = {
            name: value[row] for name, value in self.aux.items() if name not in (known or {})
        } | (known or {})
        out = Beam(live, width, counts, self.tokens[row], self.score[row], aux)
        if live == self.live:
            out.live_cache = self.live_cache
        if self.lags is not None and live:
            of = dict(zip(self.live, self.lags, strict=True))
            out.lags = [of[s] for s in live]
            out.trim_()
        return out

    def part(self, places: list[int]) -> tuple[Beam, Tensor]:
        """Return the sentences at these places of `live` as a beam of their own, and its rows (m,)
        in this beam."""
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
        """Return both beams' rows as one beam, a's first."""
        longest = max(a.longest, b.longest)

        def concatenated(x: Tensor, y: Tensor, fill: float) -> Tensor:
            """Return rows of different lengths (., L) as one tensor, the shorter ones padded on the
            left."""
            wide = max(x.size(1), y.size(1))
            return torch.cat(
                [
                    torch.cat([z.new_full((z.size(0), wide - z.size(1)), fill), z], dim=1)
                    for z in (x, y)
                ]
            )

        aux = {name: torch.cat([value, b.aux[name]]) for name, value in a.aux.items()}
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
            concatenated(a.tokens, b.tokens, NOT_YET),
            concatenated(a.score, b.score, 0.0),
            aux,
            lags if any(lags) else None,
        )

    def trim_(self) -> None:
        """Drop the columns that no sentence uses."""
        assert self.lags is not None
        unused = min(self.lags)
        if unused:
            self.tokens, self.score = self.tokens[:, unused:], self.score[:, unused:]
            self.lags = [lag - unused for lag in self.lags]
        if not any(self.lags):
            self.lags = None

    def extend_(self, token: Tensor, score: Tensor) -> None:
        """Append one token (n,) with its cumulative score (n,) to every row."""
        self.tokens = torch.cat([self.tokens, token[:, None]], dim=1)
        self.score = torch.cat([self.score, score[:, None]], dim=1)

    def empty(self) -> Beam:
        """Return a beam without rows, on the same device."""
        return Beam([], 0, None, self.tokens[:0], self.score[:0])

    @staticmethod
    def start(sentences: list[int], bos: int, device: torch.device, dtype: torch.dtype) -> Beam:
        """Return a beam with one row a sentence: before the first token all rows would be equal."""
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
    """Return (n,) 0, step, 2 step, ..., read-only. It is cached, as are the following tensors,
    since each step would launch a kernel to make it."""
    return torch.arange(0, n * step, step, device=device)


@lru_cache(maxsize=64)
def repeated(n: int, times: int, device: torch.device) -> Tensor:
    """Return (n x times,) each number below n, `times` times, read-only."""
    return numbers(n, device).repeat_interleave(times)


@lru_cache(maxsize=64)
def ranks(n: int, width: int, device: torch.device) -> Tensor:
    """Return (n x width,) the numbers below width, n times, read-only."""
    return numbers(width, device).repeat(n)


@lru_cache(maxsize=64)
def first_of(n: int, few: int, device: torch.device) -> Tensor:
    """Return (n,) bool: the first `few`, read-only."""
    return numbers(n, device) < few


# ---- From the host to a device


def upload(values: Sequence | np.ndarray | Tensor, device: torch.device) -> Tensor:
    """Return a list, an array or a tensor of the host as a tensor of a device, without waiting for
    the device to finish its queue, as `torch.tensor(values, device=device)` would."""
    return (
        torch.from_numpy(values) if isinstance(values, np.ndarray) else torch.as_tensor(values)
    ).to(device, non_blocking=True)
