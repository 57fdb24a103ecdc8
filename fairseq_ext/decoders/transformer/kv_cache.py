"""The keys and values that one model keeps for a group of sentences, of source and target.

Shapes: S sentences, W places for rows in each sentence's part of the store, Q queries of a sentence, d decoder features, e encoder
features, H heads, h features a head, L layers.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_ext.decoders.transformer import slots
from fairseq_ext.decoders.transformer.weights import Layer, Weights

if TYPE_CHECKING:
    from fairseq_ext.decoders.transformer.rows import State

ROOM = 32  # cells that a store has at first


@dataclass
class Folded:
    """One layer's attention to the source with the query and output weights multiplied into keys and values."""

    key: Tensor  # (S, d, H x source width)
    bias: Tensor  # (S, 1, H x source width) of the query; -inf at padding
    value: Tensor  # (S, H x source width, d) the output bias included

    def keep(self, sentence: Tensor) -> Folded:
        """Only these sentences (S',)."""
        return Folded(*(part.index_select(0, sentence) for part in (self.key, self.bias, self.value)))

    def attend(self, x: Tensor, heads: int) -> Tensor:
        """x (S x Q, d) -> (S x Q, d), out of the output layer."""
        S, d, cells = self.key.shape
        score = torch.baddbmm(self.bias, x.view(S, -1, d), self.key)  # (S, Q, H x source width)
        weight = score.unflatten(2, (heads, -1)).softmax(-1).flatten(2)
        return torch.bmm(weight, self.value).view(-1, d)


@dataclass
class Memory:
    """What one model remembers of its sentences."""

    own: Tensor  # (L, 2, S, H, capacity, h) keys and values of the target cells
    source: Tensor  # (L, 2, S, H, source width, h) keys and values of the source
    source_mask: Tensor | None  # (S, 1, 1, source width) 0, or -inf at padding; None when there is none
    folded: list[Folded] | None = None  # per layer, instead of the source's keys and values where that is quicker
    views: list[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]] = field(default_factory=list)
    groups: weakref.WeakSet[State] | None = None  # all whose sentences lie in slots of this memory (slots.py); None: one's

    def layers(self) -> list[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]:
        """Per layer: own keys and values together (2, S, H, capacity, h) and apart, source keys, source values (S, H, ., h)."""
        if not self.views:
            self.views = [(own, own[0], own[1], source[0], source[1]) for own, source in zip(self.own, self.source, strict=True)]
        return self.views

    def keep_(self, sentence: Tensor) -> None:
        """Leave only these sentences' source (S',), ascending."""
        for block in self.source.flatten(0, 1):  # (S, H, source width, h)
            block[: sentence.numel()] = block.index_select(0, sentence)
        self.source = self.source.narrow(2, 0, sentence.numel())
        if self.source_mask is not None:
            self.source_mask = self.source_mask.index_select(0, sentence)
        if self.folded is not None:
            self.folded = [layer.keep(sentence) for layer in self.folded]
        self.views = []

    def squeeze_(self, sentence: Tensor, cell: Tensor, room: int) -> None:
        """Sentence i's cells become cells cell[i] (S', C') of sentence[i] (S',), ascending, with room for so many more.

        In place, a layer at a time: fresh memory for all of it would cost more than the copying.
        """
        if self.groups is not None:
            slots.squeeze_(self, sentence, cell, room)
            return
        heads, capacity, h = self.own.shape[3:]
        kept, cells = cell.shape
        index = (sentence[:, None] * heads + torch.arange(heads, device=cell.device)) * capacity  # (S', H)
        index = (index[:, :, None] + cell[:, None]).flatten()  # (S', H, C')
        target = self.own.narrow(2, 0, kept)
        if cells + room > capacity:
            target = self.own.new_empty(*self.own.shape[:2], kept, heads, max(2 * capacity, cells + room), h)
        for before, after in zip(self.own.flatten(0, 1), target.flatten(0, 1), strict=True):  # (S, H, capacity, h)
            after[:, :, :cells] = before.view(-1, h).index_select(0, index).view(kept, heads, cells, h)
        self.own = target
        self.views = []


def remember(weights: Weights, encoded: dict, may_fold: bool = False) -> Memory:
    """Keys and values of the source, from fairseq's encoder output."""
    states = encoded["encoder_out"][0]  # (source, S, e)
    source, S, _ = states.shape
    flat = states.transpose(0, 1).reshape(S * source, -1)  # (S, source, e) -> (S x source, e)
    h = weights.d // weights.heads
    out = flat.new_empty(len(weights.layers), 2, S, weights.heads, source, h)
    for layer, block in zip(weights.layers, out, strict=True):
        block.copy_(layer.cross_source(flat).view(S, source, 2, weights.heads, h).permute(2, 0, 3, 1, 4))
    mask = None
    padding = encoded["encoder_padding_mask"][0] if encoded["encoder_padding_mask"] else None
    if padding is not None and not (padding.device.type == "cpu" and not padding.any()):  # (S, source)
        mask = states.new_zeros(S, 1, 1, source).masked_fill_(padding[:, None, None], -torch.inf)
    own = flat.new_empty(len(weights.layers), 2, S, weights.heads, ROOM, h)
    # with few source tokens, keys and values multiplied by the query and output weights are fewer bytes to read than those weights
    is_small = S * source * (weights.heads - 1) <= weights.d
    folded = None
    if may_fold and is_small:
        folded = [fold(layer, block[0], block[1], mask) for layer, block in zip(weights.layers, out, strict=True)]
    return Memory(own, out, mask, folded)


def fold(layer: Layer, key: Tensor, value: Tensor, mask: Tensor | None) -> Folded:
    """Multiply a layer's query and output weights into the source's keys and values (S, H, source, h)."""
    S, H, source, h = key.shape
    query, out = layer.cross_query, layer.cross_out
    d = query.weight.size(1)
    folded_key = torch.matmul(key, query.weight.view(H, h, d))  # (S, H, source, d)
    bias = key.new_zeros(S, H, source) if query.bias is None else torch.matmul(key, query.bias.view(H, h, 1))[..., 0]
    if mask is not None:
        bias = bias + mask[:, 0]
    folded_value = torch.matmul(value, out.weight.view(d, H, h).permute(1, 2, 0))  # (S, H, source, d)
    if out.bias is not None:
        folded_value += out.bias / H  # the weights of a head sum to one
    return Folded(folded_key.flatten(1, 2).transpose(1, 2).contiguous(), bias.view(S, 1, -1), folded_value.flatten(1, 2))


def merged(a: Memory, b: Memory, cells_a: int, cells_b: int) -> Memory:
    """Two memories as one, nothing folded: for many sentences that is no quicker."""
    cells, width = max(cells_a, cells_b), max(a.source.size(4), b.source.size(4))
    own = [F.pad(m.own[..., :used, :], (0, 0, 0, cells - used)) for m, used in ((a, cells_a), (b, cells_b))]
    source = [F.pad(m.source, (0, 0, 0, width - m.source.size(4))) for m in (a, b)]
    mask = None
    if a.source_mask is not None or b.source_mask is not None or a.source.size(4) != b.source.size(4):
        masks = [m.source.new_zeros(m.source.size(2), 1, 1, m.source.size(4)) if m.source_mask is None else m.source_mask for m in (a, b)]
        mask = torch.cat([F.pad(m, (0, width - m.size(3)), value=-torch.inf) for m in masks])
    return Memory(torch.cat(own, dim=2), torch.cat(source, dim=2), mask)
