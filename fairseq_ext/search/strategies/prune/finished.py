"""Pruning against the best finished hypothesis (`--prune-finished X`).

    M. Post and D. Vilar. Fast Lexically Constrained Decoding with Dynamic Beam Allocation for Neural Machine Translation.
    NAACL 2018. https://aclanthology.org/N18-1119/     Section 4.2 and Table 3, where X = 20

A candidate whose log-probability is worse than the best finished hypothesis's by more than X is dropped, so that a sentence
does not go on filling its list with what nobody will read. Neutral setting: off, or X = inf.
"""

from dataclasses import dataclass, field

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
class PruneFinishedFlags:
    prune_finished: float | None = field(
        default=None,
        metadata={"help": "drop what is worse than the best finished hypothesis by more than this, in nats (default: off; the paper: 20)"},
    )


class PruneFinished(Prune):
    """Keeps candidates within X of the sentence's best finished sum of log-probabilities."""

    def __init__(self, X: float):
        self.X = X

    @property
    def rules(self) -> PlugRules | None:
        return PlugRules(behind_finished=self.X)

    def __call__(self, candidates: Candidates, beam: Beam, pool: Pool, finished: Finished) -> Tensor:
        best = finished.total[beam.live_index()][:, None]
        return candidates.score >= best - self.X


def check(flags, generation) -> None:
    """Refuse a negative distance (raises UsageError)."""
    if flags.prune_finished is not None and not flags.prune_finished >= 0:
        raise UsageError(f"--prune-finished {flags.prune_finished} is not a distance: use 0 or more, such as 20")


@register(
    "prune",
    "finished",
    PruneFinishedFlags,
    check=check,
    needs=("search loop", "beam"),
    neutral=({"prune_finished": float("inf")},),
    example=({"prune_finished": 2.0},),
    paper="Post and Vilar 2018, Table 3",
)
def build(flags, context) -> PruneFinished:
    return PruneFinished(flags.prune_finished)
