"""Targets of any lengths, read in one call of the compiled library.

Each token is a line of its own, with the positions that it sees. So targets are not padded, and a
target that begins like one that was read sees the keys and values of that one. All sources share
the positions. The definition is a block of rows (decoder.py).

Shapes: N new tokens of all targets, S sources, T source width, P positions, L layers, H heads, h
features a head.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairseq_ext.kernels.transformer import line_dtype
from fairseq_ext.model.transformer.cache import KeyValues
from fairseq_ext.model.transformer.layers import embed
from fairseq_ext.model.transformer.weights import Weights


class NewTokens(NamedTuple):
    """Tokens of a target that are read. history (tokens before them,): the positions of those."""

    source: int
    tokens: Sequence[int]
    history: np.ndarray


@dataclass(eq=False)
class LineReader:
    """The keys and values of sources and of the targets that were read, in each model of an
    ensemble, all of whose layers are compiled."""

    weights: list[Weights]
    sources: list[KeyValues]
    targets: list[Tensor] = field(default_factory=list)  # of each model (L, 2, 1, H, P, h)
    used: int = 0  # positions that later tokens may see

    def read(self, new: Sequence[NewTokens]) -> list[Tensor]:
        """Return the features (N, d) of each model. The positions are not kept."""
        lines, ids, past = self.lines(new)
        out = []
        for model, source, target in zip(self.weights, self.sources, self.targets, strict=True):
            x = embed(model, ids, 1, past)
            assert model.compiled is not None
            model.compiled.decode_lines_(x, lines.records, target, source)
            out.append(x if model.project_out is None else model.project_out(x))
        return out

    def attention(self, new: Sequence[NewTokens]) -> Tensor:
        """Return the attention (N, T) to the sources, averaged over models, layers and heads. The
        positions, the next N, are kept."""
        lines, ids, past = self.lines(new)
        total = torch.zeros(len(ids), self.sources[0].source.size(4), dtype=torch.float32)
        for model, source, target in zip(self.weights, self.sources, self.targets, strict=True):
            assert model.compiled is not None
            of_model = torch.zeros_like(total)
            x = embed(model, ids, 1, past)
            model.compiled.decode_lines_(x, lines.records, target, source, of_model)
            total += of_model / model.heads
        self.used += len(lines.records)
        return total / sum(len(model.layers) for model in self.weights)

    def lines(self, new: Sequence[NewTokens]) -> tuple[Lines, Tensor, Tensor]:
        """Return the lines, their tokens (N,) and the number of tokens before each (N,)."""
        counts = np.array([len(each.tokens) for each in new])
        before = np.array([len(each.history) for each in new])
        ends, longest = counts.cumsum(), int((before + counts).max())
        N = int(ends[-1])
        self.reserve_(self.used + N, longest)
        own = np.arange(self.used, self.used + N, dtype=np.int32)
        parts = zip(new, ends - counts, ends, strict=True)
        history = np.concatenate(
            [part for of, start, end in parts for part in (of.history, own[start:end])]
        )
        past = np.arange(N) + np.repeat(before - (ends - counts), counts)
        first = (before + counts).cumsum() - (before + counts)  # of each target, in the history
        records = np.empty(N, line_dtype())
        records["slot"] = np.repeat([each.source for each in new], counts)
        records["position"], records["count"] = own, past + 1
        records["history"] = history.ctypes.data + history.itemsize * np.repeat(first, counts)
        ids = torch.tensor(list(itertools.chain.from_iterable(each.tokens for each in new)))
        return Lines(records, history), ids, torch.from_numpy(past)

    def reserve_(self, positions: int, longest: int) -> None:
        """Reserve memory for this number of positions, and for targets of `longest` tokens."""
        for model in self.weights:
            # behind a model's last position values are not used: such targets are too long
            if (
                model.positions is not None
                and model.grow_positions is not None
                and longest > model.positions.size(0)
            ):
                model.positions = model.grow_positions(2 * longest)
        if self.targets and positions <= self.targets[0].size(4):
            return
        before = self.targets
        self.targets = []
        for i, source in enumerate(self.sources):
            L, two, _, H, _, h = source.source.shape
            self.targets.append(source.source.new_empty(L, two, 1, H, 2 * positions, h))
            if self.used:
                self.targets[i][..., : self.used, :] = before[i][..., : self.used, :]


class Lines(NamedTuple):
    """Lines as the compiled library reads them."""

    records: np.ndarray  # (N,) line_dtype
    history: np.ndarray  # to which the records point
