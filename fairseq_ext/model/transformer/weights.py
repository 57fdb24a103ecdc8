"""The weights of a fairseq Transformer, with linear maps, norms and attention.

The weights are read from the loaded model once. Query, key and value are one linear map, and the
scaling of attention lies in the query weights. Key and value of the source are one linear map.

Shapes: d decoder features, e encoder features, f feed-forward features, H heads, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from fairseq import utils
from fairseq.models.transformer import TransformerDecoderBase, TransformerEncoderBase
from fairseq.modules import LearnedPositionalEmbedding, SinusoidalPositionalEmbedding
from fairseq.modules.transformer_layer import (
    TransformerDecoderLayerBase,
    TransformerEncoderLayerBase,
)
from torch import Tensor, nn

from fairseq_ext.kernels.library import library
from fairseq_ext.kernels.transformer import EPILOGUES, CompiledNorm, LayerStack, PackedLinear


class SmallParameters:
    """The small parameters of encoders and decoders, and their values at the time when the weights
    were read. They differ if a model was trained further, moved or cast since."""

    def __init__(self, modules: Sequence[TransformerEncoderBase | TransformerDecoderBase]):
        small = [
            p
            for module in modules
            for layer in module.layers
            for p in (layer.final_layer_norm.weight, layer.fc1.bias, layer.self_attn.out_proj.bias)
        ]
        self.parameters = [p for p in small if p is not None] or [
            torch.zeros(0, dtype=torch.float32)
        ]
        # concatenated: one comparison, and on a GPU one synchronisation, instead of one each
        self.snapshot = torch.cat(self.parameters).detach()


@dataclass
class EncoderLayer:
    """One encoder layer, and the common parts of a decoder layer."""

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
        return {None: "relu", utils.get_activation_fn("gelu"): "gelu", F.silu: "silu"}.get(
            self.activation, "other"
        )

    def feed_forward(self, x: Tensor, pre_norm: bool) -> Tensor:
        """Return x (rows, d) after the feed-forward part."""
        y = self.ffn_norm(x) if pre_norm else x
        if self.activation is None:
            y = self.ffn_in(y, "relu")
        else:
            y = self.activation(self.ffn_in(y))
        x = self.ffn_out(y).add_(x)
        return x if pre_norm else self.ffn_norm(x)

    @property
    def linears(self) -> dict[str, Linear]:
        """Return the linear maps that the compiled library applies, by name."""
        return dict(
            self_in=self.self_in, self_out=self.self_out, ffn_in=self.ffn_in, ffn_out=self.ffn_out
        )

    @property
    def norms(self) -> dict[str, Norm]:
        """Return the normalisations, by name."""
        return dict(self_norm=self.self_norm, ffn_norm=self.ffn_norm)


@dataclass
class DecoderLayer(EncoderLayer):
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
    """A decoder's weights and settings."""

    embedding: Tensor  # (V, features of the embedding)
    scale: float  # factor of the embedding
    project_in: Linear | None
    positions: Tensor | None  # (positions, d) position embeddings, the first target position first
    # returns a table of at least the given length; None if the model has a limit
    grow_positions: Callable[[int], Tensor] | None
    embedding_norm: Norm | CompiledNorm | None
    layers: list[DecoderLayer]
    sources: list[Callable[[Tensor], Tensor]]  # of each layer: e -> keys and values of the source
    pre_norm: bool
    final_norm: Norm | None
    project_out: Linear | None
    output: Linear  # features -> V
    d: int
    heads: int
    compiled: LayerStack | None  # all layers as one compiled call, on a CPU in float32


