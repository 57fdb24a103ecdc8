"""Which keys or columns a shard has, and whether its source is among them; asked before a model is loaded."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from itertools import islice

from fairseq_ext.core.errors import UsageError, cut
from fairseq_ext.corpus.reading import Reader, Unreadable, source_names
from fairseq_ext.corpus.shards import Shard
from fairseq_ext.search.constraints.lines import json_object

FIRST_LINES = 100  # of JSONL, that show its keys


def check_columns(shards: Sequence[Shard], source_field: str | None) -> None:
    """UsageError for a Parquet or JSONL file without the source's column or key. One that cannot be read is told when its turn comes."""
    for shard in shards:
        known = columns_of(shard) if shard.kind == "parquet" else keys_of(shard) if shard.kind == "jsonl" else None
        if known is not None and not set(source_names(source_field)) & set(known):
            lacks = " or ".join(f'"{name}"' for name in source_names(source_field))
            columns = cut(", ".join(known)) or "none"
            what = ("column", "its columns") if shard.kind == "parquet" else ("key", "the keys of its first lines")
            raise UsageError(f"{shard.path} has no {what[0]} {lacks}: name one with --source-field; {what[1]} are {columns}")


def columns_of(shard: Shard) -> list[str] | None:
    """The columns of a Parquet file; None where it cannot be read."""
    try:
        import pyarrow.parquet

        return pyarrow.parquet.read_schema(shard.path).names
    except (ImportError, OSError, ValueError):  # pyarrow's errors are ValueErrors, or OSErrors
        return None


def keys_of(shard: Shard) -> list[str] | None:
    """The keys of the objects in a JSONL file's first lines, some of which may be bad; None where there is no object."""
    found: dict[str, None] | None = None
    if not os.path.isfile(shard.path):
        return None
    with contextlib.suppress(Unreadable, OSError):
        for line in islice(Reader(shard._replace(constraints=None)).raw(), FIRST_LINES):
            with contextlib.suppress(UsageError, UnicodeDecodeError):
                found = (found or {}) | dict.fromkeys(json_object((line or b"").decode("utf-8"), shard.path))
    return None if found is None else list(found)
