"""The self-check of the transformer backend: a few steps and the encoder, compared with fairseq's own modules at start-up.

A model whose modules compute something else than their weights say is found here, and runs on fairseq's modules instead. The result is
not remembered from one run to the next: for 10 million weights the check takes 17 ms of a start of 2 s, and a digest of the weights, by
which it could be remembered, 24 ms (SHA-256; both grow with the model).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from fairseq.models.fairseq_model import BaseFairseqModel
from torch import Tensor

from fairseq_ext.core.errors import UsageError
from fairseq_ext.model.transformer.cuda_graph_cache import CudaGraphCache
from fairseq_ext.model.transformer.encoder import FastEncoder
from fairseq_ext.model.transformer.key_values import KeyValues
from fairseq_ext.model.transformer.rows import RowGroup
from fairseq_ext.model.transformer.step import read_tokens
from fairseq_ext.model.transformer.weights import Weights

# largest difference in features between the backends, relative to the largest feature
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}


@torch.no_grad()
def disagreement(
    model: BaseFairseqModel, weights: Weights, encoder: FastEncoder | None = None, graphs: CudaGraphCache | None = None
) -> str | None:
    """Compare three steps, and the encoder if given, with fairseq's own forward pass on made-up input.

    Return in words how they differ; None when they agree. The input is two sentences of which one is padded, with two rows each. The rows
    of a sentence are swapped before the last step. graphs: the steps are recorded ones, and the last one repeats a recording.
    """
    differences = [difference_of_steps(model, weights, graphs)]
    if encoder is not None:
        differences.append(difference_of_encoder(model, encoder))
    if all(difference <= TOLERANCE.get(weights.embedding.dtype, 0.0) for difference in differences):
        return None
    return f"its features differ from fairseq's by {max(differences):.1e} of the largest"


def difference_of_steps(model: BaseFairseqModel, weights: Weights, graphs: CudaGraphCache | None) -> float:
    """Return the difference of the third step's features, relative to the largest feature."""
    tokens = (torch.arange(12, device=weights.embedding.device).view(4, 3) * 7 + 5) % weights.embedding.size(0)
    tokens = tokens.masked_fill(tokens == model.decoder.padding_idx, model.decoder.dictionary.eos())
    tokens[:, 0] = tokens[::2, 0].repeat_interleave(2)  # both rows of a sentence continue its only row
    group = RowGroup.start([KeyValues.of(weights, made_up_source(weights, 1))])
    swap = torch.tensor([1, 0, 3, 2], device=tokens.device)
    sentence_of_row = torch.tensor([0, 0, 1, 1], device=tokens.device)
    read_tokens([weights], group, tokens[::2, :1], graphs=graphs)
    group.select_(sentence_of_row, None, 2, sentence_of_row)
    read_tokens([weights], group, tokens[:, 1:2], graphs=graphs)
    group.select_(swap, None, 2, sentence_of_row)
    ours = read_tokens([weights], group, tokens[:, 2:], graphs=graphs)[0][0]
    history = torch.cat([tokens[swap, :2], tokens[:, 2:]], dim=1)
    theirs = reference_output(model, lambda: model.decoder.extract_features(history, encoder_out=made_up_source(weights, 2))[0])
    return relative(ours, theirs[:, -1])


def difference_of_encoder(model: BaseFairseqModel, encoder: FastEncoder) -> float:
    """Return the difference of the encoder's output where there is no padding, relative to its largest number."""
    tokens = (torch.arange(8, device=encoder.embedding.device).view(2, 4) * 5 + 4) % encoder.embedding.size(0)
    tokens = tokens.masked_fill(tokens == encoder.pad, model.decoder.dictionary.eos())
    tokens[1, 0] = encoder.pad
    ours = encoder(tokens)["encoder_out"][0]  # (T, S, e)
    # subtle: fairseq reads each sentence alone. The result is that of a padded batch, for which torch imports sympy, at half a second
    theirs = []
    for row in (tokens[:1], tokens[1:, 1:]):
        inputs = {"src_tokens": row, "src_lengths": row.new_tensor([row.numel()])}
        theirs.append(reference_output(model, functools.partial(model.encoder.forward_torchscript, inputs))["encoder_out"][0][:, 0])
    return relative(torch.cat([ours[:, 0], ours[1:, 1]]), torch.cat(theirs))


def relative(ours: Tensor, theirs: Tensor) -> float:
    """Return the largest difference, relative to the largest of theirs."""
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1))


def made_up_source(weights: Weights, copies: int) -> dict[str, list[Tensor]]:
    """Return encoder output for two sentences of 3 and 2 tokens, each copied. It takes no random numbers: those are the user's."""
    like, e = weights.embedding, weights.layers[0].cross_source.inputs
    states = torch.arange(3 * 2 * e, device=like.device, dtype=torch.float64).mul(0.7).sin().view(3, 2, -1).to(like)
    padding = torch.tensor([[False, False, False], [True, False, False]], device=like.device)
    return {
        "encoder_out": [states.repeat_interleave(copies, dim=1)],
        "encoder_padding_mask": [padding.repeat_interleave(copies, dim=0)],
    }


def reference_output(model: BaseFairseqModel, forward: Callable[[], Any]) -> Any:
    """Return what fairseq's own modules compute outside training and without shared source keys; the model is left as it was."""
    modes = [(m, m.training) for m in model.modules()]
    sharing = [(m, m.beam_size) for m in model.decoder.modules() if hasattr(m, "beam_size")]
    model.eval()
    for module, _ in sharing:
        module.beam_size = 1
    try:
        return forward()
    finally:
        for module, mode in modes:
            module.training = mode
        for module, beam_size in sharing:
            module.beam_size = beam_size


@torch.no_grad()
def check_finite(models: Iterable[torch.nn.Module]) -> None:
    """Raise UsageError for weights that are not numbers. subtle: a key's bias cancels out of attention, so that some decoders would not
    notice. A sum is one pass without memory of its own, and is not finite where a weight is not."""
    for model in models:
        for name, weight in model.named_parameters():
            if weight.is_floating_point() and not weight.sum(dtype=torch.float32).isfinite() and not weight.isfinite().all():
                raise UsageError(
                    f"the model's weight {name} holds NaN or infinity: the checkpoint is damaged, its training diverged, "
                    "or its weights are too large for --fp16; use another checkpoint, or leave --fp16 out"
                )
