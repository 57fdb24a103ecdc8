"""Constrained search with fixed slots, the baselines of dynamic beam allocation (`--select gbs`, `--select cbs`).

    C. Hokamp and Q. Liu. Lexically Constrained Decoding for Sequence Generation Using Grid Beam Search.
    ACL 2017. https://aclanthology.org/P17-1141/
    P. Anderson, B. Fernando, M. Johnson and S. Gould. Guided Open Vocabulary Image Captioning with Constrained Beam Search.
    EMNLP 2017. https://aclanthology.org/D17-1098/

`gbs` gives each of the C + 1 banks of dba.py the same b slots, whether it can fill them or not: a beam of b (C + 1), as Post and
Vilar simulate it (NAACL 2018, Section 5). `cbs` has a bank of k slots for every state of the constraints: which subset is met,
2^C of them, and how far the phrase at hand has come. Both share dba.py's candidates, phrase automata and gates; what they lack is
the allocation.

| symbol | flag |
| --- | --- |
| b | --gbs-base (gbs), --beam (cbs) |

Neutral setting: no constraints; then gbs is beam search with beam b, and cbs with --beam.
"""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fairseq_ext.constraints.flags import ConstraintFlags
from fairseq_ext.constraints.required import PhraseTable
from fairseq_ext.errors import UsageError
from fairseq_ext.registry import register
from fairseq_ext.search.beam import Beam
from fairseq_ext.search.candidates import Candidates
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.pool import Pool
from fairseq_ext.strategies.select._banks import by_banks
from fairseq_ext.strategies.select._best import Best
from fairseq_ext.strategies.select.dba import DBA, Tables

MAX_CBS_PHRASES = 6


@dataclass
class GridBeamFlags(ConstraintFlags):
    gbs_base: int = field(
        default=1,
        metadata={
            "help": "slots of each bank under --select gbs; replaces --beam (default: 1; the paper: 1, 5, 10)",
            "range": (1, 10_000, "number of slots"),
        },
    )


class GridBeam(DBA):
    """A fixed number of slots for every bank; a sentence has as many rows as its banks can fill."""

    variable = True
    is_compiled = False

    def __call__(self, beam: Beam, log_probs: LogProbs, pool: Pool) -> Candidates:
        found = super().__call__(beam, log_probs, pool)
        assert found.widths is not None
        # a sentence without constraints has k rows, also beside one with more: of its 2k candidates, those that a beam of k would use
        ends = found.token == self.eos
        used = torch.where(ends, torch.arange(ends.size(1), device=ends.device) < self.k, (~ends).cumsum(1) <= self.k)
        found.score = found.score.masked_fill(~used & (found.widths == self.k)[:, None], -torch.inf)
        return found

    def width(self, table: Tables) -> int:
        return self.k * table.banks

    def widths(self, phrases: PhraseTable) -> Tensor | None:
        return self.k * (phrases.total + 1)

    def own_width(self, phrases: PhraseTable) -> Tensor:
        """(S,) what `width` is for a sentence by itself."""
        return self.k * (phrases.total + 1)

    def best(self, k: int, beam: Beam, log_probs: LogProbs, phrases: PhraseTable) -> Best:
        """No sentence looks further than it does by itself, whatever the widest one of its batch needs."""
        best = super().best(k, beam, log_probs, phrases)
        beyond = torch.arange(best.score.size(1), device=beam.device) >= 2 * self.own_width(phrases)[:, None]
        return replace(best, score=best.score.masked_fill(beyond, -torch.inf))

    def order(
        self, phrases: PhraseTable, table: Tables, place: Tensor, count: Tensor, bank: Tensor, score: Tensor
    ) -> tuple[Tensor, Tensor]:
        slots = torch.full((bank.size(0), table.banks), self.k, device=bank.device)
        return self.admitted_only(slots, table, bank, score, phrases.total)

    def admitted_only(self, slots: Tensor, table: Tables, bank: Tensor, score: Tensor, top: Tensor) -> tuple[Tensor, Tensor]:
        """Order and scores (S, 2k) as by_banks gives them, with nothing beyond the slots but what EOS may make room for."""
        order, admitted = by_banks(slots, bank, score, top)
        score = score.gather(1, order)
        searched: Tensor = torch.gt(top, 0)[:, None]  # has constraints
        beyond = torch.arange(score.size(1), device=score.device) >= admitted[:, None]
        # a sentence without constraints is plain beam search, whose candidates beyond the k-th replace those that end
        score = score.masked_fill(beyond & searched, -torch.inf)
        return order[:, : 2 * self.width(table)], score[:, : 2 * self.width(table)]


class ConstrainedBeam(GridBeam):
    """A bank for every subset of constraints that is met, and for every stage of a phrase of several tokens."""

    def width(self, table: Tables) -> int:
        return self.k * self.states(table.phrases)

    def widths(self, phrases: PhraseTable) -> Tensor | None:
        return self.k * 2 ** (phrases.need > 0).sum(1)

    def own_width(self, phrases: PhraseTable) -> Tensor:
        return self.k * 2 ** (phrases.need > 0).sum(1) * phrases.length.amax(1).clamp(min=1)

    def states(self, phrases: PhraseTable) -> int:
        """Banks of the sentence that has the most."""
        most = phrases.need.size(1)
        if most > MAX_CBS_PHRASES:
            raise UsageError(
                f"a sentence has {most} constraints and --select cbs needs a bank for each subset: "
                f"use at most {MAX_CBS_PHRASES}, or --select dba"
            )
        return 2**most * (phrases.token.size(2) - 1)

    def order(
        self, phrases: PhraseTable, table: Tables, place: Tensor, count: Tensor, bank: Tensor, score: Tensor
    ) -> tuple[Tensor, Tensor]:
        stages = phrases.token.size(2) - 1
        met = (count >= phrases.need[:, None]) & (phrases.need[:, None] > 0)  # (S, c, G)
        subset = (met.long() << torch.arange(met.size(2), device=met.device)).sum(-1)  # (S, c)
        partial = (bank - (count * phrases.size[:, None]).sum(-1)).clamp(max=stages - 1)
        slots = torch.full((bank.size(0), self.states(phrases)), self.k, device=bank.device)
        top = (2 ** (phrases.need > 0).sum(1) - 1) * stages
        return self.admitted_only(slots, table, subset * stages + partial, score, top)


@register(
    "select",
    "gbs",
    GridBeamFlags,
    needs=("own loop", "beam"),
    denies=("one order",),
    example=({"select": "gbs", "gbs_base": 2},),
    paper="Hokamp and Liu 2017, grid beam search",
    constrained=True,
)
def gbs(flags, context) -> GridBeam:
    return GridBeam(flags.gbs_base, context.eos, len(context.dictionary), context.children)


@register(
    "select",
    "cbs",
    ConstraintFlags,
    needs=("own loop", "beam"),
    denies=("one order",),
    neutral=({"select": "cbs"},),
    example=({"select": "cbs"},),
    paper="Anderson et al. 2017, constrained beam search",
    constrained=True,
)
def cbs(flags, context) -> ConstrainedBeam:
    return ConstrainedBeam(context.k, context.eos, len(context.dictionary), context.children)
