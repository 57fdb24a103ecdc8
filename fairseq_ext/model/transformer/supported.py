"""Checks which fairseq models the transformer backend supports, and returns models' output layers.

`unsupported` returns the reason why a model is not supported. Only modules of known types and
without hooks are supported, since a subclass may compute anything.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import ModuleType

from fairseq.models import FairseqDecoder, FairseqEncoderDecoderModel
from fairseq.models.fairseq_model import BaseFairseqModel
from fairseq.models.lstm import LSTMDecoder
from fairseq.models.transformer import (
    TransformerDecoder,
    TransformerDecoderBase,
    TransformerEncoderBase,
    TransformerModelBase,
)
from fairseq.modules import (
    LearnedPositionalEmbedding,
    MultiheadAttention,
    SinusoidalPositionalEmbedding,
    layer_norm,
)
from fairseq.modules.transformer_layer import TransformerDecoderLayer, TransformerDecoderLayerBase
from torch import Tensor, nn

from fairseq_ext.core.errors import UsageError

PLAIN_DECODERS = (TransformerDecoder, TransformerDecoderBase)
PLAIN_SOFTMAX = (BaseFairseqModel.get_normalized_probs, TransformerModelBase.get_normalized_probs)
# the second one exists if apex is installed
NORMS = (nn.LayerNorm, getattr(layer_norm, "FusedLayerNorm", nn.LayerNorm))


def has_plain_decoder(model: BaseFairseqModel) -> bool:
    """Return whether a model's decoder is fairseq's plain Transformer, or that of speech models,
    which only differs in not returning attention."""
    speech = speech_models()
    return type(model.decoder) in (
        PLAIN_DECODERS if speech is None else (*PLAIN_DECODERS, speech.TransformerDecoderScriptable)
    )


def has_plain_softmax(model: BaseFairseqModel) -> bool:
    """Return whether fairseq's common code computes a model's probabilities, as the softmax of its
    decoder's output."""
    speech, own = speech_models(), type(model).get_normalized_probs
    return own in PLAIN_SOFTMAX or (
        speech is not None and own is speech.S2TTransformerModel.get_normalized_probs
    )


def speech_models() -> ModuleType | None:
    """Return fairseq's module of speech Transformers; None if it is not imported, so that no loaded
    model can have its classes."""
    return sys.modules.get("fairseq.models.speech_to_text.s2t_transformer")


def first(reasons: Iterable[str | None]) -> str | None:
    """Return the first reason; None if there is none."""
    return next(filter(None, reasons), None)


def first_true(checks: dict[str, object]) -> str | None:
    """Return the first reason that holds; None if none does."""
    return first(reason for reason, holds in checks.items() if holds)


def unsupported(model: BaseFairseqModel) -> str | None:
    """Return the reason why the backend does not support this model; None if it does."""
    decoder: FairseqDecoder = getattr(model, "decoder", None)
    if not isinstance(model, FairseqEncoderDecoderModel) or not has_plain_decoder(model):
        return f"{type(model).__name__} is not an encoder-decoder with a plain Transformer decoder"
    own_softmax = type(decoder).get_normalized_probs is not FairseqDecoder.get_normalized_probs
    if own_softmax or not has_plain_softmax(model):
        return f"{type(model).__name__} has its own computation of probabilities"
    checks = {
        "its decoder has an adaptive softmax": decoder.adaptive_softmax is not None
        or decoder.output_projection is None,
        "its decoder attends to source and target in one (--cross-self-attention)": (
            decoder.cross_self_attention
        ),
        "its embeddings have quantisation noise": getattr(decoder, "quant_noise", None),
        "its decoder has no layers": not len(decoder.layers),
        "its dropout stays on (--retain-dropout)": any(
            getattr(m, "apply_during_inference", False) for m in model.modules()
        ),
    }
    maps = [decoder.output_projection, decoder.project_in_dim, decoder.project_out_dim]
    return (
        first_true(checks)
        or unsupported_module(decoder)
        or unsupported_part(maps, [decoder.layernorm_embedding, decoder.layer_norm])
        or first(unsupported_layer(layer, decoder) for layer in decoder.layers)
    )


