"""The weights of a fairseq Transformer decoder as the fast backend multiplies by them, and which decoders it can read at all.

Weights are read from the loaded model once: query, key and value as one product, the attention's scaling inside the query
weights, key and value of the source as one product. On a CPU in float32 every product runs through oneDNN with weights packed
into its own layout, which is 2-3x faster than `F.linear` where MKL does not know the processor, and takes the activation along.
Elsewhere it is `F.linear`.

Shapes: d decoder features, e encoder features, f feed-forward features, H heads, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from fairseq import utils
from fairseq.models import FairseqDecoder, FairseqEncoderDecoderModel
from fairseq.models.fairseq_model import BaseFairseqModel
from fairseq.models.transformer import TransformerDecoder, TransformerDecoderBase, TransformerModelBase
from fairseq.modules import LearnedPositionalEmbedding, MultiheadAttention, SinusoidalPositionalEmbedding, layer_norm
from fairseq.modules.transformer_layer import TransformerDecoderLayer, TransformerDecoderLayerBase
from torch import Tensor, nn

PLAIN_SOFTMAX = (BaseFairseqModel.get_normalized_probs, TransformerModelBase.get_normalized_probs)
NORMS = (nn.LayerNorm, getattr(layer_norm, "FusedLayerNorm", nn.LayerNorm))  # the second where apex is installed
MANY = 32  # from so many (sentence, head) pairs on, batched products beat the fused attention on a CPU


def has_packed_products() -> bool:
    """Whether this build of torch can multiply by packed weights on the CPU."""
    if not (torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled):
        return False
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(torch.eye(16), 2)
        x = torch.ones(2, 16)
        plain = torch.ops.mkldnn._linear_pointwise.default(x, packed, None, "relu", [], "")
        return torch.equal(plain, x)
    except (AttributeError, RuntimeError):
        return False


class Product:
    """x -> x W' + b, with or without ReLU. weight (out, in), bias (out,) or None."""

    packs: bool | None = None  # asked once a process

    def __init__(self, weight: Tensor, bias: Tensor | None = None):
        self.weight = weight.detach()
        self.bias = None if bias is None else bias.detach()
        if Product.packs is None:
            Product.packs = has_packed_products()
        self.may_pack = Product.packs and weight.device.type == "cpu" and weight.dtype == torch.float32
        self.packed: Tensor | None = None

    def pack(self, x: Tensor) -> bool:
        """Whether to use packed weights for x; packs them the first time that several rows come.

        A single row gains nothing by them, but loses where the cache holds the packed ones and not the others.
        """
        if not self.may_pack:
            return False
        if self.packed is None:
            if x.size(0) == 1:
                return False
            self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.contiguous(), x.size(0))
        return True

    def __call__(self, x: Tensor) -> Tensor:
        if self.pack(x):
            return torch.ops.mkldnn._linear_pointwise.default(x, self.packed, self.bias, "none", [], "")
        return F.linear(x, self.weight, self.bias)

    def relu(self, x: Tensor) -> Tensor:
        if self.pack(x):
            return torch.ops.mkldnn._linear_pointwise.default(x, self.packed, self.bias, "relu", [], "")
        return F.linear(x, self.weight, self.bias).relu_()


class Norm:
    """Layer normalisation over the last dimension."""

    def __init__(self, module: nn.LayerNorm):
        self.arguments = (module.normalized_shape, module.weight.detach(), module.bias.detach(), module.eps)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.layer_norm(x, *self.arguments)


class Watch:
    """Notices when a model has been trained further, moved or cast since its weights were read, by its small parameters."""

    def __init__(self, module: nn.Module):
        layers = module.layers
        small = [p for layer in layers for p in (layer.final_layer_norm.weight, layer.fc1.bias, layer.self_attn.out_proj.bias)]
        self.parameters = [p for p in small if p is not None]
        self.seen = [p.detach().clone() for p in self.parameters]

    def stale(self) -> bool:
        pairs = zip(self.parameters, self.seen, strict=True)
        return any(p.device != q.device or p.dtype != q.dtype or not torch.equal(p, q) for p, q in pairs)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """query (S, H, Q, h), scaled; key, value (S, H, C, h); mask broadcast to (S, H, Q, C) -> (S x Q, d)."""
    S, H, Q, h = query.shape
    if S * H < MANY or query.device.type != "cpu":
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=1.0)
    else:
        score = torch.bmm(query.reshape(S * H, Q, h), key.flatten(0, 1).transpose(1, 2))  # (S x H, Q, C)
        if mask is not None:
            score.view(S, H, Q, -1).add_(mask)
        out = torch.bmm(score.softmax(-1), value.flatten(0, 1)).view(S, H, Q, h)
    return out.transpose(1, 2).reshape(S * Q, H * h)


