"""`--decoding window`: every verified token is committed, and a block is as wide as its drafts are likely to be worth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairseq_ext.parallel.drafts.source import Source
from fairseq_ext.parallel.rows import Row, Rows
from fairseq_ext.search.pool import Pool

MEMORY = 0.95  # of the record of how good drafts have been, a call
MOST_TRUST = 1.5  # a source is never taken to be better than it says by more
PATIENCE, LONGEST_PAUSE = 4, 32  # calls whose drafts are not worth reading before no more are asked for, and for how long


@dataclass
class Cost:
    """What drafts cost, in calls of one token; measured with the models of this project's benchmark.

    A product of few lines waits for its weights: on a CPU the first `cheap` lines of a call share one pass over them (the rows that the
    compiled product keeps in registers), and behind them a line costs its own arithmetic.
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
        return [1 + self.any_draft + each * (j + (self.beyond - 1) * max(0, j - cheap)) for j in range(1, m + 1)]


class Window:
    """See parallel/driver.py, Method."""

    def __init__(self, source: Source, b: int, cost: Cost):
        self.source = source
        self.b = b  # 0: no limit
        self.cost = cost
        self.prices: dict[int, list[float]] = {}  # of blocks with 1, 2, ... draft tokens, by the number of rows
        self.right, self.expected = 1.0, 1.0  # draft tokens that were right, and how many the source had expected
        self.useless = 0  # calls in a row whose drafts were not worth reading
        self.pause = 0  # calls that will not even ask for drafts

    def start(self, pool: Pool) -> None:
        self.source.start(pool)

    def wanted(self, most: int, n: int) -> tuple[int, float]:
        """How many tokens to ask the source for, and how likely they must be: a draft token that is right less often than it costs is
        worth nothing, however cheap tokens are at present. Nothing while it pauses."""
        if self.pause:
            self.pause -= 1
            return 0, 1.0
        each = self.cost.position + self.cost.row * n
        return min(most, self.b - 1) if self.b else most, min(1.0, each / self.trust())

    def trust(self) -> float:
        return min(MOST_TRUST, self.right / self.expected)

    def width(self, likely: list[float], n: int) -> int:
        """Draft tokens with the most tokens for the price, of a draft whose tokens are right with these probabilities, all before them
        being right; 0 where no draft pays."""
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
        self.useless = 0 if width else self.useless + 1
        if self.useless > PATIENCE:
            self.pause = min(self.useless, LONGEST_PAUSE)
        return width

    def record(self, right: float, expected: float) -> None:
        """How many draft tokens of a row were right, and how many the source had expected."""
        self.right = MEMORY * self.right + right
        self.expected = max(1e-3, MEMORY * self.expected + expected)

    def draft(self, rows: Rows, most: int) -> np.ndarray:
        n = len(rows)
        most, least = self.wanted(most, n)
        if not most:
            self.offered = np.zeros((n, 0), np.int64)
            return self.offered
        self.offered, self.confidence = self.source.propose(rows, most, least)
        if not self.offered.shape[1]:
            return self.offered
        likely = np.minimum(self.confidence * self.trust(), 1.0).cumprod(1).mean(0)
        return self.offered[:, : self.width(likely.tolist(), n)]

    def learn(self, rows: Rows, out: np.ndarray, verified: np.ndarray, w: int) -> None:
        # one draft token behind the block can be judged as well, so that the record goes on when the block is one token wide
        m = min(w, self.offered.shape[1])
        if m:
            reached = np.arange(m) < verified[:, None]
            right = (self.offered[:, :m] == out[:, :m]) & reached
            n = len(rows)
            self.record(right.sum() / n, (self.confidence[:, :m] * reached).sum() / n)

    def commit(self, rows: Rows, verified: np.ndarray, ended: np.ndarray, w: int) -> np.ndarray:
        return verified

    def draft_one(self, row: Row, most: int) -> list[int]:
        most, least = self.wanted(most, 1)
        self.offer: list[int] = []
        if not most:
            return self.offer
        self.offer, self.sure = self.source.propose_one(row, most, least)
        if not self.offer:
            return self.offer
        likely, trust, chance = [], self.trust(), 1.0
        for sure in self.sure:
            chance *= min(sure * trust, 1.0)
            likely.append(chance)
        return self.offer[: self.width(likely, 1)]

    def learn_one(self, row: Row, out: list[int], verified: int) -> None:
        m = min(verified, len(self.offer))
        if m:
            right = sum(a == b for a, b in zip(self.offer[:m], out, strict=False))
            self.record(right, sum(self.sure[:m]))

    def commit_one(self, row: Row, verified: int, ended: bool, w: int) -> int:
        return verified
