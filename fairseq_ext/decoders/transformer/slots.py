"""Groups of rows that lie in one store, for the compiled step: it is told in which slot each sentence lies, so that groups can be
divided and joined, and sentences can start and leave, while the keys and values of the others stay where they are.

A store becomes common to several groups when it is first needed by two. Its free slots are those of no group that is still there.

Shapes: as in rows.py; S slots, G sentences that move in.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from fairseq_ext.decoders.transformer.kv_cache import Memory
    from fairseq_ext.decoders.transformer.rows import State


def share_(state: State) -> None:
    """Make this group's memories stores with slots, if they are not."""
    if state.slot is None:
        state.slot = torch.arange(state.sentences, device=state.memories[0].own.device)
    for memory in state.memories:
        if memory.groups is None:
            memory.groups = weakref.WeakSet()
        memory.groups.add(state)


def free_slots(state: State) -> Tensor:
    """(free slots,) of the memories of this group (see share_), all of which have the same."""
    memory = state.memories[0]
    taken = torch.zeros(memory.source.size(2), dtype=torch.bool, device=memory.own.device)
    for group in memory.groups or ():
        taken[group.slot] = True
    return (~taken).nonzero()[:, 0]


def together_(a: State, b: State) -> tuple[list[Memory], Tensor]:
    """Bring two groups into the same memories; returns these, and the slots of a's sentences and then b's."""
    share_(a)
    share_(b)
    assert a.slot is not None and b.slot is not None
    if a.memories[0] is b.memories[0]:
        return a.memories, torch.cat([a.slot, b.slot])
    # few sentences move rather than many, unless that would mean to make room first
    host, guest = (a, b) if a.sentences >= b.sentences else (b, a)
    free, others = free_slots(host), free_slots(guest)
    if free.numel() < guest.sentences and others.numel() >= host.sentences:
        host, guest, free = guest, host, others
    missing = guest.sentences - free.numel()
    if missing > 0:
        S = host.memories[0].source.size(2)
        more = max(missing, S // 2)
        free = torch.cat([free, torch.arange(S, S + more, device=free.device)])
    slot = free[: guest.sentences]
    slots = int(slot.max()) + 1 if missing <= 0 else S + more
    for memory, other in zip(host.memories, guest.memories, strict=True):
        make_room_(memory, slots, guest.cells, other.source.size(4))
        move_in_(memory, slot, other, guest.slot, guest.cells)  # type: ignore[arg-type]
    return host.memories, torch.cat([slot, host.slot] if host is b else [host.slot, slot])  # type: ignore[list-item]


def make_room_(memory: Memory, slots: int, cells: int, width: int) -> None:
    """A store for at least so many sentences, target cells and source tokens; what is there stays in its place."""
    own, source = memory.own, memory.source
    S, T = max(slots, source.size(2)), max(width, source.size(4))
    if S > own.size(2) or cells > own.size(4):
        memory.own = enlarged(own, S, max(cells, own.size(4)))
    if memory.source_mask is None and T > source.size(4):
        memory.source_mask = source.new_zeros(source.size(2), 1, 1, source.size(4))
    if S > source.size(2) or T > source.size(4):
        memory.source = enlarged(source, S, T)
    mask = memory.source_mask
    if mask is not None and (S > mask.size(0) or T > mask.size(3)):
        memory.source_mask = mask.new_full((S, 1, 1, T), -torch.inf)
        memory.source_mask[: mask.size(0), :, :, : mask.size(3)] = mask
    memory.views = []


def enlarged(store: Tensor, slots: int, cells: int) -> Tensor:
    """(L, 2, S, H, cells, h) with more slots or cells, whose contents do not matter: no mask shows them."""
    L, two, S, H, before, h = store.shape
    out = store.new_empty(L, two, slots, H, cells, h)
    out[:, :, :S, :, :before] = store
    return out


def move_in_(memory: Memory, slot: Tensor, other: Memory, there: Tensor, cells: int) -> None:
    """Copy the sentences that lie in slots there (G,) of another memory, with so many target cells, to slots slot (G,)."""
    width = other.source.size(4)
    for to, now in zip(memory.source.flatten(0, 1), other.source.flatten(0, 1), strict=True):  # (S, H, source, h)
        to[:, :, :width].index_copy_(0, slot, now.index_select(0, there))
    if cells:
        for to, now in zip(memory.own.flatten(0, 1), other.own.flatten(0, 1), strict=True):
            to[:, :, :cells].index_copy_(0, slot, now[:, :, :cells].index_select(0, there))
    if memory.source_mask is None and (other.source_mask is not None or width < memory.source.size(4)):
        memory.source_mask = memory.source.new_zeros(memory.source.size(2), 1, 1, memory.source.size(4))
    if memory.source_mask is not None:
        memory.source_mask[slot] = -torch.inf
        memory.source_mask[slot, :, :, :width] = 0.0 if other.source_mask is None else other.source_mask[there]


def squeeze_(memory: Memory, slot: Tensor, cell: Tensor, room: int) -> None:
    """The cells of the sentence in slot[i] (G,) become its cells cell[i] (G, C'), with room for so many more; other slots stay."""
    S, heads, capacity, h = memory.own.shape[2:]
    if cell.size(1) + room > capacity:
        make_room_(memory, S, max(2 * capacity, cell.size(1) + room), 0)
        capacity = memory.own.size(4)
    index = (slot[:, None] * heads + torch.arange(heads, device=cell.device)) * capacity  # (G, H)
    index = (index[:, :, None] + cell[:, None]).flatten()  # (G, H, C')
    for block in memory.own.flatten(0, 1):  # (S, H, capacity, h)
        kept = block.view(-1, h).index_select(0, index).view(slot.numel(), heads, -1, h)
        block[:, :, : cell.size(1)].index_copy_(0, slot, kept)
    memory.views = []
