"""The draft source that --draft, --draft-file and --draft-table name."""

from __future__ import annotations

from typing import Any

from fairseq_ext.drafts.copy import Copy
from fairseq_ext.drafts.source import Nothing, Source, Trajectory


def make_source(flags: Any, context: Any) -> Source:
    """Raises UsageError for a table or file that cannot be used."""
    name = str(flags.draft)
    if name == "auto":
        name = "repeat"
    if name == "none":
        return Nothing()
    if name == "copy":
        return Copy.between(context.task.source_dictionary, context.dictionary)
    return Trajectory(context.pad if name == "pad" else None)
