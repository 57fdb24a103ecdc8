"""The KV cache of a group of sentences: its slots, its positions in use, and its tensors.

A slot holds a sentence, and all rows of the sentence share its positions; rows.py has a mask of the
positions that each row sees. A sentence that leaves may leave a gap, which `compact_` closes.

Shapes: S sentences, P positions in use, G moved sentences.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_ext.model.transformer.weights import Weights


@dataclass(eq=False)
class KVCache:
    """Keys and values of a group, in each model of an ensemble."""

    models: list[KeyValues]
    sentences: int
    positions: int = 0  # P: in use, the same number in every sentence
    # steps use slot numbers, so sentences that leave need not be dropped at once
    allows_gaps: bool = False
    # (S,) slot of each sentence; None: sentence i is in slot i, and there are no gaps
    slot: Tensor | None = None

    @property
    def slots(self) -> int:
        """Number of slots, gaps included."""
        return self.models[0].source.size(2)

    @property
    def capacity(self) -> int:
        """Number of positions of a slot."""
        return self.models[0].target.size(4)

    @property
    def reference_tensor(self) -> Tensor:
        """A tensor with the cache's type and device."""
        return self.models[0].target

    def copy(self) -> KVCache:
        """Return a deep copy."""
        for model in self.models:
            model.views = []  # created again when they are needed
        return copy.deepcopy(self)

    # ---- positions

    def append_(self, positions: int) -> None:
        """Take `positions` more positions of every sentence."""
        self.positions += positions

    def truncate_(self, positions: int) -> None:
        """Release the positions from this one on."""
        self.positions = positions

    def compact_(self, position: Tensor | None, room: int) -> None:
        """Keep positions position[i] (S, P') of sentence i, in ascending order (None: all in use),
        and make sure that `room` free positions follow. Gaps are closed."""
        slot = self.slot
        if slot is None:
            slot = torch.arange(self.sentences, device=self.reference_tensor.device)
        if position is None:
            position = torch.arange(self.positions, device=slot.device).expand(self.sentences, -1)
        for model in self.models:
            if self.slot is not None:
                model.keep_source_(slot)
            model.compact_(slot, position, room)
        self.slot = None
        self.positions = position.size(1)

    # ---- slots

    def keep_sentences_(self, sentence: Tensor) -> None:
        """Keep these sentences (S',), in ascending order; the others leave gaps."""
        self.slot = sentence if self.slot is None else self.slot[sentence]
        self.sentences = sentence.numel()

    @property
    def needs_compaction(self) -> bool:
        """Whether gaps must be closed now: always if steps do not use slot numbers, else if more
        than half of the slots are gaps."""
        if self.slot is None:
            return False
        return not self.allows_gaps or 2 * self.sentences < self.slots

    def close_gaps_(self) -> None:
        """Drop the sentences that have left, for steps that do not use slot numbers.

        Positions do not change.
        """
        if self.slot is None:
            return
        for model in self.models:
            model.target = model.target.index_select(2, self.slot)
            model.keep_source_(self.slot)
        self.slot = None

    # ---- groups

    @staticmethod
    def join(a: KVCache, b: KVCache) -> KVCache:
        """Return one cache for the sentences of both, first those of a, then those of b.

        Both must have been compacted.
        """
        sentences, positions = a.sentences + b.sentences, max(a.positions, b.positions)
        allows_gaps = a.allows_gaps and b.allows_gaps
        pairs = zip(a.models, b.models, strict=True)
        models = [KeyValues.concatenated([(x, a.positions), (y, b.positions)]) for x, y in pairs]
        return KVCache(models, sentences, positions, allows_gaps)


# ---- The key and value tensors of one model
#
# They are created, copied, compacted and enlarged here.
#
# A slot holds one sentence. A position of a slot holds the keys and values of one target token, in
# all layers.
#
# Shapes: S slots, P positions, G moved sentences, T source width, L layers, H heads, h features a
# head, e encoder features.


FIRST_CAPACITY = 32  # positions of a new slot

LayerViews = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


