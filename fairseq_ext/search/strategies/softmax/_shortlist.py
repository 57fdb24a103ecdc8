"""Common parts of all shortlists: target counts, flags, the layer over their words, statistics."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.files import table_lines
from fairseq_ext.core.stats import Mean, Section, Stats
from fairseq_ext.kernels import lsh_torch
from fairseq_ext.kernels import shortlist as gathered
from fairseq_ext.kernels.lsh_torch import nonzero
from fairseq_ext.model.protocol import Decoder
from fairseq_ext.model.transformer.supported import output_layers
from fairseq_ext.model.transformer.weights import Linear
from fairseq_ext.search.beam import Beam
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.pool import PerPoolCache, Pool
from fairseq_ext.search.protocols import Softmax

logger = logging.getLogger("fairseq_ext")


def target_counts(flags, context, T: int) -> list[int]:
    """Return the frequency of each target word, by id; it chooses T words."""
    dictionary = context.dictionary
    if not flags.shortlist_counts:
        why = ""
        if len(set(dictionary.count[dictionary.nspecial :]) - {0}) < 2:  # 0: words that fill it up
            why = "all counts of the dictionary are equal, so the most frequent words are its first"
        elif context.joined_dictionary:
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


def shortlist_arguments(flags, context, T: int, flag: str) -> dict:
    """Return the arguments that every ShortlistSoftmax takes."""
    layers = output_layers(context.models, flag)
    base = most_frequent(target_counts(flags, context, T), T, (context.eos, context.unk))
    measured = ShortlistMeter(context.stats, context.k, flags.shortlist_recall_every)
    return dict(layers=layers, base=base, temperature=context.temperature, meter=measured)


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
        },
    )
    shortlist_share: Literal["batch", "sentence"] = field(
        default="batch",
        metadata={
            "help": "one shortlist for all rows decoded together, or one for each sentence "
            "(default: batch)"
        },
    )


def check_top(flags, generation) -> None:
    """Refuse a size below zero (raises UsageError)."""
    if flags.shortlist_top < 0:
        raise UsageError(
            f"--shortlist-top (number of words) must be 0 or more, not {flags.shortlist_top}"
        )


# ---- Shortlist softmax: scores of a part of the vocabulary
#
# A strategy returns the listed words (`ShortlistSoftmax.words`). Words that every shortlist needs
# are added here, and the linear layer over them is computed here. A shortlist is shared by all rows
# of a call, or by the rows of a sentence.
#
# Shapes: n rows, S live sentences, N sentences of the pool, V vocabulary, d features, C listed
# words, T words of the fixed part.


Layer = tuple[Tensor, Tensor | None]  # weight (V, d), bias (V,)
SIZE_MULTIPLE = 256  # a gathered part is filled up to a multiple of this number of words


def required_words(pool: Pool) -> Tensor:
    """Return (N, R) ids that each sentence's prefix and constraints need, padded with -1."""
    needed = [{*ids, *pool.forced(i)} for i, ids in enumerate(pool.required or [()] * len(pool))]
    width = max(map(len, needed), default=0)
    rows = [[*sorted(w), *[-1] * (width - len(w))] for w in needed]
    return torch.tensor(rows, dtype=torch.long, device=pool.length.device).view(len(pool), width)


def mask_with(mask: Tensor, needed: Tensor | None) -> Tensor:
    """Return mask (G, V) with the ids needed (G, R) set, except for -1."""
    if needed is None:
        return mask
    V = mask.size(1)
    mask = torch.cat([mask, mask[:, :1]], dim=1)  # a column for -1
    return mask.scatter(1, needed.masked_fill(needed < 0, V), True)[:, :V]


