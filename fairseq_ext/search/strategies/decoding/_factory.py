"""The drafter that --draft, --draft-file and --draft-table name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.files import Lines
from fairseq_ext.search.parallel.drafter import Drafter, Nothing, Trajectory
from fairseq_ext.search.parallel.ngram import Ngram
from fairseq_ext.search.parallel.previous import Previous
from fairseq_ext.search.parallel.table import Table


def make_drafter(flags: Any, context: Any) -> Drafter:
    """Return the drafter, over the dictionaries of the run's task. Raises UsageError for a table or file that cannot be used."""
    name = str(flags.draft)
    table = table_path(flags, context)
    if name == "auto":
        name = "ngram" if table is not None else "repeat"
    if name == "none":
        drafter: Drafter = Nothing()
    elif name == "ngram":
        if table is None:
            raise UsageError(
                "--draft ngram needs a table: build CHECKPOINT.drafts.npz with scripts/build_drafts.py, or name one with --draft-table"
            )
        loaded = Table.load(table)
        loaded.check(table, context.dictionary, context.source_dictionary)
        drafter = Ngram(loaded, context.pad, context.source_dictionary.pad())
    else:
        drafter = Trajectory(context.pad if name == "pad" else None)
    return drafter if flags.draft_file is None else Previous(read_drafts(flags.draft_file, context.dictionary), drafter)


def table_path(flags: Any, context: Any) -> str | None:
    """The path of the table that the flags name, else of the one beside the first checkpoint (model.pt: model.drafts.npz), else None."""
    if flags.draft_table is not None:
        return flags.draft_table
    beside = None if context.checkpoint is None else Path(context.checkpoint).with_suffix(".drafts.npz")
    return str(beside) if beside is not None and beside.is_file() else None


def read_drafts(path: str, dictionary: Any) -> list[list[int]]:
    """Token ids of a file of segmented lines, EOS behind each. Raises UsageError for a file that cannot be read."""
    return [[dictionary.index(word) for word in line.split()] + [dictionary.eos()] for line in Lines(path, "--draft-file")]
