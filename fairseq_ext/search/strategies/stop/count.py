"""fairseq's stopping criterion: a sentence is final with k finished hypotheses
(`--stop count`, the default).

With --patience p it waits for p k hypotheses:
    J. Kasai, K. Sakaguchi, R. Le Bras, D. Radev, Y. Choi and N. A. Smith. A Call for Clarity in
    Beam Search: How It Works and When It Stops. 2022. https://arxiv.org/abs/2204.05424

| symbol | flag |
| --- | --- |
| k | --beam |
| p | --patience |

Neutral setting: --patience 1, the default.

Compiled twin: kernels/stops.hpp.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fairseq_ext.core.errors import UsageError
from fairseq_ext.kernels.beam import StopRule
from fairseq_ext.search.beam import Beam
from fairseq_ext.search.candidates import Candidates, StopDecision
from fairseq_ext.search.finished import Finished
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import Setup, Stop
from fairseq_ext.search.registry import register
from fairseq_ext.search.settings import Generation
from fairseq_ext.search.strategies.stop.length_reward import LengthFlags, check_length

MOST_PATIENCE = 1_000_000


class Count(Stop):
    """A sentence is final with patience x k finished hypotheses, or at its length limit.

    A hypothesis that ends in EOS is finished if it is among the k best candidates, and is dropped
    otherwise; the k best others continue.
    """

    def __init__(self, eos: int, patience: int = 1):
        self.eos = eos
        self.patience = patience

    @property
    def rules(self) -> dict[str, object] | None:
        return {"stop": StopRule.COUNT} if self.patience == 1 else None

    def __call__(
        self,
        candidates: Candidates,
        beam: Beam,
        pool: Pool,
        finished: Finished,
        at_limit: Tensor | None,
    ) -> StopDecision:
        before = finished.count[beam.live_index()]
        if (
            candidates.score.device.type == "cpu"
            and at_limit is None
            and self.no_candidate_ends(candidates, before)
        ):
            return StopDecision(None, None, ~(candidates.score > -torch.inf).any(1))
        ends, goes_on = candidates.split_by_eos(self.eos)
        done = ends & candidates.within_width()
        enough = self.finished_needed(candidates)
        so_far = done.cumsum(1) + before[:, None]
        done &= so_far <= (enough[:, None] if isinstance(enough, Tensor) else enough)
        # no candidate can continue: fairseq would decode such a sentence to the limit, with the
        # same result
        final = (so_far[:, -1] >= enough) | ~goes_on.any(1)
        if at_limit is not None:
            final = final | at_limit
        return StopDecision(done, ~ends, final)

    def finished_needed(self, candidates: Candidates) -> int | Tensor:
        """Return the number of finished hypotheses that make a sentence final: (S,), or an int."""
        return self.patience * (
            candidates.width if candidates.widths is None else candidates.widths
        )

    def no_candidate_ends(self, candidates: Candidates, before: Tensor) -> bool:
        """Return whether no candidate ends, as in most steps; only checked on a CPU, where it does
        not wait for a device."""
        return not bool((candidates.token == self.eos).any())


@dataclass
class CountFlags(LengthFlags):
    # fairseq has an integer flag of this name (for training); on the command line, its type and its
    # default, -1, are used
    patience: int = field(
        default=-1,
        metadata={
            "help": "wait for patience x beam finished hypotheses (default: 1 as in fairseq, or "
            "--stop early with constraints)",
            "typed": (1, MOST_PATIENCE, "number of beams of hypotheses"),
        },
    )


def check(flags: CountFlags, generation: Generation) -> None:
    """Refuse a patience below 1, or a too large one (raises UsageError)."""
    check_length(flags, generation)
    if flags.patience < 1 and flags.patience != -1:
        raise UsageError(
            f"--patience {flags.patience} would wait for no hypothesis: use 1 or more, "
            "or leave it out"
        )
    if flags.patience > MOST_PATIENCE:
        raise UsageError(
            f"--patience {flags.patience} is more than any sentence has hypotheses: use 1 "
            f"to {MOST_PATIENCE}"
        )


@register(
    "stop",
    "count",
    CountFlags,
    check=check,
    neutral=({}, {"patience": 1}),
    example=({"patience": 2}, {"length_reward": 0.5, "unnormalized": True}),
    paper="fairseq's own; Kasai et al. 2022 (--patience)",
)
def build(flags: CountFlags, setup: Setup) -> Count:
    return Count(setup.eos, 1 if flags.patience == -1 else flags.patience)
