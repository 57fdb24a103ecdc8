"""The transformer backend for compiled searches: a row's blocks, a beam's rows, or those of several beams, are read by plain integers.

With one row, a position of the KV cache is a position of the row. So one number replaces the masks and lengths of rows.py, and a call of
the compiled library is all there is to do. With several, the compiled search says which positions a row sees. decoder.py is the definition.

Shapes: w new tokens, d features, L layers, H heads, h = d / H.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from fairseq_ext.decoders.transformer.key_values import KeyValues
from fairseq_ext.decoders.transformer.rows import RowGroup
from fairseq_ext.decoders.transformer.weights import Weights
from fairseq_ext.kernels.row import CompiledReader
from fairseq_ext.kernels.transformer import StepStruct, cache_struct

FIRST_STEPS = 32  # of a beam, for which there is room at first


class CompiledRowReader:
    """Reads a group that has read nothing yet, for one model whose layers and output layer are compiled."""

    def __init__(self, weights: Weights, cache: KeyValues):
        assert weights.compiled is not None
        self.weights, self.cache = weights, cache
        self.struct = StepStruct(rows=1, sentences=1, width=1, source=cache_struct(cache.source), target=cache_struct(cache.target))
        if cache.source_mask is not None:
            self.struct.source_mask = cache.source_mask.data_ptr()
        self.capacity = cache.target.size(4)  # positions that the cache has room for
        parts = (weights.compiled, weights.output.pack(), weights.embedding, weights.scale)
        self.compiled = CompiledReader(*parts, self.struct, weights.embedding_norm)

    @property
    def shape(self) -> torch.Size:
        """(L, 2, S, H, positions, h) of the target's keys and values."""
        return self.cache.target.shape

    @staticmethod
    def of(weights: list[Weights], group: RowGroup, several: bool = False) -> CompiledRowReader | None:
        """Return a reader; None where there is more than one model, or row (unless several), or something that it does not support."""
        if len(weights) != 1 or (group.rows != 1 and not several) or group.cache.positions or group.cache.slot is not None:
            return None
        model = weights[0]
        if model.compiled is None or model.positions is None or model.project_in or model.project_out or not model.output.is_compiled:
            return None
        return CompiledRowReader(model, group.cache.models[0])

    def reserve_(self, kept: int, w: int) -> None:
        """Make room for w positions behind the first `kept` tokens; what was read beyond these is forgotten."""
        if w > self.compiled.struct.width:
            self.compiled.widen_(max(2 * w, 8))
        end = kept + w
        if end > self.capacity:
            self.enlarge_(kept, end)
        weights = self.weights
        assert weights.positions is not None
        if end > weights.positions.size(0) and weights.grow_positions is not None:
            weights.positions = weights.grow_positions(2 * end)
        table = weights.positions
        if end > table.size(0):  # what stands behind a limited model's last position is not used
            table = F.pad(table, (0, 0, 0, end - table.size(0)))
        self.compiled.room_(table.contiguous(), min(self.capacity, table.size(0)))

    def reserve_rows_(self, k: int, used: int, length: int) -> None:
        """Make room for the next steps of k rows: `used` positions of the cache hold what they have read, `length` tokens each."""
        if k > self.compiled.struct.width:
            self.compiled.widen_(k)
        if used + k > self.capacity or not used:
            self.enlarge_(used, max(used + k, FIRST_STEPS * k // 2))
        self.reserve_lengths_(length)

    def reserve_sentences_(self, rows: int, used: int, more: int, length: int) -> None:
        """Make room for the next steps of several sentences with so many rows at most: each has `used` positions and gets `more`."""
        if rows > self.compiled.struct.width:
            self.compiled.widen_(rows)
        if used + more > self.capacity:
            self.enlarge_(used, used + more)
        self.reserve_lengths_(length)

    def reserve_lengths_(self, length: int) -> None:
        """Make room for rows of one token more than `length`."""
        weights = self.weights
        assert weights.positions is not None
        if length + 1 > weights.positions.size(0):
            if weights.grow_positions is None:
                raise IndexError(f"target position {length + 1} is beyond the model's {weights.positions.size(0)}")
            weights.positions = weights.grow_positions(2 * (length + 1))
        self.compiled.room_(weights.positions.contiguous(), weights.positions.size(0))

    def enlarge_(self, kept: int, end: int) -> None:
        """Double the room for positions; the first `kept` move there."""
        before = self.cache.target  # (L, 2, S, H, capacity, h)
        self.capacity = 2 * max(self.capacity, end)
        target = before.new_empty(*before.shape[:4], self.capacity, before.size(5))
        target[..., :kept, :] = before[..., :kept, :]
        self.cache.target, self.cache.views = target, []
        self.struct.target = cache_struct(target)
