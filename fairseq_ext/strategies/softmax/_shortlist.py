"""What every shortlist strategy is made of: its flags, the counts of target words, the output layers."""

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass

from fairseq_ext.errors import UsageError, counted
from fairseq_ext.files import Lines
from fairseq_ext.softmax.output_layer import output_layers
from fairseq_ext.softmax.shortlist import most_frequent
from fairseq_ext.softmax.shortlist_stats import ShortlistMeter

logger = logging.getLogger("fairseq_ext")
Text = Optional[str]  # noqa: UP045


@dataclass
class ShortlistFlags(FairseqDataclass):
    """What every shortlist shares."""

    shortlist_counts: Text = field(
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
    shortlist_share: ChoiceEnum(["batch", "sentence"]) = field(  # type: ignore[valid-type]
        default="batch", metadata={"help": "one shortlist for all rows decoded together, or one for each sentence (default: batch)"}
    )


def check_top(flags, generation) -> None:
    """Refuse a size below zero (raises UsageError)."""
    if flags.shortlist_top < 0:
        raise UsageError(f"--shortlist-top {flags.shortlist_top} is no number of words: use 0 or more")


def target_counts(flags, context) -> list[int]:
    """How often each target word occurs, by id."""
    dictionary = context.dictionary
    if not flags.shortlist_counts:
        if context.joined_dictionary:
            logger.warning(
                "the dictionary is joined, so its counts include the source side, and frequent target words may miss the shortlist: "
                "give counts of the target side with --shortlist-counts"
            )
        return list(dictionary.count)
    counts = [0] * len(dictionary)
    for number, (word, count) in enumerate(table_lines(flags.shortlist_counts, "--shortlist-counts", 2), 1):
        index = dictionary.index(word)
        try:
            if index != dictionary.unk():
                counts[index] = int(count)
        except ValueError as error:
            raise UsageError(
                f"--shortlist-counts {flags.shortlist_counts}, line {number}: '{count}' is not a count: write a whole number there"
            ) from error
    if not any(counts):
        raise UsageError(f"--shortlist-counts {flags.shortlist_counts} counts no word of the target dictionary: write lines 'word count'")
    return counts


def table_lines(path: str, flag: str, columns: int) -> Iterator[list[str]]:
    """The columns of each line of a file; raises UsageError where it cannot be read or a line has fewer."""
    for number, line in enumerate(Lines(path, flag), 1):
        parts = line.split()
        if len(parts) < columns:
            raise UsageError(
                f"{flag} {path}, line {number} has {counted(len(parts), 'column')} and needs {columns}: correct '{line.strip()}'"
            )
        yield parts[:columns]


def shortlist_arguments(flags, context, T: int, flag: str) -> dict:
    """Return the arguments that every ShortlistSoftmax takes."""
    layers = output_layers(context.models, flag)
    base = most_frequent(target_counts(flags, context), T, (context.eos, context.unk))
    measured = ShortlistMeter(context.stats, context.k, flags.shortlist_recall_every)
    return dict(layers=layers, base=base, temperature=context.temperature, measured=measured)
