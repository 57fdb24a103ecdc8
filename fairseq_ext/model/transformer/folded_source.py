"""Attention to a short source, with the query and output weights multiplied into the source's keys and values.

For few source tokens these products are fewer bytes to read than the weights themselves, so a step is faster.

Shapes: S sentences, Q queries of a sentence, T source width, d features, H heads, h = d / H.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_ext.model.transformer.weights import Layer


@dataclass
class FoldedSource:
    """One layer's folded keys and values."""

    key: Tensor  # (S, d, H x T)
    bias: Tensor  # (S, 1, H x T) of the query; -inf at padding
    value: Tensor  # (S, H x T, d) the output bias included

    @staticmethod
    def of(layer: Layer, key: Tensor, value: Tensor, mask: Tensor | None) -> FoldedSource:
        """Fold a layer's weights into the source's key and value (S, H, T, h). mask (S, 1, 1, T): -inf at padding, else 0."""
        S, H, T, h = key.shape
        query, out = layer.cross_query, layer.cross_out
        d = query.weight.size(1)
        folded_key = torch.matmul(key, query.weight.view(H, h, d))  # (S, H, T, d)
        bias = key.new_zeros(S, H, T) if query.bias is None else torch.matmul(key, query.bias.view(H, h, 1))[..., 0]
        if mask is not None:
            bias = bias + mask[:, 0]
        folded_value = torch.matmul(value, out.weight.view(d, H, h).permute(1, 2, 0))  # (S, H, T, d)
        if out.bias is not None:
            folded_value += out.bias / H  # the attention weights of a head sum to one
        return FoldedSource(folded_key.flatten(1, 2).transpose(1, 2).contiguous(), bias.view(S, 1, -1), folded_value.flatten(1, 2))

    def select(self, sentence: Tensor) -> FoldedSource:
        """Return the part of these sentences (S',)."""
        return FoldedSource(*(part.index_select(0, sentence) for part in (self.key, self.bias, self.value)))

    def attend(self, x: Tensor, heads: int) -> Tensor:
        """Return the output (S x Q, d) of the attention layer for its input x (S x Q, d)."""
        S, d, _ = self.key.shape
        score = torch.baddbmm(self.bias, x.view(S, -1, d), self.key)  # (S, Q, H x T)
        weight = score.unflatten(2, (heads, -1)).softmax(-1).flatten(2)
        return torch.bmm(weight, self.value).view(-1, d)
