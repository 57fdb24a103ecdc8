"""The weights and settings of an encoder-decoder Transformer, from Hugging Face's names to fairseq's, which are nearly the same.

Shapes: V words, d features, f feed-forward features, P positions.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fairseq_ext.convert.source import Source
from fairseq_ext.convert.vocabulary import NEVER, Vocabulary
from fairseq_ext.errors import UsageError

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "swish", "silu": "swish", "tanh": "tanh", "gelu_new": "gelu_accurate"}
OFFSET = 2  # rows of fairseq's position tables before the first position: <pad> is word 1
SIDES = ("encoder", "decoder")


@dataclass
class Kind:
    """What a class of models has that its settings do not say."""

    pre_norm: bool = False
    norm_of_embedding: bool = False
    positions: str = "sinusoidal"  # fairseq's own; or a table: learned, or marian (sinusoidal in another order)
    prefix: str = "model."  # of the names of weights
    activation: str = "relu"  # where the settings name none


@dataclass
class Converted:
    """A model in fairseq's terms."""

    weights: dict[str, Tensor]
    settings: dict[str, Any] = field(default_factory=dict)


def convert_transformer(source: Source, kind: Kind, words: tuple[Vocabulary, Vocabulary], joined: bool, start: int | None) -> Converted:
    """words: of both sides; joined: whether source, target and output have one table. start: the row of the word that the decoder begins
    with, which is made </s> of; None: it is </s>, or the task knows it."""
    given = {name.removeprefix(kind.prefix): weight for name, weight in source.weights().items()}
    d, layers = source.number("d_model"), {side: source.number(f"{side}_layers") for side in SIDES}
    out = {name: taken(source, given, name, shape) for name, shape in expected(source, kind, d).items()}
    embedding = [table(source, given, words[i], d, f"{side}.embed_tokens.weight", "shared.weight") for i, side in enumerate(SIDES)]
    tied = source.config.get("tie_word_embeddings", True)
    output = embedding[1] if tied else table(source, given, words[1], d, "lm_head.weight", "decoder.output_projection.weight")
    bias = given.pop("final_logits_bias", torch.zeros(1, embedding[1].size(0)))[0].to(output.dtype)
    for name in [name for name in given if name in ("shared.weight", "lm_head.weight") or name.endswith(("embed_tokens.weight", "output_projection.weight"))]:
        del given[name]
    for i, side in enumerate(SIDES):
        out[f"{side}.version"] = torch.tensor([3.0])
        out[f"{side}.embed_tokens.weight"] = words[i].arranged(embedding[i])
        name = f"{side}.embed_positions.weight"
        own = given.pop(name, None)
        if kind.positions == "sinusoidal":
            out[f"{side}.embed_positions._float_tensor"] = torch.zeros(1)
        else:
            out[name] = positions(source, kind, own, d, embedding[i].dtype)
    scale = d**0.5 if source.config.get("scale_embedding", False) else 1.0
    if start is not None and start != words[1].rows[2]:
        table_of = out["decoder.embed_positions.weight"]
        table_of[OFFSET] += scale * (embedding[1][start] - embedding[1][words[1].rows[2]])
    if given:
        raise UsageError(f"{source.folder} has the weight {next(iter(given))}, which no {source.config['architectures'][0]} has: "
                         "name a model without adapters, experts and other additions")
    out["decoder.output_projection.weight"] = out["decoder.embed_tokens.weight"] if output is embedding[1] else words[1].arranged(output)
    if joined:
        out["encoder.embed_tokens.weight"] = out["decoder.embed_tokens.weight"]
    has_bias = bool(bias.any()) or None in words[1].rows
    if has_bias:
        out["decoder.output_projection.bias"] = words[1].arranged(bias, NEVER)
    settings = {f"{side}_{ours}": source.number(f"{side}_{theirs}") for side in SIDES for ours, theirs in SIZES.items()}
    for side in SIDES:
        settings |= {f"{side}_embed_dim": d, f"{side}_normalize_before": kind.pre_norm, f"{side}_learned_pos": kind.positions != "sinusoidal"}
    ...
    return Converted(out, settings)
