"""Which decoder backend runs these models: the fast one where it can read them and agrees with fairseq, else fairseq's modules."""

from __future__ import annotations

import logging

import torch
from fairseq.models.fairseq_model import BaseFairseqModel
from torch import Tensor

from fairseq_ext.decoders.fairseq import FairseqDecoder
from fairseq_ext.decoders.transformer import TransformerBackend, first_state, remember
from fairseq_ext.decoders.transformer_weights import Weights, unsupported
from fairseq_ext.errors import UsageError

logger = logging.getLogger("fairseq_ext")

# largest difference in features between the backends, relative to the largest feature
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}


def make_decoder(
    models: list[BaseFairseqModel], need_attention: bool = False, backend: str = "auto"
) -> tuple[TransformerBackend | FairseqDecoder, str | None]:
    """The decoder that --decoder-backend names, and why it is fairseq's where the fast one was possible by the flag.

    Raises UsageError when `transformer` is demanded and the models cannot run on it.
    """
    if backend == "fairseq":
        return FairseqDecoder(models, need_attention), None
    reason = next((why for why in map(unsupported, models) if why), None)
    if reason is None:
        decoder = TransformerBackend(models, need_attention)
        reason = next((why for why in map(disagreement, models, decoder.weights) if why), None)
        if reason is None:
            return decoder, None
        logger.warning("the fast decoder failed its self-check, fairseq's own modules run instead: %s", reason)
    if backend == "transformer":
        raise UsageError(f"--decoder-backend transformer cannot run this model, because {reason}: use auto or fairseq")
    logger.info("decoder backend: fairseq, because %s", reason)
    return FairseqDecoder(models, need_attention), reason


@torch.no_grad()
def disagreement(model: BaseFairseqModel, weights: Weights) -> str | None:
    """Compare three steps over a made-up source with fairseq's own forward; None when they agree.

    Two sentences of which one is padded, two rows each, the second rows swapped with the first before the last step.
    """
    decoder = model.decoder
    tokens = (torch.arange(12, device=weights.embedding.device).view(4, 3) * 7 + 5) % weights.embedding.size(0)
    tokens = tokens.masked_fill(tokens == decoder.padding_idx, decoder.dictionary.eos())
    backend = TransformerBackend.__new__(TransformerBackend)
    backend.models, backend.weights, backend.need_attention = [model], [weights], False
    backend.state = first_state([remember(weights, made_up_source(weights, 1))])
    swap = torch.tensor([1, 0, 3, 2], device=tokens.device)
    sentence_of_row = torch.tensor([0, 0, 1, 1], device=tokens.device)
    backend.step(tokens[::2, :1].contiguous())
    # both rows of a sentence continue its only row, so they share their first token
    tokens[:, 0] = tokens[::2, 0].repeat_interleave(2)
    backend.select(sentence_of_row, None, 2, sentence_of_row)
    backend.step(tokens[:, :2])
    backend.select(swap, None, 2, sentence_of_row)
    tokens = torch.cat([tokens[swap, :2], tokens[:, 2:]], dim=1)
    ours = backend.step(tokens)[0]
    theirs = stock_features(model, tokens, made_up_source(weights, 2))[:, -1]
    difference = float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1))
    if difference <= TOLERANCE.get(ours.dtype, 0.0):
        return None
    return f"its features differ from fairseq's by {difference:.1e} of the largest"


def made_up_source(weights: Weights, copies: int) -> dict[str, list[Tensor]]:
    """Encoder output for two sentences of 3 and 2 tokens, each copied; no random numbers, which belong to the user."""
    like = weights.layers[0].cross_source.weight
    states = torch.arange(3 * 2 * like.size(1), device=like.device, dtype=torch.float64).mul(0.7).sin().view(3, 2, -1).to(like)
    padding = torch.tensor([[False, False, False], [True, False, False]], device=like.device)
    return {
        "encoder_out": [states.repeat_interleave(copies, dim=1)],
        "encoder_padding_mask": [padding.repeat_interleave(copies, dim=0)],
    }


def stock_features(model: BaseFairseqModel, tokens: Tensor, source: dict[str, list[Tensor]]) -> Tensor:
    """Features (n, L, d) of fairseq's own decoder under teacher forcing; the model is left as it was."""
    decoder = model.decoder
    was_training = decoder.training
    sharing = [(m, m.beam_size) for m in decoder.modules() if hasattr(m, "beam_size")]
    decoder.eval()
    for module, _ in sharing:
        module.beam_size = 1
    try:
        return decoder.extract_features(tokens, encoder_out=source)[0]
    finally:
        decoder.train(was_training)
        for module, beam_size in sharing:
            module.beam_size = beam_size
