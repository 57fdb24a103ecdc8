"""Shortlist and screened log-probabilities by the compiled library (`shortlist.cpp`).

For float32 on a CPU. Definition of the shortlist's: the torch path of
search/strategies/softmax/_shortlist.py.

Shapes: n rows, V words, d features, m found words, T words of the fixed part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fairseq_ext.kernels.library import address, declarations, library, loaded, new, pointer
from fairseq_ext.kernels.transformer import PackedLinear


def is_supported(weight: Tensor) -> bool:
    """Return whether the library is available and supports such weights."""
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and weight.is_contiguous()
        and library() is not None
    )


class ShortlistLinear:
    """The linear layer and softmax over a shortlist, in one call of the compiled library."""

    def __init__(
        self,
        linear: PackedLinear,
        base: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        temperature: float,
    ):
        """linear: of the words base (T,) only; weight (V, d), bias (V,): of all words."""
        V, d = weight.shape
        self.keepalive = (linear, base, weight, bias)
        self.T, self.d = linear.outputs, linear.inputs
        self.struct = new(
            "Shortlist",
            linear.struct,
            address(base, torch.long, self.T),
            self.T,
            address(weight, torch.float32, V, self.d),
            address(bias, torch.float32, V),
            d,
            temperature,
        )
        self.seconds = declarations().new("double[]", 3)

    def __call__(self, x: Tensor, found: Tensor, clock: int) -> tuple[Tensor, Tensor]:
        """Return ids (T + m,), ascending, and log-probabilities (n, T + m) for x (n, d) and the
        found words (m,), ascending.

        `seconds` are the times of the found words' scores, of the base's scores, and of the rest,
        by the system's clock with the number `clock`.
        """
        x, found = x.contiguous(), found.contiguous()
        n, m = x.size(0), found.numel()
        ids, y = found.new_empty(self.T + m), x.new_empty(n, self.T + m)
        loaded().shortlist_log_probs(
            self.struct,
            address(x, torch.float32, n, self.d),
            n,
            address(found, torch.long, m),
            m,
            pointer(ids),
            pointer(y),
            clock,
            self.seconds,
        )
        return ids, y


class WordLists:
    """The words of several shortlists as one output layer.

    output: the map of all these words, ids, or of the vocabulary if they are most of it (None);
    words: each list's ascending ids (C,); columns: their outputs (C,) in the map.
    """

    def __init__(self, output: PackedLinear, words: Sequence[Tensor]):
        self.words, self.columns, self.output = words, words, output
        self.ids: Tensor | None = None
        listed = torch.zeros(output.outputs, dtype=torch.bool)
        for ids in words:
            listed[ids] = True
        together = listed.nonzero().view(-1)
        if 2 * together.numel() <= output.outputs:
            self.ids, self.output = together, output.select_outputs(together)
            column = listed.cumsum(0) - 1
            self.columns = [column[ids] for ids in words]


# ---- Screened log-probabilities
#
# Definition: the torch path of search/strategies/softmax/screened.py.
#
# Shapes: n rows, V words, d features.


# largest number of words of a row that are rescored, if the best ones are not enough for the bound
MAX_RESCORED = 2048


class ScreenedLinear:
    """From features to screened log-probabilities, in one call."""

    def __init__(self, screen: Any, tolerance: float):
        """screen: search/strategies/softmax/screened.py, Screen, which explains tolerance."""
        weight, bias, always, m = screen.weight, screen.bias, screen.always, screen.m
        self.V, self.d = weight.shape
        if not 0 < m < self.V:
            raise ValueError(f"the best {m} of {self.V} words cannot be rescored")
        linear = PackedLinear(weight, bias, bits=16)
        self.keepalive = (linear, weight, bias, always)
        self.struct = new(
            "Screen",
            linear.struct,
            address(weight, torch.float32),
            address(bias, torch.float32, self.V),
            address(always, torch.long, always.numel()),
            always.numel(),
            self.V,
            self.d,
            m,
            MAX_RESCORED,
            screen.temperature,
            screen.largest,
            screen.spread,
            tolerance,
        )

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the result of `Screen.log_probs` for x (n, d)."""
        x = x.contiguous()
        n = x.size(0)
        value, known = x.new_empty(n, self.V), torch.zeros(n, self.V, dtype=torch.bool)
        ceiling, error = x.new_empty(2, n)
        loaded().screen(
            self.struct,
            address(x, torch.float32, n, self.d),
            n,
            *map(pointer, (value, known, ceiling, error)),
        )
        return value, known, ceiling, error
