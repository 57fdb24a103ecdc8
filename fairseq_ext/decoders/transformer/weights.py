"""The weights of a fairseq Transformer decoder as the fast backend multiplies by them.

Weights are read from the loaded model once: query, key and value as one product, the attention's scaling inside the query
weights, key and value of the source as one product.

Shapes: d decoder features, e encoder features, f feed-forward features, H heads, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from fairseq import utils
from fairseq.models.transformer import TransformerDecoderBase
from fairseq.modules import LearnedPositionalEmbedding, SinusoidalPositionalEmbedding
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase
from torch import Tensor, nn

from fairseq_ext.decoders.linear import Norm, Product
from fairseq_ext.kernels.transformer import AFTER, Coder


class Watch:
    """Notices when a model has been trained further, moved or cast since its weights were read, by its small parameters."""

    def __init__(self, module: Any):
        layers = module.layers
        small = [p for layer in layers for p in (layer.final_layer_norm.weight, layer.fc1.bias, layer.self_attn.out_proj.bias)]
        self.parameters = [p for p in small if p is not None]
        self.seen = self.together()

    @torch.no_grad()
    def together(self) -> Tensor:
        """All of them, one behind the other: to compare them one by one would be a call each, and on a GPU a wait."""
        return torch.cat(self.parameters) if self.parameters else torch.zeros(0)

    def stale(self) -> bool:
        now = self.together()
        return now.device != self.seen.device or now.dtype != self.seen.dtype or not torch.equal(now, self.seen)


@dataclass
class EncoderLayer:
    """One encoder layer, and what a decoder layer has in common with it."""

    self_norm: Norm
    self_in: Product  # d -> query, key, value, the query scaled
    self_out: Product
    ffn_norm: Norm
    ffn_in: Product  # d -> f
    ffn_out: Product  # f -> d
    activation: Callable[[Tensor], Tensor] | None  # None: ReLU

    @property
    def activation_name(self) -> str:
        """relu, gelu or other."""
        return "relu" if self.activation is None else "gelu" if self.activation is utils.get_activation_fn("gelu") else "other"


@dataclass
class Layer(EncoderLayer):
    """One decoder layer."""

    cross_norm: Norm
    cross_query: Product  # d -> query, scaled
    cross_source: Product  # e -> key, value
    cross_out: Product


@dataclass
class Weights:
    """A decoder's weights and the numbers that say how to apply them."""

    embedding: Tensor  # (V, features of the embedding)
    scale: float  # of the embedding
    project_in: Product | None
    positions: Tensor | None  # (P, d): first target position first
    grow_positions: Callable[[int], Tensor] | None  # a table with room for that many, where the model has no limit
    embedding_norm: Norm | None
    layers: list[Layer]
    pre_norm: bool
    final_norm: Norm | None
    project_out: Product | None
    output: Product  # features -> V
    d: int
    heads: int
    watch: Watch
    compiled: Coder | None  # all layers in one call, on a CPU in float32


def read(decoder: TransformerDecoderBase, int8: bool = False) -> Weights:
    """The weights of a decoder that `unsupported` has passed. int8: products round their weights to 8 bits."""
    layers = [read_layer(layer, int8) for layer in decoder.layers]
    positions, grow = read_positions(decoder)
    heads, pre_norm = decoder.layers[0].self_attn.num_heads, decoder.layers[0].normalize_before
    final_norm = None if decoder.layer_norm is None else Norm(decoder.layer_norm)
    return Weights(
        embedding=decoder.embed_tokens.weight.detach(),
        scale=float(decoder.embed_scale),
        project_in=optional(Product, decoder.project_in_dim),
        positions=positions,
        grow_positions=grow,
        embedding_norm=None if decoder.layernorm_embedding is None else Norm(decoder.layernorm_embedding),
        layers=layers,
        pre_norm=pre_norm,
        final_norm=final_norm,
        project_out=optional(Product, decoder.project_out_dim),
        output=Product(decoder.output_projection.weight, decoder.output_projection.bias, int8),
        d=decoder.embed_dim,
        heads=heads,
        watch=Watch(decoder),
        compiled=compiled_coder(layers, decoder.embed_dim, heads, pre_norm, final_norm),
    )


def compiled_coder(layers: Sequence[EncoderLayer], d: int, heads: int, pre_norm: bool, final_norm: Norm | None) -> Coder | None:
    """All layers as one compiled call; None where that is not possible."""
    if not all(layer.self_in.is_compiled and layer.activation_name in AFTER for layer in layers):
        return None
    return Coder.of(layers, d, heads, pre_norm, final_norm)


def optional(kind: Callable, linear: nn.Linear | None):
    return None if linear is None else kind(linear.weight, linear.bias)


def read_encoder_layer(layer: Any, int8: bool = False) -> dict[str, Any]:
    """The fields of EncoderLayer."""
    own = layer.self_attn
    return dict(
        self_norm=Norm(layer.self_attn_layer_norm),
        self_in=joined([own.q_proj, own.k_proj, own.v_proj], own.scaling, int8),
        self_out=Product(own.out_proj.weight, own.out_proj.bias, int8),
        ffn_norm=Norm(layer.final_layer_norm),
        ffn_in=Product(layer.fc1.weight, layer.fc1.bias, int8),
        ffn_out=Product(layer.fc2.weight, layer.fc2.bias, int8),
        activation=fairseq_activation(layer),
    )


def read_layer(layer: TransformerDecoderLayerBase, int8: bool = False) -> Layer:
    cross = layer.encoder_attn
    return Layer(
        **read_encoder_layer(layer, int8),
        cross_norm=Norm(layer.encoder_attn_layer_norm),
        cross_query=joined([cross.q_proj], cross.scaling, int8),
        cross_source=joined([cross.k_proj, cross.v_proj], 1.0, int8),
        cross_out=Product(cross.out_proj.weight, cross.out_proj.bias, int8),
    )


def fairseq_activation(layer: Any) -> Callable[[Tensor], Tensor] | None:
    """A layer's activation; None for ReLU, which the product before it takes along."""
    return None if layer.activation_fn is utils.get_activation_fn("relu") else layer.activation_fn


def joined(linears: list[nn.Linear], scale_of_first: float, int8: bool = False) -> Product:
    """Several products of one input as one; the first one's results multiplied by a number."""
    weights = [linears[0].weight * scale_of_first, *[linear.weight for linear in linears[1:]]]
    bias = None
    if linears[0].bias is not None:
        bias = torch.cat([linears[0].bias * scale_of_first, *[linear.bias for linear in linears[1:]]])
    return Product(torch.cat(weights), bias, int8, is_copy=True)


def read_positions(coder: Any) -> tuple[Tensor | None, Callable[[int], Tensor] | None]:
    """Position embeddings of an encoder or decoder, the first position first; and how to make more of them, if that is possible."""
    module = coder.embed_positions
    if module is None:
        return None, None
    first = module.padding_idx + 1 if module.padding_idx is not None else 0
    if isinstance(module, LearnedPositionalEmbedding):
        return module.weight[first:].detach(), None
    like = module._float_tensor

    def grow(positions: int) -> Tensor:
        table = SinusoidalPositionalEmbedding.get_embedding(first + positions, module.embedding_dim, module.padding_idx)
        return table.to(like)[first:]

    return grow(module.weights.size(0)), grow
