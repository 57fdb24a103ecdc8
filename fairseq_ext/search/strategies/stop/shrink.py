"""Every finished hypothesis narrows the beam (`--stop shrink`): the stopping criterion of
RNNsearch, a baseline of optimal.py.

Compiled twin: kernels/stops.hpp.
"""

import torch
from torch import Tensor

from fairseq_ext.kernels.beam import StopRule
from fairseq_ext.search.beam import Beam
from fairseq_ext.search.candidates import Candidates, StopDecision
from fairseq_ext.search.finished import Finished
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import Setup, Stop
from fairseq_ext.search.registry import register
from fairseq_ext.search.strategies.stop.length_reward import LengthFlags, check_length


class Shrink(Stop):
    """Every finished hypothesis removes a slot; final when no slot is left."""

    variable = True

    def __init__(self, k: int, eos: int):
        self.k = k
        self.eos = eos

    @property
    def rules(self) -> dict[str, object] | None:
        return {"stop": StopRule.SHRINK}

    def __call__(
        self,
        candidates: Candidates,
        beam: Beam,
        pool: Pool,
        finished: Finished,
        at_limit: Tensor | None,
    ) -> StopDecision:
        ends, goes_on = candidates.split_by_eos(self.eos)
        slots = self.k - finished.count[beam.live_index()][:, None]  # (S, 1)
        place = torch.arange(ends.size(1), device=ends.device)
        done = ends & (place < slots)
        stays = goes_on & (goes_on.cumsum(1) <= slots - done.sum(1, keepdim=True))
        final = ~stays.any(1)
        if at_limit is not None:
            final = final | at_limit
        return StopDecision(done, stays, final)


@register(
    "stop",
    "shrink",
    LengthFlags,
    check=check_length,
    needs=("search loop", "beam"),
    example=({"stop": "shrink"},),
    paper="Huang, Zhao and Ma 2017, baseline of RNNsearch",
)
def build(flags: LengthFlags, setup: Setup) -> Shrink:
    return Shrink(setup.k, setup.eos)
