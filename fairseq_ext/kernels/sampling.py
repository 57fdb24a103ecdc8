"""Words drawn from log-probabilities, with noise that a sentence's number and a seed determine: the definition, and `sampling.cpp`.

The noise is that of a counter-based generator,
    J. K. Salmon, M. A. Moraes, R. O. Dror and D. E. Shaw. Parallel Random Numbers: As Easy as 1, 2, 3. SC 2011.
keyed by the seed and the sentence's number, counted by the step and the number of the sample: it depends on nothing else, whatever is
decoded before or beside it. Chances are whole multiples of 2^-50, so that their sums are exact in whatever order they are added.

Shapes: n lines, V words, d draws.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_ext.kernels.declarations import struct
from fairseq_ext.kernels.library import loaded

CutStruct = struct("sampling.hpp", "Cut")
MASK = 0xFFFFFFFF
Word = Tensor | int  # 32 bits


@dataclass(frozen=True)
class Cut:
    """What is left to draw from; only one of the three is set."""

    top: int = 0  # so many of the most likely words; 0: all
    mass: float = 1.0  # the fewest words of so much probability, the most likely ones
    floor: float = -math.inf  # the words of this log-probability or more, a float32; the most likely one where there is none

    def struct(self) -> ctypes.Structure:
        """As the compiled library reads it."""
        return CutStruct(self.top, self.mass, self.floor)


def philox(counter: Sequence[Word], key: tuple[Word, Word]) -> list[Word]:
    """The four words of Philox4x32-10. Tensors are int64: of a product that overflows, the bits are right."""
    (a, b, c, d), (j, k) = counter, key
    for _ in range(10):
        p, q = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = (q >> 32 & MASK) ^ b ^ j, q & MASK, (p >> 32 & MASK) ^ d ^ k, p & MASK
        j, k = j + 0x9E3779B9 & MASK, k + 0xBB67AE85 & MASK
    return [a, b, c, d]


def uniform(seed: Word, number: Tensor, sample: Tensor, step: Tensor) -> Tensor:
    """Numbers (d,) in [0, 1), in double precision: of each draw's sentence, sample and step (d,)."""
    a, b, _, _ = philox([step, sample, torch.zeros_like(step), number >> 32 & MASK], (seed & MASK, number & MASK))
    return ((a >> 5) * 2.0**26 + (b >> 6)).double() / 2.0**53  # type: ignore[union-attr]


def weights(value: Tensor) -> Tensor:
    """Probabilities in units of 2^-50, cut to whole numbers, so that their sums are exact."""
    return (value.exp() * 2.0**50).trunc().double()


def draw(value: Tensor, row: Tensor, u: Tensor, cut: Cut) -> Tensor:
    """For each draw (d,), the word of line `row`, ascending, of log-probabilities (n, V) that u falls on; -1 where none is possible."""
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
    weight.scatter_(1, best, torch.where(weight.sum(1, keepdim=True) > 0, weight.gather(1, best), 1.0))
    below = weight.cumsum(1)[row]
    total = below[:, -1]
    place = torch.searchsorted(below, torch.minimum((u * total).floor(), total - 1)[:, None], right=True).clamp(max=value.size(1) - 1)
    possible = value[row].gather(1, place) > -torch.inf
    return place.masked_fill(~possible, -1)[:, 0]


def draw_compiled(value: Tensor, row: Tensor, u: Tensor, cut: Cut) -> Tensor:
    """`draw` by the compiled library, of float32 on a CPU."""
    assert value.is_contiguous() and value.dtype == torch.float32 and u.is_contiguous() and row.is_contiguous()
    word, given = torch.empty_like(row), cut.struct()
    arrays = row.data_ptr(), u.data_ptr(), row.numel()
    loaded().draw_words(value.data_ptr(), value.size(1), *arrays, ctypes.addressof(given), word.data_ptr())
    return word
