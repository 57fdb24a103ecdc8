"""Log-probabilities of the next token, of every word or of a shortlist, and the best words.

Shapes: n live rows, V vocabulary, C = V or the length of a shortlist.

Compiled twin: kernels/log_probs.cpp.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_ext.kernels.library import library
from fairseq_ext.kernels.log_probs import best_of_sentences, block_ngrams_, repeated_ngrams, topk

# the largest k of each row, and of each sentence, for which the compiled top-k sorts by insertion
FEW, MANY = 64, 256
BLOCK = 64  # columns of one block of the two-stage top-k


class LogProbs:
    """Log-probabilities of the next token: of every word, or of a shortlist.

    Its columns need not be words, and with some softmaxes (--softmax screened) its values are not
    exact, so they are private: read them by `topk`, `scores_at` and `dense`. Methods whose names
    end in _ change the log-probabilities in place.
    """

    def __init__(self, value: Tensor, ids: Tensor | None = None, vocabulary: int = 0):
        self._value = value  # (n, C) with C = V, or the length of the shortlist
        # None: all words; (C,) ascending: the words of the shortlist; a word that is not on a row's
        # own is at -inf there
        self._ids = ids
        self._vocabulary = vocabulary  # V, for a shortlist

    @property
    def size(self) -> int:
        """Number of words that each row scores."""
        return self._value.size(1)

    @property
    def is_dense(self) -> bool:
        """Whether every word is scored."""
        return self._ids is None

    @property
    def dtype(self) -> torch.dtype:
        return self._value.dtype

    @property
    def device(self) -> torch.device:
        return self._value.device

    def topk(self, k: int, without: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Return the k best of each row, best first: scores (n, k) and tokens (n, k).

        without: rows (n,) and words (V,), masks: words that are left out in those rows."""
        value = self._value
        if without is not None:
            rows, words = without
            value = value.masked_fill(rows[:, None] & self._of_columns(words), -torch.inf)
        score, column = value.max(1, keepdim=True) if k == 1 else blockwise_topk(value, k)
        return score, self._words(column)

    def scores_at(self, token: Tensor) -> Tensor:
        """Return log-probabilities (n, m) of tokens (n or 1, m); -inf for a token that is not on
        the shortlist."""
        if self._ids is None:
            return self._value.gather(1, token.expand(self._value.size(0), -1))
        column, known = self._column(token)
        return self._value.gather(1, column.expand(self._value.size(0), -1)).masked_fill(
            ~known, -torch.inf
        )

    def dense(self) -> Tensor:
        """Return log-probabilities (n, V) of all words, read-only; -inf for a word that is not on
        the shortlist."""
        if self._ids is None:
            return self._value
        everything = self._value.new_full((self._value.size(0), self._vocabulary), -torch.inf)
        return everything.index_copy_(1, self._ids, self._value)

    def best_of_sentences(self, c: int, before: Tensor, first: Tensor) -> tuple[Tensor, ...] | None:
        """Return the c best continuations of each sentence, as kernels/log_probs.py does, with
        words instead of columns; None if the compiled library cannot read the rows, or c is too
        large for it.
        """
        return (
            None
            if c > MANY or not is_compiled(self._value)
            else self._compiled_best(c, before, first)
        )

    def _compiled_best(self, c: int, before: Tensor, first: Tensor) -> tuple[Tensor, ...]:
        row, column, score = best_of_sentences(self._value, before.contiguous(), first, c)
        return row, self._words(column), score

    def mass(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return for rows (m,), by number: the log of the sum of probabilities, and the number of
        possible words."""
        value = self._value[rows]
        return value.logsumexp(1), (value > -torch.inf).sum(1)

    def has_nan(self, all_words: bool = False) -> Tensor:
        """Return whether a row has NaN (a tensor of one bool): in its first word, where NaN of the
        model are, or in any word."""
        return (self._value if all_words else self._value[:, 0]).isnan().any()

    def _words(self, column: Tensor) -> Tensor:
        """Return the words of columns."""
        return column if self._ids is None else self._ids[column]

    def _column(self, token: Tensor) -> tuple[Tensor, Tensor]:
        """Return the columns of tokens, and whether each token is on the shortlist."""
        if self._ids is None:
            return token, torch.ones_like(token, dtype=torch.bool)
        column = torch.searchsorted(self._ids, token.contiguous())
        column.clamp_(max=self._ids.numel() - 1)
        return column, self._ids[column] == token

    def _of_columns(self, words: Tensor) -> Tensor:
        """Return values (V,) or (n, V) of words as values of columns, (C,) or (n, C)."""
        return words if self._ids is None else words[..., self._ids]

    def ban_(self, token: int, rows: Tensor | None = None) -> None:
        """Make a token impossible, in every row or where the mask rows (n,) is true."""
        if self._ids is None:
            value = self._value.select(1, token)
            value.fill_(-torch.inf) if rows is None else value.masked_fill_(rows, -torch.inf)
        elif self.device.type == "cpu":
            self.add_(token, -torch.inf, rows)
        else:  # it writes more, with far fewer operations to launch
            banned = self._ids == token
            self._value.masked_fill_(banned if rows is None else rows[:, None] & banned, -torch.inf)

    def ban_each_(self, token: Tensor) -> None:
        """Make tokens (n, m) impossible, each in its row; -1 for none."""
        column, known = self._column(token.clamp(min=0))
        penalty = torch.zeros_like(column, dtype=self._value.dtype).masked_fill_(
            (token >= 0) & known, -torch.inf
        )
        # in place: a copy of all words would take longer than the search itself
        self._value.scatter_add_(1, column, penalty)

    def ban_words_(self, rows: Tensor, words: Tensor) -> None:
        """Make the words of a mask (V,) impossible in the rows of a mask (n,), which has few."""
        words = self._of_columns(words)
        if rows.device.type == "cpu":
            self._value[rows] = self._value[rows].masked_fill(words, -torch.inf)
        else:
            self._value.masked_fill_(rows[:, None] & words, -torch.inf)

    def ban_repeated_(self, tokens: Tensor, n: int) -> None:
        """Ban every token that would complete an n-gram of its row's history, tokens (n, T)."""
        if tokens.size(1) < n:
            return
        if is_compiled(self._value) and tokens.stride(1) == 1:
            block_ngrams_(self._value, tokens, n, self._ids)
        else:
            words, again = repeated_ngrams(tokens, n)
            self.ban_each_(words.masked_fill(~again, -1))

    def add_(self, token: int, amount: float, rows: Tensor | None = None) -> None:
        """Add to a token's log-probability, in every row or where the mask rows (n,) is true."""
        if self._ids is None:
            value = self._value.select(1, token)
            value += amount if rows is None else torch.zeros_like(value).masked_fill_(rows, amount)
            return
        place = self._column(self._ids.new_full((1, 1), token))
        column, known = (x.expand(self._value.size(0), -1) for x in place)
        known = known if rows is None else known & rows[:, None]
        kept = self._value.gather(1, column)
        self._value.scatter_(1, column, torch.where(known, kept + amount, kept))

    def add_dense_(self, amount: Tensor) -> None:
        """Add amounts (n, V)."""
        self._value = self._value + self._of_columns(amount)

    def make_exact_(self, rows: Tensor) -> None:
        """Make the stored values of the rows of a mask (n,) exact, for `mass`."""

    def reorder_(self, row: Tensor) -> None:
        """Replace row i by row[i], among rows of one sentence."""
        self._value = self._value[row]

    def only_(self, token: Tensor, rows: Tensor) -> None:
        """Make all but tokens (n, m) impossible where the mask rows (n,) is true; -1 for none."""
        column, _ = self._column(token.clamp(min=0))
        kept = self.scores_at(token.clamp(min=0)).masked_fill_(token < 0, -torch.inf)
        alone = torch.full_like(self._value, -torch.inf).scatter_reduce_(1, column, kept, "amax")
        self._value = torch.where(rows[:, None], alone, self._value)

    def only_each_(self, row: Tensor, token: Tensor, rows: Tensor) -> None:
        """Make all but the tokens (P,) of rows (P,), by number, impossible where the mask rows
        (n,) is true; pairs of other rows are ignored."""
        column, known = self._column(token)
        if self._ids is not None:
            row, column = row[known], column[known]
        alone = torch.full_like(self._value, -torch.inf)
        alone[row, column] = self._value[row, column]
        is_all = rows.device.type == "cpu" and bool(rows.all())
        self._value = alone if is_all else torch.where(rows[:, None], alone, self._value)


def is_compiled(value: Tensor) -> bool:
    """Return whether the compiled library can read a tensor: contiguous, float32, on a CPU, and the
    library is available."""
    on_cpu = value.device.type == "cpu" and value.dtype == torch.float32
    return on_cpu and value.is_contiguous() and library() is not None


def blockwise_topk(value: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return torch.topk(value, k) along the last dimension of (n, C), faster for long rows: the k
    best of a row are in the k blocks with the best maxima, so only those are sorted."""
    n, C = value.shape
    if k <= FEW and is_compiled(value):
        return topk(value, k)
    blocks = C // BLOCK
    if value.device.type != "cpu" or blocks <= 2 * k:
        return value.topk(k, dim=1)
    head = value[:, : blocks * BLOCK].unflatten(1, (blocks, BLOCK))  # (n, C) -> (n, blocks, BLOCK)
    best = head.amax(-1).topk(k, dim=1, sorted=False).indices  # (n, k)
    # (n, k, BLOCK) -> (n, k x BLOCK)
    inside = head.gather(1, best[:, :, None].expand(-1, -1, BLOCK)).flatten(1)
    tail = value[:, blocks * BLOCK :]
    score, place = torch.cat([inside, tail], dim=1).topk(k, dim=1)
    column = best.gather(1, (place // BLOCK).clamp(max=k - 1)) * BLOCK + place % BLOCK
    return score, torch.where(place < k * BLOCK, column, place - k * BLOCK + blocks * BLOCK)
