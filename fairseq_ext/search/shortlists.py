"""Shortlists of words: their statistics, the strategies whose lists stay as they are during the
search of a sentence, and the lists of the compiled search."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fairseq_ext.core.stats import Mean, Section, Stats
from fairseq_ext.kernels.beam import CompiledBatch, CompiledSentence
from fairseq_ext.kernels.shortlist import WordLists
from fairseq_ext.kernels.transformer import CompiledRows
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import Setup, Softmax

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
class ShortlistCounts(Section):
    """The `softmax` section of the statistics."""

    key = "softmax"
    vocab_mean: Mean = Mean()  # words of a shortlist
    # share of the full softmax's k best words, and of its best, that is listed
    recall_at_k: Mean | None = None
    recall_at_1: Mean | None = None
    recall_rows: int | None = None  # number of rows that the recall is computed from
    seconds: StageSeconds = field(default_factory=StageSeconds)


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
        is_due = self.calls_to_sample() == 1
        self.calls += 1
        return is_due

    def sample(self, full: Tensor, listed: LogProbs) -> None:
        """Count which of each row's best words by the full softmax (n, V) are on its shortlist."""
        best = full.topk(min(self.k, full.size(1)), dim=1).indices
        known = (listed.scores_at(best) > -torch.inf).float()
        at_k, at_1 = torch.stack([known.mean(1).sum(), known[:, 0].sum()]).tolist()
        n, counts = full.size(0), self.counts
        counts.recall_at_k = (counts.recall_at_k or Mean()) + Mean(at_k, n)
        counts.recall_at_1 = (counts.recall_at_1 or Mean()) + Mean(at_1, n)
        counts.recall_rows = (counts.recall_rows or 0) + n


# ---- Lists of a sentence that stay as they are


class ListSoftmax(Softmax):
    """A softmax over lists of words that stay as they are during the search of a sentence; where
    `is_own`, the compiled search scores them."""

    meter: ShortlistMeter

    @abstractmethod
    def lists_of(self, pool: Pool, sentences: list[int]) -> list[Tensor]:
        """Return the ascending ids (C,) of the words that each sentence's rows score."""


class CompiledLists:
    """Sets the words that the sentences of a batch score, and the output layer of all of them."""

    def __init__(self, setup: Setup):
        softmax = setup.strategies.softmax
        assert isinstance(softmax, ListSoftmax)
        self.softmax, self.decoder = softmax, setup.decoder
        self.clear()

    def clear(self) -> None:
        """Forget all sentences."""
        self.covered: set[CompiledSentence] = set()  # those whose words are in `lists`
        self.lists: WordLists | None = None

    def update_(self, batch: CompiledBatch, running: Collection[CompiledSentence]) -> None:
        """Make an output layer of the running sentences' words, if there are new sentences, or
        half of those of the last layer have ended."""
        new = set(running)
        if not new or (new <= self.covered and 2 * len(new) > len(self.covered)):
            return
        output = self.decoder.compiled_output
        assert output is not None
        self.covered = new
        self.lists = WordLists(output, [sentence.words for sentence in running])
        for sentence, columns in zip(running, self.lists.columns, strict=True):
            sentence.list_(sentence.words, columns)
        batch.set_output_(self.lists.output)

    def forget_(self, sentence: CompiledSentence) -> None:
        """Count the words that a sentence has scored. It ends, or another search takes it over."""
        steps = sentence.struct.length + 1
        self.softmax.meter.count(steps, steps * sentence.struct.listed)
        self.covered.discard(sentence)

    def steps_to_sample(self, most: int) -> tuple[int, bool]:
        """Return the number of steps before the next sample of recall, at most `most`, or 1 if the
        next step is one; and whether it is."""
        calls = self.softmax.meter.calls_to_sample()
        return (1, True) if calls == 1 else (min(most, calls - 1), False)

    def sample(self, batch: CompiledBatch, rows: list[int], reader: CompiledRows) -> None:
        """Compare the lists with the full softmax for the last step's rows, of which the sentences
        had this many each."""
        full = self.decoder.log_probs([reader.x[: sum(rows)]], 1.0)
        listed = torch.full_like(full, -torch.inf)
        for sentence, of_sentence in zip(batch.live, listed.split(rows), strict=True):
            of_sentence[:, sentence.words] = 0.0
        self.softmax.meter.sample(full, LogProbs(listed))
