"""Statistics of a shortlist softmax: shortlist lengths, recall against the full softmax, seconds of each stage."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fairseq_ext.core.stats import Mean, Section, Stats
from fairseq_ext.search.log_probs import LogProbs

CLOCK = time.CLOCK_MONOTONIC  # what stages are timed by, a number of the system's


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
    recall_at_k: Mean | None = None  # of the full softmax's k best words, and of its best, the share that is listed
    recall_at_1: Mean | None = None
    recall_rows: int | None = None  # of which the recall was taken
    seconds: StageSeconds = field(default_factory=StageSeconds)
    probe: Probe | None = None


class ShortlistMeter:
    """Counts the words of shortlists, the recall of the full softmax's k best words on a sample of the calls, and the seconds of each
    stage. On a GPU a stage ends when its kernels are launched, or when the host waits for the shortlist's length."""

    def __init__(self, stats: Stats, k: int, every: int):
        self.counts = stats.section(ShortlistCounts)
        self.k = k
        self.every = every  # calls from one sample of the recall to the next, 0: none
        self.calls = 0

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.clock_gettime(CLOCK)
        yield
        self.spent((name,), (time.clock_gettime(CLOCK) - start,))

    def spent(self, names: tuple[str, ...], seconds: Iterable[float]) -> None:
        """Add seconds that the compiled library has measured, a value for each name."""
        spent = self.counts.seconds
        for name, value in zip(names, seconds, strict=True):
            setattr(spent, name, (getattr(spent, name) or 0.0) + value)

    def count(self, shortlists: int, words: int) -> None:
        """Count shortlists and their total length."""
        self.counts.vocab_mean += Mean(words, shortlists)

    def wants_sample(self) -> bool:
        self.calls += 1
        return self.every > 0 and self.calls % self.every == min(4, self.every) % self.every

    def sample(self, full: Tensor, listed: LogProbs) -> None:
        """Count which of each row's best words under the full softmax (n, V) are on its shortlist."""
        best = full.topk(min(self.k, full.size(1)), dim=1).indices
        known = listed.is_listed(best).float()
        at_k, at_1 = torch.stack([known.mean(1).sum(), known[:, 0].sum()]).tolist()
        n, counts = full.size(0), self.counts
        counts.recall_at_k = (counts.recall_at_k or Mean()) + Mean(at_k, n)
        counts.recall_at_1 = (counts.recall_at_1 or Mean()) + Mean(at_1, n)
        counts.recall_rows = (counts.recall_rows or 0) + n
