"""The T most frequent target words as a shortlist, to compare LSH with (`--softmax top`).

    TOP in X. Shi, S. Xu and K. Knight. Fast Locality Sensitive Hashing for Beam Search on GPU.
    2018, https://arxiv.org/abs/1806.00588

EOS, unk and words that prefixes and constraints need are always scored; probabilities are
normalised over the shortlist.

| symbol | flag |
| --- | --- |
| T | --shortlist-top |
| the shortlist of all rows of a call, or of a sentence's | --shortlist-share batch, sentence |

Neutral setting: --softmax full; or a T of the vocabulary's size or more.
"""

from fairseq_ext.search.protocols import Setup
from fairseq_ext.search.registry import register
from fairseq_ext.search.strategies.softmax._shortlist import (
    ShortlistSoftmax,
    TopFlags,
    shortlist_arguments,
)


@register(
    "softmax",
    "top",
    TopFlags,
    needs=("search loop", "rows of a beam", "output layer"),
    neutral=({"softmax": "top", "shortlist_top": 10**6},),
    example=({"softmax": "top", "shortlist_top": 12, "shortlist_share": "sentence"},),
    paper="Shi, Xu and Knight 2018, baseline TOP",
)
def build(flags: TopFlags, setup: Setup) -> ShortlistSoftmax:
    size, share = flags.shortlist_top, flags.shortlist_share
    return ShortlistSoftmax(**shortlist_arguments("top", flags, setup, size, share))
