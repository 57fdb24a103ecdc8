"""What a draft source is, and the two that need nothing but the search itself.

Shapes: n live rows, m draft tokens of each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from fairseq_ext.parallel.rows import NONE, Row, Rows
from fairseq_ext.search.pool import Pool

Draft = tuple[np.ndarray, np.ndarray]  # tokens (n, m) and the probability (n, m) that each is right if those before it are
DraftOfOne = tuple[list[int], list[float]]  # the same for one row


class Source(ABC):
    """Proposes the tokens that follow each row's verified ones."""

    def start(self, pool: Pool) -> None:  # noqa: B027  most need not know
        """A new pool."""

    @abstractmethod
    def propose(self, rows: Rows, most: int, least: float) -> Draft:
        """At most `most` tokens a row; it may stop where no row's draft is right with probability `least` any more. NONE: no proposal."""

    def propose_one(self, row: Row, most: int, least: float) -> DraftOfOne:
        """The same for a row that is alone."""
        tokens, sure = self.propose(row.as_rows(), most, least)
        return tokens[0].tolist(), sure[0].tolist()


class Trajectory(Source):
    """The previous call's outputs (Jacobi's iteration), and behind them a fixed token: PAD as in the paper, or the last verified one."""

    def __init__(self, pad: int | None):
        self.pad = pad

    def propose(self, rows: Rows, most: int, least: float) -> Draft:
        filler = rows.last(1) if self.pad is None else np.full((len(rows), 1), self.pad)
        tokens = np.concatenate([rows.guess[:, :most], np.repeat(filler, max(0, most - rows.guess.shape[1]), 1)], 1)
        return np.where(tokens == NONE, filler, tokens), np.full(tokens.shape, 0.5)

    def propose_one(self, row: Row, most: int, least: float) -> DraftOfOne:
        filler = row.tokens[-1] if self.pad is None else self.pad
        tokens = [filler if guess == NONE else guess for guess in row.guess[:most]]
        return tokens + [filler] * (most - len(tokens)), [0.5] * most


class Nothing(Source):
    """No drafts: greedy decoding."""

    def propose(self, rows: Rows, most: int, least: float) -> Draft:
        empty = np.zeros((len(rows), 0), np.int64)
        return empty, empty.astype(float)

    def propose_one(self, row: Row, most: int, least: float) -> DraftOfOne:
        return [], []
