"""What every shortlist strategy is made of: the counts of target words, the output layers. search/strategies/softmax/_flags.py has its flags."""

import logging

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.files import table_lines
from fairseq_ext.model.transformer.output_layer import output_layers
from fairseq_ext.search.strategies.softmax._shortlist_stats import ShortlistMeter
from fairseq_ext.search.strategies.softmax._softmax_shortlist import most_frequent

logger = logging.getLogger("fairseq_ext")


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


def shortlist_arguments(flags, context, T: int, flag: str) -> dict:
    """Return the arguments that every ShortlistSoftmax takes."""
    layers = output_layers(context.models, flag)
    base = most_frequent(target_counts(flags, context), T, (context.eos, context.unk))
    measured = ShortlistMeter(context.stats, context.k, flags.shortlist_recall_every)
    return dict(layers=layers, base=base, temperature=context.temperature, measured=measured)
