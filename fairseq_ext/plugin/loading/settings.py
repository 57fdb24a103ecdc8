"""Settings of commands and of checkpoints, settings from keywords, and length limits."""

from __future__ import annotations

import contextlib
import io
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sized
from numbers import Number
from typing import Any, Protocol

import torch
from fairseq import checkpoint_utils, options
from fairseq.data import Dictionary, FairseqDataset
from fairseq.data.iterators import EpochBatchIterator
from fairseq.sequence_generator import SequenceGenerator
from fairseq.utils import split_paths
from omegaconf import DictConfig, OmegaConf

from fairseq_ext.core.errors import SentenceError, UsageError, cut
from fairseq_ext.core.glossary import Languages
from fairseq_ext.plugin.compat import checkpoints
from fairseq_ext.plugin.loading.checkpoint import plain

Flags = dict[str, Any]  # flags by name, without dashes
Keywords = Mapping[str, Any]
StockSettings = DictConfig | Namespace  # settings as fairseq keeps them
Sample = dict[str, Any]  # a batch of fairseq's
HypothesisDict = dict[str, Any]  # a hypothesis as fairseq's commands read it


class Task(Protocol):
    """A task of ours (plugin/tasks.py), as its parts see it."""

    registered: str  # --task
    lacks: frozenset[str]
    datasets: dict[str, Sized]
    dataset_to_epoch_iter: dict
    source_dictionary: Dictionary  # None for speech, which has no source words
    target_dictionary: Dictionary
    trained_on: str | None
    task_state: dict | None
    session: Any  # plugin/run.py
    build_generator: Callable[..., SequenceGenerator]
    inference_step: Callable[..., list]
    build_dataset_for_inference: Callable[..., FairseqDataset]
    get_batch_iterator: Callable[..., EpochBatchIterator]

    max_positions: Callable[[], object]

    def flags(self) -> StockSettings:
        """Return its settings."""


def of_some_tasks(settings: StockSettings, name: str, default: object = None) -> Any:
    """Return a setting that only some of fairseq's tasks and commands have."""
    return getattr(settings, name, default)


def setting(settings: StockSettings, group: str, name: str) -> Any:
    """Return a flag of the command, which fairseq keeps in a group of its configuration; None if
    the settings do not have it.

    settings: a task's. Legacy tasks have all arguments of the command; for others fairseq keeps the
    whole configuration as the parent of the task's own.
    """
    if isinstance(settings, DictConfig):
        whole = settings._get_parent()
        return None if whole is None else OmegaConf.select(whole, f"{group}.{name}")  # type: ignore
    return of_some_tasks(settings, name)


def segments_text(settings: StockSettings) -> bool:
    """Return whether the command names a --bpe or a --tokenizer, which it builds later."""
    if isinstance(settings, DictConfig):
        return any(setting(settings, group, "_name") for group in ("bpe", "tokenizer"))
    return any(of_some_tasks(settings, group) for group in ("bpe", "tokenizer"))


def checkpoint_of(settings: StockSettings) -> str | None:
    """Return the first file of --path; None if a task's settings name no existing one."""
    path = setting(settings, "common_eval", "path")
    first = split_paths(path)[0] if path else ""
    return first if os.path.isfile(first) else None


# ---- The settings that training has saved in a checkpoint: read without its weights if possible


def saved_settings(path: str) -> dict[str, Flags]:
    """Return the settings of the task and the model, {"task": ..., "model": ...}, each with its
    name as "_name".

    Errors: OSError for a file that is not a checkpoint.
    """
    try:
        with checkpoints.safe_globals():
            state = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except FileNotFoundError:
        raise
    except Exception:  # older files cannot be mapped; errors of other files are raised below
        state = checkpoint_utils.load_checkpoint_to_cpu(path)
    if not isinstance(state, Mapping):
        return {"task": {}, "model": {}}
    if state.get("args") is not None:  # fairseq before 0.10: all in one
        flat = plain(state["args"])
        return {
            "task": {**flat, "_name": flat.get("task", "translation")},
            "model": {**flat, "_name": flat.get("arch")},
        }
    groups = plain(state.get("cfg"))
    return {name: plain(groups.get(name)) for name in ("task", "model")}


