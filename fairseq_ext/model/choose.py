"""Chooses the decoder backend of a model, refuses unsupported architectures, checks itself.

The transformer backend runs the models that it supports if its results agree with fairseq's;
fairseq's own modules run all other models.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from fairseq.models import (
    ARCH_MODEL_REGISTRY,
    MODEL_REGISTRY,
    FairseqEncoderDecoderModel,
    FairseqLanguageModel,
    FairseqMultiModel,
)
from fairseq.models.fairseq_model import BaseFairseqModel
from fairseq.models.fconv_self_att import FConvModelSelfAtt
from fairseq.models.nat import FairseqNATModel
from fairseq.models.transformer_from_pretrained_xlm import TransformerFromPretrainedXLMModel
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.multilingual_language_modeling import MultilingualLanguageModelingTask
from fairseq.tasks.multilingual_translation import MultilingualTranslationTask
from fairseq.tasks.speech_to_text import SpeechToTextTask
from fairseq.tasks.translation import TranslationTask
from torch import Tensor

from fairseq_ext.core.errors import UsageError
from fairseq_ext.kernels.library import library
from fairseq_ext.model.stock import FairseqBackend
from fairseq_ext.model.transformer.cache import KeyValues, KVCache
from fairseq_ext.model.transformer.cuda_graph import CudaGraphCache, MakeGraphs, cuda_graphs
from fairseq_ext.model.transformer.decoder import TransformerBackend, read_tokens
from fairseq_ext.model.transformer.encoder import FastEncoder
from fairseq_ext.model.transformer.rows import RowGroup
from fairseq_ext.model.transformer.supported import first, unsupported
from fairseq_ext.model.transformer.weights import Weights

logger = logging.getLogger("fairseq_ext")


def make_decoder(
    models: list[BaseFairseqModel],
    need_attention: bool = False,
    backend: str = "auto",
    int8: bool = False,
    graphs: str = "auto",
) -> tuple[TransformerBackend | FairseqBackend, str | None]:
    """Return the decoder that --decoder-backend names, and the reason if `auto` chose fairseq's
    modules (else None).

    int8: --int8; the self-check uses full weights. graphs: --cuda-graphs.
    Errors: UsageError if `transformer` or int8 is required and the models are not supported.
    """
    if backend == "fairseq":
        return FairseqBackend(models, need_attention), None
    reason = first(map(unsupported, models))
    if reason is None:
        decoder = TransformerBackend(models, need_attention)
        checks = zip(models, decoder.weights, decoder.encoders, strict=True)
        reason = first(itertools.starmap(backend_difference, checks))
        if reason is None and int8:
            if lacking := int8_unsupported_reason(decoder):
                raise UsageError(f"--int8 cannot be used, because {lacking}: leave it out")
            del checks, decoder  # frees memory before the weights are packed again
            return TransformerBackend(models, need_attention, int8=True), None
        if reason is None:
            if graphs == "auto" and not need_attention and are_on_current_gpu(decoder.weights):
                if make := checked_cuda_graphs(models, decoder.weights):
                    decoder = TransformerBackend(models, make_graphs=make)
            return decoder, None
        logger.warning(
            "the transformer backend failed its self-check, fairseq's own modules run instead: %s",
            reason,
        )
    if int8 or backend == "transformer":
        what, way = (
            ("--int8 needs the transformer backend, which", "leave it out")
            if int8
            else ("--decoder-backend transformer", "use auto or fairseq")
        )
        raise UsageError(f"{what} cannot run this model, because {reason}: {way}")
    logger.info("decoder backend: fairseq, because %s", reason)
    return FairseqBackend(models, need_attention), reason


def checked_cuda_graphs(
    models: list[BaseFairseqModel], weights: list[Weights]
) -> MakeGraphs | None:
    """Return a maker of recorded decoder steps, if recorded steps agree with fairseq too; else log
    the reason and return None."""
    try:
        make = cuda_graphs()
    except RuntimeError as error:
        logger.warning(
            "decoder steps run operation by operation, because CUDA graphs do not work here: %s",
            error,
        )
        return None
    for model, each in zip(models, weights, strict=True):
        graphs = make([each], patience=0)
        reason = backend_difference(model, each, graphs=graphs)
        if reason or graphs.broken:
            logger.warning(
                "decoder steps run operation by operation, not as CUDA graphs: %s",
                reason or "recording one failed",
            )
            return None
    return make


def are_on_current_gpu(weights: list[Weights]) -> bool:
    """Return whether all weights are on the current GPU."""
    devices = {each.embedding.device for each in weights}
    return all(device.type == "cuda" for device in devices) and devices == {
        torch.device("cuda", torch.cuda.current_device())
    }


def int8_unsupported_reason(decoder: TransformerBackend) -> str | None:
    """Return the reason why linear maps cannot be rounded to 8 bits; None if they can."""
    if any(weights.embedding.device.type != "cpu" for weights in decoder.weights):
        return "it is for the CPU"
    if any(weights.embedding.dtype != torch.float32 for weights in decoder.weights):
        return "it starts from float32 weights (without --fp16)"
    return (
        None
        if library()
        else "the compiled decoder step is not there (python -m fairseq_ext.kernels says why)"
    )


# ---- Architectures that no search of this package runs
#
# fairseq registers them. Each one is refused with the reason and a remedy.
#
# Classes that a user has written are allowed: their properties are not known here.


# folders of fairseq.models
SPEECH = ("speech_to_text", "speech_to_speech", "text_to_speech", "wav2vec", "hubert")
# task, kind of model, whether the task runs no other kind (else: any but it), and what is said of
# those that it cannot run
KINDS = (
    (
        object,
        FairseqNATModel,
        False,
        "refines whole sentences and has no next token to search for: use stock's "
        "--task translation_lev",
    ),
    (
        TranslationTask,
        FairseqLanguageModel,
        False,
        "is a language model and reads no source sentence: use --task language_modeling_ext",
    ),
    (
        TranslationTask,
        FairseqMultiModel,
        False,
        "holds one model for each pair of languages: use --task multilingual_translation_ext",
    ),
    (
        TranslationTask,
        TransformerFromPretrainedXLMModel,
        False,
        "reads dictionaries of another kind: use stock's --task translation_from_pretrained_xlm",
    ),
    (
        SpeechToTextTask,
        FairseqEncoderDecoderModel,
        True,
        "labels all frames at once (CTC) and has no next token to search for: use fairseq's "
        "examples/speech_recognition",
    ),
    (
        (LanguageModelingTask, MultilingualLanguageModelingTask),
        FairseqLanguageModel,
        True,
        "is not a language model: use --task translation_ext",
    ),
    (
        MultilingualTranslationTask,
        FairseqMultiModel,
        True,
        "is one model and not one for each pair: use --task translation_ext",
    ),
    (
        TranslationTask,
        FairseqEncoderDecoderModel,
        True,
        "has no decoder and so generates no text: use an encoder-decoder",
    ),
)


def refusal_reason(architecture: str, task: Any) -> str | None:
    """Return why a task of ours cannot generate with an architecture (fairseq's --arch), and which
    task can; None if ours can."""
    kind = ARCH_MODEL_REGISTRY.get(architecture) or MODEL_REGISTRY.get(architecture)
    if kind is None or not kind.__module__.startswith("fairseq."):
        return None
    if kind.__module__.startswith("fairseq.model_parallel."):
        return "is spread over several processes, and the search runs in one: use the stock task"
    speech = kind.__module__.split(".")[2] in SPEECH
    if isinstance(task, SpeechToTextTask) and not speech:
        return "reads text, and this task reads speech: use --task translation_ext"
    if isinstance(task, TranslationTask) and speech:
        return (
            "reads or makes speech, and this task reads text: use --task speech_to_text_ext, or "
            "the task that it was trained with"
        )
    return first(
        why
        for tasks, kinds, is_only, why in KINDS
        if isinstance(task, tasks) and issubclass(kind, kinds) is not is_only
    )


def refuse_architecture(architecture: str, task: Any) -> None:
    """Raise UsageError if a checkpoint's architecture is one of those above."""
    reason = refusal_reason(architecture, task)
    if reason is not None:
        raise UsageError(f"the checkpoint's architecture {architecture} {reason}")


def refuse_other_batches(models: list, flags: Any) -> None:
    """Raise UsageError if flags form other batches than fairseq's and a model's results depend on
    its batch."""
    if not any(isinstance(model, FConvModelSelfAtt) for model in models):
        return
    workers = flags.cpu_workers > 1
    if workers or str(flags.schedule or "batch") != "batch":
        flag = "--cpu-workers" if workers else f"--schedule {flags.schedule}"
        raise UsageError(
            f"{flag} forms batches of its own, and fconv_self_att attends to padding, so its "
            f"results depend on the batch: leave {flag} out"
        )


# ---- The self-check of the transformer backend
#
# A few steps and the encoder are compared with fairseq's own modules at start-up.
#
# A model whose modules compute something else than our layers is detected here and runs on
# fairseq's modules. The result is not stored between runs: for 10 million weights the check takes
# 17 ms of a start of 2 s, and the digest of the weights that storing would need takes 24 ms
# (SHA-256; both grow with the model).


# largest difference in features between the backends, relative to the largest feature
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}


