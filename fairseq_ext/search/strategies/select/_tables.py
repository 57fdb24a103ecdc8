"""What a constrained search knows of a pool's constraints, as tensors."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_ext.kernels.banks import LONGS, phrases_struct
from fairseq_ext.search.constraints._ends import EndRule
from fairseq_ext.search.constraints.banned import BannedCompiler, BannedTable, build_banned
from fairseq_ext.search.phrases.required import Compiler, PhraseTable, build_table
from fairseq_ext.search.phrases.sentence import EMPTY
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
    ends: EndRule | None = None  # --constraint-end
    struct: ctypes.Structure | None = None  # of `compiled_phrases`

    def compiled_phrases(self) -> ctypes.Structure:
        """The phrases as the compiled library reads them."""
        if self.struct is None:
            t = self.phrases
            self.struct = phrases_struct([getattr(t, name) for name in LONGS], t.behind, t.glued, t.ordered)
        return self.struct


class Compilers:
    """Makes the automata of required and banned phrases, and caches them for one search."""

    def __init__(self) -> None:
        self.required = Compiler(None)
        self.banned = BannedCompiler(None, False)

    def use(self, pool: Pool) -> None:
        """Replace the compilers where the pool has other word boundaries, or another case of banned phrases, than the last one."""
        if self.required.boundaries is not pool.boundaries:
            self.required = Compiler(pool.boundaries)
        if self.banned.boundaries is not pool.boundaries or self.banned.any_case != pool.banned_in_any_case:
            self.banned = BannedCompiler(pool.boundaries, pool.banned_in_any_case)


def tables(pool: Pool, vocabulary: int, compilers: Compilers, eos: int, min_len: int) -> Tables:
    """The tables of a pool's constraints. min_len: target tokens before EOS, at least."""
    device = pool.length.device
    given = pool.constraints or [EMPTY] * len(pool)
    compilers.use(pool)
    any_of, cased = [c.any_of for c in given], [c.cases for c in given]
    phrases = build_table(any_of, pool.ordered, device, pool.boundaries, cased, compilers.required)
    of_each = [c.banned for c in given]
    banned = build_banned(of_each, vocabulary, device, compilers.banned) if any(of_each) else None
    max_len = torch.tensor(pool.max_len, device=device)
    prefixes = [pool.forced(i) for i in range(len(pool))]
    forced = torch.tensor([len(prefix) for prefix in prefixes], device=device)
    missing = phrases.total - phrases.bank_after(prefixes)
    infeasible = missing + forced > max_len
    ends = None if pool.ends is None else EndRule(pool.ends, (phrases.total > 0) & ~infeasible, forced, min_len, eos)
    return Tables(phrases, banned, max_len, forced, infeasible, int(phrases.total.max()) + 1, ends)