# ---- Flags as keywords: `beam=5, cpu=True` is `--beam 5 --cpu`


def text_of(name: str, value: object, others: str = "") -> str:
    """Return a keyword that is text or a path, as text; others: other allowed kinds, for the
    message.

    Errors: UsageError for other values, and for text that no command line can have.
    """
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if isinstance(text, str):
        with contextlib.suppress(UnicodeEncodeError):
            if b"\0" not in os.fsencode(text):
                return str(text)
    raise UsageError(f"{name} is {cut(repr(value))}: give text or a path{others}")


def checked(flags: Keywords) -> dict[str, object]:
    """Return keyword flags with plain values: text (paths become text), numbers, True, False, None,
    or lists of text and numbers (raises UsageError for others)."""
    out: dict[str, object] = {}
    for name, value in flags.items():
        values = value if isinstance(value, (list, tuple)) else [value]
        plain = [
            each
            if isinstance(each, Number) or value is None
            else text_of(name, each, ", a number, True or False")
            for each in values
        ]
        out[name] = plain if values is value else plain[0]
    return out


def as_arguments(flags: Keywords) -> list[str]:
    """Return keyword flags as command-line arguments: True sets a switch, False and None leave it
    out, a list repeats values.

    Errors: UsageError for a value of another type.
    """
    out: list[str] = []
    for name, value in checked(flags).items():
        if value is None or value is False:
            continue
        out.append("--" + name.replace("_", "-"))
        if isinstance(value, list):
            out += [str(v) for v in value]
        elif value is not True:
            out.append(str(value))
    return out


def as_keywords(words: list[str]) -> dict[str, object]:
    """Return command-line arguments as keyword flags: ["--beam", "5", "--cpu"] is {"beam": "5",
    "cpu": True}.

    Errors: UsageError for a value without a flag.
    """
    values: dict[str, list[str]] = {}
    name = None
    for word in words:
        if word.startswith("--") and len(word) > 2:
            flag, equals, value = word[2:].partition("=")
            name = flag.replace("-", "_")
            values[name] = [value] if equals else []
        elif name is None:
            raise UsageError(f"'{word}' belongs to no flag: write a flag before its value")
        else:
            values[name].append(word)
    return {
        name: True if not given else given[0] if len(given) == 1 else given
        for name, given in values.items()
    }


def parse(parser: ArgumentParser, argv: list[str]) -> Namespace:
    """Parse as fairseq does; raise UsageError where a command would end."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return options.parse_args_and_arch(parser, argv)
    except SystemExit as error:
        raise UsageError(
            said.getvalue().strip().rpartition("error: ")[2] or "these flags cannot be read"
        ) from error


# ---- How many tokens a sentence may have


class TooLong(SentenceError):
    """A sentence has more tokens than allowed; its halves may have fewer."""


def source_limit(limits: dict | tuple | int | None) -> int | None:
    """Return the maximal number of source tokens, from fairseq's limits for source and target, or
    for each pair of languages; None for no limit."""
    if isinstance(limits, dict):
        return min(
            (limit for limit in map(source_limit, limits.values()) if limit is not None),
            default=None,
        )
    return limits[0] if isinstance(limits, tuple) else limits


def max_tokens_limit(most: int | None) -> int | None:
    """Return --max-tokens as a limit: as in fairseq, 0 and less mean none."""
    return most if most and most > 0 else None


def too_long(
    where: str, tokens: int, model_limit: int | None, batch_limit: int | None
) -> TooLong | None:
    """Return the error of a sentence of this number of tokens; None if it fits.

    where: how messages name it; model_limit, batch_limit: of the model and of --max-tokens
    (None: no limit).
    """
    for most, who in ((model_limit, "the model"), (max_tokens_limit(batch_limit), "--max-tokens")):
        if most is not None and tokens > most:
            return TooLong(
                f"{where} has {tokens} tokens and {who} takes {most}: shorten or split it"
            )
    return None


def languages_of(settings: StockSettings) -> Languages:
    """Return the languages of a task's settings, which an engine changes from request to request;
    None for a task without them."""
    return Languages(*(of_some_tasks(settings, f"{side}_lang") for side in ("source", "target")))
