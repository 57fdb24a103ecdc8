"""Constrained beam search: a bank for every state of the constraints (`--select cbs`).

    P. Anderson, B. Fernando, M. Johnson and S. Gould. Guided Open Vocabulary Image Captioning with
    Constrained Beam Search. EMNLP 2017. https://aclanthology.org/D17-1098/

A state is the subset of the C constraints that is met, of which there are 2^C, and the position in
the current phrase. Each has a bank of k slots. Candidates, phrase automata and gates are those of
dba.py; a bank has fixed slots, as in gbs.py, instead of the allocation.

| symbol | flag |
| --- | --- |
| k | --beam |

Neutral setting: no constraints; then it is beam search.
It fails where few subsets of the phrases are probable: every subset keeps its k rows, however
improbable they are, so a hypothesis may go on after the sentence has ended, with repeated words or
full stops before the last required word.
"""

import torch
from torch import Tensor

from fairseq_ext.core.errors import SentenceError
from fairseq_ext.search.phrases.phrase_table import PhraseTable
from fairseq_ext.search.protocols import Setup
from fairseq_ext.search.registry import register
from fairseq_ext.search.settings import NoFlags
from fairseq_ext.search.strategies.select._constraints import Tables, make_select
from fairseq_ext.search.strategies.select.gbs import GridBeam

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
def build(flags: NoFlags, setup: Setup) -> ConstrainedBeam:
    return make_select(ConstrainedBeam, setup)