def unsupported_layer(layer: TransformerDecoderLayerBase, decoder: FairseqDecoder) -> str | None:
    """Return why the backend does not support a layer of this decoder; None if it does."""
    if type(layer) not in (TransformerDecoderLayer, TransformerDecoderLayerBase):
        return f"its decoder has a {type(layer).__name__}"
    if layer.encoder_attn is None:
        return "its decoder has no cross-attention"
    lowest, attentions = decoder.layers[0], (layer.self_attn, layer.encoder_attn)
    scaled = [layer.attn_ln, layer.c_attn, layer.ffn_layernorm, layer.w_resid]
    checks = {
        "its layers are scaled as in NormFormer (--scale-attn, -fc, -heads or -resids)": any(
            part is not None for part in scaled
        ),
        "its layers differ in where they normalise": (
            layer.normalize_before != lowest.normalize_before
        ),
    }
    heads = lowest.self_attn.num_heads
    norms = [layer.self_attn_layer_norm, layer.encoder_attn_layer_norm, layer.final_layer_norm]
    return (
        first_true(checks)
        or first(unsupported_attention(each, heads, decoder.embed_dim) for each in attentions)
        or unsupported_part([layer.fc1, layer.fc2], norms)
    )


def unsupported_module(stack: TransformerDecoderBase | TransformerEncoderBase) -> str | None:
    """Return why an encoder or decoder may compute more than its layers; None if it does not."""
    embedding, positions = type(stack.embed_tokens), type(stack.embed_positions)
    return first_true(
        {
            f"its embedding is a {embedding.__name__}": embedding is not nn.Embedding,
            "hooks are set on its modules": any(
                m._forward_hooks or m._forward_pre_hooks for m in stack.modules()
            ),
            f"its positions are a {positions.__name__}": positions
            not in (type(None), LearnedPositionalEmbedding, SinusoidalPositionalEmbedding),
        }
    )


def unsupported_attention(attention: MultiheadAttention, heads: int, d: int) -> str | None:
    """Return why an attention is not fairseq's own with this many heads and features."""
    if type(attention) is not MultiheadAttention:
        return f"one of its attentions is a {type(attention).__name__}"
    checks = {
        "its attention has additional keys": attention.bias_k is not None
        or attention.add_zero_attn,
        "its attention is xFormers'": attention.use_xformers,
        "its attentions differ in heads": attention.num_heads != heads,
        "heads have been pruned from its attention": attention.q_proj.weight.size(0) != d,
    }
    maps = [attention.q_proj, attention.k_proj, attention.v_proj, attention.out_proj]
    return first_true(checks) or unsupported_part(maps, [])


def unsupported_part(maps: list, norms: list) -> str | None:
    """Return why one of these modules (None is skipped) is not a linear layer with plain weights,
    or not a plain layer normalisation."""
    return first(
        f"one of its {what} is a {type(module).__name__}"
        for what, modules, plain in (
            ("linear layers", maps, (nn.Linear,)),
            ("normalisations", norms, NORMS),
        )
        for module in modules
        if module is not None and type(module) not in plain
    )


# ---- The output layer, for a softmax that scores only a part of the vocabulary


def output_layer(model: BaseFairseqModel) -> tuple[Tensor, Tensor | None] | None:
    """Return weight (V, d) and bias (V,) or None of the linear layer over the features of a plain
    Transformer or LSTM decoder; None for a model that does not return features separately."""
    decoder: FairseqDecoder = getattr(model, "decoder", None)
    if getattr(decoder, "adaptive_softmax", None) is not None or not has_plain_softmax(model):
        return None
    if type(decoder) is LSTMDecoder:
        tied = decoder.share_input_output_embed
        layer = decoder.embed_tokens if tied else decoder.fc_out
    elif decoder is not None and has_plain_decoder(model):
        layer = decoder.output_projection
    else:
        return None
    if type(layer) not in (nn.Linear, nn.Embedding):
        return None
    bias = getattr(layer, "bias", None)
    return layer.weight.detach(), None if bias is None else bias.detach()


def output_layers(models: list, flag: str) -> list[tuple[Tensor, Tensor | None]]:
    """Return the output layer of each model. flag: for the error message.

    Errors: UsageError if a model has none.
    """
    out: list[tuple[Tensor, Tensor | None]] = []
    for model in models:
        layer = output_layer(model)
        if layer is None:
            adaptive = getattr(getattr(model, "decoder", None), "adaptive_softmax", None)
            kind = (
                "an adaptive softmax"
                if adaptive is not None
                else "no plain Transformer or LSTM decoder"
            )
            raise UsageError(
                f"{flag} needs the decoder's features before its output layer, and "
                f"{type(model).__name__} has {kind}: use --softmax full"
            )
        out.append(layer)
    return out
