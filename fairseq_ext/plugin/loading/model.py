"""A model folder, and the model with its task, tokenizer and segmentation (`LoadedModel`)."""

from __future__ import annotations

import ast
import importlib.util
import logging
import os
from argparse import ArgumentParser, Namespace
from functools import cached_property
from pathlib import Path

import torch
from fairseq import checkpoint_utils, options, tasks, utils
from fairseq.data import Dictionary
from fairseq.data.encoders.sentencepiece_bpe import SentencepieceBPE
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks import TASK_REGISTRY
from omegaconf import DictConfig
from torch import Tensor

from fairseq_ext.core.errors import LONE_SURROGATE, SentenceError, UsageError, cut
from fairseq_ext.plugin.loading.data_folder import segmentation_flags
from fairseq_ext.plugin.loading.languages import language_pair, languages_in
from fairseq_ext.plugin.loading.settings import (
    Flags,
    Keywords,
    as_keywords,
    parse,
    saved_settings,
    source_limit,
    too_long,
)

# ---- A model folder
#
# It holds all of a model: checkpoint, dictionaries, segmentation. Flags name what it lacks.
#
#     checkpoints/demo                checkpoint.pt, dict.de.txt, dict.en.txt, spm.model
#     an archive of fairseq's own     model.pt, or model1.pt to model4.pt; dict.en.txt, dict.de.txt;
#                                     bpecodes or *.code
#     one of many languages           model.pt; dict.txt, of all languages; sentencepiece.bpe.model;
#                                     perhaps a list of the languages


logger = logging.getLogger("fairseq_ext")
# flags that may name a file of the folder
FILES = (
    "sentencepiece_model",
    "bpe_codes",
    "fixed_dictionary",
    "lang_dict",
    "source_dict",
    "target_dict",
)
SHARED = ("fixed_dictionary", "lang_dict")  # those that all languages share
MULTILINGUAL_TASK = "translation_multi_simple_epoch_ext"
# flags of languages in the checkpoints of multilingual tasks
LANGUAGES = {
    MULTILINGUAL_TASK: (
        "langs",
        "lang_pairs",
        "encoder_langtok",
        "decoder_langtok",
        "lang_tok_style",
        "lang_tok_replacing_bos_eos",
        "add_data_source_prefix_tags",
        "lang_tok_behind_eos",
    ),
    "translation_from_pretrained_bart_ext": ("langs", "prepend_bos"),
    "translation_bart_ext": ("free_start",),
    "multilingual_translation_ext": ("lang_pairs", "encoder_langtok", "decoder_langtok"),
    "language_modeling_ext": ("add_bos_token",),
    "multilingual_language_modeling_ext": ("langs", "add_bos_token"),
}
# tasks without source and target
PROMPT_TASKS = ("language_modeling_ext", "multilingual_language_modeling_ext")


def folder_named(folder: str) -> str:
    """Return the folder; for the name "demo", if there is no such folder, that of the demo model:
    the clone's, or the one of the installed wheel fairseq_ext_demo.

    Raises UsageError if there is neither.
    """
    if folder != "demo" or os.path.isdir(folder):
        return folder
    of_clone = Path(__file__).resolve().parents[3] / "checkpoints" / "demo"
    if of_clone.is_dir():
        return str(of_clone)
    wheel = importlib.util.find_spec("fairseq_ext_demo")
    if wheel is None or not wheel.submodule_search_locations:
        raise UsageError(
            "the demo model is not installed: install the wheel fairseq_ext_demo, which "
            "scripts/wheels.sh of a clone makes, or name the folder checkpoints/demo of a clone"
        )
    return str(wheel.submodule_search_locations[0])


def checkpoint_of(folder: str) -> str:
    """Return the checkpoint of a folder (raises UsageError if there is none, or if there are
    several, which it lists)."""
    names = sorted(name for name in os.listdir(folder) if name.endswith(".pt"))
    if not names:
        raise UsageError(f"{folder} has no checkpoint (*.pt): name one by --path")
    if len(names) > 1:
        listed = ", ".join(names[:-1]) + f" and {names[-1]}"
        together = ":".join(os.path.join(folder, name) for name in names)
        one = os.path.join(folder, names[0])
        raise UsageError(
            f"{folder} has the checkpoints {listed}: name one by --path {one}, or all as an "
            f"ensemble by --path {together}"
        )
    return os.path.join(folder, names[0])


def resolve_in_folder(folder: str, path: str) -> str:
    """Return paths joined by colons. A path that exists in the folder, and not in the working
    directory, gets the folder's name in front."""
    return ":".join(
        os.path.join(folder, part)
        if not os.path.exists(part) and os.path.exists(os.path.join(folder, part))
        else part
        for part in path.split(":")
    )


