"""The weights of a fairseq Transformer as the transformer backend multiplies by them.

They are read from the loaded model once. Query, key and value are one linear map, and the scaling of attention lies in the query weights.
Key and value of the source are one linear map.

Shapes: d decoder features, e encoder features, f feed-forward features, H heads, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from fairseq import utils
from fairseq.models.transformer import TransformerDecoderBase
from fairseq.modules import LearnedPositionalEmbedding, SinusoidalPositionalEmbedding
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase
from torch import Tensor, nn

from fairseq_ext.kernels.transformer import EPILOGUES, CompiledNorm, LayerStack
from fairseq_ext.model.transformer.linear import Linear, Norm


class Watch:
    """Tells whether a model has been trained further, moved or cast since its weights were read, by its small parameters."""

    def __init__(self, module: Any):
        layers = module.layers
        small = [p for layer in layers for p in (layer.final_layer_norm.weight, layer.fc1.bias, layer.self_attn.out_proj.bias)]
        self.parameters = [p for p in small if p is not None]
        self.seen = self.together()

    @torch.no_grad()
    def together(self) -> Tensor:
        """Return all of them, one behind the other: to compare them one by one would be a call each, and on a GPU a wait."""
        return torch.cat(self.parameters) if self.parameters else torch.zeros(0)

    def stale(self) -> bool:
        """Return whether the weights must be read again."""
        now = self.together()
        return now.device != self.seen.device or now.dtype != self.seen.dtype or not torch.equal(now, self.seen)


@dataclass
class EncoderLayer:
    """One encoder layer, and what a decoder layer has in common with it."""

    self_norm: Norm
    self_in: Linear  # d -> query, key, value, the query scaled
    self_out: Linear
    ffn_norm: Norm
    ffn_in: Linear  # d -> f
    ffn_out: Linear  # f -> d
    activation: Callable[[Tensor], Tensor] | None  # None: ReLU

    @property
    def activation_name(self) -> str:
        """Return relu, gelu, silu or other."""
        return {None: "relu", utils.get_activation_fn("gelu"): "gelu", F.silu: "silu"}.get(self.activation, "other")

    @property
    def linears(self) -> dict[str, Linear]:
        """Return the linear maps that the compiled library applies, by name."""
        return dict(self_in=self.self_in, self_out=self.self_out, ffn_in=self.ffn_in, ffn_out=self.ffn_out)

    @property
    def norms(self) -> dict[str, Norm]:
        """Return the normalisations, by name."""
        return dict(self_norm=self.self_norm, ffn_norm=self.ffn_norm)


@dataclass
class Layer(EncoderLayer):
    """One decoder layer."""

    cross_norm: Norm
    cross_query: Linear  # d -> query, scaled
    cross_source: Linear  # e -> key, value
    cross_out: Linear

    @property
    def linears(self) -> dict[str, Linear]:
        return super().linears | dict(cross_query=self.cross_query, cross_out=self.cross_out)

    @property
    def norms(self) -> dict[str, Norm]:
        return super().norms | dict(cross_norm=self.cross_norm)


@dataclass
class Weights:
    """A decoder's weights, and the settings that say how to apply them."""

    embedding: Tensor  # (V, features of the embedding)
    scale: float  # of the embedding
    project_in: Linear | None
    positions: Tensor | None  # (positions, d) position embeddings, the first target position first
    grow_positions: Callable[[int], Tensor] | None  # gives a table of at least so many, where the model has no limit
    embedding_norm: Norm | CompiledNorm | None
    layers: list[Layer]
    pre_norm: bool
    final_norm: Norm | None
    project_out: Linear | None
    output: Linear  # features -> V
    d: int
    heads: int
    watch: Watch
    compiled: LayerStack | None  # all layers in one call, on a CPU in float32


