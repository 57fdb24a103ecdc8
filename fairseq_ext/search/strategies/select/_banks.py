"""How many slots of the beam each bank gets (search/strategies/select/dba.py); search/banks.py orders candidates by them.

`deal` is the even rule of J. E. Hu et al., NAACL 2019; `allocate` is Section 3.2 of M. Post and D. Vilar, NAACL 2018.

Shapes: S sentences, B banks, c candidates of a sentence.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from fairseq_ext.search.beam import numbers


def deal(k: int, candidates: Tensor) -> Tensor:
    """Slots (S, B) for each bank that has so many candidates (S, B): one in turn, from the highest bank down, until all k are dealt
    or all candidates are."""
    # (S, k): slots dealt after so many full rounds
    dealt = candidates[:, :, None].minimum(numbers(k + 1, candidates.device)[1:]).sum(1)
    full = (dealt <= k).sum(1, keepdim=True)  # (S, 1)
    slots = candidates.minimum(full)
    # the round that is cut short: the highest banks that have more
    more = (candidates > full).long()
    left = k - slots.sum(1, keepdim=True)
    return slots + more * (more.flip(1).cumsum(1).flip(1) <= left)


def allocate(k: int, candidates: Tensor, top: Tensor) -> Tensor:
    """Slots (S, B) for each bank, given how many candidates (S, B) it has and each sentence's highest bank top (S,).

    Every bank up to the highest has k // (top + 1) slots, the highest also the remainder. Going down from the highest, a bank
    that cannot fill its slots hands the rest to the nearest banks with candidates left over, the lower of two first.
    """
    B = candidates.size(1)
    bank = torch.arange(B, device=candidates.device)
    share = k // (top + 1)
    slots = torch.where(bank <= top[:, None], share[:, None], 0)
    slots = slots + torch.where(bank == top[:, None], (k - share * (top + 1))[:, None], 0)
    extra = (slots - candidates).clamp(min=0)
    slots = slots - extra
    lack = candidates - slots
    near = nearest_banks(B, candidates.device)
    # on a CPU it is cheap to ask which banks have anything to hand out
    giving = extra.any(0).tolist() if candidates.device.type == "cpu" else [True] * B
    for b in reversed(range(B)):
        if giving[b]:
            wants = lack[:, near[b]]
            given = (extra[:, b, None] - (wants.cumsum(1) - wants)).clamp(min=0).minimum(wants)
            slots.index_add_(1, near[b], given)
            lack.index_add_(1, near[b], -given)
    return slots


def allocate_few(k: int, candidates: Tensor, top: Tensor) -> Tensor:
    """`allocate` for the sentences with at most k banks, so that the work stays the same however many constraints there are.

    The others have no slots, so that search/banks.py deals all k out in turn.
    """
    slots = torch.zeros_like(candidates)
    slots[:, :k] = allocate(k, candidates[:, :k], top)
    return slots


@lru_cache(maxsize=64)
def nearest_banks(B: int, device: torch.device) -> Tensor:
    """(B, B - 1): the other banks of each, nearest first, the lower one first at equal distance."""
    order = [sorted((x for x in range(B) if x != b), key=lambda x: (abs(x - b), x)) for b in range(B)]
    return torch.tensor(order, dtype=torch.long, device=device).view(B, B - 1)


def bank_sizes(bank: Tensor, score: Tensor, B: int) -> Tensor:
    """(S, B): possible candidates (score above -inf) of each bank."""
    possible = (score > -torch.inf).long()
    return torch.zeros(bank.size(0), B, dtype=torch.long, device=bank.device).scatter_add_(1, bank, possible)
