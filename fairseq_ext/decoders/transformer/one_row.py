"""The fast decoder for a single row: blocks read and forgotten by plain integers.

With one row a cell of the store is a position, so what rows.py keeps masks and lengths for is one number, and a call of
the compiled library is all there is to do. decoders/transformer/decoder.py is the definition.

Shapes: w new tokens, d features, L layers, H heads, h = d / H.
"""

from __future__ import annotations

import torch.nn.functional as F

from fairseq_ext.decoders.transformer.kv_cache import Memory
from fairseq_ext.decoders.transformer.rows import State
from fairseq_ext.decoders.transformer.weights import Weights
from fairseq_ext.kernels.row import RowCall
from fairseq_ext.kernels.transformer import StepStruct, store


class RowReader:
    """The row of a state that has one, for one model whose layers and products are compiled."""

    def __init__(self, weights: Weights, memory: Memory, pad: int, eos: int):
        assert weights.compiled is not None
        self.weights, self.memory = weights, memory
        self.struct = StepStruct(rows=1, sentences=1, width=1, source=store(memory.source), own=store(memory.own))
        if memory.source_mask is not None:
            self.struct.source_mask = memory.source_mask.data_ptr()
        self.room, self.reach = memory.own.size(4), 0
        self.call = RowCall(weights.compiled, weights.output.pack(), weights.embedding, weights.scale, self.struct, pad, eos)

    @staticmethod
    def of(weights: list[Weights], state: State, pad: int, eos: int) -> RowReader | None:
        """None where there is more than one row or model, or something that this does not know."""
        if len(weights) != 1 or state.rows != 1 or state.cells or state.slot is not None or weights[0].compiled is None:
            return None
        model = weights[0]
        if model.positions is None or model.project_in or model.project_out or model.embedding_norm or not model.output.is_compiled:
            return None
        return RowReader(model, state.memories[0], pad, eos)

    def __call__(self, tokens: list[int], kept: int, shortest: int, longest: int, every: bool) -> tuple[list[int], list[float]]:
        """Forget what was read beyond the first `kept` tokens and read these (w,); see kernels/row.py, RowCall."""
        end = kept + len(tokens)
        if end > self.room:
            self.grow_(kept, end)
        if end > self.reach:
            self.reach_(end)
        return self.call(tokens, kept, shortest, longest, every)

    def reach_(self, end: int) -> None:
        """Have embeddings for so many positions; behind a limited model's last one stands what is not used."""
        weights = self.weights
        assert weights.positions is not None
        if end > weights.positions.size(0) and weights.grow_positions is not None:
            weights.positions = weights.grow_positions(2 * end)
        self.reach = max(end, weights.positions.size(0))
        self.call.positions_(F.pad(weights.positions, (0, 0, 0, self.reach - weights.positions.size(0))).contiguous())

    def grow_(self, kept: int, end: int) -> None:
        """Room for twice as many cells; the first `kept` move there."""
        before = self.memory.own  # (L, 2, 1, H, cells, h)
        self.room = 2 * max(self.room, end)
        own = before.new_empty(*before.shape[:4], self.room, before.size(5))
        own[..., :kept, :] = before[..., :kept, :]
        self.memory.own, self.memory.views = own, []
        self.struct.own = store(own)
