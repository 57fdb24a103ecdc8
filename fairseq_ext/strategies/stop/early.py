"""An earlier end for sentences with constraints (`--stop early`, which constraints choose where no --stop and no --patience is given).

Where C tokens are required few rows may end, so the k-th finished hypothesis is long in coming, and what comes late is rarely any good.
So a sentence is final by fairseq's rule (count.py), and also as soon as all of these hold:

1. k / C hypotheses are finished, two at least;
2. its n-best list is full;
3. no live hypothesis, with all or only some of its constraints, has a better score at present than the list's last.

| symbol | flag |
| --- | --- |
| k | --beam |
| C | tokens of the sentence's constraints |

This rule is our own, no paper's, and a heuristic: a live hypothesis that is behind at present may still overtake. Neutral setting:
sentences without constraints; --nbest k, with which the list is full when fairseq's rule ends the sentence; --stop count.
"""

import torch
from torch import Tensor

from fairseq_ext.registry import register
from fairseq_ext.search.beam import Beam
from fairseq_ext.search.candidates import Candidates, StopDecision
from fairseq_ext.search.finished import Finished
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.scoring import Scoring
from fairseq_ext.strategies.stop._length_reward import LengthFlags, check_length
from fairseq_ext.strategies.stop.count import Count


class Early(Count):
    """fairseq's rule, and the earlier end of sentences with constraints."""

    def __init__(self, eos: int, scoring: Scoring):
        super().__init__(eos)
        self.scoring = scoring

    def __call__(self, candidates: Candidates, beam: Beam, pool: Pool, finished: Finished, at_limit: Tensor | None) -> StopDecision:
        decision = super().__call__(candidates, beam, pool, finished, at_limit)
        if candidates.goal is None or decision.done is None or decision.stays is None:
            return decision
        live = beam.live_index()
        score = self.scoring(candidates.score, beam.step + 1, self.scoring.wanted(pool, live)[:, None])
        best = finished.rank_(live, score.masked_fill(~decision.done, -torch.inf))  # (S, nbest)
        goes_on = decision.stays & (candidates.score > -torch.inf)
        goes_on &= goes_on.cumsum(1) <= candidates.width
        leads = score.masked_fill(~goes_on, -torch.inf).amax(1)  # (S,)
        before = finished.count[live]
        enough = self.enough(candidates, before)
        share = (enough // candidates.goal.clamp(min=1)).clamp(min=2).minimum(enough)
        over = (candidates.goal > 0) & (before + decision.done.sum(1) >= share) & (best[:, -1] >= leads)
        return StopDecision(decision.done, decision.stays, decision.final | over)

    def nothing_ends(self, candidates: Candidates, before: Tensor) -> bool:
        # subtle: a sentence with two finished hypotheses can be over in a step in which nothing ends
        return not (candidates.goal is not None and bool((before > 1).any())) and super().nothing_ends(candidates, before)


@register(
    "stop",
    "early",
    LengthFlags,
    check=check_length,
    needs=("own loop", "beam"),
    neutral=({"stop": "early"},),
    example=({"stop": "early", "select": "dba"},),
    paper="none; an addition for constrained search",
)
def build(flags, context) -> Early:
    return Early(context.eos, context.scoring)
