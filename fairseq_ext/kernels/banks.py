"""Required phrases as the compiled search reads them, and constants that both searches share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_ext.kernels.library import CData


def finished_needed(competes: bool) -> int:
    """Return the number of finished hypotheses, for each row that the banks share, that make a
    sentence with phrases final; competes: a row follows the best hypothesis whatever its bank."""
    return 4 if competes else 2


@dataclass
class Estimate:
    """Constants of the estimate of a live hypothesis' final score
    (search/strategies/stop/early.py)."""

    missing_token_cost: float  # nats, of each required token that it lacks
    token_cost: float  # nats, of EOS and of each other token
    # the part of a total below -max_nats_per_token per token is not divided by the length
    max_nats_per_token: float
    max_extra_tokens: int  # tokens that it may take in addition to the missing ones

    def missing_cost(self, lacks: Tensor) -> Tensor:
        """Return the cost of `lacks` missing tokens (any shape, int64), in float32."""
        return self.missing_token_cost * lacks.float()

    def extra_cost(self, device: torch.device | None = None) -> Tensor:
        """Return the cost of EOS and 0, 1, ... other tokens (1 + max_extra_tokens,), in float32."""
        more = torch.arange(1, self.max_extra_tokens + 2, device=device)
        return (self.token_cost * more.double()).float()


@dataclass
class Banks:
    """The phrases of a pool of N sentences, for dynamic beam allocation."""

    phrases: CData  # their struct
    start: Tensor  # (N, G) the state of each constraint before the first token
    infeasible: list[bool]  # (N,)
    total: list[int]  # (N,) constraint tokens
    slots: list[int]  # (N,) rows that the banks of each sentence share
    keepalive: object  # objects that the structure points to
