"""Blocks as wide as their drafts are worth, every verified token committed (`--decoding window`).

Not in the paper, which jacobi.py cites. A draft of m tokens costs what `Cost` says. It gives as
many tokens as its drafter expects to be right, corrected by how often it has been right so far. The
block has the width with the most tokens for the price. A drafter whose drafts are not worth reading
is not asked for a while. search/parallel/driver.py asks for drafts and says what became of them.
The compiled twin for a sentence that is alone is in kernels/parallel.cpp.

Neutral setting: any; the output is greedy decoding's.

Shapes: n live rows, w block width.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairseq_ext.kernels.parallel import CompiledMethod, WindowStruct
from fairseq_ext.search.parallel.blocks import Method, Rows
from fairseq_ext.search.parallel.drafts import Drafter
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.strategies.decoding._parallel import driver_with, is_on_cpu, register_method

DECAY = 0.95  # of the record of how good drafts have been, a call
MOST_TRUST = 1.5  # a drafter is never taken to be better than it says by more
# calls whose drafts are not worth reading before no more are asked for, and for how long
PATIENCE, LONGEST_PAUSE = 4, 32


@dataclass
class Cost:
    """What drafts cost, in calls of one token; measured with the models of this
    project's benchmark.

    A linear layer waits for its weights where lines are few: on a CPU the first `cheap` lines of a
    call share one pass over them (the rows that the compiled layer keeps in registers), and behind
    them a line costs its own arithmetic.
    """

    any_draft: float  # any draft at all
    position: float  # each position
    row: float  # what each row adds to a position
    cheap: int = 1 << 30  # lines
    beyond: float = 1.0  # times as much for a position behind them

    def of(self, m: int, n: int) -> list[float]:
        """The prices of blocks with 1 to m draft tokens in n rows."""
        each = self.position + self.row * n
        cheap = max(0, self.cheap // n - 1)
        return [
            1 + self.any_draft + each * (j + (self.beyond - 1) * max(0, j - cheap))
            for j in range(1, m + 1)
        ]


CPU = Cost(0.05, 0.07, 0.005, cheap=6, beyond=2.5)
CUDA = Cost(0.1, 0.01, 0.0002)


class Window(Method):
    """Blocks by what their drafts are worth.

    Its state outlives a pool: a drafter that was good is taken to be good.
    """

    def __init__(self, drafter: Drafter, b: int, cost: Cost):
        """b: widest block, 0 for no limit."""
        self.drafter = drafter
        self.b = b
        self.cost = cost
        # of blocks with 1, 2, ... draft tokens, by the number of rows
        self.prices: dict[int, list[float]] = {}
        alone = {
            "position": cost.position + cost.row,
            "cheap": max(0, cost.cheap - 1),
            "any_draft": cost.any_draft,
            "beyond": cost.beyond,
        }
        fixed = {
            "decay": DECAY,
            "most_trust": MOST_TRUST,
            "patience": PATIENCE,
            "longest_pause": LONGEST_PAUSE,
        }
        # right, expected: draft tokens that were right, and how many the drafter had expected;
        # useless: calls in a row whose drafts were not worth reading; pause: calls that will
        # not even ask for drafts
        self.state = WindowStruct(b=b, **alone, **fixed, right=1.0, expected=1.0)

    def start(self, pool: Pool) -> None:
        self.drafter.start(pool)

    def trust(self) -> float:
        """How many times as often as its drafter says a draft token is right."""
        return min(MOST_TRUST, self.state.right / self.state.expected)

    def draft(self, rows: Rows, most: int) -> np.ndarray:
        n, state = len(rows), self.state
        self.offered = np.zeros((n, 0), np.int64)
        if state.pause:
            state.pause -= 1
            return self.offered
        most = min(most, self.b - 1) if self.b else most
        if most <= 0:
            return self.offered
        # a draft token that is right less often than it costs is worth nothing, however cheap
        # tokens are at present
        least = min(1.0, (self.cost.position + self.cost.row * n) / self.trust())
        self.offered, self.confidence = self.drafter.propose(rows, most, least)
        if not self.offered.shape[1]:
            return self.offered
        likely = np.minimum(self.confidence * self.trust(), 1.0).cumprod(1).mean(0)
        return self.offered[:, : self.width(likely.tolist(), n)]

    def width(self, likely: list[float], n: int) -> int:
        """Draft tokens with the most tokens for the price, of a draft whose tokens are right with
        these probabilities, all before them being right; 0 where no draft pays."""
        best = tokens = 1.0
        width = 0
        prices = self.prices.get(n, [])
        if len(prices) < len(likely):
            prices = self.prices[n] = self.cost.of(2 * len(likely), n)
        for j, chance in enumerate(likely):
            tokens += chance
            gain = tokens / prices[j]
            if gain > best or (gain == best and not width):
                best, width = gain, j + 1
        state = self.state
        state.useless = 0 if width else state.useless + 1
        if state.useless > PATIENCE:
            state.pause = min(state.useless, LONGEST_PAUSE)
        return width

    def learn(self, rows: Rows, out: np.ndarray, verified: np.ndarray, w: int) -> None:
        # one draft token behind the block can be judged as well, so that the record goes on when
        # the block is one token wide
        m, n, state = min(w, self.offered.shape[1]), len(rows), self.state
        if m:
            reached = np.arange(m) < verified[:, None]
            right = (self.offered[:, :m] == out[:, :m]) & reached
            state.right = DECAY * state.right + right.sum() / n
            state.expected = max(
                1e-3, DECAY * state.expected + (self.confidence[:, :m] * reached).sum() / n
            )

    def commit(self, rows: Rows, verified: np.ndarray, finished: np.ndarray, w: int) -> np.ndarray:
        return verified

    def compiled(self, sentence: int) -> CompiledMethod | None:
        drafter = self.drafter.compiled(sentence)
        if drafter is None:
            return None
        self.state.drafter = drafter.struct
        return CompiledMethod("window", self.state, drafter, learns=True)


@register_method("window", "verified windows, after Santilli et al. 2023")
def build(flags, context):
    cost = (
        (CPU if is_on_cpu(context) else CUDA)
        if flags.draft_cost < 0
        else Cost(0.0, flags.draft_cost, 0.0)
    )
    return driver_with(flags, context, lambda drafter: Window(drafter, flags.block_size, cost))
