"""Chooses the decoder backend of a model, refuses unsupported architectures, checks itself.

The transformer backend runs the models that it supports if its results agree with fairseq's;
fairseq's own modules run all other models.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable

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
from fairseq.tasks import FairseqTask
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
        return FairseqBackend(models), None
    reason = first(map(unsupported, models))
    if reason is None:
        decoder = TransformerBackend(models)
        checks = zip(models, decoder.weights, decoder.encoders, strict=True)
        reason = first(itertools.starmap(backend_difference, checks))
        if reason is not None:
            logger.warning("the transformer backend failed its self-check")
        elif int8:
            if not all(map(may_be_rounded, decoder.weights)):
                raise UsageError(
                    "--int8 cannot be used, because it needs float32 weights on a CPU and the "
                    "compiled decoder step (python -m fairseq_ext.kernels): leave it out"
                )
            del checks, decoder  # frees memory before the weights are packed again
            return TransformerBackend(models, int8=True), None
        else:
            if graphs == "auto" and are_on_current_gpu(decoder.weights):
                if make := checked_cuda_graphs(models, decoder.weights):
                    decoder = TransformerBackend(models, make_graphs=make)
            return decoder, None
    if int8 or backend == "transformer":
        flag = (
            "--int8 needs the transformer backend, which"
            if int8
            else "--decoder-backend transformer"
        )
        raise UsageError(f"{flag} cannot run this model, because {reason}: leave it out")
    logger.info("decoder backend: fairseq, because %s", reason)
    return FairseqBackend(models), reason


def checked_cuda_graphs(
    models: list[BaseFairseqModel], weights: list[Weights]
) -> MakeGraphs | None:
    """Return a maker of recorded decoder steps, if recorded steps agree with fairseq too; else log
    the reason and return None."""
    try:
        make = cuda_graphs()
        for model, each in zip(models, weights, strict=True):
            graphs = make([each], patience=0)
            reason = backend_difference(model, each, graphs=graphs)
            if reason or graphs.broken:
                raise RuntimeError(reason or "recording one failed")
    except RuntimeError as error:
        logger.warning("decoder steps run operation by operation, not as CUDA graphs: %s", error)
        return None
    return make


def are_on_current_gpu(weights: list[Weights]) -> bool:
    """Return whether all weights are on the current GPU."""
    if not torch.cuda.is_initialized():
        return False
    current = torch.device("cuda", torch.cuda.current_device())
    return all(each.embedding.device == current for each in weights)


def may_be_rounded(weights: Weights) -> bool:
    """Return whether linear maps can be rounded to 8 bits."""
    embedding = weights.embedding
    return bool(library() and embedding.device.type == "cpu" and embedding.dtype == torch.float32)


# ---- Architectures that no search of this package runs
#
# fairseq registers them. Each one is refused with a remedy. Classes that a user has written are
# allowed: their properties are not known here.

# kind of model -> the tasks of ours that generate with it, and one of their names
KINDS: dict[type, tuple[type | tuple[type, ...], str]] = {
    FairseqLanguageModel: (
        (LanguageModelingTask, MultilingualLanguageModelingTask),
        "language_modeling_ext",
    ),
    FairseqMultiModel: (MultilingualTranslationTask, "multilingual_translation_ext"),
    FairseqEncoderDecoderModel: (TranslationTask, "translation_ext"),
}
TASKS = (SpeechToTextTask, *(tasks for tasks, _ in KINDS.values()))
# kinds and folders of models that write no text token by token, run in several processes, or read
# dictionaries of another kind
STOCK_ONLY = (FairseqNATModel, TransformerFromPretrainedXLMModel)
STOCK_FOLDERS = {"model_parallel", "speech_to_speech", "text_to_speech"}


def refusal_reason(architecture: str, task: FairseqTask) -> str | None:
    """Return why a task of ours cannot generate with an architecture (fairseq's --arch), and which
    task can; None if ours can."""
    kind = ARCH_MODEL_REGISTRY.get(architecture) or MODEL_REGISTRY.get(architecture)
    if kind is None or not kind.__module__.startswith("fairseq."):
        return None
    folders = kind.__module__.split(".")
    base = next((base for base in KINDS if issubclass(kind, base)), None)
    if base is None or issubclass(kind, STOCK_ONLY) or not STOCK_FOLDERS.isdisjoint(folders):
        return "is for other tasks than ours: use the stock task that it was trained with"
    tasks, name = KINDS[base]
    if "speech_to_text" in folders or "wav2vec" in folders:
        tasks, name = SpeechToTextTask, "speech_to_text_ext"
    if isinstance(task, tasks) or not isinstance(task, TASKS):
        return None
    return f"does not run with this task: use --task {name}"


def refuse_other_batches(models: list, schedule: str, cpu_workers: int) -> None:
    """Raise UsageError if flags form other batches than fairseq's and a model's results depend on
    its batch."""
    if not any(isinstance(model, FConvModelSelfAtt) for model in models):
        return
    flag = f"--schedule {schedule}"
    if cpu_workers > 1:
        flag = "--cpu-workers"
    if flag != "--schedule batch":
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

    Return the difference as a text; None if they agree. The model is in evaluation mode. The input
    is two sentences, one of them padded, with two rows each: with more rows than sentences,
    fairseq's modules do not read `beam_size`, which a stock generator may have set. graphs: use
    recorded steps; the last step repeats a recording.
    """
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
    like, e = weights.embedding, weights.layers[0].cross_source.inputs
    states = torch.arange(6 * e, device=like.device).float().mul(0.7).sin()
    padding = torch.arange(6, device=like.device).view(2, 3) == 3  # the first of the second
    source = {"encoder_out": [states.view(3, 2, e).to(like)], "encoder_padding_mask": [padding]}
    cache = KVCache([KeyValues.from_encoder_output(weights, source)], 2)
    group = RowGroup(cache, 4, width=2)
    tokens = made_up_tokens(like, model.decoder.padding_idx, 4, 3)
    for token in tokens.split(1, dim=1):
        [ours] = read_tokens([weights], group, token, graphs)
    theirs = model.decoder.extract_features(tokens, encoder_out=source)[0]
    return relative(ours, theirs[:, -1])


def difference_of_encoder(model: BaseFairseqModel, encoder: FastEncoder) -> float:
    """Return the difference of the encoder's output outside padding, relative to its largest
    value."""
    tokens = made_up_tokens(encoder.embedding, encoder.pad, 2, 4)
    tokens[1, 0] = encoder.pad
    ours = encoder(tokens)["encoder_out"][0]  # (T, S, e)
    # subtle: fairseq reads each sentence alone. The result equals that of a padded batch, for which
    # torch would import sympy and take half a second
    theirs = [model.encoder(row)["encoder_out"][0][:, 0] for row in (tokens[:1], tokens[1:, 1:])]
    return relative(torch.cat([ours[:, 0], ours[1:, 1]]), torch.cat(theirs))


def relative(ours: Tensor, theirs: Tensor) -> float:
    """Return the largest difference, relative to the largest value of `theirs`."""
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1))


def made_up_tokens(embedding: Tensor, pad: int, rows: int, length: int) -> Tensor:
    """Return tokens (rows, length) without padding, and without drawing random numbers."""
    words = embedding.size(0)
    steps = torch.arange(rows * length, device=embedding.device).view(rows, length) * 7
    return (pad + 1 + steps % (words - 1)) % words


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
