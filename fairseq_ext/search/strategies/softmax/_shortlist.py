"""Shortlists: the flags and target counts of all, and the softmax over their words.

Compiled twin: kernels/shortlist.cpp.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.files import table_lines
from fairseq_ext.kernels import lsh_torch
from fairseq_ext.kernels import shortlist as gathered
from fairseq_ext.kernels.log_probs import log_softmax_
from fairseq_ext.kernels.lsh_torch import nonzero
from fairseq_ext.kernels.transformer import PackedLinear
from fairseq_ext.model.protocol import Decoder
from fairseq_ext.model.transformer.supported import output_layers
from fairseq_ext.search.beam import Beam
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.pool import PerPoolCache, Pool
from fairseq_ext.search.protocols import Setup
from fairseq_ext.search.shortlists import CLOCK, ListSoftmax, ShortlistMeter

logger = logging.getLogger("fairseq_ext")


def target_counts(flags: ShortlistFlags, setup: Setup, T: int) -> list[int]:
    """Return the frequency of each target word, by id; it chooses T words."""
    dictionary = setup.dictionary
    if not flags.shortlist_counts:
        why = ""
        if len(set(dictionary.count[dictionary.nspecial :]) - {0}) < 2:  # 0: words that fill it up
            why = "all counts of the dictionary are equal, so the most frequent words are its first"
        elif setup.source_dictionary and setup.source_dictionary == dictionary:
            why = "the dictionary is joined, so its counts include the source side"
        if why and 0 < T < len(dictionary):
            logger.warning(f"{why}: give counts of target text with --shortlist-counts")
        return list(dictionary.count)
    counts = [0] * len(dictionary)
    for number, (word, count) in enumerate(
        table_lines(flags.shortlist_counts, "--shortlist-counts", 2), 1
    ):
        index = dictionary.index(word)
        try:
            if index != dictionary.unk():
                counts[index] = int(count)
        except ValueError as error:
            raise UsageError(
                f"--shortlist-counts {flags.shortlist_counts}, line {number}: '{count}' is not a "
                "count: write a whole number there"
            ) from error
    if not any(counts):
        raise UsageError(
            f"--shortlist-counts {flags.shortlist_counts} counts no word of the target dictionary: "
            "write lines 'word count'"
        )
    return counts


def shortlist_arguments(name: str, flags: ShortlistFlags, setup: Setup, T: int, share: str) -> dict:
    """Return the arguments that every ShortlistSoftmax takes, for T words of the base. name: of
    the strategy."""
    layers = output_layers(setup.models, f"--softmax {name}")
    base = most_frequent(target_counts(flags, setup, T), T, (setup.eos, setup.unk))
    measured = ShortlistMeter(setup.stats, setup.k, flags.shortlist_recall_every)
    return dict(
        layers=layers,
        base=base,
        temperature=setup.temperature,
        share=share,
        meter=measured,
    )


# ---- Flags: those of all shortlists, and those of `top` and `lexical`


@dataclass
class ShortlistFlags:
    """The flags of all shortlists."""

    shortlist_counts: str | None = field(
        default=None,
        metadata={
            "help": "lines 'word count' of the target side, for the most frequent words (default: "
            "the target dictionary's counts)",
            "file": True,
        },
    )
    shortlist_recall_every: int = field(
        default=128,
        metadata={
            "help": "for --stats-file: calls from one check against the full softmax to the next "
            "(default: 128; 0: never)",
            "range": (0, math.inf, "number of calls"),
            "same_results": True,
        },
    )


@dataclass
class TopFlags(ShortlistFlags):
    """The flags of `top` and `lexical`."""

    shortlist_top: int = field(
        default=2000,
        metadata={
            "help": "most frequent target words on every shortlist (default: 2000; all: the "
            "vocabulary's size)",
            "implemented": "search/strategies/softmax/top.py",
            "range": (0, math.inf, "number of words"),
        },
    )
    shortlist_share: Literal["batch", "sentence"] = field(
        default="batch",
        metadata={
            "help": "one shortlist for all rows decoded together, or one for each sentence "
            "(default: batch)"
        },
    )


# ---- Shortlist softmax: scores of a part of the vocabulary
#
# A shortlist has words that are always listed (the base), translations of the source words, and
# words that prefixes and constraints need. It is shared by all rows of a call, or by those of a
# sentence.
#
# Shapes: n rows, S live sentences, N sentences of the pool, V vocabulary, d features, C listed
# words, T words of the base.


Layer = tuple[Tensor, Tensor | None]  # weight (V, d), bias (V,)


def required_words(pool: Pool) -> Tensor:
    """Return (N, R) ids that each sentence's prefix and constraints need, padded with -1."""
    needed = [{*ids, *pool.forced(i)} for i, ids in enumerate(pool.required or [()] * len(pool))]
    width = max(map(len, needed), default=0)
    rows = [[*sorted(w), *[-1] * (width - len(w))] for w in needed]
    return torch.tensor(rows, dtype=torch.long, device=pool.length.device).view(len(pool), width)


