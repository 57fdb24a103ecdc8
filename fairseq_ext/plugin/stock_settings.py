"""fairseq's own settings that end in its depths where they are wrong: looked at before anything is read."""

from __future__ import annotations

import ast
import os
import resource
from argparse import Namespace

from omegaconf import DictConfig

from fairseq_ext.core.errors import UsageError, counted, cut
from fairseq_ext.core.files import table_lines
from fairseq_ext.plugin.compat.invalid_bytes import is_loaded
from fairseq_ext.plugin.loading.settings import setting

LARGEST = 2**31 - 1
PROCESSES = max(64, 4 * (os.cpu_count() or 1))
# the least and the most that each may be, and what it is; fairseq takes -1 and 0 for no limit where -1 is the least
RANGES: dict[tuple[str, str], tuple[int, int, str]] = {
    ("dataset", "num_workers"): (0, PROCESSES, "number of processes"),
    ("dataset", "batch_size"): (-1, LARGEST, "number of sentences"),
    ("dataset", "max_tokens"): (-1, LARGEST, "number of tokens"),
    ("dataset", "required_batch_size_multiple"): (1, LARGEST, "number of sentences"),
    ("checkpoint", "checkpoint_shard_count"): (1, 10_000, "number of files"),
    ("dataset", "required_seq_len_multiple"): (1, LARGEST, "number of tokens"),
    ("dataset", "data_buffer_size"): (-1, LARGEST, "number of batches"),
    ("interactive", "buffer_size"): (0, LARGEST, "number of lines"),
    ("common", "log_interval"): (1, LARGEST, "number of batches"),
    ("distributed_training", "distributed_world_size"): (1, LARGEST, "number of processes"),
}


def check_stock_settings(settings: DictConfig | Namespace) -> None:
    """UsageError for a number outside its range, too few open files, overrides other than a dictionary, a damaged dictionary of alignments.

    settings: a task's.
    """
    for (group, name), (least, most, meaning) in RANGES.items():
        value = setting(settings, group, name)
        if value is not None and not least <= value <= most:
            raise UsageError(f"--{name.replace('_', '-')} ({meaning}) must be {least} to {most}, not {value}")
    workers, files = setting(settings, "dataset", "num_workers") or 0, resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if workers and is_loaded("fairseq_cli.generate") and files != resource.RLIM_INFINITY and files < 48 + 8 * workers:
        raise UsageError(  # torch would wait for ever for what its process could not send
            f"the limit of {files} open files is too low to read batches in {counted(workers, 'process', 'processes')}: "
            f"allow {48 + 8 * workers} (ulimit -n), or use --num-workers 0"
        )
    given = setting(settings, "common_eval", "model_overrides")
    if isinstance(given, str):
        try:
            is_right = isinstance(ast.literal_eval(given), dict)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            is_right = False
        if not is_right:
            raise UsageError(f"--model-overrides must be a dictionary of values, not {cut(given)}: write one, such as {{'data': 'x'}}")
    aligned = setting(settings, "generation", "replace_unk")
    if isinstance(aligned, str) and aligned.strip("@ "):  # the flag alone gives "@@ "
        list(table_lines(aligned, "--replace-unk", 2))
