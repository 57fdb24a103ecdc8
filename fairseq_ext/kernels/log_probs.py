"""Log-probabilities of the next token by the compiled library: softmax, top-k, n-grams, sampling.

The library's part is log_probs.cpp, for float32 on a CPU.

Compiled twins: kernels/sampling.hpp, kernels/ngrams.hpp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_ext.kernels.library import address, loaded, new, pointer

# ---- Log-softmax and the best next words
#
# Definition: the torch path of search/log_probs.py.
#
# Shapes: N lines, n rows, S sentences, V words.


def log_softmax_(x: Tensor, temperature: float = 1.0) -> Tensor:
    """Turn logits x (..., V) into log-probabilities, in place; return x."""
    at = address(x, torch.float32)
    loaded().log_softmax(at, x.numel() // x.size(-1), x.size(-1), temperature)
    return x


def topk(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return torch.topk(x, k) of x (N, V) along its last dimension: scores and columns (N, k), best
    first; of equals the first columns."""
    at = address(x, torch.float32, None, None)
    if not 0 < k <= x.size(1):
        raise ValueError(f"the best {k} of {x.size(1)} columns")
    score, column = x.new_empty(x.size(0), k), torch.empty(x.size(0), k, dtype=torch.long)
    loaded().topk(at, x.size(0), x.size(1), k, pointer(score), pointer(column))
    return score, column


def best_of_sentences(x: Tensor, before: Tensor, first: Tensor, c: int) -> tuple[Tensor, ...]:
    """Return the c best continuations of each sentence, best first: row, column and cumulative
    score (S, c).

    x (n, V): scores of each row's next word; before (n,): the rows' own scores; first (S + 1,):
    each sentence's first row, and n. Of equals the first one is taken; if there are fewer than c,
    the rest has the score -inf and the sentence's first row.
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
        *map(pointer, found),
    )
    return found


# ---- Repeated n-grams (`--no-repeat-ngram-size`)
#
# Words that would complete an n-gram a second time become impossible. The torch operations are the
# definition.
#
# Shapes: n rows, T tokens of the longest history, C scored words.


def repeated_ngrams(tokens: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return for each n-gram of the histories tokens (n, T), in which negative numbers stand for no
    token, its last word and whether this word would complete the n-gram again: both (n, T - size +
    1)."""
    grams = tokens.unfold(1, size, 1)  # (n, T - size + 1, size)
    tail = tokens[:, tokens.size(1) - size + 1 :]  # (n, size - 1)
    again = (
        (grams[:, :, : size - 1] == tail[:, None]).all(-1)
        & (grams[:, :, 0] >= 0)
        & (grams[:, :, size - 1] >= 0)
    )
    return grams[:, :, size - 1].clamp(min=0), again


def block_ngrams_(value: Tensor, tokens: Tensor, size: int, ids: Tensor | None) -> None:
    """Ban the words that would repeat an n-gram, in scores value (n, C), contiguous float32 on a
    CPU.

    ids as in search/log_probs.py, LogProbs.
    """
    tokens = tokens if tokens.stride(1) == 1 else tokens.contiguous()
    if tokens.dtype != torch.long:
        raise TypeError(f"compiled code takes tokens of torch.int64, not {tokens.dtype}")
    C = value.size(1)
    loaded().block_ngrams(
        pointer(tokens),
        tokens.size(0),
        tokens.size(1),
        tokens.stride(0),
        size,
        address(value, torch.float32, tokens.size(0), C),
        C,
        address(ids, torch.long, C),
        0,  # all rows have the same ids
    )


# ---- Words drawn from log-probabilities
#
# The torch operations are the definition. The random numbers come from a counter-based generator,
#     J. K. Salmon, M. A. Moraes, R. O. Dror and D. E. Shaw. Parallel Random Numbers: As Easy as 1,
#     2, 3. SC 2011.
# Its key is the seed and the sentence's number, its counter the step and the number of the sample.
# So they do not depend on other sentences, of the same batch or decoded before. Probabilities are
# whole multiples of 2^-50, so that their sums are exact in any order.
#
# Shapes: n lines, V words, d draws.


MASK = 0xFFFFFFFF
Word = Tensor | int  # 32 bits


@dataclass(frozen=True)
class SamplingCut:
    """The words that may be drawn; only one of the three fields is set."""

    top_k: int = 0  # number of the most likely words; 0: all
    top_p: float = 1.0  # the most likely words, until their probabilities sum to this
    # the words with at least this log-probability, a float32; the most likely one if there is none
    min_log_prob: float = -math.inf

    def fields(self) -> tuple[float, ...]:
        """Return the fields of the compiled library's structure."""
        return self.top_k, self.top_p, self.min_log_prob


def philox(counter: Sequence[Word], key: tuple[Word, Word]) -> list[Word]:
    """Return the four words of Philox4x32-10.

    Tensors are int64: if a product overflows, its bits are still right.
    """
    (a, b, c, d), (j, k) = counter, key
    for _ in range(10):
        p, q = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = (q >> 32 & MASK) ^ b ^ j, q & MASK, (p >> 32 & MASK) ^ d ^ k, p & MASK
        j, k = j + 0x9E3779B9 & MASK, k + 0xBB67AE85 & MASK
    return [a, b, c, d]


def uniform(seed: Word, number: Tensor, sample: Tensor, step: Tensor) -> Tensor:
    """Return numbers (d,) in [0, 1), in double precision, for each draw's sentence number, sample
    and step (d,)."""
    a, b, _, _ = philox(
        [step, sample, torch.zeros_like(step), number >> 32 & MASK], (seed & MASK, number & MASK)
    )
    return ((a >> 5).double() * 2.0**26 + (b >> 6)) / 2.0**53  # type: ignore[union-attr]


def weights(value: Tensor) -> Tensor:
    """Return probabilities in units of 2^-50, truncated to whole numbers: their sums are exact."""
    return (value.exp() * 2.0**50).trunc().double()


def draw(value: Tensor, row: Tensor, u: Tensor, cut: SamplingCut) -> Tensor:
    """Return for each draw (d,) the word of line `row` (ascending) of log-probabilities (n, V) that
    u falls on; -1 if none is possible."""
    weight = weights(value)
    if cut.top_k or cut.top_p < 1:
        word = value.argsort(dim=1, descending=True, stable=True)
        ranked = torch.ones_like(weight) if cut.top_k else weight.gather(1, word)
        left_out = torch.empty_like(value, dtype=torch.bool)
        left_out.scatter_(1, word, ranked.cumsum(1) - ranked >= (cut.top_k or cut.top_p * 2.0**50))
    else:
        left_out = value < cut.min_log_prob
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


def draw_compiled(value: Tensor, row: Tensor, u: Tensor, cut: SamplingCut) -> Tensor:
    """Do the same as `draw` by the compiled library, for float32 on a CPU."""
    d = row.numel()
    arrays = address(row, torch.long, d), address(u, torch.float64, d), d
    at = address(value, torch.float32, None, None)
    word, given = torch.empty_like(row), new("SamplingCut", *cut.fields())
    loaded().draw_words(at, value.size(1), *arrays, given, pointer(word))
    return word
