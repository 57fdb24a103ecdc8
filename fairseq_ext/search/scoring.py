"""The score by which hypotheses compete.

Shapes: N sentences in the pool, S live sentences.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_ext.search.pool import Pool


@dataclass
class Scoring:
    """From the sum of log-probabilities to the score by which hypotheses compete, and what a live one can still reach.

    Lengths count EOS. rewarded: the target length up to which every token is rewarded, ratio x source length without EOS + offset.
    """

    normalize: bool = True
    lenpen: float = 1.0
    reward: float = 0.0  # for each target token up to `rewarded`, in nats; r of Huang et al. 2017
    ratio: float = 1.0
    offset: float = 0.0
    bounded: bool = True  # False: every target token is rewarded

    def rewarded(self, pool: Pool, sentence: Tensor) -> Tensor:
        """(S,) target length of each sentence that the reward counts up to, at least 0, in double precision whatever the model's."""
        return ((pool.length[sentence] - 1).double() * self.ratio + self.offset).clamp(min=0)

    def __call__(self, total: Tensor, length: int | Tensor, rewarded: Tensor) -> Tensor:
        """Score of finished hypotheses: total (any shape), all of this length, or of lengths that broadcast against it."""
        if self.normalize:
            if isinstance(length, Tensor):  # rounded once, as a number from the host is
                return total / (length.double() ** self.lenpen).to(total.dtype)
            return total / length**self.lenpen
        if not self.reward:
            return total
        if not self.bounded:
            return total + self.reward * length
        return total + self.reward * (rewarded.minimum(length) if isinstance(length, Tensor) else rewarded.clamp(max=length))

    def divisors(self, lengths: int) -> tuple[Tensor, Tensor]:
        """What totals of these lengths, from 0, are divided by (lengths,) in float32, as `__call__` does where the length is a number, and
        where it is a tensor; only without a reward."""
        if not self.normalize:
            return torch.ones(lengths), torch.ones(lengths)
        numbers = torch.tensor([1.0, *(length**self.lenpen for length in range(1, lengths))], dtype=torch.float64)
        return numbers.float(), (torch.arange(lengths).clamp(min=1).double() ** self.lenpen).float()

    def bound(self, total: Tensor, step: int | Tensor, longest: Tensor, rewarded: Tensor) -> Tensor:
        """The best score that a live hypothesis of step tokens can end with: log-probabilities are never positive, so its total
        can only fall. longest: the most target tokens of its sentence, EOS included."""
        if self.normalize:
            return total / (longest**self.lenpen if self.lenpen > 0 else (step + 1.0) ** self.lenpen)
        if not self.reward:
            return total
        return total + self.reward * (rewarded.minimum(longest) if self.bounded else longest)