def read_weights(decoder: TransformerDecoderBase, int8: bool = False) -> Weights:
    """Return the weights of a decoder that `unsupported` lets through. int8: linear maps round their weights to 8 bits."""
    layers = [read_layer(layer, int8) for layer in decoder.layers]
    positions, grow = read_positions(decoder)
    heads, pre_norm = decoder.layers[0].self_attn.num_heads, decoder.layers[0].normalize_before
    final_norm = None if decoder.layer_norm is None else Norm(decoder.layer_norm)
    embedding_norm = None if decoder.layernorm_embedding is None else Norm(decoder.layernorm_embedding)
    compiled = compiled_layers(layers, decoder.embed_dim, heads, pre_norm, final_norm)
    return Weights(
        embedding=decoder.embed_tokens.weight.detach(),
        scale=float(decoder.embed_scale),
        project_in=optional(decoder.project_in_dim),
        positions=positions,
        grow_positions=grow,
        embedding_norm=embedding_norm if compiled is None or embedding_norm is None else CompiledNorm(embedding_norm),
        layers=layers,
        pre_norm=pre_norm,
        final_norm=final_norm,
        project_out=optional(decoder.project_out_dim),
        output=Linear(decoder.output_projection.weight, decoder.output_projection.bias, int8),
        d=decoder.embed_dim,
        heads=heads,
        watch=Watch(decoder),
        compiled=compiled,
    )


def compiled_layers(layers: Sequence[EncoderLayer], d: int, heads: int, pre_norm: bool, final_norm: Norm | None) -> LayerStack | None:
    """Return all layers as one compiled call; None where the library or one of the activations does not allow it."""
    if not all(layer.self_in.is_compiled and layer.activation_name in EPILOGUES for layer in layers):
        return None
    return LayerStack.of(layers, d, heads, pre_norm, final_norm)


def optional(linear: nn.Linear | None) -> Linear | None:
    """Return a linear map, if there is one."""
    return None if linear is None else Linear(linear.weight, linear.bias)


def read_encoder_layer(layer: Any, int8: bool = False) -> dict[str, Any]:
    """Return the fields of EncoderLayer."""
    own = layer.self_attn
    return dict(
        self_norm=Norm(layer.self_attn_layer_norm),
        self_in=stacked([own.q_proj, own.k_proj, own.v_proj], own.scaling, int8),
        self_out=Linear(own.out_proj.weight, own.out_proj.bias, int8),
        ffn_norm=Norm(layer.final_layer_norm),
        ffn_in=Linear(layer.fc1.weight, layer.fc1.bias, int8),
        ffn_out=Linear(layer.fc2.weight, layer.fc2.bias, int8),
        activation=fairseq_activation(layer),
    )


def read_layer(layer: TransformerDecoderLayerBase, int8: bool = False) -> Layer:
    """Return the weights of a decoder layer."""
    cross = layer.encoder_attn
    return Layer(
        **read_encoder_layer(layer, int8),
        cross_norm=Norm(layer.encoder_attn_layer_norm),
        cross_query=stacked([cross.q_proj], cross.scaling, int8, is_folded=True),
        cross_source=stacked([cross.k_proj, cross.v_proj], 1.0, int8),
        cross_out=Linear(cross.out_proj.weight, cross.out_proj.bias, int8),
    )


def fairseq_activation(layer: Any) -> Callable[[Tensor], Tensor] | None:
    """Return a layer's activation; None for ReLU, which the linear map before it computes."""
    return None if layer.activation_fn is utils.get_activation_fn("relu") else layer.activation_fn


def stacked(linears: list[nn.Linear], scale_of_first: float, int8: bool = False, is_folded: bool = False) -> Linear:
    """Return several linear maps of one input as one, the results of the first multiplied by a number.

    is_folded: `FoldedSource` reads its weight, which therefore stays beside the packed one.
    """
    weights = [linears[0].weight * scale_of_first, *[linear.weight for linear in linears[1:]]]
    bias = None
    if linears[0].bias is not None:
        bias = torch.cat([linears[0].bias * scale_of_first, *[linear.bias for linear in linears[1:]]])
    made = Linear(torch.cat(weights), bias, int8, is_copy=not is_folded)
    if made.is_compiled and not is_folded:
        made.pack()  # at once, so that there is one such copy at a time
    return made


def read_positions(stack: Any) -> tuple[Tensor | None, Callable[[int], Tensor] | None]:
    """Return the position embeddings of an encoder or decoder, and what makes a longer table, None where the model has a limit."""
    module = stack.embed_positions
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
