"""The rows of a group: which positions of its KV cache (cache.py) each row sees.

A position holds the keys and values of one token that some row of the sentence has read. A mask
says which positions are a row's own history. So reordering the beam moves a mask, never keys and
values. Positions that are in no row's history any more are dropped now and then, when the cache is
full or sentences leave. A row's positions lie in the order of its tokens.

Shapes: S sentences, n rows, W places for rows in each sentence (its width), P positions in use, b
new tokens a row.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_ext.model.transformer.cache import KVCache

# a cache grows when compaction leaves less room than this many steps of all its rows take
ROOM_STEPS = 4


@dataclass
class Step:
    """What the layers are told of the rows that read b tokens each."""

    b: int  # new tokens of each row
    past: int | Tensor  # tokens that each row had read before, (n,) when the numbers differ
    longest: int  # no row's history is longer, new tokens included
    sentences: int
    width: int  # W
    # (n,) place of each row among S x W; None when rows fill all places in order
    place: Tensor | None
    slot: Tensor | None  # (S,) slot of each sentence in the cache; None: sentence i lies in slot i
    positions: int  # P: positions in use, the new ones included, which are the last W x b
    # (S or 1, 1, W x b, P) under which the new tokens attend; None: to everything
    mask: Tensor | None

    @property
    def before(self) -> int:
        """Positions in use before the step."""
        return self.positions - self.width * self.b

    def row_of_place(self) -> Tensor | None:
        """Return a row for every place (S x W,), any row where there is none; None when rows
        fill all places in order."""
        if self.place is None:
            return None
        return at_places(
            torch.arange(self.place.numel(), device=self.place.device),
            self.place,
            self.sentences * self.width,
            0,
        )


@dataclass(eq=False)
class RowGroup:
    """Rows that are stepped together, and their KV cache.

    All models of an ensemble see the same positions.
    """

    cache: KVCache
    rows: int
    width: int = 1  # W: places of each sentence
    # (n,) place of each row among S x W; None when rows fill all places in order
    place: Tensor | None = None
    # (S, W, P) 0 where a position is in a row's history, else -inf; None when all
    # are in all histories
    mask: Tensor | None = None
    length: int | Tensor = 0  # tokens in each row's history, (n,) when the numbers differ
    longest: int = 0  # no row's history is longer

    def copy(self) -> RowGroup:
        """Return a group with the same rows.

        In shared slots only one of the two may go on with a sentence.
        """
        return replace(self, cache=self.cache.copy())

    @property
    def sentences(self) -> int:
        return self.cache.sentences

    def sentence_of_row(self) -> Tensor:
        """Return the sentence of each row (n,)."""
        device = self.cache.like.device
        place = torch.arange(self.rows, device=device) if self.place is None else self.place
        return place // self.width

    def lengths(self) -> Tensor:
        """Return the number of tokens that each row has read (n,)."""
        if isinstance(self.length, Tensor):
            return self.length
        return torch.full((self.rows,), self.length, device=self.cache.like.device)

    def full_mask(self) -> Tensor:
        """Return the mask (S, W, P), zeros where it is left out."""
        if self.mask is not None:
            return self.mask
        return self.cache.like.new_zeros(self.sentences, self.width, self.cache.positions)

    def at_places(self, value: Tensor, fill: float) -> Tensor:
        """Return row values (n, ...) as values of places (S x W, ...), `fill`
        where there is no row."""
        return (
            value
            if self.place is None
            else at_places(value, self.place, self.sentences * self.width, fill)
        )

    def truncate_(self, length: int | Tensor) -> None:
        """Forget what each row has read beyond its first length (n,) tokens."""
        if self.mask is None and isinstance(length, int) and isinstance(self.length, int):
            self.longest = self.length = min(length, self.length)
            self.cache.truncate_(self.length)  # here a row's tokens are the positions
            return
        lengths = self.lengths().clamp(max=length)
        mask = self.full_mask()
        # a row's positions lie in the order of its tokens
        beyond = mask.eq(0).cumsum(2) > self.at_places(lengths, 0).view(
            self.sentences, self.width, 1
        )
        mask = mask.masked_fill(beyond, -torch.inf)
        # where asking costs nothing: positions at the end that are no row's are used again
        if mask.device.type == "cpu":
            used = mask.eq(0).any(1).any(0).nonzero()
            self.cache.truncate_(int(used[-1]) + 1 if used.numel() else 0)
            self.longest = int(lengths.max())
            mask = mask[:, :, : self.cache.positions]
        self.mask, self.length = mask, lengths

    def select_(
        self, row: Tensor, sentence: Tensor | None, width: int, sentence_of_row: Tensor
    ) -> None:
        """Reorder the rows: new row i continues what row[i] has read; arguments as of
        model/protocol.py, Decoder.select."""
        # (n',) place of each new row's past
        before = row if self.place is None else self.place[row]
        trivial = self.mask is None and self.width == 1 and width == 1
        histories = None if trivial else self.full_mask().flatten(0, 1).index_select(0, before)
        if isinstance(self.length, Tensor):
            self.length = self.length[row]
        if sentence is not None:
            self.cache.keep_(sentence)
        self.rows, self.width, self.place = row.numel(), width, None
        if width == 0:
            first = torch.searchsorted(
                sentence_of_row, torch.arange(self.sentences, device=row.device)
            )
            rank = torch.arange(self.rows, device=row.device) - first[sentence_of_row]
            self.width = int(rank.max()) + 1
            self.place = sentence_of_row * self.width + rank
        self.mask = None
        if histories is not None:
            self.mask = self.at_places(histories, -torch.inf).view(
                self.sentences, self.width, self.cache.positions
            )
        if sentence is not None and self.cache.needs_compaction:
            self.compact_()

    def compact_(self, new: int = 0) -> None:
        """Drop the positions that are in no row's history, and the sentences that have left;
        have room for `new` positions."""
        position = None
        if self.mask is not None:
            used = self.mask.eq(0).any(1)  # (S, P)
            positions = int(used.sum(1).max())
            position = used.byte().argsort(dim=1, descending=True, stable=True)[:, :positions]
            self.mask = self.mask.gather(2, position[:, None].expand(-1, self.width, -1))
        self.cache.compact_(position, max(new, ROOM_STEPS * self.width))

    def append_(self, b: int) -> Step:
        """Take b new positions for every place; return what the layers are told of the rows."""
        W, past = self.width, self.length
        if self.cache.positions + W * b > self.cache.capacity:
            self.compact_(2 * W * b)
        mask = self.extend_mask_(b)
        self.cache.append_(W * b)
        self.length = past + b
        self.longest += b
        return Step(
            b,
            past,
            self.longest,
            self.sentences,
            W,
            self.place,
            self.cache.slot,
            self.cache.positions,
            mask,
        )

    def extend_mask_(self, b: int) -> Tensor | None:
        """Add b new positions of every place to the mask; return the mask (S or 1, 1, W x b, P)
        under which the new tokens attend."""
        W, S, P, like = self.width, self.sentences, self.cache.positions, self.cache.like
        if self.mask is None and W == 1:
            if b == 1:
                return None
            causal = like.new_full((b, b), -torch.inf).triu_(1)
            return torch.cat([like.new_zeros(b, P), causal], dim=1)[None, None]
        # (W, b, W x b)
        fresh = (mask_of_step if b == 1 else mask_of_new)(W, b, like.dtype, like.device)
        if b == 1:
            self.mask = torch.cat([self.full_mask(), fresh.view(1, W, W).expand(S, -1, -1)], dim=2)
            return self.mask[:, None]
        past = self.full_mask()[:, :, None].expand(-1, -1, b, -1)
        mask = torch.cat([past, fresh.expand(S, -1, -1, -1)], dim=3)  # (S, W, b, P + W x b)
        self.mask = mask[:, :, -1]
        return mask.flatten(1, 2)[:, None]

    @staticmethod
    def join(a: RowGroup, b: RowGroup) -> RowGroup:
        """Return the rows of both groups as one, those of a first. The two groups are used up."""
        if not (a.cache.may_share and b.cache.may_share):
            a.compact_()
            b.compact_()
        width, positions = max(a.width, b.width), max(a.cache.positions, b.cache.positions)
        place = None
        if a.place is not None or b.place is not None or a.width != b.width:
            places = []
            for group, offset in ((a, 0), (b, a.sentences)):
                sentence = group.sentence_of_row()
                rank = (
                    torch.arange(group.rows, device=sentence.device)
                    if group.place is None
                    else group.place
                ) % group.width
                places.append((sentence + offset) * width + rank)
            place = torch.cat(places)
        mask = None
        if (
            a.mask is not None
            or b.mask is not None
            or width > 1
            or a.cache.positions != b.cache.positions
        ):
            missing = [
                (0, positions - group.cache.positions, 0, width - group.width) for group in (a, b)
            ]
            mask = torch.cat(
                [
                    F.pad(group.full_mask(), more, value=-torch.inf)
                    for group, more in zip((a, b), missing, strict=True)
                ]
            )
        same_length = (
            isinstance(a.length, int) and isinstance(b.length, int) and a.length == b.length
        )
        length = a.length if same_length else torch.cat([a.lengths(), b.lengths()])
        return RowGroup(
            KVCache.join(a.cache, b.cache),
            a.rows + b.rows,
            width,
            place,
            mask,
            length,
            max(a.longest, b.longest),
        )


def at_places(value: Tensor, place: Tensor, places: int, fill: float) -> Tensor:
    """Return values of rows (n, ...) as values of so many places (places, ...);
    place (n,): of each row."""
    out = value.new_full((places, *value.shape[1:]), fill)
    out[place] = value
    return out


def mask_of_new(W: int, b: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return (W, b, W x b): 0 at the new positions that each new token sees, its own row's
    up to itself; else -inf."""
    same_row = torch.eye(W, dtype=torch.bool, device=device)[:, None, :, None]
    before = torch.ones(b, b, dtype=torch.bool, device=device).tril()[None, :, None, :]
    sees = (same_row & before).view(W, b, W * b)
    return torch.zeros(W, b, W * b, dtype=dtype, device=device).masked_fill_(~sees, -torch.inf)


# of one token a row; those of blocks take up to 16 MB and rarely come again
mask_of_step = functools.lru_cache(maxsize=64)(mask_of_new)
