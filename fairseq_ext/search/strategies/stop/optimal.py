"""Optimal ending: stop when no live hypothesis can win, with a proof (`--stop optimal`).

    L. Huang, K. Zhao and M. Ma. When to Finish? Optimal Beam Search for Neural Text Generation
    (modulo beam size).
    EMNLP 2017. https://aclanthology.org/D17-1227/

Eq. 2 (unnormalised scores), Eq. 3 and Eq. 4 (both with the reward, and equivalent) are one test
here: the n-th best finished score against the best score that any live hypothesis can still reach
(`Scoring.bound`). A finished hypothesis never grows, so only live ones are in the bound; ties stop.

| symbol | flag |
| --- | --- |
| b | --beam |
| r | --length-reward |
| l = ratio x source length | --length-ratio, and --length-offset to add a constant |
| | (0 in the paper) |
| expansion of B_i | --stop-expansion paper: a finished candidate takes a slot of the step; |
| | fairseq: it does not |

Baselines: count.py (fairseq), first.py, shrink.py. Neutral setting: --stop count without
--length-reward.
The certificate holds for the search with this beam (the paper's "modulo beam size"), not for the
model; if the length limit cuts off the search, it stays open, and the gap is reported.

Compiled twin: kernels/stops.hpp.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.stats import Mean, Section, Stats
from fairseq_ext.kernels.beam import StopRule
from fairseq_ext.search.beam import Beam, upload
from fairseq_ext.search.candidates import Candidates, StopDecision
from fairseq_ext.search.finished import Finished, Scoring
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import Setup, Stop
from fairseq_ext.search.registry import register
from fairseq_ext.search.report import Ending
from fairseq_ext.search.settings import Generation
from fairseq_ext.search.strategies.stop.length_reward import LengthFlags, check_length


@dataclass
class OptimalFlags(LengthFlags):
    stop_expansion: Literal["fairseq", "paper"] = field(
        default="fairseq",
        metadata={
            "help": "whether a candidate that ends takes a slot of its step's beam (paper) or "
            "not (default: fairseq)"
        },
    )
    prune_bound: bool = field(
        default=False,
        metadata={
            "help": "with --stop optimal: drop live hypotheses that provably cannot enter the "
            "n-best list (default: off)"
        },
    )


class OptimalEnding(Stop):
    """Final when the n-th best finished hypothesis is as good as any live one can become."""

    def __init__(self, eos: int, scoring: Scoring, stats: Stats, paper: bool, prune: bool):
        self.eos = eos
        self.scoring = scoring
        self.stats = stats
        self.certificates = stats.section(Certificates)
        self.early_end = stats.section(Saved)
        self.paper = paper  # expansion
        self.prune = prune
        self.variable = paper or prune

    @property
    def rules(self) -> dict[str, object] | None:
        rules = {"paper_expansion": self.paper, "prune_bound": self.prune}
        return {"stop": StopRule.OPTIMAL, **rules}

    def __call__(
        self,
        candidates: Candidates,
        beam: Beam,
        pool: Pool,
        finished: Finished,
        at_limit: Tensor | None,
    ) -> StopDecision:
        live = beam.live_index()
        rewarded = beam.cached_for_live(
            "rewarded", lambda: self.scoring.rewarded(pool, live)[:, None]
        )
        longest = beam.cached_for_live("longest", lambda: pool.limit()[live][:, None] + 1.0)
        ends, goes_on = candidates.split_by_eos(self.eos)
        # a candidate is finished if it is among the k best; the k best others continue, or in the
        # paper's expansion those among the k best
        first_k = candidates.within_width()
        done = ends & first_k
        stays = (
            goes_on & first_k if self.paper else goes_on & (goes_on.cumsum(1) <= candidates.most)
        )
        score = self.scoring(candidates.score, beam.step + 1, rewarded).masked_fill(
            ~done, -torch.inf
        )
        best = finished.rank_(live, score)
        # the certificate: no live hypothesis can reach the n-th best finished score
        # (S, c)
        most = longest
        if pool.rule is not None and not self.scoring.is_total:
            left = pool.rule.most_left(candidates.row, candidates.token, beam, pool)
            most = longest.minimum(left + (beam.step + 2))
        reach = self.scoring.bound(candidates.score, beam.step + 1, most, rewarded).masked_fill(
            ~stays, -torch.inf
        )
        worst = best[:, -1:]  # (S, 1)
        if self.prune:
            self.stats.drop(stays & (reach <= worst))
            stays = stays & (reach > worst)
        final = reach.amax(1) <= worst[:, 0]
        if (
            at_limit is None
            and candidates.widths is None
            and beam.counts is None
            and beam.width == candidates.width
        ):
            # gap, steps, rows
            each = beam.cached_for_live(
                "saved",
                lambda: upload(
                    torch.tensor([0.0, 1.0, candidates.width], dtype=torch.float32), beam.device
                ),
            )
            finished.ending[:, :3].index_copy_(0, live, (longest - (beam.step + 1)) * each)
        else:
            gap = self.gap(at_limit, beam, best, longest, rewarded)
            steps, beyond, missed = self.saved(candidates, beam, longest)
            finished.ending[live] = torch.stack(
                [gap, steps, beyond, finished.ending[live, 3].clamp(min=0) + missed], dim=1
            )
        if at_limit is not None:
            final = final | at_limit
        return StopDecision(done, stays if self.variable else ~ends, final)

    def gap(
        self, at_limit: Tensor | None, beam: Beam, best: Tensor, longest: Tensor, rewarded: Tensor
    ) -> Tensor:
        """Return a bound of the score that each sentence's answer (S,) lacks, in nats, if it ends
        here: 0 if it is proved the best.

        A sentence at its length limit is open unless no row of the last step could have won.
        """
        if at_limit is None:
            return torch.zeros_like(best[:, 0])
        top = beam.by_sentence(beam.last_score(), -torch.inf).amax(1, keepdim=True)
        reach = self.scoring.bound(top, beam.step, longest, rewarded)[:, 0]
        return (reach - best[:, -1]).masked_fill(~at_limit | (reach <= best[:, -1]), 0.0)

    def saved(
        self, candidates: Candidates, beam: Beam, longest: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the work of a search to the length limit with k rows a step: (S,) steps and rows
        after this step, and rows that this step did not have."""
        steps = (longest - (beam.step + 1))[:, 0]
        width = (
            torch.full_like(steps, candidates.width)
            if candidates.widths is None
            else candidates.widths
        )
        missing = width - (beam.width if beam.counts is None else beam.counts)
        begun = beam.step > 0  # the first step has only one row a sentence
        begun = begun[:, 0] if isinstance(begun, Tensor) else begun
        return steps, steps * width, missing * begun

    def count_ending(self, ending: Ending) -> None:
        self.certificates.count(ending)
        self.early_end.count(ending)


