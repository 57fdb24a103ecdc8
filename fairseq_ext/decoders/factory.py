"""Which decoder backend runs these models: the fast one where it can read them and agrees with fairseq, else fairseq's modules."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from fairseq.models.fairseq_model import BaseFairseqModel
from torch import Tensor

from fairseq_ext.decoders.fairseq.decoder import FairseqDecoder
from fairseq_ext.decoders.transformer.cuda_graph_cache import Graphs, MakeGraphs, cuda_graphs
from fairseq_ext.decoders.transformer.decoder import TransformerBackend
from fairseq_ext.decoders.transformer.encoder import FastEncoder
from fairseq_ext.decoders.transformer.kv_cache import remember
from fairseq_ext.decoders.transformer.layers import read_tokens
from fairseq_ext.decoders.transformer.rows import State
from fairseq_ext.decoders.transformer.supported import unsupported
from fairseq_ext.decoders.transformer.weights import Weights
from fairseq_ext.errors import UsageError
from fairseq_ext.kernels.library import library
from fairseq_ext.kernels.transformer import has_int8

logger = logging.getLogger("fairseq_ext")

# largest difference in features between the backends, relative to the largest feature
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}


def make_decoder(
    models: list[BaseFairseqModel], need_attention: bool = False, backend: str = "auto", int8: bool = False, graphs: str = "auto"
) -> tuple[TransformerBackend | FairseqDecoder, str | None]:
    """The decoder that --decoder-backend names, and why it is fairseq's where the fast one was possible by the flag.

    int8: products rounded to 8 bits; the self-check is made without. graphs: --cuda-graphs.
    Raises UsageError when `transformer` or int8 is demanded and the models cannot run on it.
    """
    if backend == "fairseq":
        return FairseqDecoder(models, need_attention), None
    reason = next((why for why in map(unsupported, models) if why), None)
    if reason is None:
        decoder = TransformerBackend(models, need_attention)
        checks = zip(models, decoder.weights, decoder.encoders, strict=True)
        reason = next((why for each in checks for why in [disagreement(*each)] if why), None)
        if reason is None and int8:
            lacking = no_int8(decoder)
            if lacking:
                raise UsageError(f"--int8 cannot be used, because {lacking}: leave it out")
            return TransformerBackend(models, need_attention, int8=True), None
        if reason is None:
            if graphs == "auto" and not need_attention and on_this_gpu(decoder.weights):
                make_graphs = usable_graphs(models, decoder.weights)
                return (decoder if make_graphs is None else TransformerBackend(models, make_graphs=make_graphs)), None
            return decoder, None
        logger.warning("the fast decoder failed its self-check, fairseq's own modules run instead: %s", reason)
    if int8:
        raise UsageError(f"--int8 needs the transformer backend, which cannot run this model, because {reason}: leave it out")
    if backend == "transformer":
        raise UsageError(f"--decoder-backend transformer cannot run this model, because {reason}: use auto or fairseq")
    logger.info("decoder backend: fairseq, because %s", reason)
    return FairseqDecoder(models, need_attention), reason


def usable_graphs(models: list[BaseFairseqModel], weights: list[Weights]) -> MakeGraphs | None:
    """How decoder steps are recorded, if recorded steps agree with fairseq as well; else the log says why not."""
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
    """Whether all weights lie on the present GPU."""
    devices = {each.embedding.device for each in weights}
    return all(device.type == "cuda" for device in devices) and devices == {torch.device("cuda", torch.cuda.current_device())}


def no_int8(decoder: TransformerBackend) -> str | None:
    """Why products cannot be rounded to 8 bits, in words; None when they can."""
    if any(weights.embedding.device.type != "cpu" for weights in decoder.weights):
        return "it is for the CPU"
    if any(weights.embedding.dtype != torch.float32 for weights in decoder.weights):
        return "it starts from float32 weights (without --fp16)"
    if library() is None:
        return "the compiled decoder step is not there (python -m fairseq_ext.kernels says why)"
    return None if has_int8() else "this processor has no 8-bit products (AVX-512 or AVX VNNI)"


@torch.no_grad()
def disagreement(
    model: BaseFairseqModel, weights: Weights, encoder: FastEncoder | None = None, graphs: Graphs | None = None
) -> str | None:
    """Compare three steps, and the encoder, with fairseq's own forward on made-up input; None when they agree.

    Two sentences of which one is padded, two rows each, the rows of a sentence swapped before the last step. graphs: the steps are
    recorded ones; the last one repeats what was recorded for the one before.
    """
    words = (torch.arange(12, device=weights.embedding.device).view(4, 3) * 7 + 5) % weights.embedding.size(0)
    words = words.masked_fill(words == model.decoder.padding_idx, model.decoder.dictionary.eos())
    words[:, 0] = words[::2, 0].repeat_interleave(2)  # both rows of a sentence continue its only row
    state = State.start([remember(weights, made_up_source(weights, 1))])
    swap = torch.tensor([1, 0, 3, 2], device=words.device)
    sentence_of_row = torch.tensor([0, 0, 1, 1], device=words.device)
    read_tokens([weights], state, words[::2, :1], graphs=graphs)
    state.select_(sentence_of_row, None, 2, sentence_of_row)
    read_tokens([weights], state, words[:, 1:2], graphs=graphs)
    state.select_(swap, None, 2, sentence_of_row)
    ours = read_tokens([weights], state, words[:, 2:], graphs=graphs)[0][0]
    read = torch.cat([words[swap, :2], words[:, 2:]], dim=1)
    stock = at_rest(model, lambda: model.decoder.extract_features(read, encoder_out=made_up_source(weights, 2))[0])
    differences = [relative(ours, stock[:, -1])]
    if encoder is not None:
        tokens = (torch.arange(8, device=words.device).view(2, 4) * 5 + 4) % encoder.embedding.size(0)
        tokens = tokens.masked_fill(tokens == encoder.pad, model.decoder.dictionary.eos())
        tokens[1, 0] = encoder.pad
        inputs = {"src_tokens": tokens, "src_lengths": torch.tensor([4, 3], device=words.device)}
        stock = at_rest(model, lambda: model.encoder.forward_torchscript(inputs)["encoder_out"][0])
        is_word = tokens.t() != encoder.pad  # (T, S)
        differences.append(relative(encoder(tokens)["encoder_out"][0][is_word], stock[is_word]))
    if all(difference <= TOLERANCE.get(ours.dtype, 0.0) for difference in differences):
        return None
    return f"its features differ from fairseq's by {max(differences):.1e} of the largest"


def relative(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference, relative to the largest of theirs."""
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1))


def made_up_source(weights: Weights, copies: int) -> dict[str, list[Tensor]]:
    """Encoder output for two sentences of 3 and 2 tokens, each copied; no random numbers, which belong to the user."""
    like, e = weights.embedding, weights.layers[0].cross_source.inputs
    states = torch.arange(3 * 2 * e, device=like.device, dtype=torch.float64).mul(0.7).sin().view(3, 2, -1).to(like)
    padding = torch.tensor([[False, False, False], [True, False, False]], device=like.device)
    return {
        "encoder_out": [states.repeat_interleave(copies, dim=1)],
        "encoder_padding_mask": [padding.repeat_interleave(copies, dim=0)],
    }


def at_rest(model: BaseFairseqModel, forward: Callable[[], Tensor]) -> Tensor:
    """What fairseq's own modules give outside training and without shared source keys; the model is left as it was."""
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
