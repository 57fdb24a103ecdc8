"""Log-probabilities of the next token, of every word or of a shortlist, and the best of them.

Shapes: n live rows, V vocabulary, C = V or the length of a shortlist.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fairseq_ext.kernels.library import library
from fairseq_ext.kernels.search.topk import best_of_sentences, topk

FEW, MANY = 64, 256  # so many of each row, and of each sentence, the compiled top-k keeps sorted by insertion
BLOCK = 64  # columns of one block of the two-stage top-k


@dataclass
class LogProbs:
    """Log-probabilities of the next token: of every word, or of a shortlist."""

    value: Tensor  # (n, C) with C = V, or the length of the shortlist
    ids: Tensor | None = None  # None: all words; (C,) ascending: the words of every row's shortlist; (n, C): each row's own, which
    # may repeat its last word behind it, with -inf
    settled: ClassVar[bool] = True  # `value` may be read as it is; False: only what the methods return is exact (--softmax screened)

    def is_compiled(self) -> bool:
        """Whether the compiled library can read `value`, in float32."""
        return self.settled and self.value.dtype == torch.float32 and is_compiled(self.value)

    def topk(self, k: int) -> tuple[Tensor, Tensor]:
        """The k best of each row, best first: scores (n, k) and tokens (n, k)."""
        score, column = blockwise_topk(self.value, k)
        return score, self.words(column)

    def best_of_sentences(self, c: int, before: Tensor, first: Tensor) -> tuple[Tensor, ...] | None:
        """The c best continuations of each sentence, as kernels/search/topk.py returns them, with words in place of columns.

        None where the compiled library cannot read `value`, or c is too large for it.
        """
        if c > MANY or not self.is_compiled():
            return None
        return self.compiled_best(c, before, first)

    def compiled_best(self, c: int, before: Tensor, first: Tensor) -> tuple[Tensor, ...]:
        """The same by the compiled library, which must be able to read `value`."""
        row, column, score = best_of_sentences(self.value, before.contiguous(), first, c)
        if self.ids is None:
            return row, column, score
        return row, self.ids[column] if self.ids.dim() == 1 else self.ids[row, column], score

    def words(self, column: Tensor) -> Tensor:
        """The words that columns (n, m) hold."""
        if self.ids is None:
            return column
        return self.ids[column] if self.ids.dim() == 1 else self.ids.gather(1, column)

    def column(self, token: Tensor) -> tuple[Tensor, Tensor]:
        """Columns that hold tokens (n or 1, m), and whether each token is on its row's shortlist at all."""
        if self.ids is None:
            return token, torch.ones_like(token, dtype=torch.bool)
        if self.ids.dim() == 2:
            token = token.expand(self.ids.size(0), -1)
        column = torch.searchsorted(self.ids, token.contiguous()).clamp_(max=self.ids.size(-1) - 1)
        return column, self.words(column) == token

    def at(self, token: Tensor) -> Tensor:
        """Log-probabilities (n, m) of tokens (n, m); -inf where a token is not on the shortlist."""
        column, known = self.column(token)
        return self.value.gather(1, column).masked_fill(~known, -torch.inf)

    def ban_(self, token: int, rows: Tensor | None = None) -> None:
        """Make a token impossible, in every row or where the mask rows (n,) is true."""
        if self.ids is None and rows is None:
            self.value.select(1, token).fill_(-torch.inf)
        else:
            self.add_(token, -torch.inf, rows)

    def add_(self, token: int, amount: float, rows: Tensor | None = None) -> None:
        """Add to a token's log-probability, in every row or where the mask rows (n,) is true."""
        if self.ids is None:
            value = self.value.select(1, token)
            value += amount if rows is None else torch.zeros_like(value).masked_fill_(rows, amount)
            return
        column, known = self.column(self.ids.new_full((1, 1), token))
        column, known = (x.expand(self.value.size(0), -1) for x in (column, known))
        known = known if rows is None else known & rows[:, None]
        kept = self.value.gather(1, column)
        self.value.scatter_(1, column, torch.where(known, kept + amount, kept))

    def make_exact_(self, rows: Tensor) -> None:
        """Make `value` exact in the rows of a mask (n,)."""

    def reorder_(self, row: Tensor) -> None:
        """Row i becomes what row[i] was, among rows of one sentence."""
        self.value = self.value[row]

    def only_(self, token: Tensor, rows: Tensor) -> None:
        """Make all but one token (n,) impossible where the mask rows (n,) is true."""
        kept = self.at(token[:, None])
        column, known = self.column(token[:, None])
        alone = torch.full_like(self.value, -torch.inf).scatter_(1, column, kept.masked_fill(~known, -torch.inf))
        self.value = torch.where(rows[:, None], alone, self.value)


def is_compiled(value: Tensor) -> bool:
    """Whether the compiled library can read a tensor: contiguous, on a CPU, and the library is there."""
    return value.device.type == "cpu" and value.is_contiguous() and library() is not None


def blockwise_topk(value: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """torch.topk(value, k) along the last dimension of (n, C), faster for long rows: the k best of a row lie in the k blocks
    whose maxima are best, so only those blocks are sorted."""
    n, C = value.shape
    if k <= FEW and value.dtype == torch.float32 and is_compiled(value):
        return topk(value, k)
    blocks = C // BLOCK
    if value.device.type != "cpu" or blocks <= 2 * k:
        return value.topk(k, dim=1)
    head = value[:, : blocks * BLOCK].unflatten(1, (blocks, BLOCK))  # (n, C) -> (n, blocks, BLOCK)
    best = head.amax(-1).topk(k, dim=1, sorted=False).indices  # (n, k)
    inside = head.gather(1, best[:, :, None].expand(-1, -1, BLOCK)).flatten(1)  # (n, k, BLOCK) -> (n, k x BLOCK)
    tail = value[:, blocks * BLOCK :]
    score, place = torch.cat([inside, tail], dim=1).topk(k, dim=1)
    column = best.gather(1, (place // BLOCK).clamp(max=k - 1)) * BLOCK + place % BLOCK
    return score, torch.where(place < k * BLOCK, column, place - k * BLOCK + blocks * BLOCK)