class ShortlistSoftmax(Softmax):
    """A softmax over a shortlist: `base`, the words that are always listed, and those that `words`
    returns for the call.

    Probabilities are normalised over the shortlist. An ensemble averages its models' probabilities
    over one shortlist.
    """

    def __init__(
        self,
        layers: list[Layer],
        base: Tensor,
        temperature: float,
        share: str,
        meter: ShortlistMeter,
    ):
        self.layers = layers
        self.kernels: Any = lsh_torch
        self.buffer: Tensor | None = None
        self.temperature = temperature
        self.by_sentence = share == "sentence"
        self.meter = meter
        self.required = PerPoolCache(required_words)
        weight = layers[0][0]
        self.V = weight.size(0)
        self.base = base.to(weight.device).unique()  # (T,) ascending
        self.in_base = torch.zeros(self.V, dtype=torch.bool, device=weight.device)
        self.in_base[self.base] = True
        self.lists_all_words = self.base.numel() == self.V
        # a fixed part that is a prefix of the vocabulary is sorted already
        self.is_prefix = bool(self.in_base[: self.base.numel()].all())
        self.linears = [
            Linear(w[self.base].contiguous(), None if b is None else b[self.base])
            for w, b in layers
        ]
        self.empty_ids = self.base[:0]
        self.compiled = None
        if len(layers) == 1 and gathered.is_supported(weight):
            self.compiled = gathered.ShortlistLinear(
                self.linears[0].pack(), self.base, *layers[0], temperature
            )

    def required_of_live(self, beam: Beam, pool: Pool) -> Tensor | None:
        """Return (S, R) ids that prefixes and constraints of the live sentences need, padded with
        -1; None for none."""
        needed = self.required(pool)
        return needed[beam.live_index()] if needed.size(1) else None

    def words(self, features: list[Tensor], beam: Beam, pool: Pool) -> Tensor | None:
        """Return words that a call's shortlists need in addition to the base: a mask (S, V) with
        one for each sentence, or (1, V) for all rows, as `by_sentence` says; None for none."""
        return None

    def extra_ids(
        self, features: list[Tensor], beam: Beam, pool: Pool, always: Tensor | None
    ) -> Tensor | None:
        """Return words of one shortlist for all rows, without the base: ascending ids (m,) of
        `words` and of the mask always (V,); None for none."""
        mask = self.words(features, beam, pool)
        if mask is None and always is None:
            return None
        with self.meter.stage("compact"):
            either = always if mask is None else mask[0] if always is None else mask[0] | always
            assert either is not None
            return nonzero(either & ~self.in_base)

    def __call__(
        self,
        decoder: Decoder,
        features: list[Tensor],
        beam: Beam | None = None,
        pool: Pool | None = None,
    ) -> LogProbs:
        assert beam is not None and pool is not None, "a shortlist needs the rows of a beam"
        if self.lists_all_words:
            out = self.full(decoder, features)
        elif self.by_sentence and len(beam.live) > 1:
            mask = self.words(features, beam, pool)
            needed = self.required_of_live(beam, pool)
            if mask is None:
                mask = self.in_base.expand(len(beam.live), -1)
            out = self.sentence_shortlists(features, mask_with(mask | self.in_base, needed), beam)
        else:
            needed = self.required_of_live(beam, pool)
            always = (
                None if needed is None else mask_with(self.in_base[None], needed.reshape(1, -1))[0]
            )
            found = self.extra_ids(features, beam, pool, always)
            size = self.base.numel() + (0 if found is None else found.numel())
            # subtle: a sentence's own list is scored by the same products in every batch, which are
            # never the decoder's (--int8)
            is_full = size == self.V and not self.by_sentence
            out = (
                self.full(decoder, features) if is_full else self.shared_shortlist(features, found)
            )
        if self.meter.is_sample_due():
            self.meter.sample(decoder.log_probs(features, self.temperature), out)
        return out

    def full(self, decoder: Decoder, features: list[Tensor]) -> LogProbs:
        self.meter.count(1, self.V)
        with self.meter.stage("matmul"):
            return LogProbs(decoder.log_probs(features, self.temperature))

    def shared_shortlist(self, features: list[Tensor], found: Tensor | None) -> LogProbs:
        """Return scores of one shortlist, the base and found (m,), for all rows."""
        self.meter.count(1, self.base.numel() + (0 if found is None else found.numel()))
        if self.compiled is not None:
            ids, value = self.compiled(
                features[0], self.empty_ids if found is None else found, CLOCK
            )
            self.meter.add_seconds(("gather", "matmul", "normalise"), self.compiled.seconds)
            return LogProbs(value, ids, self.V)
        scores, ids = [], self.base
        for linear, (weight, bias), x in zip(self.linears, self.layers, features, strict=True):
            with self.meter.stage("matmul"):
                logits = linear(x)
            if found is not None and found.numel():
                with self.meter.stage("gather"):
                    # subtle: oneDNN makes a new kernel for every shape, so there are few shapes
                    filled = (
                        F.pad(found, (0, -found.numel() % SIZE_MULTIPLE))
                        if x.device.type == "cpu"
                        else found
                    )
                    rows = self.gather_rows(weight, filled)
                    shift = None if bias is None else bias[filled]
                with self.meter.stage("matmul"):
                    logits = torch.cat(
                        [logits, small_product(x, rows, shift)[:, : found.numel()]], dim=1
                    )
            scores.append(logits)
        with self.meter.stage("normalise"):
            value = mean_log_softmax(scores, self.temperature)
            if found is not None and found.numel():
                ids = torch.cat([ids, found])
                if not self.is_prefix:
                    ids, order = ids.sort()
                    value = value.index_select(1, order)
        return LogProbs(value, ids, self.V)

    def gather_rows(self, weight: Tensor, ids: Tensor) -> Tensor:
        """Return rows ids (m,) of weight; on a CPU in memory that is used again, since new pages
        cost more than the copy."""
        if weight.device.type != "cpu":
            return self.kernels.gather(weight, ids)
        if self.buffer is None or self.buffer.size(0) < ids.numel():
            self.buffer = weight.new_empty(2 * ids.numel(), weight.size(1))
        return torch.index_select(weight, 0, ids, out=self.buffer[: ids.numel()])

    def sentence_shortlists(self, features: list[Tensor], mask: Tensor, beam: Beam) -> LogProbs:
        """Return scores of a shortlist for each sentence, mask (S, V); rows of ids are padded with
        their last word."""
        with self.meter.stage("compact"):
            length = mask.sum(1)
            C = int(length.max())
            column = torch.arange(C, device=mask.device)
            fills = column >= length[:, None]  # (S, C)
            first = length.cumsum(0) - length
            flat = mask.nonzero()[:, 1]
            ids = flat[first[:, None] + torch.minimum(column, length[:, None] - 1)]  # (S, C)
            self.meter.count(mask.size(0), int(length.sum()))
        S = mask.size(0)
        sentence = beam.sentence_of_row()
        scores = []
        for (weight, bias), x in zip(self.layers, features, strict=True):
            with self.meter.stage("gather"):
                rows = weight.index_select(0, ids.flatten()).view(S, C, -1)
                shift = None if bias is None else bias[ids][:, None]
            with self.meter.stage("matmul"):
                # (n, d) -> (S, width, d) -> (S, width, C)
                logits = torch.bmm(beam.by_sentence(x, 0.0), rows.transpose(1, 2))
                logits = beam.by_row(logits if shift is None else logits + shift)  # (n, C)
            scores.append(logits.masked_fill(fills[sentence], -torch.inf))
        with self.meter.stage("normalise"):
            return LogProbs(mean_log_softmax(scores, self.temperature), ids[sentence], self.V)


