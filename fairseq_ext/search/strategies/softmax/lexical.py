"""The likeliest translations of the source words as a shortlist (`--softmax lexical`).

    X. Shi and K. Knight. Speeding Up Neural Machine Translation Decoding by Shrinking Run-time
    Vocabulary. ACL 2017. https://aclanthology.org/P17-2091/
    It is the baseline WA of X. Shi, S. Xu and K. Knight, https://arxiv.org/abs/1806.00588

The shortlist has the T most frequent target words (top.py) and, for every word of the source, its
likeliest translations, from a table that scripts/lexical_table.py learns from a parallel corpus.

| symbol | flag |
| --- | --- |
| T | --shortlist-top |
| translations of a source word | --shortlist-words, --shortlist-file |
| the shortlist of all rows of a call, or of a sentence's | --shortlist-share batch, sentence |

Neutral setting: --softmax full; or a T of the vocabulary's size or more.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.files import table_lines
from fairseq_ext.search.protocols import Setup
from fairseq_ext.search.registry import register
from fairseq_ext.search.settings import Generation
from fairseq_ext.search.strategies.softmax._shortlist import (
    ShortlistSoftmax,
    TopFlags,
    shortlist_arguments,
)


@dataclass
class LexicalFlags(TopFlags):
    shortlist_file: str | None = field(
        default=None,
        metadata={
            "help": "--softmax lexical: lines 'source word, target word, probability' of a lexical "
            "table (default: none)",
            "file": True,
        },
    )
    shortlist_words: int = field(
        default=20,
        metadata={
            "help": "--softmax lexical: number of translations of each source word (default: 20)",
            "range": (1, 100_000, "number of words"),
        },
    )


def read_table(path: str, source, target, words: int) -> Tensor:
    """Return (source vocabulary, words) ids of each source word's likeliest translations, padded
    with -1.

    source, target: dictionaries. Errors: UsageError for a line without a probability, and for a
    table of which the dictionaries have no pair of words.
    """
    found: dict[int, list[tuple[float, int]]] = {}
    for number, (left, right, probability) in enumerate(
        table_lines(path, "--shortlist-file", 3), 1
    ):
        i, j = source.index(left), target.index(right)
        try:
            if i != source.unk() and j != target.unk():
                found.setdefault(i, []).append((-float(probability), j))
        except ValueError as error:
            raise UsageError(
                f"--shortlist-file {path}, line {number}: '{probability}' is not a probability: "
                "write a number there"
            ) from error
    if not found:
        raise UsageError(
            f"--shortlist-file {path} has no word of these dictionaries: it must be segmented as "
            "the model's data are"
        )
    out = torch.full((len(source), words), -1)
    for i, pairs in found.items():
        best = [j for _, j in sorted(pairs)[:words]]
        out[i, : len(best)] = torch.tensor(best)
    return out


def check(flags: LexicalFlags, generation: Generation) -> None:
    """Refuse a shortlist without its table (raises UsageError)."""
    if not flags.shortlist_file:
        raise UsageError(
            "--softmax lexical needs a table: make one with scripts/lexical_table.py and name it "
            "with --shortlist-file"
        )


@register(
    "softmax",
    "lexical",
    LexicalFlags,
    check=check,
    needs=("search loop", "rows of a beam", "output layer", "source sentence"),
    neutral=({"softmax": "lexical", "shortlist_top": 10**6, "shortlist_file": "{lexical table}"},),
    example=(
        {
            "softmax": "lexical",
            "shortlist_top": 8,
            "shortlist_share": "sentence",
            "shortlist_file": "{lexical table}",
        },
    ),
    paper="Shi and Knight 2017; baseline WA of Shi, Xu and Knight 2018",
)
def build(flags: LexicalFlags, setup: Setup) -> ShortlistSoftmax:
    if setup.source_dictionary is None:
        raise UsageError(
            "--softmax lexical needs the task's source dictionary, which this task lacks: "
            "use --softmax top"
        )
    assert flags.shortlist_file is not None  # `check`
    table = read_table(
        flags.shortlist_file, setup.source_dictionary, setup.dictionary, flags.shortlist_words
    )
    size, share = flags.shortlist_top, flags.shortlist_share
    arguments = shortlist_arguments("lexical", flags, setup, size, share)
    return ShortlistSoftmax(table=table, **arguments)
