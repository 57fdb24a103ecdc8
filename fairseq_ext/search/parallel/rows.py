"""The live rows of driver.py: their tokens, scores, lengths and guesses, as numpy arrays.

Shapes: n live rows, one a sentence, T most tokens, w block width.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairseq_ext.search.pool import Pool

NONE = -1  # no guess at this position


@dataclass
class Rows:
    """The live rows, one a sentence, on the host."""

    live: np.ndarray  # (n,) pool number of each row
    tokens: np.ndarray  # (n, T + 2) the first token, then the verified ones
    score: np.ndarray  # (n, T + 2) log-probability of each verified token
    length: np.ndarray  # (n,) verified tokens
    limit: np.ndarray  # (n,) most tokens before EOS
    guess: np.ndarray  # (n, g) what the last call gave for the positions behind the verified ones; NONE where it gave nothing
    redo: np.ndarray  # (n,) the next position is read alone (see near_ties.py)

    @staticmethod
    def start(pool: Pool, sentences: list[int]) -> Rows:
        """Rows without tokens, one for each of these sentences."""
        n, most = len(sentences), max(pool.max_len) + 2
        tokens = np.full((n, most), pool.bos)
        nothing = np.full((n, 0), NONE)
        zeros = np.zeros(n, np.int64)
        limit = np.array([pool.max_len[s] for s in sentences], np.int64)
        return Rows(np.array(sentences, np.int64), tokens, np.zeros((n, most)), zeros, limit, nothing, zeros.astype(bool))

    def __len__(self) -> int:
        return len(self.live)

    def last(self, m: int) -> np.ndarray:
        """(n, m) the last m tokens of each row, the first token counted; NONE before it."""
        column = self.length[:, None] + np.arange(1 - m, 1)
        return np.where(column >= 0, np.take_along_axis(self.tokens, np.maximum(column, 0), 1), NONE)

    def room(self) -> int:
        """The most tokens that any row can still take, EOS counted."""
        return int((self.limit + 1 - self.length).max())

    def append_(self, out: np.ndarray, score: np.ndarray, count: np.ndarray) -> None:
        """Keep the first count (n,) of outputs (n, w); the others become guesses."""
        w = out.shape[1]
        row, place = (np.arange(w) < count[:, None]).nonzero()
        column = self.length[row] + 1 + place
        self.tokens[row, column] = out[row, place]
        self.score[row, column] = score[row, place]
        self.length = self.length + count
        behind = count[:, None] + np.arange(w)
        self.guess = np.where(behind < w, np.take_along_axis(out, np.minimum(behind, w - 1), 1), NONE)

    def keep(self, row: np.ndarray) -> Rows:
        """These rows (n',)."""
        parts = (self.live, self.tokens, self.score, self.length, self.limit, self.guess, self.redo)
        return Rows(*(part[row] for part in parts))

    @staticmethod
    def join(a: Rows, b: Rows) -> Rows:
        """Both, a's first."""
        wide = max(a.guess.shape[1], b.guess.shape[1])
        guess = [np.pad(x.guess, ((0, 0), (0, wide - x.guess.shape[1])), constant_values=NONE) for x in (a, b)]
        pairs = (
            (a.live, b.live), (a.tokens, b.tokens), (a.score, b.score), (a.length, b.length), (a.limit, b.limit), guess, (a.redo, b.redo)
        )  # fmt: skip
        return Rows(*map(np.concatenate, pairs))


@dataclass
class Iteration:
    """What one decoder call gave one row, for viz/; the arrays are that row's part of the block."""

    sentence: int  # pool number
    length: int  # verified tokens before the call
    draft: np.ndarray  # (w - 1,)
    out: np.ndarray  # (w,)
    score: np.ndarray  # (w,)
    verified: int
