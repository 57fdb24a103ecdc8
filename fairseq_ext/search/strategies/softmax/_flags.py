"""The flags that shortlists share: all of them, and those of `top` and `lexical`."""

import math
from dataclasses import dataclass, field
from typing import Literal

from fairseq_ext.core.errors import UsageError


@dataclass
class ShortlistFlags:
    """What every shortlist shares."""

    shortlist_counts: str | None = field(
        default=None,
        metadata={
            "help": "lines 'word count' of the target side, for the most frequent words (default: the target dictionary's counts)",
            "file": True,
        },
    )
    shortlist_recall_every: int = field(
        default=128,
        metadata={
            "help": "for --stats-file: calls from one check against the full softmax to the next (default: 128; 0: never)",
            "range": (0, math.inf, "number of calls"),
        },
    )


@dataclass
class TopFlags(ShortlistFlags):
    """What `top` and `lexical` share."""

    shortlist_top: int = field(
        default=2000, metadata={"help": "most frequent target words on every shortlist (default: 2000; all: the vocabulary's size)"}
    )
    shortlist_share: Literal["batch", "sentence"] = field(
        default="batch", metadata={"help": "one shortlist for all rows decoded together, or one for each sentence (default: batch)"}
    )


def check_top(flags, generation) -> None:
    """Refuse a size below zero (raises UsageError)."""
    if flags.shortlist_top < 0:
        raise UsageError(f"--shortlist-top (number of words) must be 0 or more, not {flags.shortlist_top}")
