"""The source and the target language, also of multilingual tasks.

They come from the flags, the data directory's files, or the checkpoint's own settings.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from fairseq.data.data_utils import infer_language_pair
from fairseq.tasks import FairseqTask
from fairseq.tasks.multilingual_translation import MultilingualTranslationTask
from fairseq.tasks.translation_from_pretrained_bart import TranslationFromPretrainedBARTTask
from fairseq.tasks.translation_multi_simple_epoch import TranslationMultiSimpleEpochTask
from fairseq.utils import split_paths

from fairseq_ext.core.errors import UsageError, cut
from fairseq_ext.plugin.loading.settings import (
    StockSettings,
    of_some_tasks,
    saved_settings,
    setting,
)

DICTIONARY = re.compile(r"dict\.(.+)\.txt")


def languages_in(folder: str) -> list[str]:
    """Return the languages of the dictionaries (dict.XX.txt) in a folder."""
    return sorted(found[1] for name in os.listdir(folder) if (found := DICTIONARY.fullmatch(name)))


def language_pair(
    data: str, checkpoint: str | None, source: str | None, target: str | None
) -> tuple[str, str]:
    """Return the source and the target language; source, target: as the flags name them.

    data: fairseq's data directory, or several joined by colons. checkpoint: a file. A language
    without a flag is taken from the names of binarised files, as in fairseq, else from the
    dictionaries; the checkpoint's settings say which of two languages is the source.
    Errors: UsageError, which lists the choices, if there are several.
    """
    folder = split_paths(data)[0]
    given = [name for name in (source, target) if name]
    if len(given) == 2:
        return source, target  # type: ignore[return-value]
    pair, known = tuple(infer_language_pair(folder)), languages_in(folder)
    # fairseq reports a missing dictionary
    if set(given) <= set(pair) and set(pair) & set(known):
        return orient_pair(pair, source, target)
    if not known:
        raise UsageError(
            f"{folder} has no dictionary of a language (dict.XX.txt): name the folder with "
            "those of the model"
        )
    saved = saved_pair(checkpoint)
    if (
        saved is not None
        and source in (None, saved[0])
        and target != dictionary_language(folder, checkpoint, target)
    ):
        return saved[0], str(target)
    if (
        saved is not None
        and set(saved) <= set(known)
        and (source or saved[0], target or saved[1]) == saved
    ):
        return saved
    if len(known) == 2 and given and given[0] in known:
        return orient_pair(tuple(known), source, target)
    raise UsageError(languages_missing_message(folder, known, (source, target), saved))


def dictionary_language(data: str | None, checkpoint: str | None, target: str | None) -> str | None:
    """Return the target language that names the folder's dictionary, if `target` is a tag of the
    source dictionary, such as >>fra<< of OPUS-MT's models.

    Errors: UsageError, which lists the choices, for a language that such a model does not have.
    """
    folder = split_paths(data or "")[0]
    saved = (
        None
        if not data or os.path.exists(os.path.join(folder, f"dict.{target}.txt"))
        else saved_pair(checkpoint)
    )
    if (
        target is None
        or saved is None
        or not os.path.exists(path := os.path.join(folder, f"dict.{saved[0]}.txt"))
    ):
        return target
    with open(path, encoding="utf-8") as lines:
        words = [found[1] for line in lines if (found := re.match(r">>(\S+)<< ", line))]
    if words and target not in words:
        raise UsageError(
            f"{folder} has no target language {cut(target)}: use one of {cut(', '.join(words))}"
        )
    return saved[1] if words else target


def orient_pair(pair: tuple, source: str | None, target: str | None) -> tuple[str, str]:
    """Return the pair, in the other order if a flag requires it."""
    turned = (source is not None and source != pair[0]) or (
        target is not None and target != pair[1]
    )
    return (pair[1], pair[0]) if turned else (pair[0], pair[1])


def saved_pair(checkpoint: str | None) -> tuple[str, str] | None:
    """Return the languages that a checkpoint was trained for; None if it does not name two."""
    if checkpoint is None or not os.path.isfile(checkpoint):
        return None
    task = saved_settings(checkpoint)["task"]
    source, target = task.get("source_lang"), task.get("target_lang")
    return (source, target) if source and target else None


def languages_missing_message(
    folder: str, known: list[str], named: Sequence[str | None], saved: tuple[str, str] | None
) -> str:
    """Return the message that requests the languages; named: source and target by the flags."""
    flags = ("--source-lang", "--target-lang")
    missing = " and ".join(flag for flag, given in zip(flags, named, strict=True) if not given)
    trained = f", and the checkpoint was trained from {saved[0]} to {saved[1]}" if saved else ""
    if len(known) == 1:
        there, more = f"a dictionary of {known[0]} alone", "or name the folder that has both"
    else:
        listed = ", ".join(known)
        there, more = f"dictionaries of {listed}", f"each one of {listed}"
    return f"{folder} has {there}{trained}: add {missing}, {more}"


def name_languages_(settings: StockSettings, checkpoint: str | None) -> None:
    """Write the languages into a task's settings if its command names none (raises UsageError)."""
    if settings.data and (settings.source_lang is None or settings.target_lang is None):
        pair = language_pair(settings.data, checkpoint, settings.source_lang, settings.target_lang)
        settings.source_lang, settings.target_lang = pair


