"""The live rows of the driver in driver.py, on the host: many at once as arrays, or one alone as lists.

Shapes: n live rows, one a sentence, T most tokens, w block width.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fairseq_ext.search.pool import Pool

NONE = -1  # no guess at this position


@dataclass
class Rows:
    """The live rows, on the host."""

    live: np.ndarray  # (n,) pool number of each row
    tokens: np.ndarray  # (n, T + 2) the first token, then the verified ones
    score: np.ndarray  # (n, T + 2) log-probability of each verified token
    length: np.ndarray  # (n,) verified tokens
    limit: np.ndarray  # (n,) most tokens before EOS
    guess: np.ndarray  # (n, g) what the last call gave for the positions behind the verified ones; NONE where it gave nothing
    redo: np.ndarray  # (n,) the next position wants the one-token path (see Guard)

    @staticmethod
    def start(pool: Pool, sentences: list[int]) -> Rows:
        n, most = len(sentences), max(pool.max_len) + 2
        tokens = np.full((n, most), pool.bos)
        nothing = np.full((n, 0), NONE)
        zeros = np.zeros(n, np.int64)
        limit = np.array([pool.max_len[s] for s in sentences])
        return Rows(np.array(sentences), tokens, np.zeros((n, most)), zeros, limit, nothing, zeros.astype(bool))

    def __len__(self) -> int:
        return len(self.live)

    def last(self, m: int) -> np.ndarray:
        """(n, m) the last m tokens of each row, the first token counted; NONE before it."""
        column = self.length[:, None] + np.arange(1 - m, 1)
        return np.where(column >= 0, np.take_along_axis(self.tokens, np.maximum(column, 0), 1), NONE)

    def room(self) -> int:
        """No row can take more tokens than this, EOS counted."""
        return int((self.limit + 1 - self.length).max())

    def append_(self, out: np.ndarray, score: np.ndarray, count: np.ndarray) -> None:
        """The first count (n,) of outputs (n, w) are verified."""
        if len(self) == 1:
            k, at = int(count[0]), int(self.length[0]) + 1
            self.tokens[0, at : at + k] = out[0, :k]
            self.score[0, at : at + k] = score[0, :k]
        else:
            row, place = (np.arange(out.shape[1]) < count[:, None]).nonzero()
            column = self.length[row] + 1 + place
            self.tokens[row, column] = out[row, place]
            self.score[row, column] = score[row, place]
        self.length = self.length + count

    def keep(self, row: np.ndarray) -> Rows:
        """These rows (n',)."""
        parts = (self.live, self.tokens, self.score, self.length, self.limit, self.guess, self.redo)
        return Rows(*(part[row] for part in parts))

    @staticmethod
    def join(a: Rows, b: Rows) -> Rows:
        """Both, a's first."""
        wide = max(a.guess.shape[1], b.guess.shape[1])
        guess = [np.pad(x.guess, ((0, 0), (0, wide - x.guess.shape[1])), constant_values=NONE) for x in (a, b)]

        def both(name: str) -> np.ndarray:
            return np.concatenate([getattr(a, name), getattr(b, name)])

        state = [both(name) for name in ("live", "tokens", "score", "length", "limit")]
        return Rows(*state, np.concatenate(guess), both("redo"))  # type: ignore[call-arg]

    def alone(self) -> Row:
        """The only row, as lists."""
        end = int(self.length[0]) + 1
        tokens, score = self.tokens[0, :end].tolist(), self.score[0, 1:end].tolist()
        return Row(int(self.live[0]), tokens, score, int(self.limit[0]), self.guess[0].tolist(), bool(self.redo[0]))


@dataclass
class Row:
    """A live row that is alone, in plain Python: numpy takes longer to begin than to compute so little."""

    sentence: int  # pool number
    tokens: list[int]  # the first token, then the verified ones
    score: list[float] = field(default_factory=list)  # of each verified token
    limit: int = 0  # most tokens before EOS
    guess: list[int] = field(default_factory=list)  # what the last call gave for the positions behind the verified ones
    redo: bool = False  # the next position wants the one-token path (see Guard)

    @property
    def length(self) -> int:
        """Verified tokens."""
        return len(self.tokens) - 1

    def as_rows(self) -> Rows:
        """The same as arrays, to read."""
        tokens, score = np.array([self.tokens]), np.array([[0.0, *self.score]])
        sentence, length, limit = (np.array([number]) for number in (self.sentence, self.length, self.limit))
        return Rows(sentence, tokens, score, length, limit, np.array([self.guess], np.int64).reshape(1, -1), np.array([self.redo]))


@dataclass
class Iteration:
    """One call, for the visualiser; arrays are a row of the block each."""

    sentence: int  # pool number
    length: int  # verified tokens before the call
    draft: np.ndarray  # (w - 1,)
    out: np.ndarray  # (w,)
    score: np.ndarray  # (w,)
    verified: int