def read_weights(decoder: TransformerDecoderBase, int8: bool = False) -> Weights:
    """Return the weights of a supported decoder.

    int8: linear maps round their weights to 8 bits.
    """
    layers = [read_layer(layer, int8) for layer in decoder.layers]
    positions, grow = read_positions(decoder)
    heads, pre_norm = decoder.layers[0].self_attn.num_heads, decoder.layers[0].normalize_before
    final_norm = norm_or_none(decoder.layer_norm)
    embedding_norm = norm_or_none(decoder.layernorm_embedding)
    compiled = compiled_layers(layers, decoder.embed_dim, heads, pre_norm, final_norm)
    return Weights(
        embedding=decoder.embed_tokens.weight.detach(),
        scale=float(decoder.embed_scale),
        project_in=linear_or_none(decoder.project_in_dim),
        positions=positions,
        grow_positions=grow,
        embedding_norm=embedding_norm
        if compiled is None or embedding_norm is None
        else CompiledNorm(embedding_norm),
        layers=layers,
        sources=[
            source.pack() if source.is_compiled else source
            for source in (layer.cross_source for layer in layers)
        ],
        pre_norm=pre_norm,
        final_norm=final_norm,
        project_out=linear_or_none(decoder.project_out_dim),
        output=Linear(decoder.output_projection.weight, decoder.output_projection.bias, int8),
        d=decoder.embed_dim,
        heads=heads,
        compiled=compiled,
    )


def compiled_layers(
    layers: Sequence[EncoderLayer], d: int, heads: int, pre_norm: bool, final_norm: Norm | None
) -> LayerStack | None:
    """Return all layers as one compiled call; None if there is no library or if an activation is
    not compiled."""
    if not all(
        layer.self_in.is_compiled and layer.activation_name in EPILOGUES for layer in layers
    ):
        return None
    return LayerStack.from_layers(layers, d, heads, pre_norm, final_norm)


def linear_or_none(linear: nn.Linear | None) -> Linear | None:
    """Return a linear map, if there is one."""
    return None if linear is None else Linear(linear.weight, linear.bias)


def read_encoder_layer(layer: TransformerEncoderLayerBase, int8: bool = False) -> dict[str, Any]:
    """Return the fields of EncoderLayer."""
    own = layer.self_attn
    return dict(
        self_norm=Norm(layer.self_attn_layer_norm),
        self_in=stack_linears([own.q_proj, own.k_proj, own.v_proj], own.scaling, int8),
        self_out=Linear(own.out_proj.weight, own.out_proj.bias, int8),
        ffn_norm=Norm(layer.final_layer_norm),
        ffn_in=Linear(layer.fc1.weight, layer.fc1.bias, int8),
        ffn_out=Linear(layer.fc2.weight, layer.fc2.bias, int8),
        activation=fairseq_activation(layer),
    )


def read_layer(layer: TransformerDecoderLayerBase, int8: bool = False) -> DecoderLayer:
    """Return the weights of a decoder layer."""
    cross = layer.encoder_attn
    return DecoderLayer(
        **read_encoder_layer(layer, int8),
        cross_norm=Norm(layer.encoder_attn_layer_norm),
        cross_query=stack_linears([cross.q_proj], cross.scaling, int8),
        cross_source=stack_linears([cross.k_proj, cross.v_proj], 1.0, int8),
        cross_out=Linear(cross.out_proj.weight, cross.out_proj.bias, int8),
    )


def fairseq_activation(layer: TransformerEncoderLayerBase) -> Callable[[Tensor], Tensor] | None:
    """Return a layer's activation; None for ReLU, which the linear map before it computes."""
    return None if layer.activation_fn is utils.get_activation_fn("relu") else layer.activation_fn


def stack_linears(linears: list[nn.Linear], scale_of_first: float, int8: bool = False) -> Linear:
    """Return several linear maps of one input as one map, with the results of the first multiplied
    by scale_of_first."""
    weights = [linears[0].weight * scale_of_first, *[linear.weight for linear in linears[1:]]]
    bias = None
    if linears[0].bias is not None:
        bias = torch.cat(
            [linears[0].bias * scale_of_first, *[linear.bias for linear in linears[1:]]]
        )
    made = Linear(torch.cat(weights), bias, int8, is_copy=True)
    if made.is_compiled:
        made.pack()  # at once, so that only one such copy exists at a time
    return made