def find_model(folder: str, given: Keywords, any_pair: bool = False) -> Flags:
    """Return the keywords of `Translator`: those given, and others from the folder's files.

    folder: of the model, or "demo" (`folder_named`). given: keywords of `Translator`; path and
    those of FILES may name a file of the folder. Found are path, data, the task that the checkpoint
    was trained for, source_lang and target_lang, bpe with its file, and tokenizer. any_pair: if all
    languages share a dictionary and neither is given, take the first two.
    Errors: UsageError for a folder that does not exist, and where it leaves a choice, which the
    message names.
    """
    folder = folder_named(folder)
    if not os.path.isdir(folder):
        raise UsageError(
            f"{folder} is not a folder: name the one that has the model's checkpoint "
            "and dictionaries"
        )
    flags = {name: value for name, value in given.items() if value is not None}
    flags |= {name: resolve_in_folder(folder, str(flags[name])) for name in FILES if name in flags}
    if "user_dir" in flags:
        # the folder may have the checkpoint's task
        utils.import_user_module(Namespace(user_dir=str(flags["user_dir"])))
    path = (
        resolve_in_folder(folder, str(flags["path"])) if "path" in flags else checkpoint_of(folder)
    )
    first = path.split(":")[0]
    task = saved_settings(first)["task"] if os.path.isfile(first) else {}
    found: Flags = {
        "path": path,
        "data": folder,
        "task": flags.get("task") or task_of(task),
    }
    found |= language_flags(task, found["task"]) | shared_files(folder, task, {**found, **flags})
    if found["task"] not in PROMPT_TASKS and not (
        flags.get("source_lang") and flags.get("target_lang")
    ):
        pair = flags.get("source_lang"), flags.get("target_lang")
        known = listed_languages(found)
        if "fixed_dictionary" not in found:
            pair = language_pair(folder, first, *pair)
        elif any_pair and pair == (None, None) and len(known) > 1:
            pair = known[0], known[1]
        else:
            there = f", each one of {cut(', '.join(known))}" if known else ""
            raise UsageError(
                f"{folder} has one dictionary for all languages: add --source-lang and "
                f"--target-lang{there}"
            )
        flags["source_lang"], flags["target_lang"] = pair
    found |= segmentation_flags(folder, flags, task)
    whole = {**found, **flags, "path": path, "data": folder}
    said = [f"{n}={value}" for n, value in whole.items() if n in found or n.endswith("_lang")]
    logger.info("%s: %s", folder, ", ".join(said))
    return whole


def shared_files(folder: str, settings: Keywords, known: Keywords) -> dict[str, object]:
    """Return the flags of files of the folder that all languages of M2M-100's task share: their
    dictionary, unless there is one for each language, and the list of languages, if the checkpoint
    was trained with one. known: flags that are given or found."""
    if known["task"] != MULTILINGUAL_TASK:
        return {}
    saved = {name: os.path.basename(settings.get(name) or "") for name in SHARED}
    out = {}
    if not languages_in(folder) and not any(
        known.get(name) for name in ("fixed_dictionary", "source_dict", "target_dict")
    ):
        out["fixed_dictionary"] = file_of(folder, saved["fixed_dictionary"], "dict.txt")
    if not known.get("langs") and not known.get("lang_dict"):
        out["lang_dict"] = file_of(folder, saved["lang_dict"])
    return {name: path for name, path in out.items() if path}


def listed_languages(flags: Keywords) -> list[str]:
    """Return the languages that the flags of M2M-100's task name; none if only --lang-pairs names
    them."""
    if path := flags.get("lang_dict"):
        with open(path, encoding="utf-8") as lines:
            return lines.read().split()
    return flags["langs"].split(",") if flags.get("langs") else []


def file_of(folder: str, *names: str) -> str | None:
    """Return the first of these files that the folder has."""
    return next(
        (path for name in names if name and os.path.isfile(path := os.path.join(folder, name))),
        None,
    )


def task_of(settings: Keywords) -> str:
    """Return the task of ours that a checkpoint was trained for; translation_ext if there is
    none."""
    name = f"{settings.get('_name')}_ext"
    return name if name in TASK_REGISTRY else "translation_ext"


def language_flags(settings: Keywords, task: str) -> dict[str, object]:
    """Return the flags of a multilingual task, as in the checkpoint's training."""
    found = {name: settings.get(name) for name in LANGUAGES.get(task, ())}
    return {
        name: ",".join(value) if isinstance(value, list) else value
        for name, value in found.items()
        if value
    }


def add_model(parse: ArgumentParser, needed: bool = True) -> None:
    """Add the flags that name a model to a command. needed: whether it always needs one."""
    add = parse.add_argument
    add(
        "--path",
        help="checkpoint, or several joined by colons (default: the one in --data, with "
        "its segmentation)",
    )
    add(
        "--data",
        required=needed,
        help="folder with the dictionaries" + ("" if needed else " (default: none, with --models)"),
    )
    add(
        "-s",
        "--source-lang",
        help="source language (default: as the dictionaries and the checkpoint say)",
    )
    add("-t", "--target-lang", help="target language (default: the other dictionary's)")


