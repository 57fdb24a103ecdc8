"""The attention of live rows to their source, kept for `--print-alignment`.

Shapes: n live rows, L tokens so far, T source columns of the pool, t source columns of the decoder's present group.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass
class Attention:
    """Row tensors, reordered with their beam's rows."""

    weights: Tensor  # (n, L, T) each source token in the pool's own column
    first: Tensor  # (n,) pool column at which the columns of the row's group begin

    @staticmethod
    def start(rows: int, columns: int, first: int, device: torch.device) -> Attention:
        """Rows that have no token yet."""
        return Attention(torch.zeros(rows, 0, columns, device=device), torch.full((rows,), first, device=device))

    def add_(self, step: Tensor) -> None:
        """Append the attention (n, t) of one step."""
        past = self.weights
        column = self.first[:, None] + torch.arange(step.size(1), device=step.device)
        # what lies beyond the last column is padding, whose attention is 0
        wide = past.new_zeros(past.size(0), past.size(2), dtype=step.dtype)
        wide.scatter_add_(1, column.clamp_(max=past.size(2) - 1), step)
        self.weights = torch.cat([past.to(step.dtype), wide[:, None]], dim=1)

    def select(self, row: Tensor) -> Attention:
        """The rows at the indices row (n',), in this order."""
        return Attention(self.weights[row], self.first[row])

    def trim_(self, unused: int) -> None:
        """Drop the first tokens, which no row uses."""
        self.weights = self.weights[:, unused:]

    @staticmethod
    def join(a: Attention, b: Attention) -> Attention:
        """The rows of both, a's first, shorter ones to the right."""
        wide = max(a.weights.size(1), b.weights.size(1))
        weights = [F.pad(x.weights, (0, 0, wide - x.weights.size(1), 0)) for x in (a, b)]
        return Attention(torch.cat(weights), torch.cat([a.first, b.first]))
