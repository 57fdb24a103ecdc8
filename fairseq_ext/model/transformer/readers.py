"""The compiled readers of decoder rows: of a row that is alone, and of rows of many sentences."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from fairseq_ext.kernels.library import address
from fairseq_ext.kernels.transformer import CompiledReader, StepStruct, cache_struct
from fairseq_ext.model.transformer.cache import KeyValues
from fairseq_ext.model.transformer.rows import RowGroup
from fairseq_ext.model.transformer.weights import Weights

# ---- A row that is alone
#
# Its blocks are read by plain integers.
#
# With one row, a position of the KV cache is a position of the row. So one number replaces the
# masks and lengths of rows.py, and a call of the compiled library is all there is to do. decoder.py
# is the definition.
#
# Shapes: w new tokens, d features, L layers, H heads, h = d / H.


def mask_address(cache: KeyValues) -> int | None:
    """Return where the source mask lies; None where no source is padded."""
    return None if cache.source_mask is None else address(cache.source_mask, torch.float32)


class CompiledRowReader:
    """Reads the only sentence of a group, for one model whose layers and output
    layer are compiled."""

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
        self.capacity = cache.target.size(4)  # positions that the cache has room for
        parts = (weights.compiled, weights.output.pack(), weights.embedding, weights.scale)
        self.compiled = CompiledReader(*parts, self.struct, weights.embedding_norm)

    @staticmethod
    def of(weights: list[Weights], group: RowGroup) -> CompiledRowReader | None:
        """Return a reader; None where there is more than one row, or something is not compiled."""
        is_alone = (
            group.rows == 1
            and not group.cache.positions
            and group.cache.slot is None
            and is_compiled_throughout(weights)
        )
        return CompiledRowReader(weights[0], group.cache.models[0]) if is_alone else None

    def reserve_(self, kept: int, w: int) -> None:
        """Make room for w positions behind the first `kept` tokens; what was read beyond
        these is forgotten."""
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
    """Whether compiled code can read sentences by itself: those of one model, with nothing
    that it does not know."""
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
# They too are read by plain integers.
#
# A sentence lies in a slot of the KV cache, and each of its rows knows the positions of its history
# there. So no mask, no reordering and no tensor operation stands between two calls of the compiled
# library. decoder.py is the definition.
#
# Shapes: S slots, G sentences that are taken in.


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
        """Return a reader of sentences that have just been admitted, in the slots from 0 on, with
        room for so many positions."""
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
        """S: slots that there are."""
        return self.cache.source.size(2)

    def take_in_(self, group: RowGroup, slots: Sequence[int]) -> None:
        """Copy sentences (G,) that have just been admitted into slots (G,) that are free; make
        more where there are too few."""
        other = group.cache.models[0]
        more = max(slots) + 1 > self.slots
        self.cache.enlarge_(
            max(max(slots) + 1, 2 * self.slots) if more else self.slots, 0, other.source.size(4)
        )
        self.cache.copy_slots_(torch.tensor(slots), other, torch.arange(len(slots)), 0)
        self.point_()

    def make_room_(self, rows: int, length: int) -> bool:
        """Make room for so many rows, or for targets of so many tokens; return whether there was
        too little for one of both.

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
                    raise IndexError(
                        f"target position {length} is beyond the model's "
                        f"{weights.positions.size(0)}"
                    )
                weights.positions = weights.grow_positions(2 * length)
            reader.room_(weights.positions.contiguous(), weights.positions.size(0))
            return True
        return False

    def enlarge_(self, slots: Sequence[int], positions: int) -> None:
        """Double the room for positions.

        Keep these slots (G,), in ascending order, as the first, and so many positions of each.
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
        self.point_()

    def point_(self) -> None:
        """Tell the compiled library where the KV cache lies."""
        cache, struct = self.cache, self.struct
        struct.target, struct.source, struct.sentences = (
            cache_struct(cache.target),
            cache_struct(cache.source),
            self.slots,
        )
        struct.source_mask = mask_address(cache)