def flags_of(args: Namespace, others: list[str], any_pair: bool = False) -> Flags:
    """Return keywords of `Translator` and `Engine`: for the model that these flags name, and for
    its decoding, by the other flags. any_pair, errors: see `find_model`."""
    flags = as_keywords(others)
    for name in ("source_lang", "target_lang"):
        if vars(args)[name] is not None:
            flags[name] = vars(args)[name]
    if args.path is None:
        return find_model(args.data, flags, any_pair)
    return {"path": args.path, "data": args.data and folder_named(args.data), **flags}


def configuration(arguments: list[str]) -> DictConfig:
    """Return fairseq's configuration of fairseq-interactive with these arguments (raises
    UsageError)."""
    return convert_namespace_to_omegaconf(
        parse(options.get_interactive_generation_parser(), arguments)
    )


class LoadedModel:
    """A checkpoint, or an ensemble, with its conversion of text to tokens and back. cfg: from
    `configuration`.

    Errors: UsageError for a task that reads no text; fairseq's errors for files it cannot read.
    """

    def __init__(self, cfg: DictConfig):
        self.cfg = cfg
        # plain values, since reading fairseq's configuration takes 10 us
        self.max_tokens = cfg.dataset.max_tokens
        self.max_sentences = cfg.dataset.batch_size or (None if self.max_tokens else 64)
        self.cuda = torch.cuda.is_available() and not cfg.common.cpu
        self.task = tasks.setup_task(cfg.task)
        if self.task.source_dictionary is None:
            raise UsageError(
                f"a Translator takes lines of text, and --task {cfg.task._name} reads speech: use "
                "fairseq-generate or fairseq-interactive"
            )
        overrides = ast.literal_eval(cfg.common_eval.model_overrides)
        self.models, _ = checkpoint_utils.load_model_ensemble(
            utils.split_paths(cfg.common_eval.path),
            overrides,
            self.task,
            strict=cfg.checkpoint.checkpoint_shard_count == 1,
            suffix=cfg.checkpoint.checkpoint_suffix,
            num_shards=cfg.checkpoint.checkpoint_shard_count,
        )
        for model in self.models:
            if cfg.common.fp16:
                model.half()
            elif cfg.common.bf16:  # fairseq's commands ignore it
                model.bfloat16()
            if self.cuda:
                model.cuda()
            model.prepare_for_inference_(cfg)
        self.tokenizer = self.task.build_tokenizer(cfg.tokenizer)
        self.bpe = self.task.build_bpe(cfg.bpe)
        self.max_positions = utils.resolve_max_positions(
            self.task.max_positions(), *[m.max_positions() for m in self.models]
        )

    def encode(self, line: str) -> Tensor:
        """Return source tokens of a line of text, EOS included."""
        return self.tokens(line, self.task.source_dictionary, self.bpe)

    def target_tokens(self, line: str) -> Tensor:
        """Return target tokens of a line of text, EOS included."""
        return self.tokens(
            line, self.task.target_dictionary, self.task.session.sentences.segmenter.bpe
        )

    def tokens(self, line: str, dictionary: Dictionary, bpe: object) -> Tensor:
        """Return tokens of a line of text, EOS included; EOS alone for a line of spaces."""
        # like the dictionary's encode_line, which fills a tensor token by token
        return torch.tensor([*map(dictionary.index, self.pieces(line, bpe)), dictionary.eos()])

    def pieces(self, line: str, bpe: SentencepieceBPE | None) -> list[str]:
        """Return subword pieces of a line of text, segmented by `bpe`; none for a line of
        spaces."""
        line = line if line.strip() else ""
        for step in (self.tokenizer, bpe) if line else ():
            line = step.encode(line) if step is not None else line
        return line.split()

    def decode(self, text: str) -> str:
        """Return plain text of subword text."""
        return self.task.session.sentences.segmenter.decode(text)

    def checked(self, line: str, where: str, side: int = 0) -> Tensor:
        """Return source tokens of a line, or target tokens (side 1), EOS included.

        Errors: SentenceError for a line that cannot be translated.
        """
        if not isinstance(line, str):
            raise SentenceError(f"{where} is {cut(repr(line))}: give text")
        if LONE_SURROGATE.search(line):
            raise SentenceError(
                f"{where} is not valid Unicode ({cut(ascii(line))}): read it with "
                "errors='replace', or leave it out"
            )
        encoded = self.target_tokens(line) if side else self.encode(line)
        self.check_length(encoded, where, side)
        return encoded

    def check_length(self, tokens: Tensor, where: str, side: int = 0) -> None:
        """Raise SentenceError for more source tokens (L,), or target tokens (side 1), than the
        model takes."""
        limit = self.max_positions[1] if side else source_limit(self.max_positions)
        if (error := too_long(where, tokens.numel(), limit, self.batch_limit)) is not None:
            raise error

    @cached_property
    def batch_limit(self) -> int | None:
        """Return --max-tokens if a sentence has to fit into a batch."""
        streams = self.task.session.settings.choice("schedule") == "stream"
        return None if streams else self.max_tokens
