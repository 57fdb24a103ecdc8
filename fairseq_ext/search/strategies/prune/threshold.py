"""Drop what is far worse than the best (`--prune-threshold delta`): half of the variable width of streaming search.

    M. Freitag and Y. Al-Onaizan. Beam Search Strategies for Neural Machine Translation. 2017, https://aclanthology.org/W17-3207/
    as in K. Yang et al., EMNLP 2020 (search/strategies/schedule/stream.py)

delta = --prune-threshold. Here, other than in the paper: the best candidate, from which delta is measured, may be any finished one; with
constraints it is the best of the candidate's own bank, so that pruning cannot lose a constraint. Neutral setting: delta = inf.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fairseq_ext.core.errors import UsageError
from fairseq_ext.kernels.beam import PlugRules
from fairseq_ext.search.beam import Beam
from fairseq_ext.search.candidates import Candidates
from fairseq_ext.search.finished import Finished
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import Prune
from fairseq_ext.search.registry import register


@dataclass
class PruneThresholdFlags:
    prune_threshold: float | None = field(
        default=None,
        metadata={"help": "drop what is worse than the best candidate by more than this, in nats (default: off; the paper: 1.5)"},
    )


class PruneThreshold(Prune):
    """Keeps candidates within delta of the sentence's best, whether finished or live."""

    def __init__(self, delta: float):
        self.delta = delta

    @property
    def rules(self) -> PlugRules | None:
        return PlugRules(threshold=self.delta)

    def __call__(self, candidates: Candidates, beam: Beam, pool: Pool, finished: Finished) -> Tensor:
        score = candidates.score
        best_finished = finished.total[beam.live_index()].to(score.dtype)  # (S,)
        if candidates.group is None or candidates.goal is None:
            return score >= torch.maximum(score.amax(1), best_finished)[:, None] - self.delta
        # banks: a finished hypothesis belongs to the highest
        banks = int(candidates.group.max()) + 1
        best = score.new_full((score.size(0), banks), -torch.inf).scatter_reduce_(1, candidates.group, score, "amax")
        best = best.gather(1, candidates.group)
        best = torch.where(candidates.group == candidates.goal[:, None], best.maximum(best_finished[:, None]), best)
        return score >= best - self.delta


def check(flags, generation) -> None:
    """Refuse what is no distance (raises UsageError)."""
    if flags.prune_threshold is not None and not flags.prune_threshold >= 0:
        raise UsageError(f"--prune-threshold {flags.prune_threshold} is not a distance: use 0 or more, such as 1.5")


@register(
    "prune",
    "threshold",
    PruneThresholdFlags,
    check=check,
    needs=("search loop", "beam"),
    neutral=({"prune_threshold": float("inf")},),
    example=({"prune_threshold": 1.0},),
    paper="Freitag and Al-Onaizan 2017; Yang et al. 2020",
)
def build(flags, context) -> PruneThreshold:
    return PruneThreshold(flags.prune_threshold)