@torch.no_grad()
def backend_difference(
    model: BaseFairseqModel,
    weights: Weights,
    encoder: FastEncoder | None = None,
    graphs: CudaGraphCache | None = None,
) -> str | None:
    """Compare three steps, and the encoder if given, with fairseq's forward pass on made-up input.

    Return the difference as a text; None if they agree. The input is two sentences, one of them
    padded, with two rows each. The rows of a sentence are swapped before the last step. graphs:
    use recorded steps; the last step repeats a recording.
    """
    with as_evaluated(model):
        differences = [difference_of_steps(model, weights, graphs)]
        if encoder is not None:
            differences.append(difference_of_encoder(model, encoder))
    if all(difference <= TOLERANCE.get(weights.embedding.dtype, 0.0) for difference in differences):
        return None
    return f"its features differ from fairseq's by {max(differences):.1e} of the largest"


def difference_of_steps(
    model: BaseFairseqModel, weights: Weights, graphs: CudaGraphCache | None
) -> float:
    """Return the difference of the third step's features, relative to the largest feature."""
    tokens = made_up_tokens(model, weights.embedding, 4, 3)
    # both rows of a sentence continue its only row
    tokens[:, 0] = tokens[::2, 0].repeat_interleave(2)
    cache = KeyValues.from_encoder_output(weights, made_up_source(weights, 1))
    group = RowGroup(KVCache([cache], 2), 2)
    of_row, swap = torch.tensor([[0, 0, 1, 1], [1, 0, 3, 2]], device=tokens.device)
    read_tokens([weights], group, tokens[::2, :1], graphs=graphs)
    group.select_(of_row, None, 2, of_row)
    read_tokens([weights], group, tokens[:, 1:2], graphs=graphs)
    group.select_(swap, None, 2, of_row)
    ours = read_tokens([weights], group, tokens[:, 2:], graphs=graphs)[0][0]
    history = torch.cat([tokens[swap, :2], tokens[:, 2:]], dim=1)
    theirs = model.decoder.extract_features(history, encoder_out=made_up_source(weights, 2))[0]
    return relative(ours, theirs[:, -1])


