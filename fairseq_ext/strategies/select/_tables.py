"""What a constrained search knows of a pool's constraints, as tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_ext.constraints.banned import BannedTable, build_banned
from fairseq_ext.constraints.required import PhraseTable, build_table
from fairseq_ext.constraints.sentence import EMPTY
from fairseq_ext.kernels.banks import PhrasesStruct
from fairseq_ext.search.pool import Pool


@dataclass
class Tables:
    """The tables of N sentences."""

    phrases: PhraseTable
    banned: BannedTable | None
    max_len: Tensor  # (N,)
    forced: Tensor  # (N,) tokens of the prefix
    infeasible: Tensor  # (N,) more tokens than the sentence may have
    banks: int  # of the sentence with the most constraint tokens
    struct: PhrasesStruct | None = None  # the phrases as the compiled library reads them


def tables(pool: Pool, vocabulary: int, known: BannedTable | None = None) -> Tables:
    """The tables of a pool's constraints. known: automata of banned phrases that may be used again."""
    device = pool.length.device
    given = pool.constraints or [EMPTY] * len(pool)
    phrases = build_table([c.any_of for c in given], pool.ordered, device, pool.boundaries)
    of_each = [c.banned for c in given]
    banned = build_banned(of_each, vocabulary, device, known) if any(of_each) else None
    max_len = torch.tensor(pool.max_len, device=device)
    prefixes = [pool.forced(i) for i in range(len(pool))]
    forced = torch.tensor([len(prefix) for prefix in prefixes], device=device)
    missing = phrases.total - phrases.bank_after(prefixes)
    return Tables(phrases, banned, max_len, forced, missing + forced > max_len, int(phrases.total.max()) + 1)
