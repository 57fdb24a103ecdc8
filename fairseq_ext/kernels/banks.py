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


# the estimate of a live hypothesis' final score (search/strategies/stop/early.py)
MISSING_TOKEN_COST = 0.3  # nats, of each required token that it lacks
TOKEN_COST = 0.1  # nats, of EOS and of each other token
MAX_EXTRA_TOKENS = 4  # largest number of tokens in addition to the missing ones


def missing_cost(lacks: Tensor) -> Tensor:
    """Return the cost of `lacks` missing tokens (any shape, int64), in float32."""
    return MISSING_TOKEN_COST * lacks.float()


def extra_cost(device: torch.device | None = None) -> Tensor:
    """Return the cost of EOS and 0, 1, ... other tokens (1 + MAX_EXTRA_TOKENS,), in float32."""
    more = torch.arange(1, MAX_EXTRA_TOKENS + 2, device=device)
    return (TOKEN_COST * more.double()).float()


@dataclass
class Banks:
    """The phrases of a pool of N sentences, for dynamic beam allocation."""

    phrases: CData  # their struct
    start: Tensor  # (N, G) the state of each constraint before the first token
    infeasible: list[bool]  # (N,)
    total: list[int]  # (N,) constraint tokens
    slots: list[int]  # (N,) rows that the banks of each sentence share
    keepalive: object  # objects that the structure points to
