"""What a run is asked to do, and what of it can be looked at before anything starts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fairseq_ext.core.errors import UsageError
from fairseq_ext.corpus.reading import Shard

SUFFIXES = {"jsonl": ".jsonl", "text": ".txt"}


@dataclass
class Job:
    """The arguments of a run, as on the command line. flags: decoding flags, keywords of `Translator`."""

    path: str
    data: str
    input: Sequence[str]
    output: str
    flags: dict[str, Any] = field(default_factory=dict)
    constraints_file: Sequence[str] | None = None
    format: str = "jsonl"
    source_field: str | None = None
    unit: int = 500  # sentences
    workers: int | None = None  # as many as there is room for
    threads: int = 1  # of a worker, on the CPU
    address: str | None = None  # of a running Ray cluster
    object_store: int = 512  # MiB, of a Ray that is started here
    dashboard: bool = False
    progress: float = 10.0  # seconds between two lines
    stats_file: str | None = None
    overwrite: bool = False  # what earlier runs have put into the output folder


def check_model(job: Job) -> None:
    """UsageError for a checkpoint or a data folder that is not there."""
    if not {"checkpoint_suffix", "checkpoint_shard_count"} & set(job.flags):  # which change the file names
        for part in job.path.split(":"):
            if not os.path.isfile(part):
                raise UsageError(f"--path {part} is not a file: name one checkpoint, or several joined by colons")
    if not os.path.isdir(job.data.split(":")[0]):
        raise UsageError(f"--data {job.data} is not a folder: name the one with the model's dictionaries")


def files_read(job: Job, shards: Sequence[Shard]) -> list[tuple[str, str]]:
    """(flag, file) of what a job names to be read."""
    found = [("--input", shard.path) for shard in shards] + [("--path", part) for part in job.path.split(":")]
    found += [("--constraints-file", shard.constraints) for shard in shards if shard.constraints]
    return found + [("--" + name.replace("_", "-"), value) for name, value in job.flags.items() if isinstance(value, str)]


def absolute(value: Any) -> Any:
    """A flag's value, files and folders with their whole paths: workers may be started elsewhere."""
    if not isinstance(value, str):
        return value
    return ":".join(os.path.abspath(part) if os.path.exists(part) else part for part in value.split(":"))