def mask_with(mask: Tensor, needed: Tensor) -> Tensor:
    """Return mask (G, V) with the ids needed (G, R) set, except for -1."""
    if not needed.size(1):
        return mask
    V = mask.size(1)
    mask = torch.cat([mask, mask[:, :1]], dim=1)  # a column for -1
    return mask.scatter(1, needed.masked_fill(needed < 0, V), True)[:, :V]


class ShortlistSoftmax(ListSoftmax):
    """A softmax over a shortlist that stays as it is during the search of a sentence.

    Probabilities are normalised over the shortlist. An ensemble averages its models' probabilities
    over one shortlist. A sentence's own list is scored by the decoder's output layer, with --int8
    in 8 bits too: the words of all lists of a call are one linear layer (kernels/shortlist.py,
    WordLists), of which each sentence reads its own. So the compiled search (search/compiled.py)
    can search such sentences, and the results do not depend on the batch.
    """

    def __init__(
        self,
        layers: list[Layer],
        base: Tensor,
        temperature: float,
        share: str,
        meter: ShortlistMeter,
        table: Tensor | None = None,
    ):
        """table (source vocabulary, words): translations of each source word, padded with -1."""
        self.layers, self.temperature, self.meter = layers, temperature, meter
        self.kernels: Any = lsh_torch
        self.by_sentence = share == "sentence"
        weight, bias = layers[0]
        self.V = weight.size(0)
        self.base = base.to(weight.device).unique()  # (T,) ascending
        self.in_base = torch.zeros(self.V, dtype=torch.bool, device=weight.device)
        self.in_base[self.base] = True
        self.lists_all_words = self.base.numel() == self.V
        self.is_own = self.by_sentence and not self.lists_all_words and len(layers) == 1
        self.table = None if table is None else table.to(weight.device)
        self.required = PerPoolCache(required_words)
        self.translations = PerPoolCache(self.translated)
        self.of_base = [self.words_of(layer, self.base) for layer in layers]
        self.compiled = None
        if len(layers) == 1 and gathered.is_supported(weight):
            self.compiled = gathered.ShortlistLinear(
                PackedLinear(*self.of_base[0]), self.base, weight, bias, temperature
            )

    def words_of(self, layer: Layer, ids: Tensor) -> Layer:
        """Return the output layer of words ids (C,) alone."""
        weight, bias = layer
        return self.kernels.gather(weight, ids), None if bias is None else bias[ids]

    def translated(self, pool: Pool) -> Tensor:
        """Return (N, V), true for the translations of each sentence's words."""
        assert self.table is not None
        found = self.table[pool.net_input["src_tokens"]].flatten(1)  # (N, source x words)
        mask = torch.zeros(found.size(0), self.V, dtype=torch.bool, device=found.device)
        return mask_with(mask, found)

    def listed(self, pool: Pool, sentences: Tensor) -> Tensor:
        """Return the lists (S, V) of these sentences (S,) of the pool."""
        mask = self.in_base.expand(sentences.numel(), -1)
        if self.table is not None:
            mask = mask | self.translations(pool)[sentences]
        return mask_with(mask, self.required(pool)[sentences])

    def always(self, beam: Beam, pool: Pool) -> Tensor | None:
        """Return the union (V,) of the lists of the live sentences; None for the base alone."""
        if self.table is None and not self.required(pool).size(1):
            return None
        return beam.cached_for_live("listed", lambda: self.listed(pool, beam.live_index()).any(0))

    def lists_of(self, pool: Pool, sentences: list[int]) -> list[Tensor]:
        listed = self.listed(pool, torch.tensor(sentences))
        return [row.nonzero().view(-1) for row in listed]

    def find(self, features: list[Tensor], beam: Beam, pool: Pool) -> Tensor:
        """Return the ascending ids (C,) of one shortlist for all rows, for the compiled library
        (m,) without the base."""

        def find() -> Tensor:
            always = self.always(beam, pool)
            if always is None:
                return self.base[:0] if self.compiled is not None else self.base
            return nonzero(always & ~self.in_base if self.compiled is not None else always)

        with self.meter.stage("compact"):
            return beam.cached_for_live("shortlist", find)

    def lists(self, features: list[Tensor], beam: Beam, pool: Pool) -> Tensor:
        """Return the lists (S, V) of a call, one for each live sentence."""
        return self.listed(pool, beam.live_index())

    def __call__(
        self,
        decoder: Decoder,
        features: list[Tensor],
        beam: Beam | None = None,
        pool: Pool | None = None,
    ) -> LogProbs:
        assert beam is not None and pool is not None, "a shortlist needs the rows of a beam"
        output = decoder.compiled_output if self.is_own else None
        if output is not None:
            out = self.own_scores(output, features[0], beam, pool)
        elif self.by_sentence and len(beam.live) > 1 and not self.lists_all_words:
            out = self.sentence_scores(features, self.lists(features, beam, pool), beam)
        else:
            out = self.shared_scores(decoder, features, beam, pool)
        if self.meter.is_sample_due():
            self.meter.sample(decoder.log_probs(features, self.temperature), out)
        return out

    def shared_scores(
        self, decoder: Decoder, features: list[Tensor], beam: Beam, pool: Pool
    ) -> LogProbs:
        """Return scores of one shortlist for all rows."""
        size = self.V
        if not self.lists_all_words:
            ids = self.find(features, beam, pool)
            size = ids.numel() + (0 if self.compiled is None else self.base.numel())
        self.meter.count(1, size)
        # subtle: a sentence's own list is scored by the same products in every batch, which are
        # never the decoder's (--int8)
        if self.lists_all_words or (size == self.V and not self.by_sentence):
            with self.meter.stage("matmul"):
                return LogProbs(decoder.log_probs(features, self.temperature))
        if self.compiled is not None:
            ids, value = self.compiled(features[0], ids, CLOCK)
            self.meter.add_seconds(("gather", "matmul", "normalise"), self.compiled.seconds)
            return LogProbs(value, ids, self.V)
        return self.scores_of(features, ids)

    def sentence_scores(self, features: list[Tensor], mask: Tensor, beam: Beam) -> LogProbs:
        """Return scores of a shortlist for each sentence, mask (S, V)."""
        with self.meter.stage("compact"):
            ids = nonzero(mask.any(0))
            self.meter.count(mask.size(0), int(mask.sum()))
            others = ~mask[:, ids][beam.sentence_of_row()]
        return self.scores_of(features, ids, others)

    def scores_of(
        self, features: list[Tensor], ids: Tensor, others: Tensor | None = None
    ) -> LogProbs:
        """Return scores of the words ids (C,), without those of each row in a mask (n, C)."""
        with self.meter.stage("gather"):
            is_base = ids.numel() == self.base.numel()
            parts = self.of_base if is_base else [self.words_of(x, ids) for x in self.layers]
        with self.meter.stage("matmul"):
            logits = [F.linear(x, *part) for x, part in zip(features, parts, strict=True)]
        with self.meter.stage("normalise"):
            if others is not None:
                logits = [x.masked_fill_(others, -torch.inf) for x in logits]
            return LogProbs(mean_log_softmax(logits, self.temperature), ids, self.V)

    def own_scores(self, output: PackedLinear, x: Tensor, beam: Beam, pool: Pool) -> LogProbs:
        """Return the scores of each sentence's own list, for x (n, d)."""
        lists = beam.cached_for_live(
            "lists", lambda: gathered.WordLists(output, self.lists_of(pool, beam.live))
        )
        with self.meter.stage("matmul"):
            logits = lists.output(x)
        with self.meter.stage("normalise"):
            for (first, end), columns in zip(
                pairwise(beam.bounds().tolist()), lists.columns, strict=True
            ):
                own = log_softmax_(logits[first:end].index_select(1, columns), self.temperature)
                # where the model gives NaN, every column has it
                logits[first:end] = torch.where(own[:, :1].isnan(), torch.nan, -torch.inf)
                logits[first:end, columns] = own
        self.meter.count(len(lists.words), sum(words.numel() for words in lists.words))
        return LogProbs(logits, lists.ids, self.V)


def mean_log_softmax(scores: list[Tensor], temperature: float) -> Tensor:
    """Return the log of the models' mean probabilities over the columns of scores (n, C) each."""
    parts = []
    for logits in scores:
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        parts.append((logits if temperature == 1.0 else logits / temperature).log_softmax(-1))
    return (
        parts[0]
        if len(parts) == 1
        else torch.logsumexp(torch.stack(parts), dim=0) - math.log(len(parts))
    )


def most_frequent(counts: Iterable[int], T: int, always: Iterable[int]) -> Tensor:
    """Return the T most frequent words, of equal counts those first in the dictionary, and the
    words `always`."""
    order = torch.tensor(list(counts)).argsort(descending=True, stable=True)[: max(0, T)]
    return torch.cat([order, torch.tensor(list(always), dtype=torch.long)]).unique()