def read_positions(
    stack: TransformerEncoderBase | TransformerDecoderBase,
) -> tuple[Tensor | None, Callable[[int], Tensor] | None]:
    """Return the position embeddings of an encoder or decoder, and a function that returns a longer
    table; None if the model has a limit."""
    module = stack.embed_positions
    if module is None:
        return None, None
    first = module.padding_idx + 1 if module.padding_idx is not None else 0
    if isinstance(module, LearnedPositionalEmbedding):
        return module.weight[first:].detach(), None
    like = module._float_tensor

    def grow(positions: int) -> Tensor:
        table = SinusoidalPositionalEmbedding.get_embedding(
            first + positions, module.embedding_dim, module.padding_idx
        )
        return table.to(like)[first:]

    return grow(module.weights.size(0)), grow


# ---- Linear maps, layer normalisation, attention
#
# On a CPU in float32 the compiled library (kernels/transformer.py) packs the weights of a linear
# map. That is 2-3x faster than `F.linear` if MKL does not support the processor, and the activation
# is computed in the same pass. In all other cases a linear map is `F.linear`.
#
# Shapes: S sentences, H heads, Q queries of a sentence, P positions, h features a head, d = H x h.


# with at least this many (sentence, head) pairs, two `bmm` beat the fused attention on a CPU
MANY_HEADS = 32


class Linear:
    """The map x -> x W' + b, with or without an activation. weight (out, in), bias (out,) or None.

    int8: the compiled map rounds its weights to 8 bits. Weights are packed at their first use.
    is_copy: no other code needs `weight`, so it is dropped then.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None = None, int8: bool = False, is_copy: bool = False
    ):
        self.weight = weight.detach()
        self.inputs = weight.size(1)
        self.bias = None if bias is None else bias.detach()
        self.int8, self.is_copy = int8, is_copy
        on_cpu = weight.device.type == "cpu" and weight.dtype == torch.float32
        self.is_compiled = on_cpu and library() is not None
        self.packed: PackedLinear | None = None

    def pack(self) -> PackedLinear:
        """Return the compiled map."""
        if self.packed is None:
            self.packed = PackedLinear(self.weight, self.bias, 8 if self.int8 else 32)
            if self.is_copy:
                del self.weight
        return self.packed

    def release_(self) -> None:
        """Drop the original weights if the compiled library has packed ones."""
        if self.is_compiled:
            self.pack()
            self.__dict__.pop("weight", None)

    def __call__(self, x: Tensor, activation: str = "none") -> Tensor:
        """Return the map's result with an activation: none or relu."""
        if self.is_compiled:
            return self.pack()(x, activation)
        out = F.linear(x, self.weight, self.bias)
        return out.relu_() if activation == "relu" else out


class Norm:
    """DecoderLayer normalisation over the last dimension."""

    def __init__(self, module: nn.LayerNorm):
        self.arguments = (
            module.normalized_shape,
            module.weight.detach(),
            module.bias.detach(),
            module.eps,
        )

    def __call__(self, x: Tensor) -> Tensor:
        return torch.layer_norm(x, *self.arguments)


def norm_or_none(module: nn.LayerNorm | None) -> Norm | None:
    """Return a normalisation, if there is one."""
    return None if module is None else Norm(module)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Return the attention results (S x Q, d) of scaled queries (S, H, Q, h) for key and value (S,
    H, P, h), with a mask that broadcasts to (S, H, Q, P)."""
    S, H, Q, h = query.shape
    if S * H < MANY_HEADS or query.device.type != "cpu":
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=1.0)
    else:
        # (S x H, Q, P)
        score = torch.bmm(query.reshape(S * H, Q, h), key.flatten(0, 1).transpose(1, 2))
        if mask is not None:
            score.view(S, H, Q, -1).add_(mask)
        out = torch.bmm(score.softmax(-1), value.flatten(0, 1)).view(S, H, Q, h)
    return out.transpose(1, 2).reshape(S * Q, H * h)