# ---- The languages of a multilingual task
#
# Without these checks, a wrong language ends deep in fairseq, or in text of another language.


# tasks with the language pairs of their training
PAIRED = (TranslationMultiSimpleEpochTask, MultilingualTranslationTask)


def check_languages(task: type[FairseqTask], name: str, settings: StockSettings) -> None:
    """Raise UsageError if a command that translates names no languages, or ones that its task
    cannot have. task: the class; name: its --task; settings: its own."""
    if not setting(settings, "common_eval", "path") or not issubclass(
        task, (*PAIRED, TranslationFromPretrainedBARTTask)
    ):
        return
    known = known_languages(task, name, settings)
    listed = cut(", ".join(known))
    for flag in ("source_lang", "target_lang"):
        given, shown = getattr(settings, flag), "--" + flag.replace("_", "-")
        if not given:
            raise UsageError(
                f"--task {name} translates from one language to another: add {shown}, "
                f"one of {listed}"
            )
        if given not in known:
            raise UsageError(
                f"{shown} {cut(given)} is not a language of the task: use one of {listed}"
            )
    pair = f"{settings.source_lang}-{settings.target_lang}"
    if issubclass(task, MultilingualTranslationTask) and pair not in pairs_of(settings):
        raise UsageError(
            f"--lang-pairs has no {cut(pair)}, and the checkpoint has a model for each of its "
            "pairs alone: use one of those"
        )


def known_languages(task: type[FairseqTask], name: str, settings: StockSettings) -> list[str]:
    """Return the languages of a task, in the order of its flags (raises UsageError if they do not
    name them)."""
    langs = of_some_tasks(settings, "langs")
    if not issubclass(task, PAIRED):
        if not langs:
            raise UsageError(
                f"--task {name} needs --langs: the languages of the pretraining, in its order, "
                "joined by commas"
            )
        return langs.split(",")
    if not settings.lang_pairs:
        raise UsageError(
            f"--task {name} needs --lang-pairs: those of the training, such as de-en,en-de"
        )
    lang_dict = of_some_tasks(settings, "lang_dict")
    if langs and lang_dict:
        raise UsageError(
            "--langs and --lang-dict name the languages twice: leave one of the two out"
        )
    if lang_dict:
        with open(lang_dict, encoding="utf-8") as lines:
            return [line.strip() for line in lines if line.strip()]
    return list(
        langs
        or dict.fromkeys(language for pair in pairs_of(settings) for language in pair.split("-"))
    )


def pairs_of(settings: StockSettings) -> list[str]:
    """Return the pairs of --lang-pairs."""
    pairs = settings.lang_pairs
    return [pair.strip() for pair in (pairs.split(",") if isinstance(pairs, str) else pairs)]
