"""The transformer backend for the rows of sentences that start and end at any step, read by plain integers.

A sentence lies in a slot of the KV cache, and each of its rows knows the positions of its history there. So no mask, no reordering and no
tensor operation stands between two calls of the compiled library. decoder.py is the definition.

Shapes: S slots, G sentences that are taken in.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fairseq_ext.kernels.transformer import CompiledReader, StepStruct, cache_struct
from fairseq_ext.model.transformer.key_values import KeyValues
from fairseq_ext.model.transformer.one_row import is_compiled_throughout
from fairseq_ext.model.transformer.rows import RowGroup
from fairseq_ext.model.transformer.weights import Weights


class CompiledBatchReader:
    """Reads the rows of all slots, for one model whose layers and output layer are compiled."""

    def __init__(self, weights: Weights, cache: KeyValues):
        assert weights.compiled is not None
        self.weights, self.cache, self.struct = weights, cache, StepStruct()
        parts = (weights.compiled, weights.output.pack(), weights.embedding, weights.scale)
        self.compiled = CompiledReader(*parts, self.struct, weights.embedding_norm)
        self.point_()

    @staticmethod
    def of(weights: list[Weights], group: RowGroup, positions: int) -> CompiledBatchReader:
        """Return a reader of sentences that have just been admitted, in the slots from 0 on, with room for so many positions."""
        assert is_compiled_throughout(weights) and not group.cache.positions and group.cache.slot is None
        cache = group.cache.models[0]
        L, two, S, H, capacity, h = cache.target.shape
        if positions > capacity:
            cache.target = cache.target.new_empty(L, two, S, H, positions, h)
        return CompiledBatchReader(weights[0], cache)

    @property
    def slots(self) -> int:
        """S: slots that there are."""
        return self.cache.source.size(2)

    def take_in_(self, group: RowGroup, slots: Sequence[int]) -> None:
        """Copy sentences (G,) that have just been admitted into slots (G,) that are free; make more where there are too few."""
        other = group.cache.models[0]
        more = max(slots) + 1 > self.slots
        self.cache.enlarge_(max(max(slots) + 1, 2 * self.slots) if more else self.slots, 0, other.source.size(4))
        self.cache.copy_slots_(torch.tensor(slots), other, torch.arange(len(slots)), 0)
        self.point_()

    def make_room_(self, rows: int, length: int) -> bool:
        """Make room for so many rows, or for targets of so many tokens; return whether there was too little for one of both.

        Raises IndexError where the model has no such position.
        """
        reader, weights = self.compiled, self.weights
        assert weights.positions is not None
        if rows > reader.struct.width:
            reader.widen_(rows)
            return True
        if length > reader.struct.room:
            if length > weights.positions.size(0):
                if weights.grow_positions is None:
                    raise IndexError(f"target position {length} is beyond the model's {weights.positions.size(0)}")
                weights.positions = weights.grow_positions(2 * length)
            reader.room_(weights.positions.contiguous(), weights.positions.size(0))
            return True
        return False

    def enlarge_(self, slots: Sequence[int], positions: int) -> None:
        """Double the room for positions. Keep these slots (G,), in ascending order, as the first, and so many positions of each."""
        before, slot = self.cache.target, torch.tensor(slots)
        target = before.new_empty(*before.shape[:2], len(slots), before.size(3), 2 * before.size(4), before.size(5))
        for to, block in zip(target.flatten(0, 1), before.flatten(0, 1), strict=True):  # (S, H, capacity, h)
            to[:, :, :positions] = block[:, :, :positions].index_select(0, slot)
        if len(slots) < self.slots:
            self.cache.keep_source_(slot)
        self.cache.target = target
        self.point_()

    def point_(self) -> None:
        """Tell the compiled library where the KV cache lies."""
        cache, struct = self.cache, self.struct
        struct.target, struct.source, struct.sentences = cache_struct(cache.target), cache_struct(cache.source), self.slots
        struct.source_mask = None if cache.source_mask is None else cache.source_mask.data_ptr()
