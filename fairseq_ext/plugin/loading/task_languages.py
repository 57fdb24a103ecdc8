"""What a multilingual task must be told of its languages: what is wrong there ends deep in fairseq, or in text of another language."""

from __future__ import annotations

from argparse import Namespace

from fairseq.tasks import FairseqTask
from fairseq.tasks.multilingual_translation import MultilingualTranslationTask
from fairseq.tasks.translation_from_pretrained_bart import TranslationFromPretrainedBARTTask
from fairseq.tasks.translation_multi_simple_epoch import TranslationMultiSimpleEpochTask
from omegaconf import DictConfig

from fairseq_ext.core.errors import UsageError, cut
from fairseq_ext.plugin.loading.settings import setting

PAIRED = (TranslationMultiSimpleEpochTask, MultilingualTranslationTask)  # tasks that are told the pairs of their training


def check_languages(task: type[FairseqTask], name: str, settings: DictConfig | Namespace) -> None:
    """UsageError where a command that translates names languages that its task cannot have, or none. task: the class; name: its --task;
    settings: its own."""
    if not setting(settings, "common_eval", "path") or not issubclass(task, (*PAIRED, TranslationFromPretrainedBARTTask)):
        return
    known = known_languages(task, name, settings)
    listed = cut(", ".join(known))
    for flag in ("source_lang", "target_lang"):
        given, shown = getattr(settings, flag), "--" + flag.replace("_", "-")
        if not given:
            raise UsageError(f"--task {name} translates from one language to another: add {shown}, one of {listed}")
        if given not in known:
            raise UsageError(f"{shown} {cut(given)} is not a language of the task: use one of {listed}")
    pair = f"{settings.source_lang}-{settings.target_lang}"
    if issubclass(task, MultilingualTranslationTask) and pair not in pairs_of(settings):
        raise UsageError(f"--lang-pairs has no {cut(pair)}, and the checkpoint has a model for each of its pairs alone: use one of those")


def known_languages(task: type[FairseqTask], name: str, settings: DictConfig | Namespace) -> list[str]:
    """The languages of a task, in the order of its flags (raises UsageError where they do not tell)."""
    langs = getattr(settings, "langs", None)
    if not issubclass(task, PAIRED):
        if not langs:
            raise UsageError(f"--task {name} needs --langs: the languages of the pretraining, in its order, joined by commas")
        return langs.split(",")
    if not settings.lang_pairs:
        raise UsageError(f"--task {name} needs --lang-pairs: those of the training, such as de-en,en-de")
    lang_dict = getattr(settings, "lang_dict", None)
    if langs and lang_dict:
        raise UsageError("--langs and --lang-dict name the languages twice: leave one of the two out")
    if lang_dict:
        with open(lang_dict, encoding="utf-8") as lines:
            return [line.strip() for line in lines if line.strip()]
    return list(langs or dict.fromkeys(language for pair in pairs_of(settings) for language in pair.split("-")))


def pairs_of(settings: DictConfig | Namespace) -> list[str]:
    """What --lang-pairs names."""
    pairs = settings.lang_pairs
    return [pair.strip() for pair in (pairs.split(",") if isinstance(pairs, str) else pairs)]
