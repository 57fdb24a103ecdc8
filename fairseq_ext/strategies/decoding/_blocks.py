"""PJ, PGJ and HGJ of strategies/decoding/jacobi.py: a block is computed again and again until its draft is right."""

from __future__ import annotations

import numpy as np

from fairseq_ext.parallel.drafts.source import Source
from fairseq_ext.parallel.rows import NONE, Row, Rows
from fairseq_ext.search.pool import Pool

LENGTH_RATIO = 1.25  # predicted target tokens for each source token, EOS counted in both


class Blocks:
    """See parallel/driver.py, Method."""

    def __init__(self, source: Source, b: int, h: int, whole: bool, hybrid: bool):
        self.source = source
        self.b = b
        self.h = h  # 0: predicted
        self.whole = whole  # PJ: the block is m = h
        self.hybrid = hybrid  # HGJ: single tokens behind h

    def start(self, pool: Pool) -> None:
        self.source.start(pool)
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
            first = self.source.propose(rows, m, 0.0)[0]
            first = np.concatenate([first, np.full((len(rows), m - first.shape[1]), NONE)], 1)
            tokens = np.concatenate([tokens, np.full((len(rows), m - tokens.shape[1]), NONE)], 1)
            tokens = np.where((tokens == NONE).any(1, keepdims=True), first, tokens)
        return tokens

    def learn(self, rows: Rows, out: np.ndarray, verified: np.ndarray, w: int) -> None:
        pass

    def commit(self, rows: Rows, verified: np.ndarray, ended: np.ndarray, w: int) -> np.ndarray:
        converged = np.where(ended | (verified == w), verified, 0)
        return np.where(self.parallel(rows), converged, 1)

    def parallel_one(self, row: Row) -> bool:
        return not self.hybrid or row.length < int(self.length[row.sentence])

    def draft_one(self, row: Row, most: int) -> list[int]:
        b = int(self.length[row.sentence]) if self.whole else self.b
        m = min(b - 1, most) if self.parallel_one(row) else 0
        tokens = row.guess[:m]
        if len(tokens) < m or NONE in tokens:
            first = self.source.propose_one(row, m, 0.0)[0]
            tokens = first + [NONE] * (m - len(first))
        return tokens

    def learn_one(self, row: Row, out: list[int], verified: int) -> None:
        pass

    def commit_one(self, row: Row, verified: int, ended: bool, w: int) -> int:
        if not self.parallel_one(row):
            return 1
        return verified if ended or verified == w else 0
