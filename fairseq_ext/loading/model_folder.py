"""A folder that holds all of a model: checkpoint, dictionaries, segmentation. What it does not tell is asked for.

    checkpoints/demo                checkpoint.pt, dict.de.txt, dict.en.txt, spm.model
    an archive of fairseq's own     model.pt, or model1.pt to model4.pt; dict.en.txt, dict.de.txt; bpecodes
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from fairseq.tasks import TASK_REGISTRY

from fairseq_ext.errors import UsageError
from fairseq_ext.loading.languages import language_pair
from fairseq_ext.loading.saved_settings import saved_settings
from fairseq_ext.loading.segmentation import segmentation_flags

logger = logging.getLogger("fairseq_ext")
FILES = ("sentencepiece_model", "bpe_codes")  # flags that may name a file of the folder
# what else the checkpoints of multilingual tasks know of their languages
LANGUAGES = {
    "translation_multi_simple_epoch_ext": (
        "langs", "lang_pairs", "encoder_langtok", "decoder_langtok", "lang_tok_style", "lang_tok_replacing_bos_eos",
    ),
    "translation_from_pretrained_bart_ext": ("langs", "prepend_bos"),
}  # fmt: skip


def checkpoint_of(folder: str) -> str:
    """The checkpoint of a folder (raises UsageError, naming the choices, where there are several, and where there is none)."""
    names = sorted(name for name in os.listdir(folder) if name.endswith(".pt"))
    if not names:
        raise UsageError(f"{folder} has no checkpoint (*.pt): name one by --path")
    if len(names) > 1:
        listed = ", ".join(names[:-1]) + f" and {names[-1]}"
        together = ":".join(os.path.join(folder, name) for name in names)
        one = os.path.join(folder, names[0])
        raise UsageError(f"{folder} has the checkpoints {listed}: name one by --path {one}, or all as an ensemble by --path {together}")
    return os.path.join(folder, names[0])


def within(folder: str, path: str) -> str:
    """Paths joined by colons; those that there are in the folder, and not from here, are the folder's."""
    return ":".join(
        os.path.join(folder, part) if not os.path.exists(part) and os.path.exists(os.path.join(folder, part)) else part
        for part in path.split(":")
    )


def find_model(folder: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of `Translator`: those given, and what the folder tells of the others.

    given: keywords of `Translator`; path, sentencepiece_model and bpe_codes may name a file of the folder. Found are path, data, the
    task that the checkpoint was trained for, source_lang and target_lang, bpe with its file, and tokenizer.
    Errors: UsageError for a folder that is not there, and where it leaves a choice, which the sentence names.
    """
    if not os.path.isdir(folder):
        raise UsageError(f"{folder} is no folder: name the one that has the model's checkpoint and dictionaries")
    flags = {name: value for name, value in given.items() if value is not None}
    flags |= {name: within(folder, str(flags[name])) for name in FILES if name in flags}
    path = within(folder, str(flags["path"])) if "path" in flags else checkpoint_of(folder)
    first = path.split(":")[0]
    task = saved_settings(first)["task"] if os.path.isfile(first) else {}
    found: dict[str, Any] = {"path": path, "data": folder, "task": flags.get("task") or task_of(task)}
    found |= of_languages(task, found["task"])
    if not (flags.get("source_lang") and flags.get("target_lang")):
        pair = language_pair(folder, first, flags.get("source_lang"), flags.get("target_lang"))
        flags["source_lang"], flags["target_lang"] = pair
    found |= segmentation_flags(folder, flags)
    whole = {**found, **flags, "path": path, "data": folder}
    said = [f"{name}={value}" for name, value in whole.items() if name in found or name.endswith("_lang")]
    logger.info("%s: %s", folder, ", ".join(said))
    return whole


def task_of(settings: dict[str, Any]) -> str:
    """The task of ours that a checkpoint was trained for; translation_ext where there is none."""
    name = f"{settings.get('_name')}_ext"
    return name if name in TASK_REGISTRY else "translation_ext"


def of_languages(settings: dict[str, Any], task: str) -> dict[str, Any]:
    """The flags of a multilingual task, as the checkpoint was trained with them."""
    found = {name: settings.get(name) for name in LANGUAGES.get(task, ())}
    return {name: ",".join(value) if isinstance(value, list) else value for name, value in found.items() if value}
