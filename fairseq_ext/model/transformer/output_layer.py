"""A model's output layer by itself, for a softmax that scores only a part of the vocabulary."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fairseq_ext.core.errors import UsageError
from fairseq_ext.model.transformer.supported import has_plain_decoder, has_plain_softmax


def output_layers(models: list[Any], flag: str) -> list[tuple[Tensor, Tensor | None]]:
    """Weight (V, d) and bias (V,) or None of each model; flag: what asks for them, for the error.

    Raises UsageError where a model does not give its features apart from its scores (model/decoder.py, has_output_layer).
    """
    out: list[tuple[Tensor, Tensor | None]] = []
    for model in models:
        decoder = getattr(model, "decoder", None)
        layer = getattr(decoder, "output_projection", None)
        plain = decoder is not None and has_plain_decoder(model) and has_plain_softmax(model)
        if not plain or getattr(decoder, "adaptive_softmax", None) is not None or type(layer) is not nn.Linear:
            kind = "an adaptive softmax" if getattr(decoder, "adaptive_softmax", None) is not None else "no plain Transformer decoder"
            raise UsageError(
                f"{flag} needs the decoder's features before its output layer, and {type(model).__name__} has {kind}: use --softmax full"
            )
        out.append((layer.weight.detach(), None if layer.bias is None else layer.bias.detach()))
    return out
