"""Grid beam search: constrained search with fixed slots for each bank, a baseline of dynamic beam
allocation (`--select gbs`).

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

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fairseq_ext.search.candidates import order_by_banks
from fairseq_ext.search.phrases.phrase_table import PhraseTable
from fairseq_ext.search.protocols import Setup
from fairseq_ext.search.registry import register
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