@dataclass
class Layer:
    """One decoder layer."""

    self_norm: Norm
    self_in: Product  # d -> query, key, value, the query scaled
    self_out: Product
    cross_norm: Norm
    cross_query: Product  # d -> query, scaled
    cross_source: Product  # e -> key, value
    cross_out: Product
    ffn_norm: Norm
    ffn_in: Product  # d -> f
    ffn_out: Product  # f -> d
    activation: Callable[[Tensor], Tensor] | None  # None: ReLU


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


def read(decoder: TransformerDecoderBase) -> Weights:
    """The weights of a decoder that `unsupported` has passed."""
    layers = [read_layer(layer) for layer in decoder.layers]
    positions, grow = read_positions(decoder)
    return Weights(
        embedding=decoder.embed_tokens.weight.detach(),
        scale=float(decoder.embed_scale),
        project_in=optional(Product, decoder.project_in_dim),
        positions=positions,
        grow_positions=grow,
        embedding_norm=None if decoder.layernorm_embedding is None else Norm(decoder.layernorm_embedding),
        layers=layers,
        pre_norm=decoder.layers[0].normalize_before,
        final_norm=None if decoder.layer_norm is None else Norm(decoder.layer_norm),
        project_out=optional(Product, decoder.project_out_dim),
        output=Product(decoder.output_projection.weight, decoder.output_projection.bias),
        d=decoder.embed_dim,
        heads=decoder.layers[0].self_attn.num_heads,
        watch=Watch(decoder),
    )


def optional(kind: Callable, linear: nn.Linear | None):
    return None if linear is None else kind(linear.weight, linear.bias)


def read_layer(layer: TransformerDecoderLayerBase) -> Layer:
    own, cross = layer.self_attn, layer.encoder_attn
    return Layer(
        self_norm=Norm(layer.self_attn_layer_norm),
        self_in=joined([own.q_proj, own.k_proj, own.v_proj], own.scaling),
        self_out=Product(own.out_proj.weight, own.out_proj.bias),
        cross_norm=Norm(layer.encoder_attn_layer_norm),
        cross_query=joined([cross.q_proj], cross.scaling),
        cross_source=joined([cross.k_proj, cross.v_proj], 1.0),
        cross_out=Product(cross.out_proj.weight, cross.out_proj.bias),
        ffn_norm=Norm(layer.final_layer_norm),
        ffn_in=Product(layer.fc1.weight, layer.fc1.bias),
        ffn_out=Product(layer.fc2.weight, layer.fc2.bias),
        activation=fairseq_activation(layer),
    )


def fairseq_activation(layer: nn.Module) -> Callable[[Tensor], Tensor] | None:
    """A layer's activation; None for ReLU, which the product before it takes along."""
    return None if layer.activation_fn is utils.get_activation_fn("relu") else layer.activation_fn


def joined(linears: list[nn.Linear], scale_of_first: float) -> Product:
    """Several products of one input as one; the first one's results multiplied by a number."""
    weights = [linears[0].weight * scale_of_first, *[linear.weight for linear in linears[1:]]]
    if linears[0].bias is None:
        return Product(torch.cat(weights))
    return Product(torch.cat(weights), torch.cat([linears[0].bias * scale_of_first, *[linear.bias for linear in linears[1:]]]))


def read_positions(coder: nn.Module) -> tuple[Tensor | None, Callable[[int], Tensor] | None]:
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


