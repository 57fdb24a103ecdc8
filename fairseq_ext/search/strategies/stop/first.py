"""Stop when the best candidate is complete, and return it (`--stop first`): OpenNMT-py's stopping
criterion, a baseline of optimal.py.

Compiled twin: kernels/stops.hpp.
"""

from torch import Tensor

from fairseq_ext.kernels.beam import StopRule
from fairseq_ext.search.beam import Beam
from fairseq_ext.search.candidates import Candidates, StopDecision
from fairseq_ext.search.finished import Finished
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import Setup, Stop
from fairseq_ext.search.registry import register
from fairseq_ext.search.strategies.stop.length_reward import LengthFlags, check_length


class First(Stop):
    """Final when the best candidate is complete; that candidate is the answer."""

    def __init__(self, eos: int):
        self.eos = eos

    @property
    def rules(self) -> dict[str, object] | None:
        return {"stop": StopRule.FIRST}

    def __call__(
        self,
        candidates: Candidates,
        beam: Beam,
        pool: Pool,
        finished: Finished,
        at_limit: Tensor | None,
    ) -> StopDecision:
        ends, goes_on = candidates.split_by_eos(self.eos)
        done = ends.clone()
        done[:, 1:] = False
        final = done[:, 0] | ~goes_on.any(1)
        if at_limit is not None:
            final = final | at_limit
        return StopDecision(done, ~ends, final)


@register(
    "stop",
    "first",
    LengthFlags,
    check=check_length,
    needs=("search loop", "beam"),
    example=({"stop": "first"},),
    paper="Huang, Zhao and Ma 2017, baseline of OpenNMT-py",
)
def build(flags: LengthFlags, setup: Setup) -> First:
    return First(setup.eos)
