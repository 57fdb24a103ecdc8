"""Architectures that fairseq registers and no search of this package runs, each with the reason and the way out.

Classes of a user's own are let through: what they are is known to them alone.
"""

from __future__ import annotations

from typing import Any

from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY, FairseqEncoderDecoderModel, FairseqLanguageModel, FairseqMultiModel
from fairseq.models.fconv_self_att import FConvModelSelfAtt
from fairseq.models.nat import FairseqNATModel
from fairseq.models.transformer_from_pretrained_xlm import TransformerFromPretrainedXLMModel
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.multilingual_language_modeling import MultilingualLanguageModelingTask
from fairseq.tasks.multilingual_translation import MultilingualTranslationTask
from fairseq.tasks.speech_to_text import SpeechToTextTask
from fairseq.tasks.translation import TranslationTask

from fairseq_ext.core.errors import UsageError

SPEECH = ("speech_to_text", "speech_to_speech", "text_to_speech", "wav2vec", "hubert")  # folders of fairseq.models


def refused(architecture: str, task: Any) -> str | None:
    """Return why a task of ours cannot generate with an architecture (fairseq's --arch), and the task that can; None when ours can."""
    kind = ARCH_MODEL_REGISTRY.get(architecture) or MODEL_REGISTRY.get(architecture)
    if kind is None or not kind.__module__.startswith("fairseq."):
        return None
    if issubclass(kind, FairseqNATModel):
        return "refines whole sentences and has no next token to search for: use stock's --task translation_lev"
    if kind.__module__.startswith("fairseq.model_parallel."):
        return "is spread over several processes, and the search runs in one: use the stock task"
    speech = kind.__module__.split(".")[2] in SPEECH
    if isinstance(task, SpeechToTextTask):
        if not speech:
            return "reads text, and this task reads speech: use --task translation_ext"
        whole = "labels all frames at once (CTC) and has no next token to search for: use fairseq's examples/speech_recognition"
        return None if issubclass(kind, FairseqEncoderDecoderModel) else whole
    if isinstance(task, (LanguageModelingTask, MultilingualLanguageModelingTask)):
        return None if issubclass(kind, FairseqLanguageModel) else "is not a language model: use --task translation_ext"
    if isinstance(task, MultilingualTranslationTask):
        return None if issubclass(kind, FairseqMultiModel) else "is one model and not one for each pair: use --task translation_ext"
    if not isinstance(task, TranslationTask):
        return None
    if speech:
        return "reads or makes speech, and this task reads text: use --task speech_to_text_ext, or the task that it was trained with"
    if issubclass(kind, FairseqLanguageModel):
        return "is a language model and reads no source sentence: use --task language_modeling_ext"
    if issubclass(kind, FairseqMultiModel):
        return "holds one model for each pair of languages: use --task multilingual_translation_ext"
    if issubclass(kind, TransformerFromPretrainedXLMModel):
        return "reads dictionaries of another kind: use stock's --task translation_from_pretrained_xlm"
    return None if issubclass(kind, FairseqEncoderDecoderModel) else "has no decoder and so generates no text: use an encoder-decoder"


def refuse_architecture(cfg: Any, task: Any) -> None:
    """Raise UsageError where the model of a configuration, fairseq's or a namespace, is one of those above."""
    names = [getattr(cfg, name, None) for name in ("_name", "arch")]
    architecture = next((name for name in names if name), "")
    reason = refused(architecture, task)
    if reason is not None:
        raise UsageError(f"the checkpoint's architecture {architecture} {reason}")


def refuse_other_batches(models: list, flags: Any) -> None:
    """Raise UsageError where flags put sentences into other batches than fairseq does and a model's results depend on its batch."""
    if not any(isinstance(model, FConvModelSelfAtt) for model in models):
        return
    workers = flags.cpu_workers > 1
    if workers or str(flags.schedule or "batch") != "batch":
        flag = "--cpu-workers" if workers else f"--schedule {flags.schedule}"
        raise UsageError(
            f"{flag} forms batches of its own, and fconv_self_att attends to padding, so that its results depend on them: leave {flag} out"
        )
