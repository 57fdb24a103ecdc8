"""Screened log-probabilities by the compiled library (`screen.cpp`), for float32 on a CPU. Definition: the torch path of
softmax/error_bounds.py.

Shapes: n rows, V words, d features.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from fairseq_ext.kernels.declarations import struct
from fairseq_ext.kernels.library import loaded
from fairseq_ext.kernels.transformer import PackedLinear

MORE = 2048  # words of a row that are scored again at most, where the best of them do not make the bound


ScreenStruct = struct("screen.cpp", "Screen")


class ScreenedLinear:
    """From features to screened log-probabilities, in one call."""

    def __init__(self, screen: Any, tolerance: float):
        """screen: search/strategies/softmax/_error_bounds.py, Screen, which says what tolerance is."""
        weight, bias, always, m = screen.weight, screen.bias, screen.always, screen.m
        assert weight.is_contiguous() and weight.dtype == torch.float32 and always.dtype == torch.long and 0 < m < weight.size(0)
        assert bias is None or (bias.dtype == torch.float32 and bias.is_contiguous())
        linear = PackedLinear(weight, bias, bits=16)
        self.kept = (linear, weight, bias, always)
        self.V, self.d = weight.shape
        shift = None if bias is None else bias.data_ptr()
        self.struct = ScreenStruct(
            linear.address, weight.data_ptr(), shift, always.data_ptr(), always.numel(), self.V, self.d, m, MORE,
            screen.temperature, screen.largest, screen.spread, tolerance,
        )  # fmt: skip
        self.address = ctypes.addressof(self.struct)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """x (n, d) -> what `Screen.log_probs` gives."""
        x = x.contiguous()
        assert x.size(1) == self.d and x.dtype == torch.float32
        n = x.size(0)
        value, known = x.new_empty(n, self.V), torch.zeros(n, self.V, dtype=torch.bool)
        ceiling, error = x.new_empty(2, n)
        loaded().screen(self.address, x.data_ptr(), n, *(part.data_ptr() for part in (value, known, ceiling, error)))
        return value, known, ceiling, error
