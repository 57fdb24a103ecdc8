"""What is measured of a softmax over a part of the vocabulary."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.stats import Stats

CLOCK = time.CLOCK_MONOTONIC  # what stages are timed by, a number of the system's
STAGES = ("hash", "lookup", "compact", "gather", "matmul", "normalise")


class Measured:
    """The `softmax` section of the statistics: mean runtime vocabulary, recall of the full softmax's k best on a sample of the
    calls, seconds of each stage (on a GPU: until its kernels are launched, or awaited where the list's length is needed)."""

    def __init__(self, stats: Stats, k: int, every: int):
        self.section = stats.extra.setdefault("softmax", {"vocab_mean": 0.0, "seconds": dict.fromkeys(STAGES, 0.0)})
        self.k = k
        self.every = every  # calls from one sample of the recall to the next, 0: none
        self.calls = 0
        self.lists = self.words = 0
        self.found = torch.zeros(2)
        self.sampled = 0

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.clock_gettime(CLOCK)
        yield
        self.section["seconds"][name] += time.clock_gettime(CLOCK) - start

    def spent(self, names: tuple[str, ...], seconds: Iterable[float]) -> None:
        """So long by stages, measured elsewhere."""
        for name, value in zip(names, seconds, strict=True):
            self.section["seconds"][name] += value

    def count(self, lists: int, words: int) -> None:
        """So many lists that together hold so many words."""
        self.lists, self.words = self.lists + lists, self.words + words
        self.section["vocab_mean"] = self.words / self.lists

    def wants_sample(self) -> bool:
        self.calls += 1
        return self.every > 0 and self.calls % self.every == min(4, self.every) % self.every

    def sample(self, full: Tensor, listed: LogProbs) -> None:
        """Note which of each row's best words under the full softmax (n, V) are listed."""
        best = full.topk(min(self.k, full.size(1)), dim=1).indices
        known = listed.column(best)[1].float()
        self.found = self.found + torch.stack([known.mean(1).sum(), known[:, 0].sum()]).cpu()
        self.sampled += full.size(0)
        self.section["recall_at_k"], self.section["recall_at_1"] = (self.found / self.sampled).tolist()
        self.section["recall_rows"] = self.sampled