def difference_of_encoder(model: BaseFairseqModel, encoder: FastEncoder) -> float:
    """Return the difference of the encoder's output outside padding, relative to its largest
    value."""
    tokens = made_up_tokens(model, encoder.embedding, 2, 4)
    tokens[1, 0] = encoder.pad
    ours = encoder(tokens)["encoder_out"][0]  # (T, S, e)
    # subtle: fairseq reads each sentence alone. The result equals that of a padded batch, for which
    # torch would import sympy and take half a second
    theirs = []
    for row in (tokens[:1], tokens[1:, 1:]):
        inputs = {"src_tokens": row, "src_lengths": row.new_tensor([row.numel()])}
        theirs.append(model.encoder.forward_torchscript(inputs)["encoder_out"][0][:, 0])
    return relative(torch.cat([ours[:, 0], ours[1:, 1]]), torch.cat(theirs))


def relative(ours: Tensor, theirs: Tensor) -> float:
    """Return the largest difference, relative to the largest value of `theirs`."""
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1))


# subtle: no random numbers are drawn, so that the user's generator does not change


def made_up_tokens(model: BaseFairseqModel, embedding: Tensor, rows: int, length: int) -> Tensor:
    """Return tokens (rows, length) without padding."""
    tokens = torch.arange(rows * length, device=embedding.device).view(rows, length) * 7 + 5
    tokens %= embedding.size(0)
    return tokens.masked_fill(tokens == model.decoder.padding_idx, model.decoder.dictionary.eos())


def made_up_source(weights: Weights, copies: int) -> dict[str, list[Tensor]]:
    """Return encoder output for two sentences of 3 and 2 tokens, `copies` times each."""
    like, e = weights.embedding, weights.layers[0].cross_source.inputs
    states = torch.arange(6 * e, device=like.device, dtype=torch.float64).mul(0.7).sin()
    padding = torch.tensor([[False, False, False], [True, False, False]], device=like.device)
    return {
        "encoder_out": [states.view(3, 2, e).to(like).repeat_interleave(copies, dim=1)],
        "encoder_padding_mask": [padding.repeat_interleave(copies, dim=0)],
    }


@contextlib.contextmanager
def as_evaluated(model: BaseFairseqModel) -> Iterator[None]:
    """Put a model into evaluation mode and without shared source keys; its state is restored."""
    modes = {m: m.training for m in model.modules()}
    shared = {m: m.beam_size for m in modes if hasattr(m, "beam_size")}
    model.eval()
    for module in shared:
        module.beam_size = 1
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
        for module, size in shared.items():
            module.beam_size = size


@torch.no_grad()
def check_finite(models: Iterable[torch.nn.Module]) -> None:
    """Raise UsageError for weights that are not numbers.

    subtle: a key's bias cancels out of attention, so some decoders would not show the error. A sum
    takes one pass and no memory, and is not finite if a weight is not.
    """
    for model in models:
        for name, weight in model.named_parameters():
            if (
                weight.is_floating_point()
                and not weight.sum(dtype=torch.float32).isfinite()
                and not weight.isfinite().all()
            ):
                raise UsageError(
                    f"the model's weight {name} holds NaN or infinity: the checkpoint is damaged, "
                    "its training diverged, or its weights are too large for --fp16; use another "
                    "checkpoint, or leave --fp16 out"
                )