def small_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the product (n, C) of x (n, d) and weight (C, d); on a CPU in float32 by oneDNN, for
    weights that are used once and so not packed."""
    if Linear.packs and x.device.type == "cpu" and x.dtype == torch.float32:
        return torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, "none", [], "")
    return F.linear(x, weight, bias)


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


# ---- Statistics: shortlist lengths, recall against the full softmax, seconds of each stage
MANY_CALLS = 1 << 30  # to a sample that is never taken
CLOCK = time.CLOCK_MONOTONIC  # the system's number of the clock that times stages


@dataclass
class StageSeconds(Section):
    """Seconds of each stage that has run."""

    hash: float | None = None
    lookup: float | None = None
    compact: float | None = None
    gather: float | None = None
    matmul: float | None = None
    normalise: float | None = None


@dataclass
class Probe(Section):
    """Rows of the probed call, and seconds of it with the full softmax and with the shortlist."""

    rows: Mean
    full: Mean
    lsh: Mean


@dataclass
class ShortlistCounts(Section):
    """The `softmax` section of the statistics."""

    key = "softmax"
    vocab_mean: Mean = Mean()  # words of a shortlist
    # share of the full softmax's k best words, and of its best, that is listed
    recall_at_k: Mean | None = None
    recall_at_1: Mean | None = None
    recall_rows: int | None = None  # number of rows that the recall is computed from
    seconds: StageSeconds = field(default_factory=StageSeconds)
    probe: Probe | None = None


class ShortlistMeter:
    """Counts the words of shortlists, the recall of the full softmax's k best words on a sample of
    the calls, and the seconds of each stage. On a GPU a stage ends when its kernels are launched,
    or when the host waits for the shortlist's length."""

    def __init__(self, stats: Stats, k: int, every: int):
        self.counts = stats.section(ShortlistCounts)
        self.k = k
        self.every = every  # calls between two samples of the recall, 0: no samples
        self.calls = 0

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.clock_gettime(CLOCK)
        yield
        self.add_seconds((name,), (time.clock_gettime(CLOCK) - start,))

    def add_seconds(self, names: tuple[str, ...], seconds: Iterable[float]) -> None:
        """Add seconds measured by the compiled library, a value for each name."""
        spent = self.counts.seconds
        for name, value in zip(names, seconds, strict=True):
            setattr(spent, name, (getattr(spent, name) or 0.0) + value)

    def count(self, shortlists: int, words: int) -> None:
        self.counts.vocab_mean += Mean(words, shortlists)

    def calls_to_sample(self) -> int:
        """Return the number of calls to the next sample, which is the last of them."""
        return 1 + (min(4, self.every) - self.calls - 1) % self.every if self.every else MANY_CALLS

    def is_sample_due(self) -> bool:
        self.calls += 1
        return self.every > 0 and self.calls % self.every == min(4, self.every) % self.every

    def sample(self, full: Tensor, listed: LogProbs) -> None:
        """Count which of each row's best words by the full softmax (n, V) are on its shortlist."""
        best = full.topk(min(self.k, full.size(1)), dim=1).indices
        known = listed.is_listed(best).float()
        at_k, at_1 = torch.stack([known.mean(1).sum(), known[:, 0].sum()]).tolist()
        n, counts = full.size(0), self.counts
        counts.recall_at_k = (counts.recall_at_k or Mean()) + Mean(at_k, n)
        counts.recall_at_1 = (counts.recall_at_1 or Mean()) + Mean(at_1, n)
        counts.recall_rows = (counts.recall_rows or 0) + n
