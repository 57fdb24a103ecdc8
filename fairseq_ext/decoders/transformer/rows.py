"""The rows of a group in the fast backend: which cells of the memory (kv_cache.py) each row may see.

Every sentence has one store of cells, a cell being the keys and values of one token that some row has read, and a mask says
which cells are a row's own history. So reordering the beam moves a mask, never keys and values; cells that belong to no row any
more are squeezed out now and then, when the store is full or sentences leave. A row's cells lie in the order of its tokens.

Shapes: S sentences, n rows, W places for rows in each sentence's part of the store (its width), C cells in use, b new tokens a
row.
"""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_ext.decoders.transformer import slots
from fairseq_ext.decoders.transformer.kv_cache import Memory, merged

ROOM_STEPS = 4  # a store that has no room for so many steps of all its rows, after squeezing, grows


@dataclass(eq=False)
class State:
    """A group of rows: bookkeeping that all models share, and each model's memory."""

    sentences: int
    rows: int
    width: int  # W: places of each sentence
    place: Tensor | None  # (n,) place of each row among S x W; None when rows fill all places in order
    cells: int  # C: cells in use, the same number in every sentence
    mask: Tensor | None  # (S, W, C) 0 where a cell is in a row's history, else -inf; None when all cells are in all histories
    length: int | Tensor  # tokens in each row's history, (n,) when they differ
    longest: int  # no row's history is longer
    memories: list[Memory]
    leaves_gaps: bool = False  # sentences that leave stay in the memories for a while: the step asks for slots
    may_share: bool = False  # and these may be of memories that other groups lie in too: the compiled step (slots.py)
    slot: Tensor | None = None  # (S,) where each sentence lies in the memories; None: without gaps

    @staticmethod
    def start(memories: list[Memory], leaves_gaps: bool = False, may_share: bool = False) -> State:
        """One row a sentence, nothing read yet."""
        sentences = memories[0].source.size(2)
        return State(sentences, sentences, 1, None, 0, None, 0, 0, memories, leaves_gaps, may_share)

    def copy(self) -> State:
        """A group of its own with the same rows; where memories may be shared, in the same ones, so that only one of the two may go on
        with a sentence."""
        if self.may_share:
            slots.share_(self)
            group = replace(self)
            slots.share_(group)
            return group
        for memory in self.memories:
            memory.views = []  # made anew when asked for
        return copy.deepcopy(self)

    def sentence_of_row(self) -> Tensor:
        """(n,)"""
        device = self.memories[0].own.device
        place = torch.arange(self.rows, device=device) if self.place is None else self.place
        return place // self.width

    def lengths(self) -> Tensor:
        """(n,)"""
        if isinstance(self.length, Tensor):
            return self.length
        return torch.full((self.rows,), self.length, device=self.memories[0].own.device)

    def full_mask(self) -> Tensor:
        """The mask (S, W, C), also where it is left out."""
        if self.mask is not None:
            return self.mask
        return self.memories[0].own.new_zeros(self.sentences, self.width, self.cells)

    def at_places(self, value: Tensor, fill: float) -> Tensor:
        """Row values (n, ...) -> (S x W, ...), filled up where no row is."""
        if self.place is None:
            return value
        out = value.new_full((self.sentences * self.width, *value.shape[1:]), fill)
        out[self.place] = value
        return out

    def row_of_place(self) -> Tensor | None:
        """(S x W,) a row for every place, any row where there is none; None when rows fill all places in order."""
        return None if self.place is None else self.at_places(torch.arange(self.rows, device=self.place.device), 0)

    def truncate_(self, length: int | Tensor) -> None:
        """Forget what each row has read beyond its first length (n,) tokens."""
        if self.mask is None and isinstance(length, int) and isinstance(self.length, int):
            self.cells = self.longest = self.length = min(length, self.length)  # here cells are positions
            return
        lengths = self.lengths()
        lengths = torch.minimum(lengths, torch.as_tensor(length, device=lengths.device))
        mask = self.full_mask()
        # a row's cells lie in the order of its tokens
        beyond = mask.eq(0).cumsum(2) > self.at_places(lengths, 0).view(self.sentences, self.width, 1)
        mask = mask.masked_fill(beyond, -torch.inf)
        if mask.device.type == "cpu":  # where asking costs nothing: cells at the end that are no row's are used again
            used = mask.eq(0).any(1).any(0).nonzero()
            self.cells = int(used[-1]) + 1 if used.numel() else 0
            self.longest = int(lengths.max())
            mask = mask[:, :, : self.cells]
        self.mask, self.length = mask, lengths

    def select_(self, row: Tensor, sentence: Tensor | None, width: int, sentence_of_row: Tensor) -> None:
        """Row i becomes what row[i] was; see decoders/protocol.py, Decoder."""
        before = row if self.place is None else self.place[row]  # (n',) place of each new row's past
        kept = self.sentences if sentence is None else sentence.numel()
        trivial = self.mask is None and self.width == 1 and width == 1
        histories = None if trivial else self.full_mask().view(self.sentences * self.width, self.cells).index_select(0, before)
        if isinstance(self.length, Tensor):
            self.length = self.length[row]
        self.rows, self.sentences, self.width, self.place = row.numel(), kept, width, None
        if width == 0:
            first = torch.searchsorted(sentence_of_row, torch.arange(kept, device=row.device))
            rank = torch.arange(self.rows, device=row.device) - first[sentence_of_row]
            self.width = int(rank.max()) + 1
            self.place = sentence_of_row * self.width + rank
        self.mask = None
        if histories is not None:
            self.mask = self.at_places(histories, -torch.inf).view(kept, self.width, self.cells)
        if sentence is not None:
            self.slot = sentence if self.slot is None else self.slot[sentence]
            in_slots = self.memories[0].groups is not None
            if not self.leaves_gaps or (2 * kept < self.memories[0].source.size(2) and not in_slots):
                self.squeeze_()

    def squeeze_(self, new: int = 0) -> None:
        """Drop the sentences that have left and the cells that are in no row's history, and make room for new ones."""
        device = self.memories[0].own.device
        sentence = self.slot
        if sentence is None:
            sentence = torch.arange(self.sentences, device=device)
        elif self.memories[0].groups is None:
            for memory in self.memories:
                memory.keep_(sentence)
            self.slot = None
        if self.mask is None:
            cell = torch.arange(self.cells, device=device).expand(self.sentences, -1)
        else:
            used = self.mask.eq(0).any(1)  # (S, C)
            self.cells = int(used.sum(1).max())
            cell = used.byte().argsort(dim=1, descending=True, stable=True)[:, : self.cells]
            self.mask = self.mask.gather(2, cell[:, None].expand(-1, self.width, -1))
        for memory in self.memories:
            memory.squeeze_(sentence, cell, max(new, ROOM_STEPS * self.width))

    def close_gaps_(self) -> None:
        """Drop the sentences that have left, for steps that do not ask for slots; cells stay where they are."""
        if self.slot is None:
            return
        for memory in self.memories:
            memory.own = memory.own.index_select(2, self.slot)
            memory.keep_(self.slot)
        self.slot = None

    def append_(self, b: int) -> Tensor | None:
        """Take b new cells for every place; return the mask (S or 1, 1, W x b, C) under which the new tokens attend."""
        if self.cells + self.width * b > self.memories[0].own.size(4):
            self.squeeze_(2 * self.width * b)
        C, W, S = self.cells, self.width, self.sentences
        like = self.memories[0].own
        self.cells = C + W * b
        if isinstance(self.length, int):
            self.length += b
        else:
            self.length = self.length + b
        self.longest += b
        if self.mask is None and W == 1:
            if b == 1:
                return None
            causal = like.new_full((b, b), -torch.inf).triu_(1)
            return torch.cat([like.new_zeros(b, C), causal], dim=1)[None, None]
        fresh = own_cells(W, b, like.dtype, like.device)  # (W, b, W x b)
        if b == 1:
            self.mask = torch.cat([self.full_mask(), fresh.view(1, W, W).expand(S, -1, -1)], dim=2)
            return self.mask[:, None]
        past = self.full_mask()[:, :, None].expand(-1, -1, b, -1)
        mask = torch.cat([past, fresh.expand(S, -1, -1, -1)], dim=3)  # (S, W, b, C)
        self.mask = mask[:, :, -1]
        return mask.view(S, 1, W * b, self.cells)

    @staticmethod
    def merge(a: State, b: State) -> State:
        """Both groups' rows as one, a's first."""
        may_share = a.may_share and b.may_share
        if may_share:
            memories, slot = slots.together_(a, b)
        else:
            for state in (a, b):
                state.squeeze_()
            memories, slot = [merged(x, y, a.cells, b.cells) for x, y in zip(a.memories, b.memories, strict=True)], None
        width, cells = max(a.width, b.width), max(a.cells, b.cells)
        uniform = a.place is None and b.place is None and a.width == b.width
        place = None
        if not uniform:
            places = []
            for state, offset in ((a, 0), (b, a.sentences)):
                sentence = state.sentence_of_row()
                rank = (torch.arange(state.rows, device=sentence.device) if state.place is None else state.place) % state.width
                places.append((sentence + offset) * width + rank)
            place = torch.cat(places)
        plain = a.mask is None and b.mask is None and width == 1 and a.cells == b.cells
        masks = [F.pad(s.full_mask(), (0, cells - s.cells, 0, width - s.width), value=-torch.inf) for s in (a, b)]
        same_length = isinstance(a.length, int) and isinstance(b.length, int) and a.length == b.length
        both = State(
            sentences=a.sentences + b.sentences,
            rows=a.rows + b.rows,
            width=width,
            place=place,
            cells=cells,
            mask=None if plain else torch.cat(masks),
            length=a.length if same_length else torch.cat([a.lengths(), b.lengths()]),
            longest=max(a.longest, b.longest),
            memories=memories,
            leaves_gaps=a.leaves_gaps and b.leaves_gaps,
            may_share=may_share,
            slot=slot,
        )
        if may_share:
            slots.share_(both)
        return both


@functools.lru_cache(maxsize=64)
def own_cells(W: int, b: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(W, b, W x b) 0 at the new cells that each new token sees, its own row's up to itself; else -inf."""
    same_row = torch.eye(W, dtype=torch.bool, device=device)[:, None, :, None]
    before = torch.ones(b, b, dtype=torch.bool, device=device).tril()[None, :, None, :]
    sees = (same_row & before).view(W, b, W * b)
    return torch.zeros(W, b, W * b, dtype=dtype, device=device).masked_fill_(~sees, -torch.inf)
