"""What a drafter is, and the two that need nothing but the search itself: `--draft pad`, `repeat` and `none`.

Shapes: n live rows, m draft tokens of each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from fairseq_ext.kernels import parallel as kernel
from fairseq_ext.kernels.parallel import CompiledDrafter
from fairseq_ext.search.parallel.rows import NONE, Rows
from fairseq_ext.search.pool import Pool

Draft = tuple[np.ndarray, np.ndarray]  # tokens (n, m) and the probability (n, m) that each is right if those before it are


class Drafter(ABC):
    """Proposes the tokens that follow each row's verified ones."""

    def start(self, pool: Pool) -> None:  # noqa: B027  most need not know
        """Begin with a new pool."""

    @abstractmethod
    def propose(self, rows: Rows, most: int, least: float) -> Draft:
        """At most `most` tokens a row; it may stop where no row's draft is right with probability `least` any more. NONE: no proposal."""

    def compiled(self, sentence: int) -> CompiledDrafter | None:
        """The compiled twin for a sentence that is alone and has no tokens yet (kernels/parallel.cpp); None: there is none. Only
        called where there is a compiled library."""
        return None


def without_end(tokens: np.ndarray, sure: np.ndarray) -> Draft:
    """The draft (n, m) up to the last column in which a row has a proposal."""
    column = np.arange(1, tokens.shape[1] + 1)
    m = int((column * (tokens != NONE).any(0)).max(initial=0))
    return tokens[:, :m], sure[:, :m]


class Trajectory(Drafter):
    """The previous call's outputs (Jacobi's iteration), and behind them a fixed token: PAD as in the paper, or the last verified one."""

    def __init__(self, pad: int | None):
        self.pad = pad

    def propose(self, rows: Rows, most: int, least: float) -> Draft:
        filler = rows.last(1) if self.pad is None else np.full((len(rows), 1), self.pad)
        tokens = np.concatenate([rows.guess[:, :most], np.repeat(filler, max(0, most - rows.guess.shape[1]), 1)], 1)
        return np.where(tokens == NONE, filler, tokens), np.full(tokens.shape, 0.5)

    def compiled(self, sentence: int) -> CompiledDrafter:
        return kernel.trajectory(NONE if self.pad is None else self.pad)


class Nothing(Drafter):
    """No drafts: greedy decoding."""

    def propose(self, rows: Rows, most: int, least: float) -> Draft:
        empty = np.zeros((len(rows), 0), np.int64)
        return empty, empty.astype(float)

    def compiled(self, sentence: int) -> CompiledDrafter:
        return kernel.nothing()
