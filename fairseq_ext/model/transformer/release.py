"""Lets go of the weights that a model holds beside the packed ones: a command that only decodes needs them once.

What is left of the model are its embeddings, biases and normalisations. Its modules cannot run any more, so this is for a process that
belongs to one command, and for models of which every layer is compiled.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fairseq_ext.model.transformer.encoder import FastEncoder
from fairseq_ext.model.transformer.linear import Linear
from fairseq_ext.model.transformer.weights import Weights

SECOND_COPIES = ("in_proj_weight", "out_proj_weight", "fc1_weight", "fc2_weight")  # what fairseq holds for torch's fused encoder layer


def release_(model: Any, weights: Weights, encoder: FastEncoder | None) -> bool:
    """Drop the matrices of a model's layers, and of an output layer that is no embedding; return whether it could."""
    if weights.compiled is None or encoder is None or encoder.compiled is None:
        return False
    pairs = [*zip(encoder.layers, model.encoder.layers, strict=True), *zip(weights.layers, model.decoder.layers, strict=True)]
    for ours, theirs in pairs:  # one layer after the other, so that few weights are held twice at a time
        for part in vars(ours).values():
            if isinstance(part, Linear):
                part.release_()
        for module in theirs.modules():
            if isinstance(module, nn.Linear):
                drop_(model, module)
        for name in SECOND_COPIES:
            if name in theirs._parameters:
                setattr(theirs, name, nothing())
    weights.output.release_()
    drop_(model, model.decoder.output_projection)
    return True


def drop_(model: Any, module: nn.Linear) -> None:
    """Drop a linear map's weight, unless it is an embedding's as well."""
    if not is_embedding(model, module.weight):
        module.weight = nothing()


def nothing() -> nn.Parameter:
    """Return a parameter without numbers."""
    return nn.Parameter(torch.empty(0, 0), requires_grad=False)


def is_embedding(model: Any, weight: torch.Tensor) -> bool:
    """Return whether a weight is an embedding's as well."""
    return any(weight.data_ptr() == stack.embed_tokens.weight.data_ptr() for stack in (model.encoder, model.decoder))