def check(flags: OptimalFlags, generation: Generation) -> None:
    """Refuse scores that a certificate cannot compare (raises UsageError)."""
    check_length(flags, generation)
    if not math.isfinite(generation.lenpen):
        raise UsageError(
            f"--lenpen {generation.lenpen} gives no score that --stop optimal could "
            "compare: use a number"
        )


def certificate(flags: OptimalFlags, generation: Generation) -> str:
    """Return the scores that the certificate holds for: sums of log-probabilities, those with the
    reward, or either over length**lenpen (whose bound is exact and loose)."""
    if not generation.unnormalized and generation.lenpen:
        return "certificate=normalised"
    return "certificate=reward" if flags.length_reward else "certificate=raw"


@register(
    "stop",
    "optimal",
    OptimalFlags,
    check=check,
    signature_part=certificate,
    needs=("search loop", "beam", "scores of at most 0"),
    example=(
        {"stop": "optimal"},
        {"stop": "optimal", "stop_expansion": "paper"},
        {"stop": "optimal", "prune_bound": True, "unnormalized": True},
        {"stop": "optimal", "length_reward": 0.5, "unnormalized": True},
    ),
    paper="Huang, Zhao and Ma 2017, optimal ending",
)
def build(flags: OptimalFlags, setup: Setup) -> OptimalEnding:
    paper = flags.stop_expansion == "paper"
    return OptimalEnding(setup.eos, setup.scoring, setup.stats, paper, flags.prune_bound)


# ---- Statistics of answered sentences: the sections `certificates` and `saved`


@dataclass
class Certificates(Section):
    """Sentences whose result is proved to be the best (proved), and those that the length limit cut
    off without a proof (open)."""

    key = "certificates"
    counts_answers = True
    proved: int = 0
    open: int = 0
    # mean gap of the open ones, in nats; 0 for one with fewer finished hypotheses than its n-best
    # list has
    gap_mean: Mean = Mean()

    def count(self, ending: Ending) -> None:
        """Count a sentence."""
        if ending.gap == 0:
            self.proved += 1
        else:
            self.open += 1
            self.gap_mean += Mean(ending.gap if math.isfinite(ending.gap) else 0.0, 1)


@dataclass
class Saved(Section):
    """The work saved against the same search to every sentence's length limit with k rows a step:
    steps (a token of one sentence each) and rows.

    An upper bound if fewer than k rows may be live (--stop-expansion paper, constraints,
    dictionaries of less than 2k words).
    """

    key = "saved"
    counts_answers = True
    steps: int = 0
    rows: int = 0
    expansions: int = 0  # one for each row

    def count(self, ending: Ending) -> None:
        """Count a sentence."""
        self.steps += ending.steps
        self.rows += ending.rows
        self.expansions += ending.rows
