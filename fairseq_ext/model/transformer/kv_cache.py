"""The KV cache of a group of sentences: which slot holds each sentence, and how many positions are in use.

The tensors lie in key_values.py. All rows of a sentence share its positions; rows.py says which of them a row sees. A sentence that
leaves may leave a gap, which `compact_` closes. Several groups may share the slots of the same tensors. Then groups divide and join, and
sentences start and leave, while the keys and values of the others stay where they are.

Shapes: S sentences, P positions in use, G sentences that are moved.
"""

from __future__ import annotations

import copy
import weakref
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fairseq_ext.model.transformer.key_values import KeyValues


@dataclass(eq=False)
class KVCache:
    """Keys and values of a group, in each model of an ensemble."""

    models: list[KeyValues]
    sentences: int
    positions: int = 0  # P: in use, the same number in every sentence
    leaves_gaps: bool = False  # the step is told the slots, so sentences that leave need not be dropped at once
    may_share: bool = False  # the step is told the slots, so groups may share the tensors
    slot: Tensor | None = None  # (S,) of each sentence; None: sentence i lies in slot i, and there are no gaps
    sharing: weakref.WeakSet[KVCache] | None = None  # the caches that share these tensors, this one included; None: no other does

    @staticmethod
    def of(models: list[KeyValues], leaves_gaps: bool = False, may_share: bool = False) -> KVCache:
        """Return a cache of its own for sentences whose target has not begun."""
        return KVCache(models, models[0].source.size(2), leaves_gaps=leaves_gaps, may_share=may_share)

    @property
    def slots(self) -> int:
        """Number of slots, gaps included."""
        return self.models[0].source.size(2)

    @property
    def capacity(self) -> int:
        """Positions that a slot has room for."""
        return self.models[0].target.size(4)

    @property
    def like(self) -> Tensor:
        """A tensor of the cache's type and device."""
        return self.models[0].target

    def slot_of_sentence(self) -> Tensor:
        """Return the slot of each sentence (S,)."""
        return torch.arange(self.sentences, device=self.like.device) if self.slot is None else self.slot

    def copy(self) -> KVCache:
        """Return a cache for the same sentences: of its own, or, where that is allowed, in the same slots.

        In shared slots only one of the two may go on with a sentence.
        """
        if self.may_share:
            self.share_()
            twin = replace(self)
            twin.share_()
            return twin
        for model in self.models:
            model.views = []  # made again on demand
        return copy.deepcopy(self)

    # ---- positions

    def append_(self, positions: int) -> None:
        """Take so many more positions of every sentence."""
        self.positions += positions

    def truncate_(self, positions: int) -> None:
        """Release the positions from this one on."""
        self.positions = positions

    def compact_(self, position: Tensor | None, room: int) -> None:
        """Keep positions position[i] (S, P') of sentence i, in ascending order (None: all in use); have `room` free ones behind.

        Gaps are closed where no other group shares the slots.
        """
        slot = self.slot_of_sentence()
        if position is None:
            position = torch.arange(self.positions, device=slot.device).expand(self.sentences, -1)
        for model in self.models:
            if self.sharing is not None:
                model.compact_in_slots_(slot, position, room)
                continue
            if self.slot is not None:
                model.keep_source_(slot)
            model.compact_(slot, position, room)
        if self.sharing is None:
            self.slot = None
        self.positions = position.size(1)

    # ---- slots

    def keep_(self, sentence: Tensor) -> None:
        """Keep these sentences (S',), in ascending order; the others leave gaps."""
        self.slot = sentence if self.slot is None else self.slot[sentence]
        self.sentences = sentence.numel()

    @property
    def needs_compaction(self) -> bool:
        """Whether gaps must be closed now: always where steps are not told the slots, else when more than half of the slots are gaps."""
        if self.slot is None:
            return False
        return not self.leaves_gaps or (2 * self.sentences < self.slots and self.sharing is None)

    def close_gaps_(self) -> None:
        """Drop the sentences that have left, for steps that are not told the slots. Positions stay as they are."""
        if self.slot is None:
            return
        for model in self.models:
            model.target = model.target.index_select(2, self.slot)
            model.keep_source_(self.slot)
        self.slot = None

    def leave_shared_slots_(self) -> None:
        """Have tensors of its own, without gaps, for steps that are not told the slots; the groups that share the slots keep them."""
        if self.slot is not None:
            self.models = [model.of_slots(self.slot) for model in self.models]
            self.slot = self.sharing = None

    def share_(self) -> None:
        """Allow other groups to lie in the slots of this cache."""
        self.slot = self.slot_of_sentence()
        if self.sharing is None:
            self.sharing = weakref.WeakSet()
        self.sharing.add(self)

    def free_slots(self) -> Tensor:
        """Return the slots (free slots,) in which no group has a sentence."""
        taken = torch.zeros(self.slots, dtype=torch.bool, device=self.like.device)
        for cache in self.sharing or ():
            taken[cache.slot] = True
        return (~taken).nonzero()[:, 0]

    # ---- groups

    @staticmethod
    def join(a: KVCache, b: KVCache) -> KVCache:
        """Return one cache for the sentences of both, those of a first. Both must have been compacted unless both may share."""
        sentences, positions = a.sentences + b.sentences, max(a.positions, b.positions)
        leaves_gaps = a.leaves_gaps and b.leaves_gaps
        if a.may_share and b.may_share:
            return KVCache.join_in_slots(a, b, leaves_gaps)
        pairs = zip(a.models, b.models, strict=True)
        models = [KeyValues.concatenated([(x, a.positions), (y, b.positions)]) for x, y in pairs]
        return KVCache(models, sentences, positions, leaves_gaps)

    @staticmethod
    def join_in_slots(a: KVCache, b: KVCache, leaves_gaps: bool) -> KVCache:
        """Return one cache for the sentences of both, in the tensors of one of them."""
        a.share_()
        b.share_()
        assert a.slot is not None and b.slot is not None
        host, slots = a, [a.slot, b.slot]
        if a.models[0] is not b.models[0]:
            # few sentences move rather than many, unless that would mean to enlarge the tensors first
            host, guest = (a, b) if a.sentences >= b.sentences else (b, a)
            if host.free_slots().numel() < guest.sentences and guest.free_slots().numel() >= host.sentences:
                host, guest = guest, host
            slots = [host.slot if cache is host else host.take_in_(guest) for cache in (a, b)]  # type: ignore[misc]
        both = KVCache(host.models, a.sentences + b.sentences, max(a.positions, b.positions), leaves_gaps, True, torch.cat(slots))
        both.sharing = host.sharing
        both.share_()
        return both

    def take_in_(self, guest: KVCache) -> Tensor:
        """Copy a guest's sentences into free slots, enlarging the tensors where there are too few; return these slots (G,)."""
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