def unsupported(model: nn.Module) -> str | None:
    """Why this model cannot run on the fast backend, in words; None when it can."""
    decoder = getattr(model, "decoder", None)
    if not isinstance(model, FairseqEncoderDecoderModel) or type(decoder) not in (TransformerDecoder, TransformerDecoderBase):
        return f"{type(model).__name__} is no encoder-decoder with a plain Transformer decoder"
    if type(model).get_normalized_probs not in PLAIN_SOFTMAX or type(decoder).get_normalized_probs is not FairseqDecoder.get_normalized_probs:
        return f"{type(model).__name__} computes its probabilities in a way of its own"
    checks = [
        (decoder.adaptive_softmax is not None or decoder.output_projection is None, "its decoder has an adaptive softmax"),
        (decoder.cross_self_attention, "its decoder attends to source and target in one (--cross-self-attention)"),
        (getattr(decoder, "quant_noise", None) is not None, "its embeddings have quantisation noise"),
        (not len(decoder.layers), "its decoder has no layers"),
    ]
    reason = next((text for bad, text in checks if bad), None) or odd_module(decoder)
    if reason is None:
        reason = odd_linear([decoder.output_projection, decoder.project_in_dim, decoder.project_out_dim])
    if reason is None:
        reason = odd_norm([decoder.layernorm_embedding, decoder.layer_norm])
    if reason is None:
        reason = next((why for layer in decoder.layers for why in [unsupported_layer(layer, decoder)] if why), None)
    return reason


def unsupported_layer(layer: nn.Module, decoder: TransformerDecoderBase) -> str | None:
    """The same for one layer."""
    if type(layer) not in (TransformerDecoderLayer, TransformerDecoderLayerBase):
        return f"its decoder has a {type(layer).__name__}"
    if layer.encoder_attn is None:
        return "its decoder has no cross-attention"
    first = decoder.layers[0]
    own, cross = layer.self_attn, layer.encoder_attn
    scaled = [layer.attn_ln, layer.c_attn, layer.ffn_layernorm, layer.w_resid]
    checks = [
        (any(part is not None for part in scaled), "its layers are scaled as in NormFormer (--scale-attn, -fc, -heads or -resids)"),
        (layer.normalize_before != first.normalize_before, "its layers differ in where they normalise"),
    ]
    reason = next((text for bad, text in checks if bad), None)
    if reason is not None:
        return reason
    for attention in (own, cross):
        reason = odd_attention(attention, first.self_attn.num_heads, decoder.embed_dim)
        if reason is not None:
            return reason
    return odd_linear([layer.fc1, layer.fc2]) or odd_norm([layer.self_attn_layer_norm, layer.encoder_attn_layer_norm, layer.final_layer_norm])


def odd_module(coder: nn.Module) -> str | None:
    """Why an encoder or decoder as a whole is not what its parts say."""
    checks = [
        (type(coder.embed_tokens) is not nn.Embedding, f"its embedding is a {type(coder.embed_tokens).__name__}"),
        (any(m._forward_hooks or m._forward_pre_hooks for m in coder.modules()), "hooks are set on its modules"),
        (
            type(coder.embed_positions) not in (type(None), LearnedPositionalEmbedding, SinusoidalPositionalEmbedding),
            f"its positions are a {type(coder.embed_positions).__name__}",
        ),
    ]
    return next((text for bad, text in checks if bad), None)


def odd_attention(attention: nn.Module, heads: int, d: int) -> str | None:
    """Why an attention is not fairseq's own with this many heads and features."""
    if type(attention) is not MultiheadAttention:
        return f"one of its attentions is a {type(attention).__name__}"
    checks = [
        (attention.bias_k is not None or attention.add_zero_attn, "its attention has additional keys"),
        (attention.use_xformers, "its attention is xFormers'"),
        (attention.num_heads != heads, "its attentions differ in heads"),
        (attention.q_proj.weight.size(0) != d, "heads have been pruned from its attention"),
    ]
    reason = next((text for bad, text in checks if bad), None)
    return reason or odd_linear([attention.q_proj, attention.k_proj, attention.v_proj, attention.out_proj])


def odd_linear(modules: list) -> str | None:
    """Why one of these (None left out) is not a linear map with plain weights."""
    odd = next((m for m in modules if m is not None and type(m) is not nn.Linear), None)
    return None if odd is None else f"one of its products is a {type(odd).__name__}"


def odd_norm(modules: list) -> str | None:
    """The same for layer normalisation."""
    odd = next((m for m in modules if m is not None and type(m) not in NORMS), None)
    return None if odd is None else f"one of its normalisations is a {type(odd).__name__}"
