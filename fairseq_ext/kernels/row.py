"""Greedy decoding's one row (`row.cpp`) behind lists: a block of tokens in, each position's best word out.

Shapes: w positions, d features, V vocabulary.
"""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int64, c_void_p

import torch
from torch import Tensor

from fairseq_ext.kernels.library import loaded
from fairseq_ext.kernels.transformer import LayerStack, PackedLinear, StepStruct


class RowStruct(ctypes.Structure):
    _fields_ = [(name, c_void_p) for name in ("layers", "step", "output", "embedding", "positions")]
    _fields_ += [(name, c_int64) for name in ("d", "vocabulary", "pad", "eos")] + [("scale", c_float)]
    _fields_ += [(name, c_void_p) for name in ("x", "logits", "token", "word", "score")]


class RowCall:
    """A model's row, and memory for its blocks. step: of the row's KV cache (kernels/transformer.py); the rest as in
    decoders/transformer/one_row.py."""

    def __init__(self, layers: LayerStack, output: PackedLinear, embedding: Tensor, scale: float, step: StepStruct, pad: int, eos: int):
        assert embedding.is_contiguous() and embedding.dtype == torch.float32
        self.read, self.verify = loaded().read_row, loaded().verify_row
        self.step, self.kept = step, (layers, output, embedding)
        self.struct = RowStruct(ctypes.addressof(layers.struct), ctypes.addressof(step), output.address, embedding.data_ptr())
        self.struct.d, self.struct.vocabulary, self.struct.pad, self.struct.eos = embedding.size(1), output.outputs, pad, eos
        self.struct.scale = scale
        self.address = ctypes.addressof(self.struct)
        self.width = 0

    def grow_(self, w: int) -> None:
        """Memory for blocks of w positions."""
        self.width = w
        self.x, self.logits = torch.empty(w, self.struct.d), torch.empty(w, self.struct.vocabulary)
        self.token, self.word, self.score = (c_int64 * w)(), (c_int64 * w)(), (c_float * w)()
        self.struct.x, self.struct.logits = self.x.data_ptr(), self.logits.data_ptr()
        for name in ("token", "word", "score"):
            setattr(self.struct, name, ctypes.addressof(getattr(self, name)))
        self.step.x = self.x.data_ptr()

    def positions_(self, table: Tensor) -> None:
        """Position embeddings (positions, d)."""
        assert table.is_contiguous() and table.dtype == torch.float32
        self.table = table
        self.struct.positions = table.data_ptr()

    def __call__(self, tokens: list[int], kept: int, shortest: int, longest: int, every: bool) -> tuple[list[int], list[float]]:
        """Read tokens (w,), the last verified one and the draft, behind `kept` others: each position's best word (w,), and its
        log-probability, which is worth something only as far as the draft was right, or with `every` for all.

        shortest, longest: positions before `shortest` may not hold EOS, those from `longest` on hold nothing else.
        """
        w = len(tokens)
        if w > self.width:
            self.grow_(max(2 * w, 8))
        self.token[:w] = tokens  # type: ignore[assignment]
        self.step.block, self.step.before = w, kept
        self.read(self.address, w, kept)
        self.verify(self.address, w, shortest, longest, every)
        return self.word[:w], self.score[:w]
