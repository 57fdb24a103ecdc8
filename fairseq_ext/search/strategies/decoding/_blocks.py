"""Blocks that are computed until they have converged: the method behind jacobi.py, gs_jacobi.py and hybrid_jacobi.py.

Its compiled twin for a sentence that is alone is in kernels/parallel.cpp.

Shapes: N sentences in the pool, n live rows, w block width.
"""

from __future__ import annotations

import numpy as np

from fairseq_ext.kernels.parallel import BlocksStruct, CompiledMethod
from fairseq_ext.search.parallel.drafter import Drafter
from fairseq_ext.search.parallel.protocols import Method
from fairseq_ext.search.parallel.rows import NONE, Rows
from fairseq_ext.search.pool import Pool

LENGTH_RATIO = 1.25  # predicted target tokens for each source token, EOS counted in both


class Blocks(Method):
    """Blocks of b positions, or of a whole sentence."""

    def __init__(self, drafter: Drafter, b: int, h: int, whole: bool = False, hybrid: bool = False):
        """h: target tokens that are decoded in parallel, 0 to predict them; whole: the block is of h positions; hybrid: single tokens
        behind h."""
        self.drafter = drafter
        self.b = b
        self.h = h
        self.whole = whole
        self.hybrid = hybrid

    def start(self, pool: Pool) -> None:
        self.drafter.start(pool)
        predicted = np.ceil(LENGTH_RATIO * pool.length.cpu().numpy()).astype(np.int64)
        self.length = np.full_like(predicted, self.h) if self.h else predicted  # (N,) m or h

    def parallel(self, rows: Rows) -> np.ndarray:
        """(n,) whether the row still decodes in blocks."""
        return rows.length < self.length[rows.live] if self.hybrid else np.ones(len(rows), bool)

    def draft(self, rows: Rows, most: int) -> np.ndarray:
        b = int(self.length[rows.live].max()) if self.whole else self.b
        m = min(b - 1, most) if self.parallel(rows).any() else 0
        tokens = rows.guess[:, :m]
        if tokens.shape[1] < m or (tokens == NONE).any():  # a new block in some row
            first = self.drafter.propose(rows, m, 0.0)[0]
            first = np.concatenate([first, np.full((len(rows), m - first.shape[1]), NONE)], 1)
            tokens = np.concatenate([tokens, np.full((len(rows), m - tokens.shape[1]), NONE)], 1)
            tokens = np.where((tokens == NONE).any(1, keepdims=True), first, tokens)
        return tokens

    def commit(self, rows: Rows, verified: np.ndarray, finished: np.ndarray, w: int) -> np.ndarray:
        converged = np.where(finished | (verified == w), verified, 0)
        return np.where(self.parallel(rows), converged, 1)

    def compiled(self, sentence: int) -> CompiledMethod | None:
        drafter = self.drafter.compiled(sentence)
        if drafter is None:
            return None
        state = BlocksStruct(drafter.struct, self.b, int(self.length[sentence]), self.whole, self.hybrid)
        return CompiledMethod("blocks", state, drafter)
