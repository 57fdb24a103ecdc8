"""Which decoder backend runs these models: the transformer one where it supports them and agrees with fairseq, else fairseq's modules."""

from __future__ import annotations

import logging

import torch
from fairseq.models.fairseq_model import BaseFairseqModel

from fairseq_ext.core.errors import UsageError
from fairseq_ext.kernels.library import library
from fairseq_ext.model.decoder import FairseqBackend
from fairseq_ext.model.self_check import disagreement
from fairseq_ext.model.transformer.cuda_graph_cache import MakeGraphs, cuda_graphs
from fairseq_ext.model.transformer.decoder import TransformerBackend
from fairseq_ext.model.transformer.supported import unsupported
from fairseq_ext.model.transformer.weights import Weights

logger = logging.getLogger("fairseq_ext")


def make_decoder(
    models: list[BaseFairseqModel], need_attention: bool = False, backend: str = "auto", int8: bool = False, graphs: str = "auto"
) -> tuple[TransformerBackend | FairseqBackend, str | None]:
    """Return the decoder that --decoder-backend names, and why `auto` takes fairseq's modules, None where it does not.

    int8: --int8; the self-check is made with full weights. graphs: --cuda-graphs.
    Raises UsageError when `transformer` or int8 is demanded and the models are not supported.
    """
    if backend == "fairseq":
        return FairseqBackend(models, need_attention), None
    reason = next((why for why in map(unsupported, models) if why), None)
    if reason is None:
        decoder = TransformerBackend(models, need_attention)
        checks = zip(models, decoder.weights, decoder.encoders, strict=True)
        reason = next((why for each in checks for why in [disagreement(*each)] if why), None)
        if reason is None and int8:
            lacking = no_int8(decoder)
            if lacking:
                raise UsageError(f"--int8 cannot be used, because {lacking}: leave it out")
            del checks, decoder  # before the weights are packed again
            return TransformerBackend(models, need_attention, int8=True), None
        if reason is None:
            if graphs == "auto" and not need_attention and on_this_gpu(decoder.weights):
                make_graphs = usable_graphs(models, decoder.weights)
                return (decoder if make_graphs is None else TransformerBackend(models, make_graphs=make_graphs)), None
            return decoder, None
        logger.warning("the transformer backend failed its self-check, fairseq's own modules run instead: %s", reason)
    if int8:
        raise UsageError(f"--int8 needs the transformer backend, which cannot run this model, because {reason}: leave it out")
    if backend == "transformer":
        raise UsageError(f"--decoder-backend transformer cannot run this model, because {reason}: use auto or fairseq")
    logger.info("decoder backend: fairseq, because %s", reason)
    return FairseqBackend(models, need_attention), reason


def usable_graphs(models: list[BaseFairseqModel], weights: list[Weights]) -> MakeGraphs | None:
    """Return what records decoder steps, if recorded steps agree with fairseq as well; else the log says why not."""
    try:
        make = cuda_graphs()
    except RuntimeError as error:
        logger.warning("decoder steps run operation by operation, because CUDA graphs do not work here: %s", error)
        return None
    for model, each in zip(models, weights, strict=True):
        graphs = make([each], patience=0)
        reason = disagreement(model, each, graphs=graphs)
        if reason or graphs.broken:
            logger.warning("decoder steps run operation by operation, not as CUDA graphs: %s", reason or "recording one failed")
            return None
    return make


def on_this_gpu(weights: list[Weights]) -> bool:
    """Return whether all weights lie on the present GPU."""
    devices = {each.embedding.device for each in weights}
    return all(device.type == "cuda" for device in devices) and devices == {torch.device("cuda", torch.cuda.current_device())}


def no_int8(decoder: TransformerBackend) -> str | None:
    """Return in words why linear maps cannot be rounded to 8 bits; None when they can."""
    if any(weights.embedding.device.type != "cpu" for weights in decoder.weights):
        return "it is for the CPU"
    if any(weights.embedding.dtype != torch.float32 for weights in decoder.weights):
        return "it starts from float32 weights (without --fp16)"
    return None if library() else "the compiled decoder step is not there (python -m fairseq_ext.kernels says why)"
