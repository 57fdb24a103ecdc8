"""The KV cache of a group of sentences: its slots, its positions in use, and its tensors.

A slot holds a sentence, and all rows of the sentence share its positions; rows.py has a mask of the
positions that each row sees. A sentence that leaves may leave a gap, which `compact_` closes.
Several groups may share the slots of the same tensors. Then groups can be divided and joined, and
sentences can start and leave, without moving the keys and values of other sentences.

Shapes: S sentences, P positions in use, G moved sentences.
"""

from __future__ import annotations

import copy
import weakref
from dataclasses import dataclass, field, replace

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
    may_share: bool = False  # steps use slot numbers, so groups may share the tensors
    # (S,) slot of each sentence; None: sentence i is in slot i, and there are no gaps
    slot: Tensor | None = None
    # the caches that share these tensors, including this one; None: only this one
    sharing_caches: weakref.WeakSet[KVCache] | None = None

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

    def slot_of_sentence(self) -> Tensor:
        """Return the slot of each sentence (S,)."""
        return (
            torch.arange(self.sentences, device=self.reference_tensor.device)
            if self.slot is None
            else self.slot
        )

    def copy(self) -> KVCache:
        """Return a cache for the same sentences: in the same slots if `may_share`, else a deep
        copy.

        In shared slots only one of the two caches may continue a sentence.
        """
        if self.may_share:
            self.share_()
            twin = replace(self)
            twin.share_()
            return twin
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
        and make sure that `room` free positions follow.

        Gaps are closed if no other group shares the slots.
        """
        slot = self.slot_of_sentence()
        if position is None:
            position = torch.arange(self.positions, device=slot.device).expand(self.sentences, -1)
        for model in self.models:
            if self.sharing_caches is not None:
                model.compact_in_slots_(slot, position, room)
                continue
            if self.slot is not None:
                model.keep_source_(slot)
            model.compact_(slot, position, room)
        if self.sharing_caches is None:
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
        return not self.allows_gaps or (
            2 * self.sentences < self.slots and self.sharing_caches is None
        )

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

    def leave_shared_slots_(self) -> None:
        """Copy the sentences to new tensors without gaps, for steps that do not use slot numbers;
        other groups keep the shared slots."""
        if self.slot is not None:
            self.models = [model.select_slots(self.slot) for model in self.models]
            self.slot = self.sharing_caches = None

    def share_(self) -> None:
        """Allow other groups to use the slots of this cache."""
        self.slot = self.slot_of_sentence()
        if self.sharing_caches is None:
            self.sharing_caches = weakref.WeakSet()
        self.sharing_caches.add(self)

    def free_slots(self) -> Tensor:
        """Return the slots (free slots,) in which no group has a sentence, in order."""
        taken = torch.zeros(self.slots, dtype=torch.bool, device=self.reference_tensor.device)
        for cache in self.sharing_caches or ():
            taken[cache.slot] = True
        return (~taken).nonzero()[:, 0]

    # ---- groups

    @staticmethod
    def join(a: KVCache, b: KVCache) -> KVCache:
        """Return one cache for the sentences of both, first those of a, then those of b.

        Both must have been compacted unless both may share slots.
        """
        sentences, positions = a.sentences + b.sentences, max(a.positions, b.positions)
        allows_gaps = a.allows_gaps and b.allows_gaps
        if a.may_share and b.may_share:
            return KVCache.join_in_slots(a, b, allows_gaps)
        pairs = zip(a.models, b.models, strict=True)
        models = [KeyValues.concatenated([(x, a.positions), (y, b.positions)]) for x, y in pairs]
        return KVCache(models, sentences, positions, allows_gaps)

    @staticmethod
    def join_in_slots(a: KVCache, b: KVCache, allows_gaps: bool) -> KVCache:
        """Return one cache for the sentences of both, in the tensors of one of them."""
        a.share_()
        b.share_()
        assert a.slot is not None and b.slot is not None
        host, slots = a, [a.slot, b.slot]
        if a.models[0] is not b.models[0]:
            # the smaller group moves, unless the tensors would have to be enlarged for that
            host, guest = (a, b) if a.sentences >= b.sentences else (b, a)
            if (
                host.free_slots().numel() < guest.sentences
                and guest.free_slots().numel() >= host.sentences
            ):
                host, guest = guest, host
            slots = [
                host.slot if cache is host else host.copy_sentences_(guest)  # type: ignore[misc]
                for cache in (a, b)
            ]
        both = KVCache(
            host.models,
            a.sentences + b.sentences,
            max(a.positions, b.positions),
            allows_gaps,
            True,
            torch.cat(slots),
        )
        both.sharing_caches = host.sharing_caches
        both.share_()
        return both

    def copy_sentences_(self, guest: KVCache) -> Tensor:
        """Copy the guest's sentences into free slots, adding slots if there are too few; return
        these slots (G,)."""
        assert guest.slot is not None
        free, slots = self.free_slots(), self.slots
        missing = guest.sentences - free.numel()
        if missing > 0:
            more = max(missing, slots // 2)
            free = torch.cat([free, torch.arange(slots, slots + more, device=free.device)])
            slots += more
        slot = free[: guest.sentences]
        for model, other in zip(self.models, guest.models, strict=True):
            model.enlarge_(slots, guest.positions, other.source.size(4))
            model.copy_slots_(slot, other, guest.slot, guest.positions)
        return slot


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

    def select_slots(self, slot: Tensor) -> KeyValues:
        """Return a copy of these slots (G,)."""
        mask = None if self.source_mask is None else self.source_mask.index_select(0, slot)
        return KeyValues(self.target.index_select(2, slot), self.source.index_select(2, slot), mask)

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
        index = self.flat_indices(slot, position)
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

    def compact_in_slots_(self, slot: Tensor, position: Tensor, room: int) -> None:
        """Do the same as `compact_`, but sentences stay in their slots (G,), and other slots do not
        change."""
        S, H, capacity, h = self.target.shape[2:]
        G, P = position.shape
        if P + room > capacity:
            self.enlarge_(S, max(2 * capacity, P + room), 0)
        index = self.flat_indices(slot, position)
        for block in self.target.flatten(0, 1):  # (S, H, capacity, h)
            kept = block.view(-1, h).index_select(0, index).view(G, H, P, h)
            block[:, :, :P].index_copy_(0, slot, kept)
        self.views = []

    def flat_indices(self, slot: Tensor, position: Tensor) -> Tensor:
        """Return the indices (G x H x P,) of positions position[i] (G, P) of slot[i] (G,) in a
        layer's keys (S x H x capacity, h)."""
        H, capacity = self.target.shape[3:5]
        head = (slot[:, None] * H + torch.arange(H, device=position.device)) * capacity  # (G, H)
        return (head[:, :, None] + position[:, None]).flatten()  # (G, H, P)

    def enlarge_(self, slots: int, positions: int, width: int) -> None:
        """Enlarge the tensors to at least these numbers of slots, target positions and source
        positions; existing values keep their places."""
        target, source = self.target, self.source
        S, T = max(slots, source.size(2)), max(width, source.size(4))
        if self.source_mask is None and T > source.size(4):
            self.source_mask = self.full_source_mask()
        if S > target.size(2) or positions > target.size(4):
            self.target = enlarged(target, S, max(positions, target.size(4)))
        if S > source.size(2) or T > source.size(4):
            self.source = enlarged(source, S, T)
        mask = self.source_mask
        if mask is not None and (S > mask.size(0) or T > mask.size(3)):
            self.source_mask = mask.new_full((S, 1, 1, T), -torch.inf)
            self.source_mask[: mask.size(0), :, :, : mask.size(3)] = mask
        self.views = []

    def copy_slots_(self, slot: Tensor, other: KeyValues, there: Tensor, positions: int) -> None:
        """Copy the slots there (G,) of `other`, with `positions` target positions in use, to the
        slots slot (G,)."""
        width = other.source.size(4)
        # (S, H, T, h)
        for to, block in zip(self.source.flatten(0, 1), other.source.flatten(0, 1), strict=True):
            to[:, :, :width].index_copy_(0, slot, block.index_select(0, there))
        if positions:
            for to, block in zip(
                self.target.flatten(0, 1), other.target.flatten(0, 1), strict=True
            ):
                to[:, :, :positions].index_copy_(
                    0, slot, block[:, :, :positions].index_select(0, there)
                )
        if self.source_mask is None and (
            other.source_mask is not None or width < self.source.size(4)
        ):
            self.source_mask = self.full_source_mask()
        if self.source_mask is not None:
            self.source_mask[slot] = -torch.inf
            self.source_mask[slot, :, :, :width] = (
                0.0 if other.source_mask is None else other.source_mask[there]
            )


def enlarged(tensor: Tensor, slots: int, positions: int) -> Tensor:
    """Return a tensor (L, 2, S, H, P, h) with more slots or positions.

    The new ones are uninitialised: all masks hide them.
    """
    L, two, S, H, P, h = tensor.shape
    out = tensor.new_empty(L, two, slots, H, positions, h)
    out[:, :, :S, :, :P] = tensor
    return out
