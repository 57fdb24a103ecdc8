"""Blocks whose width is chosen by the expected gain of drafts (`--decoding window`).

The method is not in the paper that jacobi.py cites. `Cost` is the cost of a draft of m tokens. Its
gain is the number of tokens that the drafter expects to be right, corrected by how often it has
been right so far. The block has the width with the most tokens for its cost. While its drafts cost
more than they gain, the drafter is not called for some calls.
search/parallel/driver.py reads the drafts and reports which tokens were right. The compiled twin
for a single sentence is in kernels/parallel.cpp.

Neutral setting: any; the output is that of greedy decoding.

Shapes: n live rows, w block width.

Compiled twin: kernels/parallel.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairseq_ext.kernels.library import new
from fairseq_ext.kernels.parallel import CompiledMethod
from fairseq_ext.search.parallel.blocks import Method, Rows
from fairseq_ext.search.parallel.drafts import Drafter
from fairseq_ext.search.parallel.driver import ParallelSearch
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import Setup
from fairseq_ext.search.strategies.decoding._parallel import (
    ParallelFlags,
    driver_with,
    is_on_cpu,
    register_method,
)

DECAY = 0.95  # of the record of right draft tokens, in each call
MAX_TRUST = 1.5  # largest correction of a drafter's own probabilities
# useless calls in a row before the drafter pauses, and the longest pause, in calls
MAX_USELESS_CALLS, LONGEST_PAUSE = 4, 32


@dataclass
class Cost:
    """The cost of drafts, in calls of one token; measured with the models of this project's
    benchmark.

    A linear layer waits for its weights if it has few lines: on a CPU the first `cheap` lines of a
    call share one pass over them (the rows that the compiled layer keeps in registers); each line
    after them costs its own arithmetic.
    """

    any_draft: float  # any draft at all
    position: float  # each position
    row: float  # of a position, for each row
    cheap_lines: int = 1 << 30  # number of lines
    expensive_factor: float = 1.0  # cost factor of positions after them

    def block_costs(self, m: int, n: int) -> list[float]:
        """Return the costs of blocks with 1 to m draft tokens in n rows."""
        each = self.position + self.row * n
        cheap_lines = max(0, self.cheap_lines // n - 1)
        return [
            1 + self.any_draft + each * (j + (self.expensive_factor - 1) * max(0, j - cheap_lines))
            for j in range(1, m + 1)
        ]


CPU = Cost(0.05, 0.07, 0.005, cheap_lines=6, expensive_factor=2.5)
CUDA = Cost(0.1, 0.01, 0.0002)


class Window(Method):
    """Blocks by the expected gain of drafts.

    Its state is kept from pool to pool: a drafter that was good is expected to be good.
    """

    def __init__(self, drafter: Drafter, b: int, cost: Cost):
        """b: width of the widest block, 0 for no limit."""
        self.drafter = drafter
        self.b = b
        self.cost = cost
        # costs of blocks with 1, 2, ... draft tokens, by the number of rows
        self.prices: dict[int, list[float]] = {}
        alone = {
            "position": cost.position + cost.row,
            "cheap": max(0, cost.cheap_lines - 1),
            "any_draft": cost.any_draft,
            "beyond": cost.expensive_factor,
        }
        fixed = {
            "decay": DECAY,
            "most_trust": MAX_TRUST,
            "patience": MAX_USELESS_CALLS,
            "longest_pause": LONGEST_PAUSE,
        }
        # right, expected: draft tokens that were right, and the number that the drafter expected;
        # useless: calls in a row whose drafts cost more than they gain; pause: calls without drafts
        # that are still to come
        self.state = new("Window", b=b, **alone, **fixed, right=1.0, expected=1.0)

    def start(self, pool: Pool) -> None:
        self.drafter.start(pool)

    def trust(self) -> float:
        """Return the correction of the drafter's probabilities: right tokens / expected ones."""
        return min(MAX_TRUST, self.state.right / self.state.expected)

    def draft(self, rows: Rows, most: int) -> np.ndarray:
        n, state = len(rows), self.state
        self.offered = np.zeros((n, 0), np.int64)
        if state.pause:
            state.pause -= 1
            return self.offered
        most = min(most, self.b - 1) if self.b else most
        if most <= 0:
            return self.offered
        self.offered, self.confidence = self.drafter.propose(rows, most)
        if not self.offered.shape[1]:
            return self.offered
        likely = np.minimum(self.confidence * self.trust(), 1.0).cumprod(1).mean(0)
        return self.offered[:, : self.width(likely.tolist(), n)]

    def width(self, likely: list[float], n: int) -> int:
        """Return the number of draft tokens with the most tokens for the cost, if each is right
        with the given probability, provided that all before it are; 0 if no draft gains."""
        best = tokens = 1.0
        width = 0
        prices = self.prices.get(n, [])
        if len(prices) < len(likely):
            prices = self.prices[n] = self.cost.block_costs(2 * len(likely), n)
        for j, chance in enumerate(likely):
            tokens += chance
            gain = tokens / prices[j]
            if gain > best or (gain == best and not width):
                best, width = gain, j + 1
        state = self.state
        state.useless = 0 if width else state.useless + 1
        if state.useless > MAX_USELESS_CALLS:
            state.pause = min(state.useless, LONGEST_PAUSE)
        return width

    def learn(self, rows: Rows, out: np.ndarray, verified: np.ndarray, w: int) -> None:
        # one draft token after the block is judged as well, so that the record continues while the
        # block is one token wide
        m, n, state = min(w, self.offered.shape[1]), len(rows), self.state
        if m:
            reached = np.arange(m) < verified[:, None]
            right = (self.offered[:, :m] == out[:, :m]) & reached
            state.right = DECAY * state.right + right.sum() / n
            state.expected = max(
                1e-3, DECAY * state.expected + (self.confidence[:, :m] * reached).sum() / n
            )

    def compiled(self, sentence: int) -> CompiledMethod:
        drafter = self.drafter.compiled(sentence)
        self.state.drafter = drafter.fields
        return CompiledMethod("window", self.state, drafter, learns=True)


@register_method("window", "verified windows, after Santilli et al. 2023")
def build(flags: ParallelFlags, setup: Setup) -> ParallelSearch:
    cost = (
        (CPU if is_on_cpu(setup) else CUDA)
        if flags.draft_cost < 0
        else Cost(0.0, flags.draft_cost, 0.0)
    )
    return driver_with(flags, setup, lambda drafter: Window(drafter, flags.block_size, cost))
