"""The compiled readers of decoder rows: for a single row, and for rows of many sentences."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from fairseq_ext.kernels.library import address
from fairseq_ext.kernels.transformer import CompiledReader, StepStruct, cache_struct
from fairseq_ext.model.transformer.cache import KeyValues
from fairseq_ext.model.transformer.rows import RowGroup
from fairseq_ext.model.transformer.weights import Weights

# ---- A single row
#
# With one row, a position of the KV cache is a position of the row. So one integer replaces the
# masks and lengths of rows.py, and reading a block is one call of the compiled library. decoder.py
# is the definition.
#
# Shapes: w new tokens, d features, L layers, H heads, h = d / H.


def mask_address(cache: KeyValues) -> int | None:
    """Return the address of the source mask; None if no source is padded."""
    return None if cache.source_mask is None else address(cache.source_mask, torch.float32)


class CompiledRowReader:
    """Reads the single row of a group, for one model whose layers and output layer are compiled."""

    def __init__(self, weights: Weights, cache: KeyValues):
        assert weights.compiled is not None
        self.weights, self.cache = weights, cache
        self.struct = StepStruct(
            rows=1,
            sentences=1,
            width=1,
            source=cache_struct(cache.source),
            target=cache_struct(cache.target),
        )
        self.struct.source_mask = mask_address(cache)
        self.capacity = cache.target.size(4)  # number of positions of the cache
        parts = (weights.compiled, weights.output.pack(), weights.embedding, weights.scale)
        self.compiled = CompiledReader(*parts, self.struct, weights.embedding_norm)

    @staticmethod
    def from_group(weights: list[Weights], group: RowGroup) -> CompiledRowReader | None:
        """Return a reader; None if there is more than one row or if not everything is compiled."""
        is_alone = (
            group.rows == 1
            and not group.cache.positions
            and group.cache.slot is None
            and is_compiled_throughout(weights)
        )
        return CompiledRowReader(weights[0], group.cache.models[0]) if is_alone else None

    def reserve_(self, kept: int, w: int) -> None:
        """Keep the first `kept` tokens, forget later ones, and reserve w positions after them."""
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
        if end > table.size(0):  # values after a limited model's last position are not used
            table = F.pad(table, (0, 0, 0, end - table.size(0)))
        self.compiled.set_positions_(table.contiguous(), min(self.capacity, table.size(0)))

    def enlarge_(self, kept: int, end: int) -> None:
        """Double the capacity in positions; the first `kept` positions are copied."""
        before = self.cache.target  # (L, 2, 1, H, capacity, h)
        self.capacity = 2 * max(self.capacity, end)
        target = before.new_empty(*before.shape[:4], self.capacity, before.size(5))
        target[..., :kept, :] = before[..., :kept, :]
        self.cache.target, self.cache.views = target, []
        self.struct.target = cache_struct(target)


def is_compiled_throughout(weights: list[Weights]) -> bool:
    """Return whether compiled code can read sentences: for one model, all parts of which are
    compiled."""
    if len(weights) != 1 or weights[0].compiled is None:
        return False
    model = weights[0]
    return (
        model.positions is not None
        and not model.project_in
        and not model.project_out
        and model.output.is_compiled
    )


# ---- Rows of sentences that start and end at any step
#
# A sentence lies in a slot of the KV cache, and each of its rows has a list of the positions of its
# history there. So between two calls of the compiled library there is no mask, no reordering and no
# tensor operation. decoder.py is the definition.
#
# Shapes: S slots, G new sentences.


class CompiledBatchReader:
    """Reads the rows of all slots, for one model whose layers and output layer are compiled."""

    def __init__(self, weights: Weights, cache: KeyValues):
        assert weights.compiled is not None
        self.weights, self.cache, self.struct = weights, cache, StepStruct()
        parts = (weights.compiled, weights.output.pack(), weights.embedding, weights.scale)
        self.compiled = CompiledReader(*parts, self.struct, weights.embedding_norm)
        self.update_pointers_()

    @staticmethod
    def from_group(weights: list[Weights], group: RowGroup, positions: int) -> CompiledBatchReader:
        """Return a reader of sentences that have just been admitted, in the first slots, with
        `positions` positions each."""
        assert (
            is_compiled_throughout(weights)
            and not group.cache.positions
            and group.cache.slot is None
        )
        cache = group.cache.models[0]
        L, two, S, H, capacity, h = cache.target.shape
        if positions > capacity:
            cache.target = cache.target.new_empty(L, two, S, H, positions, h)
        return CompiledBatchReader(weights[0], cache)

    @property
    def slots(self) -> int:
        """S: the number of slots."""
        return self.cache.source.size(2)

    def copy_into_slots_(self, group: RowGroup, slots: Sequence[int]) -> None:
        """Copy sentences (G,) that have just been admitted into free slots (G,); add slots if there
        are too few."""
        other = group.cache.models[0]
        more = max(slots) + 1 > self.slots
        self.cache.enlarge_(
            max(max(slots) + 1, 2 * self.slots) if more else self.slots, 0, other.source.size(4)
        )
        self.cache.copy_slots_(torch.tensor(slots), other, torch.arange(len(slots)), 0)
        self.update_pointers_()

    def reserve_(self, rows: int, length: int) -> bool:
        """Reserve memory for `rows` rows or for targets of `length` tokens, if one of them does not
        fit yet; return whether memory was added.

        Errors: IndexError if the model has no such position.
        """
        reader, weights = self.compiled, self.weights
        assert weights.positions is not None
        if rows > reader.struct.width:
            reader.widen_(rows)
            return True
        if length > reader.struct.room:
            if length > weights.positions.size(0):
                if weights.grow_positions is None:
                    raise IndexError(
                        f"target position {length} is beyond the model's "
                        f"{weights.positions.size(0)}"
                    )
                weights.positions = weights.grow_positions(2 * length)
            reader.set_positions_(weights.positions.contiguous(), weights.positions.size(0))
            return True
        return False

    def enlarge_(self, slots: Sequence[int], positions: int) -> None:
        """Double the capacity in positions.

        These slots (G,), in ascending order, become the first ones; `positions` positions of each
        are kept.
        """
        before, slot = self.cache.target, torch.tensor(slots)
        target = before.new_empty(
            *before.shape[:2], len(slots), before.size(3), 2 * before.size(4), before.size(5)
        )
        # (S, H, capacity, h)
        for to, block in zip(target.flatten(0, 1), before.flatten(0, 1), strict=True):
            to[:, :, :positions] = block[:, :, :positions].index_select(0, slot)
        if len(slots) < self.slots:
            self.cache.keep_source_(slot)
        self.cache.target = target
        self.update_pointers_()

    def update_pointers_(self) -> None:
        """Write the addresses of the KV cache into the struct of the compiled library."""
        cache, struct = self.cache, self.struct
        struct.target, struct.source, struct.sentences = (
            cache_struct(cache.target),
            cache_struct(cache.source),
            self.slots,
        )
        struct.source_mask = mask_address(cache)
