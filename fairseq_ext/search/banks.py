"""Candidates in banks: groups of a sentence's hypotheses that share the beam, such as those with equally many constraint tokens.

Shapes: S sentences, B banks, c candidates of a sentence.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_ext.search.beam import numbers


def by_banks(slots: Tensor, bank: Tensor, score: Tensor, top: Tensor) -> tuple[Tensor, Tensor]:
    """The order (S, c) of candidates: first those that the banks' slots (S, B) admit, best score first; then the others, each
    bank's next best in turn from the highest bank top (S,) down; impossible ones last. Also how many are admitted (S,)."""
    c, B = bank.size(1), slots.size(1)
    bank = bank.masked_fill(score == -torch.inf, B)
    by_score = score.argsort(dim=1, descending=True, stable=True)
    by_bank = bank.gather(1, by_score).argsort(dim=1, stable=True)  # places in by_score: a candidate's rank by score
    order = by_score.gather(1, by_bank)
    bank = bank.gather(1, order)
    rank = numbers(c, bank.device) - torch.searchsorted(bank, bank)  # within the bank
    slots = torch.cat([slots, torch.zeros_like(slots[:, :1])], dim=1)
    admitted = rank < slots.gather(1, bank)
    turn = c + rank * (B + 1) + (top[:, None] - bank)
    key = torch.where(admitted, by_bank, torch.where(bank < B, turn, c * (B + 3)))
    return order.gather(1, key.argsort(dim=1, stable=True)), admitted.sum(1)
