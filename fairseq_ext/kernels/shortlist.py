"""Shortlist and screened log-probabilities by the compiled library (`shortlist.cpp`).

For float32 on a CPU. Definition of the shortlist's: the torch path of
search/strategies/softmax/_shortlist.py.

Shapes: n rows, V words, d features, m words that were found, T words of the fixed part.
"""

from __future__ import annotations

import ctypes
from ctypes import c_double
from typing import Any

import torch
from torch import Tensor

from fairseq_ext.kernels.library import library, loaded, struct
from fairseq_ext.kernels.transformer import PackedLinear


def takes(weight: Tensor) -> bool:
    """Whether the library is there and reads such weights."""
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and weight.is_contiguous()
        and library() is not None
    )


ListStruct = struct("shortlist.cpp", "Shortlist")


class ShortlistLinear:
    """From features to log-probabilities over a shortlist, in one call."""

    def __init__(
        self,
        linear: PackedLinear,
        base: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        temperature: float,
    ):
        """linear: of the words base (T,) alone; weight (V, d), bias (V,) of all."""
        assert (
            takes(weight)
            and base.is_contiguous()
            and linear.outputs == base.numel()
            and linear.inputs == weight.size(1)
        )
        assert bias is None or (bias.dtype == torch.float32 and bias.is_contiguous())
        self.kept = (linear, base, weight, bias)
        shift = None if bias is None else bias.data_ptr()
        self.T = base.numel()
        self.struct = ListStruct(
            linear.address,
            base.data_ptr(),
            self.T,
            weight.data_ptr(),
            shift,
            weight.size(1),
            temperature,
        )
        self.address = ctypes.addressof(self.struct)
        self.seconds = (c_double * 3)()

    def __call__(self, x: Tensor, found: Tensor, clock: int) -> tuple[Tensor, Tensor]:
        """x (n, d), found (m,) ascending -> ids (T + m,) ascending, log-probabilities (n,
        T + m); `seconds` of the found words' scores, of the base's and of what follows by the
        system's clock of that number."""
        x, found = x.contiguous(), found.contiguous()
        assert x.dtype == torch.float32 and found.dtype == torch.long
        n, m = x.size(0), found.numel()
        ids, y = found.new_empty(self.T + m), x.new_empty(n, self.T + m)
        loaded().shortlist_log_probs(
            self.address,
            x.data_ptr(),
            n,
            found.data_ptr(),
            m,
            ids.data_ptr(),
            y.data_ptr(),
            clock,
            self.seconds,
        )
        return ids, y


# ---- Screened log-probabilities
#
# Definition: the torch path of search/strategies/softmax/screened.py.
#
# Shapes: n rows, V words, d features.


# words of a row that are scored again at most, where the best of them do not make the bound
MORE = 2048


ScreenStruct = struct("shortlist.cpp", "Screen")


class ScreenedLinear:
    """From features to screened log-probabilities, in one call."""

    def __init__(self, screen: Any, tolerance: float):
        """screen: search/strategies/softmax/screened.py, Screen, which says what tolerance is."""
        weight, bias, always, m = screen.weight, screen.bias, screen.always, screen.m
        assert (
            weight.is_contiguous()
            and weight.dtype == torch.float32
            and always.dtype == torch.long
            and 0 < m < weight.size(0)
        )
        assert bias is None or (bias.dtype == torch.float32 and bias.is_contiguous())
        linear = PackedLinear(weight, bias, bits=16)
        self.kept = (linear, weight, bias, always)
        self.V, self.d = weight.shape
        shift = None if bias is None else bias.data_ptr()
        self.struct = ScreenStruct(
            linear.address,
            weight.data_ptr(),
            shift,
            always.data_ptr(),
            always.numel(),
            self.V,
            self.d,
            m,
            MORE,
            screen.temperature,
            screen.largest,
            screen.spread,
            tolerance,
        )
        self.address = ctypes.addressof(self.struct)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """x (n, d) -> what `Screen.log_probs` gives."""
        x = x.contiguous()
        assert x.size(1) == self.d and x.dtype == torch.float32
        n = x.size(0)
        value, known = x.new_empty(n, self.V), torch.zeros(n, self.V, dtype=torch.bool)
        ceiling, error = x.new_empty(2, n)
        loaded().screen(
            self.address,
            x.data_ptr(),
            n,
            *(part.data_ptr() for part in (value, known, ceiling, error)),
        )
        return value, known, ceiling, error
