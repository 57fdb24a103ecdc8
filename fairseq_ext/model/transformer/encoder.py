"""fairseq's plain Transformer encoder with packed linear maps (weights.py).

It computes only the input of the cross-attention: the last layer's output, at positions that are
not padding. An encoder of any other kind runs as fairseq's own module.

Shapes: S sentences, T source width, e features, H heads, h = e / H.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from fairseq.models.fairseq_model import BaseFairseqModel
from fairseq.models.transformer import TransformerEncoder, TransformerEncoderBase
from fairseq.modules.transformer_layer import TransformerEncoderLayer, TransformerEncoderLayerBase
from torch import Tensor

from fairseq_ext.model.transformer.cache import KeyValues
from fairseq_ext.model.transformer.supported import (
    unsupported_attention,
    unsupported_module,
    unsupported_part,
)
from fairseq_ext.model.transformer.weights import (
    EncoderLayer,
    attend,
    compiled_layers,
    norm_or_none,
    read_encoder_layer,
    read_positions,
)

# source tokens without padding -> model -> their keys and values (L, 2, H, T, h)
SourceCache = dict[tuple[int, ...], dict[int, Tensor]]


class FastEncoder:
    """A function from source tokens (S, T) to encoder output in fairseq's form."""

    def __init__(self, encoder: TransformerEncoderBase, int8: bool = False):
        self.embedding = encoder.embed_tokens.weight.detach()
        self.pad = encoder.padding_idx
        self.scale = float(encoder.embed_scale)
        self.positions, self.grow_positions = read_positions(encoder)
        self.embedding_norm = norm_or_none(encoder.layernorm_embedding)
        self.layers = [EncoderLayer(**read_encoder_layer(layer, int8)) for layer in encoder.layers]
        self.pre_norm = encoder.layers[0].normalize_before
        self.final_norm = norm_or_none(encoder.layer_norm)
        self.heads = encoder.layers[0].self_attn.num_heads
        self.compiled = compiled_layers(
            self.layers,
            encoder.embed_tokens.embedding_dim,
            self.heads,
            self.pre_norm,
            self.final_norm,
        )

    def __call__(self, tokens: Tensor) -> dict[str, list[Tensor]]:
        S, T = tokens.shape
        mask = tokens.eq(self.pad)  # (S, T)
        # None: no sentence is padded; on a GPU the test would need a synchronisation
        padding = mask if mask.device.type != "cpu" or mask.any() else None
        x = self.embed(tokens, padding)
        x = (
            self.run_layers(x, S, padding)
            if self.compiled is None
            else self.run_compiled(x, S, padding)
        )
        return {
            "encoder_out": [x.view(S, T, -1).transpose(0, 1)],
            "encoder_padding_mask": [mask],
        }

    def run_compiled(self, x: Tensor, S: int, padding: Tensor | None) -> Tensor:
        """Run all layers on x (S x T, e) in one call, which skips padding."""
        assert self.compiled is not None
        if padding is None:
            self.compiled.encode_(x, torch.arange(S + 1) * (x.size(0) // S))
            return x
        start = F.pad((~padding).sum(1).cumsum(0), (1, 0))
        is_word = ~padding.flatten()
        words = x[is_word]
        self.compiled.encode_(words, start)
        return torch.zeros_like(x).masked_scatter_(is_word[:, None], words)

    def run_layers(self, x: Tensor, S: int, padding: Tensor | None) -> Tensor:
        """Run all layers on x (S x T, e) as torch operations."""
        T, mask = x.size(0) // S, None
        if padding is not None:
            x = x.masked_fill(padding.view(-1, 1), 0.0)
            mask = x.new_zeros(S, 1, 1, T).masked_fill_(padding[:, None, None], -torch.inf)
        for layer in self.layers:
            y = layer.self_norm(x) if self.pre_norm else x
            # (3, S, H, T, h)
            query, key, value = (
                layer.self_in(y).view(S, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            )
            x = layer.self_out(attend(query, key, value, mask)).add_(x)
            x = x if self.pre_norm else layer.self_norm(x)
            x = layer.feed_forward(x, self.pre_norm)
        return x if self.final_norm is None else self.final_norm(x)

    def embed(self, tokens: Tensor, padding: Tensor | None) -> Tensor:
        """Return the embeddings (S x T, e) of tokens (S, T); values at padding are not used."""
        x = F.embedding(tokens.flatten(), self.embedding)
        if self.positions is None:
            x = x * self.scale
        else:
            if tokens.size(1) > self.positions.size(0) and self.grow_positions is not None:
                self.positions = self.grow_positions(tokens.size(1))
            if padding is None:
                rows = self.positions[: tokens.size(1)]
                rows = rows if tokens.size(0) == 1 else rows.repeat(tokens.size(0), 1)
            else:  # padding is not counted
                place = (~padding).cumsum(1).sub_(1).clamp_(min=0).flatten()
                rows = self.positions.index_select(0, place)
            x = torch.add(rows, x, alpha=self.scale)
        return x if self.embedding_norm is None else self.embedding_norm(x)


def fast_encoder(model: BaseFairseqModel, int8: bool = False) -> FastEncoder | None:
    """Return the model's encoder if it is supported; else None."""
    encoder = model.encoder
    if (
        type(encoder) not in (TransformerEncoder, TransformerEncoderBase)
        or unsupported_module(encoder)
        or not len(encoder.layers)
        or encoder.quant_noise is not None
        or unsupported_part([], [encoder.layernorm_embedding, encoder.layer_norm])
        or any(unsupported_encoder_layer(layer, encoder) for layer in encoder.layers)
    ):
        return None
    return FastEncoder(encoder, int8)


def unsupported_encoder_layer(
    layer: TransformerEncoderLayerBase, encoder: TransformerEncoderBase
) -> bool:
    """Return whether this is not fairseq's own encoder layer with plain parts."""
    first = encoder.layers[0]
    if type(layer) not in (TransformerEncoderLayer, TransformerEncoderLayerBase) or layer.return_fc:
        return True
    return bool(
        layer.normalize_before != first.normalize_before
        or unsupported_attention(
            layer.self_attn, first.self_attn.num_heads, encoder.embed_tokens.embedding_dim
        )
        or unsupported_part(
            [layer.fc1, layer.fc2], [layer.self_attn_layer_norm, layer.final_layer_norm]
        )
    )


def is_plain_input(inputs: dict) -> bool:
    """Return whether the input of an encoder is only source tokens and their lengths."""
    return set(inputs) <= {"src_tokens", "src_lengths"}


def cached_key_values(
    tokens: Tensor, is_word: Tensor, kept: SourceCache, model: int, encoded: Callable[[], KeyValues]
) -> KeyValues:
    """Return the keys and values of source tokens (S, T), of which `is_word` are no padding.

    They are taken from `kept` if those of all sources are there. Otherwise they are computed by
    `encoded`, and those of sources that are keys of `kept` are stored.
    """
    first, count = is_word.int().argmax(1).tolist(), is_word.sum(1).tolist()
    places = [(i, slice(a, a + n)) for i, (a, n) in enumerate(zip(first, count, strict=True))]
    found = [kept.get(tuple(tokens[i, at].tolist()), {}) for i, at in places]
    if not all(model in of for of in found):
        out = encoded()
        for of, (i, at) in zip(found, places, strict=True):
            of[model] = out.source[:, :, i, :, at].clone()
        return out
    L, two, H, _, h = found[0][model].shape
    source = found[0][model].new_zeros(L, two, *tokens.shape[:1], H, tokens.size(1), h)
    for of, (i, at) in zip(found, places, strict=True):
        source[:, :, i, :, at] = of[model]
    return KeyValues.of_source(source, ~is_word)
