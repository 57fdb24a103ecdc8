"""Log-probabilities of the next token by the compiled library: softmax, top-k, n-grams, sampling.

The library's part is log_probs.cpp, for float32 on a CPU.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_ext.kernels.library import address, loaded, struct

# ---- Log-softmax and the best next words
#
# Definition: the torch path of search/log_probs.py.
#
# Shapes: N lines, n rows, S sentences, V words.


def log_softmax_(x: Tensor, temperature: float = 1.0) -> Tensor:
    """Log-probabilities of logits x (..., V), in place."""
    at = address(x, torch.float32)
    loaded().log_softmax(at, x.numel() // x.size(-1), x.size(-1), temperature)
    return x


def topk(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """torch.topk(x, k) of x (N, V) along its last dimension, scores and columns (N, k), best first;
    of equals the first columns."""
    at = address(x, torch.float32, None, None)
    if not 0 < k <= x.size(1):
        raise ValueError(f"the best {k} of {x.size(1)} columns")
    score, column = x.new_empty(x.size(0), k), torch.empty(x.size(0), k, dtype=torch.long)
    loaded().topk(at, x.size(0), x.size(1), k, score.data_ptr(), column.data_ptr())
    return score, column


def best_of_sentences(x: Tensor, before: Tensor, first: Tensor, c: int) -> tuple[Tensor, ...]:
    """The c best continuations of each sentence, best first: row, column and
    cumulative score (S, c).

    x (n, V): scores of each row's next word; before (n,): the row's own; first (S + 1,): each
    sentence's first row, and n. Of equals the first; where there are fewer than c, -inf and
    the sentence's first row.
    """
    V, S = x.size(1), first.numel() - 1
    row, column = torch.empty(2, S, c, dtype=torch.long)
    found = row, column, x.new_empty(S, c)
    loaded().best_of_sentences(
        address(x, torch.float32, None, V),
        V,
        address(before, torch.float32, x.size(0)),
        address(first, torch.long, S + 1),
        S,
        c,
        *(value.data_ptr() for value in found),
    )
    return found


# ---- Repeated n-grams (`--no-repeat-ngram-size`)
#
# Words that would complete an n-gram a second time become impossible: by torch operations, which
# define it, and by the compiled library.
#
# Shapes: n rows, T tokens of the longest history, C scored words.


def repeated(tokens: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """For each n-gram of histories tokens (n, T), where negative numbers stand for no token: its
    last word, and whether that word would complete the n-gram again; both (n, T - size + 1)."""
    grams = tokens.unfold(1, size, 1)  # (n, T - size + 1, size)
    tail = tokens[:, tokens.size(1) - size + 1 :]  # (n, size - 1)
    again = (
        (grams[:, :, : size - 1] == tail[:, None]).all(-1)
        & (grams[:, :, 0] >= 0)
        & (grams[:, :, size - 1] >= 0)
    )
    return grams[:, :, size - 1].clamp(min=0), again


def block_ngrams_(value: Tensor, tokens: Tensor, size: int, ids: Tensor | None) -> None:
    """Make those words impossible in scores value (n, C), contiguous float32 on a CPU.

    ids as in search/log_probs.py, LogProbs.
    """
    tokens = tokens if tokens.stride(1) == 1 else tokens.contiguous()
    if tokens.dtype != torch.long:
        raise TypeError(f"compiled code takes tokens of torch.int64, not {tokens.dtype}")
    n, C = value.shape
    ids = None if ids is None else ids.contiguous()
    each = ids is not None and ids.dim() == 2
    words = None if ids is None else address(ids, torch.long, *([n, C] if each else [C]))
    loaded().block_ngrams(
        tokens.data_ptr(),
        tokens.size(0),
        tokens.size(1),
        tokens.stride(0),
        size,
        address(value, torch.float32, tokens.size(0), C),
        C,
        words,
        C if each else 0,
    )


# ---- Words drawn from log-probabilities
#
# The noise is one that a sentence's number and a seed determine. The torch operations are the
# definition.
#
# The noise is that of a counter-based generator,
#     J. K. Salmon, M. A. Moraes, R. O. Dror and D. E. Shaw. Parallel Random Numbers: As Easy as 1,
#     2, 3. SC 2011.
# keyed by the seed and the sentence's number, counted by the step and the number of the sample: it
# depends on nothing else, whatever is decoded before or beside it. Chances are whole multiples of
# 2^-50, so that their sums are exact in whatever order they are added.
#
# Shapes: n lines, V words, d draws.


CutStruct = struct("sampling.hpp", "Cut")
MASK = 0xFFFFFFFF
Word = Tensor | int  # 32 bits


@dataclass(frozen=True)
class Cut:
    """What is left to draw from; only one of the three is set."""

    top: int = 0  # so many of the most likely words; 0: all
    mass: float = 1.0  # the fewest words of so much probability, the most likely ones
    # the words of this log-probability or more, a float32; the most likely one where there is none
    floor: float = -math.inf

    def struct(self) -> ctypes.Structure:
        """As the compiled library reads it."""
        return CutStruct(self.top, self.mass, self.floor)


def philox(counter: Sequence[Word], key: tuple[Word, Word]) -> list[Word]:
    """The four words of Philox4x32-10.

    Tensors are int64: of a product that overflows, the bits are right.
    """
    (a, b, c, d), (j, k) = counter, key
    for _ in range(10):
        p, q = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = (q >> 32 & MASK) ^ b ^ j, q & MASK, (p >> 32 & MASK) ^ d ^ k, p & MASK
        j, k = j + 0x9E3779B9 & MASK, k + 0xBB67AE85 & MASK
    return [a, b, c, d]


def uniform(seed: Word, number: Tensor, sample: Tensor, step: Tensor) -> Tensor:
    """Numbers (d,) in [0, 1), in double precision: of each draw's sentence,
    sample and step (d,)."""
    a, b, _, _ = philox(
        [step, sample, torch.zeros_like(step), number >> 32 & MASK], (seed & MASK, number & MASK)
    )
    return ((a >> 5) * 2.0**26 + (b >> 6)).double() / 2.0**53  # type: ignore[union-attr]


def weights(value: Tensor) -> Tensor:
    """Probabilities in units of 2^-50, cut to whole numbers, so that their sums are exact."""
    return (value.exp() * 2.0**50).trunc().double()


def draw(value: Tensor, row: Tensor, u: Tensor, cut: Cut) -> Tensor:
    """For each draw (d,), the word of line `row`, ascending, of log-probabilities (n, V) that u
    falls on; -1 where none is possible."""
    weight = weights(value)
    if cut.top or cut.mass < 1:
        word = value.argsort(dim=1, descending=True, stable=True)
        ranked = torch.ones_like(weight) if cut.top else weight.gather(1, word)
        left_out = torch.empty_like(value, dtype=torch.bool)
        left_out.scatter_(1, word, ranked.cumsum(1) - ranked >= (cut.top or cut.mass * 2.0**50))
    else:
        left_out = value < cut.floor
    weight = weight.masked_fill(left_out, 0)
    best = value.argmax(1, keepdim=True)
    weight.scatter_(
        1, best, torch.where(weight.sum(1, keepdim=True) > 0, weight.gather(1, best), 1.0)
    )
    below = weight.cumsum(1)[row]
    total = below[:, -1]
    place = torch.searchsorted(
        below, torch.minimum((u * total).floor(), total - 1)[:, None], right=True
    ).clamp(max=value.size(1) - 1)
    possible = value[row].gather(1, place) > -torch.inf
    return place.masked_fill(~possible, -1)[:, 0]


def draw_compiled(value: Tensor, row: Tensor, u: Tensor, cut: Cut) -> Tensor:
    """`draw` by the compiled library, of float32 on a CPU."""
    d = row.numel()
    arrays = address(row, torch.long, d), address(u, torch.float64, d), d
    at = address(value, torch.float32, None, None)
    word, given = torch.empty_like(row), cut.struct()
    loaded().draw_words(at, value.size(1), *arrays, ctypes.addressof(given), word.data_ptr())
    return word
