"""Log-probabilities screened in 8 bits by the compiled library (`screen_int8.cpp`), for float32 on a CPU. Definition:
softmax/random_rounding.py.

Shapes: n rows, V words, d features.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from fairseq_ext.kernels.declarations import struct
from fairseq_ext.kernels.decoder.transformer import packed_bytes, panels
from fairseq_ext.kernels.library import loaded
from fairseq_ext.kernels.softmax.screen import MORE, screened

ScreenInt8Struct = struct("softmax/screen_int8.cpp", "ScreenInt8")


class ScreenedInt8:
    """From features to screened log-probabilities, in one call."""

    def __init__(self, whole: Tensor, scale: Tensor, weight: Tensor, bias: Tensor | None, always: Tensor, m: int, **bounds: float):
        """whole (V, d) int8 times scale (V,) is about weight (V, d); bias (V,) or None; always (kept,) ids; about m words are scored again;
        bounds: the other fields of the structure, as softmax/random_rounding.py names them."""
        assert weight.is_contiguous() and weight.dtype == torch.float32 and always.dtype == torch.long and weight.size(1) % 4 == 0
        assert whole.dtype == torch.int8 and (bias is None or (bias.dtype == torch.float32 and bias.is_contiguous()))
        columns = loaded().screen_int8_columns()
        packed, offset = packed_bytes(whole, columns)
        self.packed, scale = packed, panels(scale, columns).contiguous()
        self.kept = (offset, scale, weight, bias, always)
        self.V, self.d = weight.shape
        pointers = [None if part is None else part.data_ptr() for part in (packed, scale, offset, weight, bias, always)]
        self.struct = ScreenInt8Struct(*pointers, always.numel(), self.V, self.d, m, MORE, **bounds)
        self.address = ctypes.addressof(self.struct)

    def words(self, ids: Tensor) -> Tensor:
        """Whole weights (..., d) of words ids (...)."""
        P = self.packed.size(2)
        return self.packed[ids // P, :, ids % P].flatten(-2)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """x (n, d) -> what `RandomScreen.log_probs` gives."""
        assert x.size(1) == self.d
        return screened(loaded().screen_int8, self.address, x, self.V)
