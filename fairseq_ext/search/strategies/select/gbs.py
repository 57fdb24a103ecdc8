"""Grid beam search: constrained search with fixed slots for each bank, a baseline of dynamic beam
allocation (`--select gbs`); and constrained beam search, with a bank for every state (`--select
cbs`, below).

    C. Hokamp and Q. Liu. Lexically Constrained Decoding for Sequence Generation Using Grid Beam
    Search. ACL 2017. https://aclanthology.org/P17-1141/

Each of the C + 1 banks of dba.py has the same b slots, whether it can fill them or not: a beam of b
(C + 1), as Post and Vilar simulate it (NAACL 2018, Section 5). Candidates, phrase automata and
gates are those of dba.py.

| symbol | flag |
| --- | --- |
| b | --gbs-base, instead of --beam |

Neutral setting: no constraints; then it is beam search with beam b.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fairseq_ext.core.errors import SentenceError
from fairseq_ext.search.candidates import order_by_banks
from fairseq_ext.search.phrases.phrase_table import PhraseTable
from fairseq_ext.search.protocols import Setup
from fairseq_ext.search.registry import register
from fairseq_ext.search.settings import NoFlags
from fairseq_ext.search.strategies.select._constraints import Tables, make_select
from fairseq_ext.search.strategies.select.dba import DBA


@dataclass
class GridBeamFlags:
    gbs_base: int = field(
        default=1,
        metadata={
            "help": "slots of each bank under --select gbs; replaces --beam (default: 1; "
            "the paper: 1, 5, 10)",
            "range": (1, 10_000, "number of slots"),
        },
    )


class GridBeam(DBA):
    """A fixed number of slots for every bank; a sentence has as many rows as its banks can fill."""

    variable = True

    def width(self, table: Tables) -> int:
        return self.k * table.banks

    def widths(self, phrases: PhraseTable) -> Tensor:
        return self.k * (phrases.total + 1)

    def own_width(self, phrases: PhraseTable) -> Tensor:
        return self.widths(phrases)

    def bank_of(self, phrases: PhraseTable, count: Tensor, bank: Tensor) -> tuple[Tensor, Tensor]:
        """Return the bank (S, c) of each candidate, and the highest of each sentence (S,)."""
        return bank, phrases.total

    def order(
        self,
        phrases: PhraseTable,
        table: Tables,
        count: Tensor,
        bank: Tensor,
        token: Tensor,
        score: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return order and scores (S, 2k) as `order_by_banks` does, without candidates beyond the
        slots, except for those that may replace ended ones, and the rows of each sentence (S,)."""
        bank, top = self.bank_of(phrases, count, bank)
        width = self.width(table)
        slots = torch.full((bank.size(0), width // self.k), self.k, device=bank.device)
        order, admitted = order_by_banks(slots, bank, score, top)
        score = score.gather(1, order)
        beyond = torch.arange(score.size(1), device=score.device) >= admitted[:, None]
        # a sentence without constraints is plain beam search with k rows, whose candidates after
        # the k-th replace those that end
        score = score.masked_fill(beyond & (phrases.total > 0)[:, None], -torch.inf)
        return order[:, : 2 * width], score[:, : 2 * width], self.own_width(phrases)

    def divide(self, sizes: Tensor, top: Tensor, k: int | Tensor) -> Tensor:
        return torch.full_like(sizes, self.k)


@register(
    "select",
    "gbs",
    GridBeamFlags,
    needs=("search loop", "beam"),
    example=({"select": "gbs", "gbs_base": 2},),
    paper="Hokamp and Liu 2017, grid beam search",
    constrained=True,
)
def build(flags: GridBeamFlags, setup: Setup) -> GridBeam:
    return make_select(GridBeam, setup, flags.gbs_base)


# ---- Constrained beam search: a bank for every state of the constraints (`--select cbs`)
#
#     P. Anderson, B. Fernando, M. Johnson and S. Gould. Guided Open Vocabulary Image Captioning
#     with Constrained Beam Search. EMNLP 2017. https://aclanthology.org/D17-1098/
#
# A state is the subset of the C constraints that is met, of which there are 2^C, and the position
# in the current phrase. Each has a bank of k slots. Candidates, phrase automata and gates are those
# of dba.py; a bank has fixed slots, as above, instead of the allocation.
#
# | symbol | flag |
# | --- | --- |
# | k | --beam |
#
# Neutral setting: no constraints; then it is beam search.
# It fails where few subsets of the phrases are probable: every subset keeps its k rows, however
# improbable they are, so a hypothesis may go on after the sentence has ended, with repeated words
# or full stops before the last required word.


MAX_CONSTRAINTS = 6  # of a sentence


class ConstrainedBeam(GridBeam):
    """A bank for every subset of met constraints, and for every position in a phrase of several
    tokens."""

    def width(self, table: Tables) -> int:
        most = table.phrases.need.size(1)
        if most > MAX_CONSTRAINTS:
            raise SentenceError(
                f"a sentence has {most} constraints and --select cbs needs a bank for each subset: "
                f"use at most {MAX_CONSTRAINTS}, or --select dba"
            )
        return int(self.own_width(table.phrases).max())

    def own_width(self, phrases: PhraseTable) -> Tensor:
        return self.widths(phrases) * phrases.longest

    def widths(self, phrases: PhraseTable) -> Tensor:
        return self.k * 2 ** (phrases.need > 0).sum(1)

    def bank_of(self, phrases: PhraseTable, count: Tensor, bank: Tensor) -> tuple[Tensor, Tensor]:
        # (S, 1) of each sentence by itself, so that its banks do not depend on the other sentences
        stages = phrases.longest[:, None]
        met = (count >= phrases.need[:, None]) & (phrases.need[:, None] > 0)  # (S, c, G)
        subset = (met.long() << torch.arange(met.size(2), device=met.device)).sum(-1)  # (S, c)
        partial = (bank - (count * phrases.size[:, None]).sum(-1)).clamp(min=0).minimum(stages - 1)
        top = (self.widths(phrases) // self.k - 1) * phrases.longest
        return subset * stages + partial, top


@register(
    "select",
    "cbs",
    needs=("search loop", "beam"),
    denies=("one order",),
    neutral=({"select": "cbs"},),
    example=({"select": "cbs"},),
    paper="Anderson et al. 2017, constrained beam search",
    constrained=True,
)
def build_constrained(flags: NoFlags, setup: Setup) -> ConstrainedBeam:
    return make_select(ConstrainedBeam, setup)