@dataclass
class KeyValues:
    """Keys and values of one model."""

    target: Tensor  # (L, 2, S, H, capacity, h)
    source: Tensor  # (L, 2, S, H, T, h)
    # (S, 1, 1, T) -inf at padding, else 0; None if there is no padding
    source_mask: Tensor | None
    views: list[LayerViews] = field(default_factory=list)  # cached result of `layers`

    @staticmethod
    def from_encoder_output(weights: Weights, encoded: dict) -> KeyValues:
        """Return the source's keys and values for fairseq's encoder output, without target
        positions in use."""
        states = encoded["encoder_out"][0]  # (T, S, e)
        T, S, _ = states.shape
        flat = states.transpose(0, 1).reshape(S * T, -1)  # (T, S, e) -> (S x T, e)
        h = weights.d // weights.heads
        source = flat.new_empty(len(weights.layers), 2, S, weights.heads, T, h)
        for apply, block in zip(weights.sources, source, strict=True):
            block.copy_(apply(flat).view(S, T, 2, weights.heads, h).permute(2, 0, 3, 1, 4))
        padding = encoded["encoder_padding_mask"][0] if encoded["encoder_padding_mask"] else None
        return KeyValues.of_source(source, padding)

    @staticmethod
    def of_source(source: Tensor, padding: Tensor | None) -> KeyValues:
        """Return the same for the source's keys and values. padding (S, T): None for none."""
        L, _, S, H, T, h = source.shape
        mask = None
        if padding is not None and not (padding.device.type == "cpu" and not padding.any()):
            mask = source.new_zeros(S, 1, 1, T).masked_fill_(padding[:, None, None], -torch.inf)
        target = source.new_empty(L, 2, S, H, FIRST_CAPACITY, h)
        return KeyValues(target, source, mask)

    @staticmethod
    def concatenated(parts: list[tuple[KeyValues, int]]) -> KeyValues:
        """Return the slots of several KeyValues in sequence. parts: each with its number of
        positions in use."""
        P, T = max(used for _, used in parts), max(part.source.size(4) for part, _ in parts)
        target = [F.pad(part.target[..., :used, :], (0, 0, 0, P - used)) for part, used in parts]
        source = [F.pad(part.source, (0, 0, 0, T - part.source.size(4))) for part, _ in parts]
        mask = None
        if any(part.source_mask is not None or part.source.size(4) < T for part, _ in parts):
            mask = torch.cat(
                [
                    F.pad(part.full_source_mask(), (0, T - part.source.size(4)), value=-torch.inf)
                    for part, _ in parts
                ]
            )
        return KeyValues(torch.cat(target, dim=2), torch.cat(source, dim=2), mask)

    def layers(self) -> list[LayerViews]:
        """Return for each layer: target keys and values in one tensor (2, S, H, capacity, h),
        target keys, target values, source keys, source values."""
        if not self.views:
            pairs = zip(self.target, self.source, strict=True)
            self.views = [
                (target, target[0], target[1], source[0], source[1]) for target, source in pairs
            ]
        return self.views

    def full_source_mask(self) -> Tensor:
        """Return the source mask (S, 1, 1, T); zeros if there is none."""
        if self.source_mask is not None:
            return self.source_mask
        return self.source.new_zeros(self.source.size(2), 1, 1, self.source.size(4))

    def keep_source_(self, slot: Tensor) -> None:
        """Keep the source of these slots (G,), in ascending order, and drop the other slots."""
        for block in self.source.flatten(0, 1):  # (S, H, T, h)
            block[: slot.numel()] = block.index_select(0, slot)
        self.source = self.source.narrow(2, 0, slot.numel())
        if self.source_mask is not None:
            self.source_mask = self.source_mask.index_select(0, slot)
        self.views = []

    def compact_(self, slot: Tensor, position: Tensor, room: int) -> None:
        """Move positions position[i] (G, P), in ascending order, of slot[i] (G,) to the start of
        slot i, and make sure that `room` free positions follow.

        This is done in place, layer by layer: new memory for all layers would cost more than the
        copy.
        """
        H, capacity, h = self.target.shape[3:]
        G, P = position.shape
        head = (slot[:, None] * H + torch.arange(H, device=position.device)) * capacity  # (G, H)
        index = (head[:, :, None] + position[:, None]).flatten()  # (G, H, P)
        target = self.target.narrow(2, 0, G)
        if P + room > capacity:
            target = self.target.new_empty(
                *self.target.shape[:2], G, H, max(2 * capacity, P + room), h
            )
        # (S, H, capacity, h)
        for before, after in zip(self.target.flatten(0, 1), target.flatten(0, 1), strict=True):
            after[:, :, :P] = before.view(-1, h).index_select(0, index).view(G, H, P, h)
        self.target = target
        self.views = []

    def enlarge_(self, slots: int, width: int) -> None:
        """Enlarge the tensors to at least these numbers of slots and source positions; existing
        values keep their places."""
        target, source = self.target, self.source
        S, T = max(slots, source.size(2)), max(width, source.size(4))
        if self.source_mask is None and T > source.size(4):
            self.source_mask = self.full_source_mask()
        if S > target.size(2):
            self.target = enlarged(target, S, target.size(4))
        if S > source.size(2) or T > source.size(4):
            self.source = enlarged(source, S, T)
        mask = self.source_mask
        if mask is not None and (S > mask.size(0) or T > mask.size(3)):
            self.source_mask = mask.new_full((S, 1, 1, T), -torch.inf)
            self.source_mask[: mask.size(0), :, :, : mask.size(3)] = mask
        self.views = []

    def copy_sources_(self, slot: Tensor, other: KeyValues) -> None:
        """Copy the source's keys and values from all slots (G,) of `other` to slots slot (G,)."""
        width = other.source.size(4)
        # (S, H, T, h)
        for to, block in zip(self.source.flatten(0, 1), other.source.flatten(0, 1), strict=True):
            to[:, :, :width].index_copy_(0, slot, block)
        if self.source_mask is None and (
            other.source_mask is not None or width < self.source.size(4)
        ):
            self.source_mask = self.full_source_mask()
        if self.source_mask is not None:
            self.source_mask[slot] = -torch.inf
            self.source_mask[slot, :, :, :width] = (
                0.0 if other.source_mask is None else other.source_mask
            )


def enlarged(tensor: Tensor, slots: int, positions: int) -> Tensor:
    """Return a tensor (L, 2, S, H, P, h) with more slots or positions.

    The new ones are uninitialised: all masks hide them.
    """
    L, two, S, H, P, h = tensor.shape
    out = tensor.new_empty(L, two, slots, H, positions, h)
    out[:, :, :S, :, :P] = tensor
    return out
