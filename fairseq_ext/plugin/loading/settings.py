"""What the settings that a task is set up with tell of the command: where the model lies, how long a source it takes, whether bars show."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from typing import Any

from fairseq.utils import resolve_max_positions, split_paths
from omegaconf import DictConfig, OmegaConf

from fairseq_ext.plugin.loading.lengths import source_limit


def setting(settings: DictConfig | Namespace, group: str, name: str) -> Any:
    """A flag of the command, which fairseq keeps in a group of its configuration; None where the settings do not have it.

    settings: a task's. Legacy tasks have all arguments of the command; for others fairseq keeps the whole configuration as the parent of
    the task's own.
    """
    if isinstance(settings, DictConfig):
        whole = settings._get_parent()
        return None if whole is None else OmegaConf.select(whole, f"{group}.{name}")  # type: ignore[arg-type]
    return getattr(settings, name, None)  # a Namespace of fairseq's holds what its command was given


def segments_text(settings: DictConfig | Namespace) -> bool:
    """Whether the command names a --bpe or a --tokenizer, which it builds later."""
    if isinstance(settings, DictConfig):
        return any(setting(settings, group, "_name") for group in ("bpe", "tokenizer"))
    return any(getattr(settings, group, None) for group in ("bpe", "tokenizer"))


def checkpoint_of(settings: DictConfig | Namespace) -> str | None:
    """The first file that --path names; None where a task's settings name none that is there."""
    path = setting(settings, "common_eval", "path")
    first = split_paths(path)[0] if path else ""
    return first if os.path.isfile(first) else None


def shows_bar(settings: DictConfig | Namespace) -> bool:
    """Whether the command draws progress bars: on a terminal, unless --no-progress-bar is given."""
    return sys.stderr is not None and sys.stderr.isatty() and not setting(settings, "common", "no_progress_bar")


def longest_source(settings: DictConfig | Namespace, task: Any, models: list) -> int | None:
    """How many source tokens the models take; None for any number, and where fairseq is told to leave out what is too long."""
    if setting(settings, "dataset", "skip_invalid_size_inputs_valid_test"):
        return None
    return source_limit(resolve_max_positions(task.max_positions(), *[model.max_positions() for model in models]))
