"""The transformer backend for a row that is alone, whose blocks are read by plain integers.

With one row, a position of the KV cache is a position of the row. So one number replaces the masks and lengths of rows.py, and a call of
the compiled library is all there is to do. decoder.py is the definition.

Shapes: w new tokens, d features, L layers, H heads, h = d / H.
"""

from __future__ import annotations

import torch.nn.functional as F

from fairseq_ext.kernels.transformer import CompiledReader, StepStruct, cache_struct
from fairseq_ext.model.transformer.key_values import KeyValues
from fairseq_ext.model.transformer.rows import RowGroup
from fairseq_ext.model.transformer.weights import Weights


class CompiledRowReader:
    """Reads the only sentence of a group, for one model whose layers and output layer are compiled."""

    def __init__(self, weights: Weights, cache: KeyValues):
        assert weights.compiled is not None
        self.weights, self.cache = weights, cache
        self.struct = StepStruct(rows=1, sentences=1, width=1, source=cache_struct(cache.source), target=cache_struct(cache.target))
        if cache.source_mask is not None:
            self.struct.source_mask = cache.source_mask.data_ptr()
        self.capacity = cache.target.size(4)  # positions that the cache has room for
        parts = (weights.compiled, weights.output.pack(), weights.embedding, weights.scale)
        self.compiled = CompiledReader(*parts, self.struct, weights.embedding_norm)

    @staticmethod
    def of(weights: list[Weights], group: RowGroup) -> CompiledRowReader | None:
        """Return a reader; None where there is more than one row, or something is not compiled."""
        is_alone = group.rows == 1 and not group.cache.positions and group.cache.slot is None and is_compiled_throughout(weights)
        return CompiledRowReader(weights[0], group.cache.models[0]) if is_alone else None

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

    def enlarge_(self, kept: int, end: int) -> None:
        """Double the room for positions; the first `kept` move there."""
        before = self.cache.target  # (L, 2, 1, H, capacity, h)
        self.capacity = 2 * max(self.capacity, end)
        target = before.new_empty(*before.shape[:4], self.capacity, before.size(5))
        target[..., :kept, :] = before[..., :kept, :]
        self.cache.target, self.cache.views = target, []
        self.struct.target = cache_struct(target)


def is_compiled_throughout(weights: list[Weights]) -> bool:
    """Whether compiled code can read sentences by itself: those of one model, with nothing that it does not know."""
    if len(weights) != 1 or weights[0].compiled is None:
        return False
    model = weights[0]
    return model.positions is not None and not model.project_in and not model.project_out and model.output.is_compiled
