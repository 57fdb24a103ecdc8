"""Requests one at a time, each in one compiled call (kernels/beam.cpp), while few are there: the steps of the shared search are in Python.

A step of the shared search with n sentences takes about a + b n seconds, which is learned from the steps as they come; a call has its steps
without Python. So a small model decodes a few requests faster one after another, a large one, whose weights are read in every step, only
a request that finds nobody.

A call is not interrupted: a request that comes meanwhile waits for its end. So it is for what is expected to take less than `LONGEST`,
after the time that the last ones took for each of their source tokens; the others join the shared search at once.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from dataclasses import replace

from torch import Tensor

from fairseq_ext.search.driver import BeamSearch
from fairseq_ext.search.finished import Hypothesis
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.state import SearchSetup

LONGEST = 0.05  # seconds
FEW = 3  # calls that are made before their time is believed; the first ones allocate
KEPT = 0.99  # what a step counts for after the next one
ENOUGH = 20.0  # steps, counted so, of which the line is believed


class StepTime:
    """The time of a step: a + b n, by least squares over the steps so far, of which old ones count less."""

    def __init__(self) -> None:
        self.sums = [0.0] * 5  # of 1, n, n^2, seconds, n seconds

    def add(self, n: int, seconds: float) -> None:
        """A step with n sentences took so long."""
        self.sums = [KEPT * total + x for total, x in zip(self.sums, (1.0, n, n * n, seconds, n * seconds), strict=True)]

    def of(self, n: int) -> float:
        """Seconds of a step with n sentences; 0, so that such steps are made, while there were too few of different n."""
        weight, first, second, seconds, product = self.sums
        spread = weight * second - first * first  # weight^2 times the variance of n
        if weight < ENOUGH or spread < 0.01 * weight * weight:
            return 0.0
        b = (weight * product - first * seconds) / spread
        return (seconds - b * first) / weight + b * n


class OneCall:
    """The search of a generator for sentences without constraints, one at a time."""

    def __init__(self, setup: SearchSetup):
        plugs = replace(setup.plugs, select=setup.plugs.select.unconstrained(), stop=setup.plugs.stop.unconstrained())
        self.stats = setup.stats
        self.driver = BeamSearch(replace(setup, plugs=plugs, refills=False))
        self.shared = StepTime()
        self.paces: deque[float] = deque(maxlen=9)  # seconds a source token, of the last calls
        self.steps: deque[float] = deque(maxlen=9)  # seconds a step

    def pays(self, tokens: Tensor, waiting: int) -> bool:
        """Whether a sentence (L,) is expected to be short work, and less than its share of a shared step where so many requests wait."""
        if len(self.paces) >= FEW and statistics.median(self.paces) * tokens.numel() > LONGEST:
            return False
        return waiting == 1 or statistics.median(self.steps or [math.inf]) * waiting < self.shared.of(waiting)

    def __call__(self, pool: Pool) -> list[Hypothesis] | None:
        """The hypotheses of the pool's one sentence, best first; None where it is none for the compiled call (driver.py)."""
        if not self.driver.is_plain(pool):
            return None
        calls, start = self.stats.decoder_calls, time.perf_counter()
        found = self.driver.search(pool, 0)
        seconds = time.perf_counter() - start
        if (steps := self.stats.decoder_calls - calls) > 0:
            self.paces.append(seconds / int(pool.length[0]))
            self.steps.append(seconds / steps)
        return found
