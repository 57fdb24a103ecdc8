"""Input files (`--input`) as shards: what kind of file each is, and what its output is called.

Text, JSONL (.jsonl, .json, .ndjson) and Parquet (.parquet); compression by suffix: .gz .zst .bz2 .lz4.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fairseq_ext.core.errors import UsageError, counted

CODECS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bz2", ".lz4": "lz4"}
KINDS = {".jsonl": "jsonl", ".json": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}


class Shard(NamedTuple):
    """One input file."""

    path: str
    name: str  # of its output, without suffix: where it is below the folder that all inputs share
    constraints: str | None = None  # its constraints file

    @property
    def kind(self) -> str:
        return KINDS.get(Path(without_codec(self.path)).suffix.lower(), "text")


def without_codec(path: str) -> str:
    """A path without the suffix of its compression."""
    stem, suffix = os.path.splitext(path)
    return stem if suffix.lower() in CODECS else path


def shards_of(paths: Sequence[str], constraints: Sequence[str] | None) -> list[Shard]:
    """The shards of --input, patterns expanded, each with its --constraints-file.

    Errors: UsageError for files that are not there, for two whose outputs would have one name, and for a number of constraints
    files that is not that of the inputs.
    """
    found: list[str] = []
    for path in paths:
        names = [path] if os.path.exists(path) else sorted(glob.glob(path, recursive=True))
        if os.path.isdir(path):
            names = sorted(entry.path for entry in os.scandir(path) if entry.is_file() and not entry.name.startswith("."))
        if not names:
            raise UsageError(f"--input {path} does not exist: name files, folders or patterns that do")
        found += [name for name in names if not os.path.isdir(name)]
    if not found:
        raise UsageError("--input names no file: give one or more")
    for flag, path in [("--input", path) for path in found] + [("--constraints-file", path) for path in constraints or ()]:
        if os.path.exists(path) and not os.path.isfile(path):
            raise UsageError(f"{flag} {path} is not a regular file, and a corpus run reads its files more than once: write it to one first")
    if constraints is not None and len(constraints) != len(found):
        raise UsageError(
            f"--constraints-file names {counted(len(constraints), 'file')} and the input has {len(found)}: give one for each, in order"
        )
    folder = os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in found])
    shards: dict[str, Shard] = {}
    for i, path in enumerate(found):
        name = without_codec(os.path.relpath(os.path.abspath(path), folder))
        name = os.path.splitext(name)[0] if os.path.splitext(name)[1].lower() in {*KINDS, ".txt"} else name
        if name in shards:
            raise UsageError(f"the outputs of {shards[name].path} and {path} would have the same name: rename one, or run twice")
        shards[name] = Shard(path, name, constraints[i] if constraints is not None else None)
    return list(shards.values())
