"""Where the model lies, from the settings that its task is set up with."""

from __future__ import annotations

import os
from argparse import Namespace

from fairseq.utils import split_paths
from omegaconf import DictConfig, OmegaConf


def checkpoint_of(settings: DictConfig | Namespace) -> str | None:
    """The first file that --path names; None where the settings name none that is there.

    settings: a task's. Legacy tasks have all arguments of the command; for others fairseq keeps the whole configuration as the parent of
    the task's own.
    """
    if isinstance(settings, DictConfig):
        whole = settings._get_parent()
        path = None if whole is None else OmegaConf.select(whole, "common_eval.path")  # type: ignore[arg-type]
    else:
        path = getattr(settings, "path", None)  # a Namespace of fairseq's holds what its command was given
    first = split_paths(path)[0] if path else ""
    return first if os.path.isfile(first) else None
