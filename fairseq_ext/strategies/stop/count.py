"""fairseq's stopping rule: a sentence is final with k finished hypotheses (`--stop count`, the default).

With --patience p it waits for p k of them:
    J. Kasai, K. Sakaguchi, R. Le Bras, D. Radev, Y. Choi and N. A. Smith. A Call for Clarity in Beam Search: How It Works and When It
    Stops. 2022. https://arxiv.org/abs/2204.05424

| symbol | flag |
| --- | --- |
| k | --beam |
| p | --patience |

Neutral setting: --patience 1.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fairseq_ext.errors import UsageError
from fairseq_ext.registry import register
from fairseq_ext.search.beam import Beam
from fairseq_ext.search.candidates import Candidates, StopDecision
from fairseq_ext.search.finished import Finished
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import Stop
from fairseq_ext.search.scoring import Scoring
from fairseq_ext.strategies.stop._length_reward import LengthFlags, check_length


class Count(Stop):
    """A sentence is final with k finished hypotheses, or at its length limit.

    A hypothesis that ends in EOS is finished when it is among the k best candidates, and is lost when it is not; the k best
    others go on. patience: multiple of k that makes a sentence final, 1 in fairseq; None: 1, and less for constrained sentences.

    subtle: where C tokens are required few rows may end, so the k-th finished hypothesis is long in coming and what comes late is
    rarely any good. Without a patience such a sentence is also final once k / C hypotheses (two at least) are finished, its n-best
    list is full, and no live hypothesis, with all or only some of its constraints, has a better score at present than the list's
    last. With --nbest k this changes nothing.
    """

    def __init__(self, eos: int, scoring: Scoring, patience: int | None = None):
        self.eos = eos
        self.scoring = scoring
        self.patience = patience or 1
        self.early = patience is None

    def __call__(self, candidates: Candidates, beam: Beam, pool: Pool, finished: Finished, at_limit: Tensor | None) -> StopDecision:
        before = finished.count[beam.live_index()]
        if candidates.score.device.type == "cpu" and at_limit is None and self.nothing_ends(candidates, before):
            return StopDecision(None, None, ~(candidates.score > -torch.inf).any(1))
        ends, goes_on = candidates.ends_and_goes_on(self.eos)
        done = ends.clone()
        done[:, candidates.width :] = False
        enough = self.patience * (before.new_tensor(candidates.width) if candidates.widths is None else candidates.widths)
        done &= before[:, None] + done.cumsum(1) <= enough[..., None]
        # nothing left that could go on: fairseq would decode such a sentence to the limit, with the same result
        final = (before + done.sum(1) >= enough) | ~goes_on.any(1)
        if at_limit is not None:
            final = final | at_limit
        if candidates.goal is None or not self.early:
            return StopDecision(done, ~ends, final)
        live = beam.live_index()
        score = self.scoring(candidates.score, beam.step + 1, self.scoring.wanted(pool, live)[:, None])
        best = finished.rank_(live, score.masked_fill(~done, -torch.inf))
        stays = goes_on & (goes_on.cumsum(1) <= candidates.width)
        leads = score.masked_fill(~stays, -torch.inf).amax(1)
        share = (enough // candidates.goal.clamp(min=1)).clamp(min=2).minimum(enough)
        over = (candidates.goal > 0) & (before + done.sum(1) >= share) & (best[:, -1] >= leads)
        return StopDecision(done, ~ends, final | over)

    def nothing_ends(self, candidates: Candidates, before: Tensor) -> bool:
        """Whether this is a step in which nothing can finish, as most are: worth asking where that does not mean to wait."""
        constrained = candidates.goal is not None and self.early
        if constrained and bool((before > 1).any()):
            return False
        return not bool((candidates.token == self.eos).any())


@dataclass
class CountFlags(LengthFlags):
    # fairseq has an integer flag of this name already (for training), whose type and default hold on the command line
    patience: int = field(
        default=-1,
        metadata={"help": "wait for patience x beam finished hypotheses (neutral: 1; default -1: 1, and less where phrases are required)"},
    )


def check(flags, generation) -> None:
    """Refuse a patience that would wait for nothing (raises UsageError)."""
    check_length(flags, generation)
    if flags.patience < 1 and flags.patience != -1:
        raise UsageError(f"--patience {flags.patience} would wait for no hypothesis: use 1 or more, or leave it out")


@register(
    "stop",
    "count",
    CountFlags,
    check=check,
    neutral=({}, {"patience": 1}),
    example=({"patience": 2}, {"length_reward": 0.5, "unnormalized": True}),
    paper="fairseq's own; Kasai et al. 2022 (--patience)",
)
def build(flags, context) -> Count:
    return Count(context.eos, context.scoring, None if flags.patience == -1 else flags.patience)
