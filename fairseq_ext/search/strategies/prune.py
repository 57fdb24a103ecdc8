"""Pruning of candidates (`--prune-threshold`, `--prune-children`, `--prune-finished`).

Compiled twin: kernels/stops.hpp.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fairseq_ext.search.beam import Beam
from fairseq_ext.search.candidates import Candidates
from fairseq_ext.search.finished import Finished
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import Prune, Setup
from fairseq_ext.search.registry import register

# ---- Worse than the best candidate (`--prune-threshold delta`)
#
# Half of the variable width of streaming search: candidates far worse than the best are dropped.
#
#     M. Freitag and Y. Al-Onaizan. Beam Search Strategies for Neural Machine Translation. 2017,
#     https://aclanthology.org/W17-3207/
#     as in K. Yang et al., EMNLP 2020 (search/strategies/schedule.py)
#
# delta = --prune-threshold, measured from the sentence's best hypothesis, which may have finished
# at an earlier step (Appendix A.3). Difference from the paper: with constraints it is the best of
# the candidate's own bank, so that pruning cannot lose a constraint. Neutral setting: delta = inf.


@dataclass
class PruneThresholdFlags:
    prune_threshold: float | None = field(
        default=None,
        metadata={
            "help": "drop candidates worse than the best one by more than this, in nats "
            "(default: off; the paper: 1.5)",
            "range": (0, math.inf, "distance in nats"),
        },
    )


class PruneThreshold(Prune):
    """Keeps candidates within delta of the sentence's best, whether finished or live."""

    def __init__(self, delta: float):
        self.delta = delta

    @property
    def rules(self) -> dict[str, object] | None:
        return {"threshold": self.delta}

    def __call__(
        self, candidates: Candidates, beam: Beam, pool: Pool, finished: Finished
    ) -> Tensor:
        score = candidates.score
        best_finished = finished.total[beam.live_index()].to(score.dtype)  # (S,)
        if candidates.group is None or candidates.goal is None:
            return score >= torch.maximum(score.amax(1), best_finished)[:, None] - self.delta
        # banks: a finished hypothesis belongs to the highest
        banks = int(candidates.group.max()) + 1
        best = score.new_full((score.size(0), banks), -torch.inf).scatter_reduce_(
            1, candidates.group, score, "amax"
        )
        best = best.gather(1, candidates.group)
        best = torch.where(
            candidates.group == candidates.goal[:, None], best.maximum(best_finished[:, None]), best
        )
        return score >= best - self.delta


@register(
    "prune",
    "threshold",
    PruneThresholdFlags,
    needs=("search loop", "beam"),
    neutral=({"prune_threshold": float("inf")},),
    example=({"prune_threshold": 1.0},),
    paper="Freitag and Al-Onaizan 2017; Yang et al. 2020",
)
def build_threshold(flags: PruneThresholdFlags, setup: Setup) -> PruneThreshold:
    assert flags.prune_threshold is not None  # the flag switches it on
    return PruneThreshold(flags.prune_threshold)


# ---- Children of a row (`--prune-children M`)
#
# The other half of the variable width of streaming search: a hypothesis is continued in at most M
# ways.
#
#     M. Freitag and Y. Al-Onaizan. Beam Search Strategies for Neural Machine Translation. 2017,
#     https://aclanthology.org/W17-3207/
#     as in K. Yang et al., EMNLP 2020 (search/strategies/schedule.py)
#
# M = --prune-children. The select strategy itself takes at most M children of a row
# (SearchSpec.children, read by search/strategies/select/topk.py). Continuations that are candidates
# because of a constraint do not count. Neutral setting: M >= --beam, since at most k children of a
# row ever count.


@dataclass
class ChildrenFlags:
    prune_children: int | None = field(
        default=None,
        metadata={
            "help": "continue a hypothesis in at most this many ways (default: off, or "
            "--beam; the paper: 5)",
            "range": (1, math.inf, "number of continuations"),
        },
    )


@register(
    "prune",
    "children",
    ChildrenFlags,
    needs=("search loop", "beam"),
    neutral=({"prune_children": 60},),
    example=({"prune_children": 2},),
    paper="Freitag and Al-Onaizan 2017; Yang et al. 2020",
)
def build_children(flags: ChildrenFlags, setup: Setup) -> None:
    """Build no pruner: the select strategy reads the flag."""


# ---- Worse than the best finished hypothesis (`--prune-finished X`)
#
#     M. Post and D. Vilar. Fast Lexically Constrained Decoding with Dynamic Beam Allocation for
#     Neural Machine Translation.
#     NAACL 2018. https://aclanthology.org/N18-1119/
#     Section 4 (X = 20), Section 6.3 and Table 3
#
# A candidate whose log-probability is worse than the best finished hypothesis's by more than X is
# dropped, so that a sentence does not continue only to fill its n-best list. Neutral setting: off,
# or X = inf.


@dataclass
class PruneFinishedFlags:
    prune_finished: float | None = field(
        default=None,
        metadata={
            "help": "drop candidates worse than the best finished hypothesis by more than this, in "
            "nats (default: off; the paper: 20)",
            "page": "constraints.md",
            "range": (0, math.inf, "distance in nats"),
        },
    )


class PruneFinished(Prune):
    """Keeps candidates within X of the sentence's best finished sum of log-probabilities."""

    def __init__(self, X: float):
        self.X = X

    @property
    def rules(self) -> dict[str, object] | None:
        return {"finished_threshold": self.X}

    def __call__(
        self, candidates: Candidates, beam: Beam, pool: Pool, finished: Finished
    ) -> Tensor:
        best = finished.total[beam.live_index()][:, None]
        return candidates.score >= best - self.X


@register(
    "prune",
    "finished",
    PruneFinishedFlags,
    needs=("search loop", "beam"),
    neutral=({"prune_finished": float("inf")},),
    example=({"prune_finished": 2.0},),
    paper="Post and Vilar 2018, Table 3",
)
def build_finished(flags: PruneFinishedFlags, setup: Setup) -> PruneFinished:
    assert flags.prune_finished is not None  # the flag switches it on
    return PruneFinished(flags.prune_finished)
