"""LSH softmax: only words found by hashing are scored (`--softmax lsh`); exact scores afterwards.

    X. Shi, S. Xu and K. Knight. Fast Locality Sensitive Hashing for Beam Search on GPU. 2018,
    https://arxiv.org/abs/1806.00588

The words are those whose weights are similar to the decoder's state. Every word's output weights
are hashed once by winner-take-all (Eq. 4-8): the index of the largest of K randomly drawn
dimensions, u such indices a band, W bands. At each step the rows' states are hashed too; a word
that shares at least t bands with any row is a candidate (Eq. 9, 10), and so are the T most frequent
words (Eq. 3). A bias is one more dimension, which is 1 in the state. The shortlist is shared by all
rows of a call or by those of a sentence, its beam (the paper's case: it has one beam in a call).
EOS, unk and words that prefixes and constraints need are always on it.

| symbol | flag |
| --- | --- |
| K, u, W | --lsh-k, --lsh-u, --lsh-bands |
| t, T | --lsh-hits, --lsh-top |

Neutral setting: --softmax full; or t = 0; or a T of the vocabulary's size or more. Probabilities
over a shortlist are at most 1, so the certificates of --stop optimal hold for the search over the
shortlists, as the signature says.
Ensembles are refused, since each model would need a shortlist.
Difference from the paper: the words of a code are looked up by address and not in a cuckoo hash
table (Algorithm 1). The spans are the same, found in one probe.
The shortlist and the linear layer over it: _shortlist.py. Hashing, index and counting:
kernels/lsh_torch.py, the definition of lsh.cpp and lsh_cuda.cu.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from fairseq_ext.core.errors import UsageError
from fairseq_ext.kernels import lsh as lsh_compiled
from fairseq_ext.kernels import lsh_torch
from fairseq_ext.search.beam import Beam
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import Setup
from fairseq_ext.search.registry import register
from fairseq_ext.search.settings import Generation
from fairseq_ext.search.shortlists import CLOCK
from fairseq_ext.search.strategies.softmax._shortlist import (
    ShortlistFlags,
    ShortlistSoftmax,
    shortlist_arguments,
)

logger = logging.getLogger("fairseq_ext")
MOST_BANDS = torch.iinfo(torch.int16).max
MOST_CODES = 1 << 28  # of all bands; each is an address of four bytes


@dataclass
class LSHFlags(ShortlistFlags):
    lsh_k: int = field(
        default=16,
        metadata={
            "help": "K: dimensions that each hash function compares (default: 16; the paper: 8, "
            "16)",
            "range": (2, math.inf, "number of dimensions"),
        },
    )
    lsh_u: int = field(
        default=3,
        metadata={
            "help": "u: hash codes of a band (default: 3, as the paper)",
            "range": (1, math.inf, "number of codes"),
        },
    )
    lsh_bands: int = field(
        default=100,
        metadata={
            "help": "W: bands (default: 100; the paper: 500)",
            "range": (1, MOST_BANDS, "number of bands"),
        },
    )
    lsh_hits: int = field(
        default=2,
        metadata={
            "help": "t: equal bands that make a word a candidate (default: 2; 0: every word)",
            "range": (0, math.inf, "number of equal bands"),
        },
    )
    lsh_top: int = field(
        default=6000,
        metadata={
            "help": "T: most frequent words on every shortlist (default: 6000; all: V)",
            "range": (0, math.inf, "number of words"),
        },
    )
    lsh_share: Literal["batch", "sentence"] = field(
        default="batch",
        metadata={
            "help": "batch: one shortlist for all rows; sentence: one for each sentence (default: "
            "batch; the paper: the rows of one beam)"
        },
    )
    lsh_seed: int = field(
        default=1,
        metadata={
            "help": "seed of the random permutations (default: 1)",
            "range": (-(2**63), 2**63 - 1, "seed of 64 bits"),
        },
    )


class LSH(ShortlistSoftmax):
    """The shortlist softmax that finds words by hashing the hidden state."""

    def __init__(self, K: int, u: int, W: int, t: int, seed: int = 1, **arguments: Any):
        """K, u, W: of the paper; t: hits of a candidate."""
        super().__init__(**arguments)
        self.is_own = False  # its lists change at every step
        weight, bias = self.layers[0]
        self.t = t
        self.kernels = kernels_for(weight)
        self.has_bias = bias is not None
        self.lists_all_words = self.lists_all_words or t <= 0
        if not self.lists_all_words:
            x = weight if bias is None else torch.cat([weight, bias[:, None]], dim=1)
            compiled = self.compiled is not None
            self.wta_hash = (lsh_compiled if compiled else self.kernels).wta_hash
            start = time.perf_counter()
            self.index = lsh_torch.build_index(x, K, u, W, seed, self.wta_hash)
            seconds = time.perf_counter() - start
            logger.info("LSH index of %d words built in %.1f s", self.V, seconds)
            if compiled:
                self.finder = lsh_compiled.CompiledLookup(
                    self.index, self.in_base, int(self.has_bias)
                )

    def hits(self, x: Tensor) -> Tensor:
        """Return L (n, V) of Eq. 9: the number of bands that each word shares with each row's
        state x (n, d)."""
        index = self.index
        with self.meter.stage("hash"):
            if self.has_bias:
                x = torch.cat([x, x.new_ones(x.size(0), 1)], dim=1)
            codes = self.wta_hash(x, index.dimensions, index.u)
        with self.meter.stage("lookup"):
            start, length = self.kernels.lookup(codes, index.offsets)
            return self.kernels.count_hits(start, length, index.words, index.V)

    def states(self, features: list[Tensor], beam: Beam, pool: Pool) -> Tensor:
        """Return the states (n, d) that shortlists are found for: that of the first row of its
        sentence for a placeholder row (score -inf), whose own state depends on the batch."""
        if pool.prefix is None and pool.constraints is None:
            return features[0]
        row = torch.arange(beam.rows, device=beam.device)
        return features[0][
            torch.where(
                beam.last_score() > -torch.inf, row, beam.first_row()[beam.sentence_of_row()]
            )
        ]

    def similar(self, x: Tensor, always: Tensor | None) -> Tensor:
        """Return the ascending ids (m,) of words that share t bands with any row of x (n, d), and
        of those in the mask always (V,), without the base."""
        ids = self.finder(x, self.t, always, CLOCK)
        self.meter.add_seconds(("hash", "lookup", "compact"), self.finder.seconds)
        return ids

    def find(self, features: list[Tensor], beam: Beam, pool: Pool) -> Tensor:
        x, always = self.states(features, beam, pool), self.always(beam, pool)
        if self.compiled is not None:
            return self.similar(x, always)
        hits = self.hits(x)
        with self.meter.stage("compact"):
            return self.kernels.compact(hits, self.t, self.in_base if always is None else always)

    def lists(self, features: list[Tensor], beam: Beam, pool: Pool) -> Tensor:
        x, mask = self.states(features, beam, pool), super().lists(features, beam, pool)
        if self.compiled is None:
            hits = self.hits(x)
            with self.meter.stage("compact"):
                return mask | (beam.by_sentence(hits, 0).amax(1) >= self.t)
        mask = mask.clone()
        for row, (first, end) in zip(mask, pairwise(beam.bounds().tolist()), strict=True):
            row[self.similar(x[first:end], None)] = True
        return mask


def kernels_for(weight: Tensor) -> object:
    """Return the CUDA kernels if they can run, else torch's functions; on a GPU the log says why.
    On a CPU the compiled library does the same in one call."""
    if not weight.is_cuda:
        return lsh_torch
    from fairseq_ext.kernels import lsh_cuda

    reason = lsh_cuda.unavailable_reason()
    if reason is None:
        return lsh_cuda
    logger.info(
        "LSH softmax runs on torch's functions instead of its CUDA kernels, because %s", reason
    )
    return lsh_torch


def check(flags: LSHFlags, generation: Generation) -> None:
    """Refuse more codes than there are addresses (raises UsageError)."""
    bits = flags.lsh_u * lsh_torch.bits_of(flags.lsh_k)
    if flags.lsh_bands << bits > MOST_CODES:
        raise UsageError(
            f"--lsh-u {flags.lsh_u} codes of --lsh-k {flags.lsh_k} take {bits} bits, and "
            f"--lsh-bands {flags.lsh_bands} times 2^{bits} is above 2^28: lower one of the three"
        )


SMALL = {
    "softmax": "lsh",
    "lsh_k": 4,
    "lsh_u": 2,
    "lsh_bands": 20,
    "lsh_hits": 3,
    "lsh_top": 8,
    "lsh_share": "sentence",
}


@register(
    "softmax",
    "lsh",
    LSHFlags,
    check=check,
    needs=("search loop", "rows of a beam", "output layer", "one model"),
    neutral=(
        {"softmax": "lsh", "lsh_hits": 0},
        {"softmax": "lsh", "lsh_top": 10**6, "lsh_share": "sentence"},
    ),
    example=(SMALL,),
    paper="Shi, Xu and Knight 2018, locality sensitive hashing",
)
def build(flags: LSHFlags, setup: Setup) -> LSH:
    if len(setup.models) > 1:
        raise UsageError(
            "--softmax lsh has one index and an ensemble has several output layers: use one model, "
            "or --softmax full"
        )
    arguments = shortlist_arguments("lsh", flags, setup, flags.lsh_top, flags.lsh_share)
    weight, bias = arguments["layers"][0]
    if flags.lsh_k > weight.size(1) + (bias is not None):
        raise UsageError(
            f"--lsh-k {flags.lsh_k} is above the output layer's {weight.size(1)} "
            "dimensions: lower it"
        )
    if flags.lsh_bands * weight.size(0) >= 1 << 31:
        raise UsageError(
            f"an LSH index has at most 2^31 entries, and --lsh-bands {flags.lsh_bands} times "
            f"{weight.size(0):,} words is more: lower it"
        )
    return LSH(
        flags.lsh_k,
        flags.lsh_u,
        flags.lsh_bands,
        flags.lsh_hits,
        flags.lsh_seed,
        **arguments,
    )
