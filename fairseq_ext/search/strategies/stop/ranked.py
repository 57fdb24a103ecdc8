"""Finished candidates stay on the beam until all above them are finished (`--stop ranked`).

K. Yang, V. Yao, J. DeNero and D. Klein. A Streaming Approach For Efficient Batched Beam Search.
EMNLP 2020. https://aclanthology.org/2020.emnlp-main.366/
Appendix A.1

With banks (--select dba, gbs) it is the stopping criterion of
    M. Post and D. Vilar. Fast Lexically Constrained Decoding with Dynamic Beam Allocation for
    Neural Machine Translation. NAACL 2018. https://aclanthology.org/N18-1119/
    Sections 4 and 6.4
A finished hypothesis stays in the highest bank and competes for its slots; --prune-finished drops
it like any other. A sentence is final when all hypotheses on the beam are finished; its answers are
those. Sums of log-probabilities are compared; in the paper's Figure 9 those of finished ones are
normalised.

Compiled twin: kernels/stops.hpp.
"""

import math

import torch
from torch import Tensor

from fairseq_ext.kernels.beam import StopRule
from fairseq_ext.search.beam import Beam
from fairseq_ext.search.candidates import (
    Candidates,
    StopDecision,
    bank_sizes,
    order_by_banks,
)
from fairseq_ext.search.finished import Finished
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import Setup, Stop
from fairseq_ext.search.registry import register
from fairseq_ext.search.strategies.prune import PruneFinishedFlags
from fairseq_ext.search.strategies.select.gbs import GridBeamFlags
from fairseq_ext.search.strategies.stop.length_reward import LengthFlags, check_length


