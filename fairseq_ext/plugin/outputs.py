"""The files that a command writes: none of them is one that it reads, or another one that it writes."""

from __future__ import annotations

import dataclasses
from argparse import Namespace

from fairseq.utils import split_paths
from omegaconf import DictConfig

from fairseq_ext.core.files import refuse_shared
from fairseq_ext.plugin.config import flags_dataclass
from fairseq_ext.plugin.loading.settings import setting

WRITTEN = ("results_file", "stats_file", "glossary_report")
READ = (("common_eval", "path"), ("interactive", "input"), ("generation", "lm_path"))


def check_outputs(settings: DictConfig | Namespace) -> None:
    """UsageError for two flags that name one file, where the command writes it. settings: a task's."""
    ours = {f.name: getattr(settings, f.name, None) for f in dataclasses.fields(flags_dataclass()) if f.name != "_name"}
    written = [("--" + name.replace("_", "-"), ours.pop(name)) for name in WRITTEN]
    read = [("--" + name.replace("_", "-"), value) for name, value in ours.items() if isinstance(value, str)]
    for group, name in READ:
        found = setting(settings, group, name)
        read += [("--" + name.replace("_", "-"), part) for part in split_paths(found)] if isinstance(found, str) and found else []
    refuse_shared([(flag, path) for flag, path in written if path], read)
