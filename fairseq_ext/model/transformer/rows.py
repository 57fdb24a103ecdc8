"""The rows of a group, with the positions of its KV cache (cache.py) that each row sees.

A position holds the keys and values of one token that a row of the sentence has read. A mask shows
which positions are a row's own history. So reordering the beam changes a mask and never moves keys
and values. Positions that are not in the history of any row are dropped when the cache is full or
when sentences leave. A row's positions are in the order of its tokens.

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

# a cache grows if compaction frees fewer positions than all its rows need for this many steps
ROOM_STEPS = 4


@dataclass
class Step:
    """Input of the layers for rows that read b tokens each."""

    b: int  # new tokens of each row
    past: int | Tensor  # tokens that each row had read before, (n,) if the numbers differ
    longest: int  # upper bound of the rows' lengths, new tokens included
    sentences: int
    width: int  # W
    # (n,) place of each row among S x W; None if rows fill all places in order
    place: Tensor | None
    slot: Tensor | None  # (S,) slot of each sentence in the cache; None: sentence i is in slot i
    positions: int  # P: positions in use, including the new ones, which are the last W x b
    # (S or 1, 1, W x b, P) attention mask of the new tokens; None: they see all positions
    mask: Tensor | None

    @property
    def positions_before(self) -> int:
        """Positions in use before the step."""
        return self.positions - self.width * self.b

    def row_of_place(self) -> Tensor | None:
        """Return a row for every place (S x W,), row 0 for an empty place; None if rows fill all
        places in order."""
        if self.place is None:
            return None
        return scatter_rows(
            torch.arange(self.place.numel(), device=self.place.device),
            self.place,
            self.sentences * self.width,
            0,
        )


@dataclass(eq=False)
class RowGroup:
    """Rows that are stepped together, and their KV cache.

    All models of an ensemble use the same positions.
    """

    cache: KVCache
    rows: int
    width: int = 1  # W: places of each sentence
    # (n,) place of each row among S x W; None if rows fill all places in order
    place: Tensor | None = None
    # (S, W, P) 0 where a position is in a row's history, else -inf; None if all positions are in
    # all histories
    mask: Tensor | None = None
    length: int | Tensor = 0  # tokens in each row's history, (n,) if the numbers differ
    longest: int = 0  # upper bound of the rows' lengths

    def copy(self) -> RowGroup:
        """Return a group with the same rows."""
        return replace(self, cache=self.cache.copy())

    @property
    def sentences(self) -> int:
        return self.cache.sentences

    def sentence_of_row(self) -> Tensor:
        """Return the sentence of each row (n,)."""
        device = self.cache.reference_tensor.device
        place = torch.arange(self.rows, device=device) if self.place is None else self.place
        return place // self.width

    def lengths(self) -> Tensor:
        """Return the number of tokens that each row has read (n,)."""
        if isinstance(self.length, Tensor):
            return self.length
        return torch.full((self.rows,), self.length, device=self.cache.reference_tensor.device)

    def full_mask(self) -> Tensor:
        """Return the mask (S, W, P); zeros if it is None."""
        if self.mask is not None:
            return self.mask
        return self.cache.reference_tensor.new_zeros(
            self.sentences, self.width, self.cache.positions
        )

    def scatter_rows(self, value: Tensor, fill: float) -> Tensor:
        """Return row values (n, ...) as values of places (S x W, ...), with `fill` at empty
        places."""
        return (
            value
            if self.place is None
            else scatter_rows(value, self.place, self.sentences * self.width, fill)
        )

    def truncate_(self, length: int | Tensor) -> None:
        """Forget all but the first length (n,) tokens of each row."""
        if self.mask is None and isinstance(length, int) and isinstance(self.length, int):
            self.longest = self.length = min(length, self.length)
            self.cache.truncate_(self.length)  # without a mask, positions equal a row's tokens
            return
        lengths = self.lengths().clamp(max=length)
        mask = self.full_mask()
        # a row's positions are in the order of its tokens
        beyond = mask.eq(0).cumsum(2) > self.scatter_rows(lengths, 0).view(
            self.sentences, self.width, 1
        )
        mask = mask.masked_fill(beyond, -torch.inf)
        # release unused positions at the end; on a GPU this would need a synchronisation
        if mask.device.type == "cpu":
            used = mask.eq(0).any(1).any(0).nonzero()
            self.cache.truncate_(int(used[-1]) + 1 if used.numel() else 0)
            self.longest = int(lengths.max())
            mask = mask[:, :, : self.cache.positions]
        self.mask, self.length = mask, lengths

    def select_(
        self, row: Tensor, sentence: Tensor | None, width: int, sentence_of_row: Tensor
    ) -> None:
        """Reorder the rows: new row i continues what row[i] has read; arguments as in
        model/protocol.py, Decoder.select."""
        # (n',) place of the row that each new row continues
        before = row if self.place is None else self.place[row]
        trivial = self.mask is None and self.width == 1 and width == 1
        histories = None if trivial else self.full_mask().flatten(0, 1).index_select(0, before)
        if isinstance(self.length, Tensor):
            self.length = self.length[row]
        if sentence is not None:
            self.cache.keep_sentences_(sentence)
        self.rows, self.width, self.place = row.numel(), abs(width), None
        if width <= 0:
            first = torch.searchsorted(
                sentence_of_row, torch.arange(self.sentences, device=row.device)
            )
            rank = torch.arange(self.rows, device=row.device) - first[sentence_of_row]
            if width == 0:
                self.width = int(rank.max()) + 1
            self.place = sentence_of_row * self.width + rank
        self.mask = None
        if histories is not None:
            self.mask = self.scatter_rows(histories, -torch.inf).view(
                self.sentences, self.width, self.cache.positions
            )
        if sentence is not None and self.cache.needs_compaction:
            self.compact_()

    def compact_(self, new: int = 0) -> None:
        """Drop positions that are not in the history of any row, and sentences that have left; make
        sure that `new` positions are free."""
        position = None
        if self.mask is not None:
            used = self.mask.eq(0).any(1)  # (S, P)
            positions = int(used.sum(1).max())
            position = used.byte().argsort(dim=1, descending=True, stable=True)[:, :positions]
            self.mask = self.mask.gather(2, position[:, None].expand(-1, self.width, -1))
        self.cache.compact_(position, max(new, ROOM_STEPS * self.width))

    def append_(self, b: int) -> Step:
        """Take b new positions for every place; return the input of the layers."""
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
        """Add b new positions of every place to the mask; return the attention mask of the new
        tokens (S or 1, 1, W x b, P)."""
        W = self.width
        S = self.sentences
        P = self.cache.positions
        like = self.cache.reference_tensor
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
        """Return one group with the rows of a, then those of b. Both groups are invalid
        afterwards."""
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


def scatter_rows(value: Tensor, place: Tensor, places: int, fill: float) -> Tensor:
    """Return row values (n, ...) as values of places (places, ...); place (n,): the place of each
    row."""
    out = value.new_full((places, *value.shape[1:]), fill)
    out[place] = value
    return out


def mask_of_new(W: int, b: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the mask of the new tokens (W, b, W x b): 0 at the new positions that each token sees
    (those of its row up to itself), else -inf."""
    same_row = torch.eye(W, dtype=torch.bool, device=device)[:, None, :, None]
    before = torch.ones(b, b, dtype=torch.bool, device=device).tril()[None, :, None, :]
    sees = (same_row & before).view(W, b, W * b)
    return torch.zeros(W, b, W * b, dtype=dtype, device=device).masked_fill_(~sees, -torch.inf)


# for one token a row; masks of blocks take up to 16 MB and are rarely needed again
mask_of_step = functools.lru_cache(maxsize=64)(mask_of_new)