class Ranked(Stop):
    """Appendix A.1: a candidate that ends takes a place on the beam, costs no more decoding, and
    is an answer when all above it are finished; until then better ones may replace it. The beam has
    k places less the answers. A sentence with constraints: see above."""

    variable = True

    def __init__(self, k: int, eos: int, worst: float = math.inf):
        self.k = k  # largest number of finished hypotheses on the beam
        self.eos = eos
        self.worst = worst  # --prune-finished
        none = torch.zeros(0, k, dtype=torch.float64)
        # (N, k) sums of log-probabilities of the finished hypotheses on the beam; else -inf
        self.total = none
        self.number = none.long()  # (N, k) their numbers among the sentence's finished hypotheses
        self.answer = none.long()  # (N, k) numbers of the answers, padded with -1
        self.count = none.long().sum(1)  # (N,) answers

    def start(self, beam: Beam, pool: Pool) -> None:
        live, more = beam.live_index(), len(pool) - len(self.count)
        if more > 0 or self.count.device != beam.device:
            self.total, self.number, self.answer = (
                torch.cat(
                    [x.to(beam.device), x.new_zeros(max(more, 0), self.k, device=beam.device)]
                )
                for x in (self.total, self.number, self.answer)
            )
            self.count = torch.cat(
                [self.count.to(beam.device), self.count.new_zeros(max(more, 0), device=beam.device)]
            )
        self.total[live], self.number[live], self.answer[live], self.count[live] = (
            -torch.inf,
            0,
            -1,
            0,
        )

    def answers(self, sentence: int) -> list[int]:
        return [number for number in self.answer[sentence].tolist() if number >= 0]

    @property
    def rules(self) -> dict[str, object] | None:
        return {"stop": StopRule.RANKED}

    def __call__(
        self,
        candidates: Candidates,
        beam: Beam,
        pool: Pool,
        finished: Finished,
        at_limit: Tensor | None,
    ) -> StopDecision:
        live, k = beam.live_index(), self.k
        waiting, number, made = self.total[live], self.number[live], finished.count[live]
        ends, _ = candidates.split_by_eos(self.eos)
        # the beam's places go to the best of the earlier finished (S, k) and the candidates (S, c)
        score, count = candidates.score.double(), self.count[live]
        order, places = self.order(candidates, waiting, score, count, finished.total[live])
        total = torch.cat([waiting, score], dim=1).gather(1, order)
        place = torch.arange(total.size(1), device=total.device)
        on_beam = (place < places[:, None]) & (total > -torch.inf)
        complete = on_beam & torch.cat(
            [torch.ones_like(waiting, dtype=torch.bool), ends], dim=1
        ).gather(1, order)
        # hypotheses are numbered as they are collected: the candidates that end on the beam,
        # in the candidates' order
        kept = torch.zeros_like(on_beam).scatter(1, order, on_beam)[:, k:]
        done, goes_on = kept & ends, kept & ~ends
        final = ~goes_on.any(1)
        final = final if at_limit is None else final | at_limit
        answered = complete & complete.cumprod(1).bool()
        if candidates.goal is not None:
            # with constraints all on the beam may be replaced until the end
            answered = torch.where(
                (candidates.goal == 0)[:, None], answered, complete & final[:, None]
            )
        numbers = torch.cat([number, made[:, None] + done.cumsum(1) - 1], dim=1).gather(1, order)
        # new answers follow the earlier ones
        into = torch.where(answered, count[:, None] + answered.cumsum(1) - 1, k).clamp(max=k)
        answers = torch.cat([self.answer[live], numbers.new_full((len(beam.live), 1), -1)], dim=1)
        self.answer[live] = answers.scatter(1, into, numbers)[:, :k]
        stays = complete & ~answered
        total = total.masked_fill(~stays, -torch.inf)
        if candidates.goal is not None:
            # a beam of banks may have more than k places: live hypotheses stand among the first k
            first = (~stays).byte().argsort(dim=1, stable=True)
            total, numbers = total.gather(1, first), numbers.gather(1, first)
        self.total[live], self.number[live] = total[:, :k], numbers[:, :k]
        count = count + answered.sum(1)
        self.count[live] = count
        return StopDecision(done, goes_on, final | (count >= width_of(candidates)))

    def order(
        self,
        candidates: Candidates,
        waiting: Tensor,
        score: Tensor,
        count: Tensor,
        best_finished: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the order (S, k + c) of the finished on the beam (S, k) and the candidates (S, c),
        best first, and how many of them are on the beam (S,).

        score (S, c): of the candidates; count (S,): answers; best_finished (S,): best sum of
        log-probabilities."""
        total = torch.cat([waiting, score], dim=1)
        width = width_of(candidates)
        if candidates.goal is None or candidates.group is None or candidates.divide is None:
            order = total.argsort(dim=1, descending=True, stable=True)
            return order, width - count
        goal = candidates.goal
        # (S, k)
        poor = waiting < best_finished.double()[:, None] - self.worst
        waiting.masked_fill_(poor & (goal > 0)[:, None], -torch.inf)
        total = torch.cat([waiting, score], dim=1)
        bank = torch.cat([goal[:, None].expand_as(waiting), candidates.group], dim=1)
        slots = candidates.divide(bank_sizes(bank, total, int(goal.max()) + 1))
        # plain beam search where there are no constraints
        plain = torch.where(goal == 0, width - count, slots[:, 0])
        slots = torch.cat([plain[:, None], slots[:, 1:]], dim=1)
        return order_by_banks(slots, bank, total, goal)


def width_of(candidates: Candidates) -> int | Tensor:
    """Return the number of hypotheses on a sentence's beam: (S,), or an int."""
    return candidates.width if candidates.widths is None else candidates.widths


@register(
    "stop",
    "ranked",
    LengthFlags,
    check=check_length,
    needs=("search loop", "beam", "one order"),
    example=({"stop": "ranked"}, {"stop": "ranked", "select": "gbs", "gbs_base": 2}),
    paper="Yang et al. 2020, Appendix A.1; Post and Vilar 2018, Section 6.4",
)
def build(flags: LengthFlags, setup: Setup) -> Ranked:
    worst = setup.settings.get(PruneFinishedFlags).prune_finished
    rows = max(setup.k, setup.settings.get(GridBeamFlags).gbs_base)
    return Ranked(rows, setup.eos, math.inf if worst is None else worst)
