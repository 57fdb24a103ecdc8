"""Finished candidates stay on the beam until all above them are finished (`--stop ranked`).

K. Yang, V. Yao, J. DeNero and D. Klein. A Streaming Approach For Efficient Batched Beam Search.
EMNLP 2020. https://aclanthology.org/2020.emnlp-main.366/
Appendix A.1
"""

import torch
from torch import Tensor

from fairseq_ext.kernels.beam import StopRule, StrategyRules
from fairseq_ext.search.beam import Beam
from fairseq_ext.search.candidates import Candidates, StopDecision
from fairseq_ext.search.finished import Finished
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import Stop
from fairseq_ext.search.registry import register
from fairseq_ext.search.strategies.stop.length_reward import LengthFlags, check_length


class Ranked(Stop):
    """Appendix A.1: a candidate that ends takes a place on the beam, costs no more decoding, and
    is an answer when all above it are finished; until then better ones may replace it. The beam has
    k places less the answers."""

    variable = True

    def __init__(self, k: int, eos: int):
        self.k = k
        self.eos = eos
        none = torch.zeros(0, k)
        # (N, k) sums of log-probabilities, or other keys, of the finished hypotheses on the beam;
        # else -inf
        self.total = none.double()
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
    def rules(self) -> StrategyRules | None:
        return StrategyRules(StopRule.RANKED)

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
        key = candidates.score if candidates.key is None else candidates.key
        total, order = torch.cat([waiting, key.double()], dim=1).sort(
            dim=1, descending=True, stable=True
        )
        count = self.count[live]
        place = torch.arange(total.size(1), device=total.device)
        on_beam = (place < k - count[:, None]) & (total > -torch.inf)
        complete = on_beam & torch.cat(
            [torch.ones_like(waiting, dtype=torch.bool), ends], dim=1
        ).gather(1, order)
        answered = complete & complete.cumprod(1).bool()
        # hypotheses are numbered as they are collected: the candidates that end on the beam,
        # in the candidates' order
        kept = torch.zeros_like(on_beam).scatter(1, order, on_beam)[:, k:]
        done = kept & ends
        numbers = torch.cat([number, made[:, None] + done.cumsum(1) - 1], dim=1).gather(1, order)
        # new answers follow the earlier ones
        into = torch.where(answered, count[:, None] + place, k).clamp(max=k)
        answers = torch.cat([self.answer[live], numbers.new_full((len(beam.live), 1), -1)], dim=1)
        self.answer[live] = answers.scatter(1, into, numbers)[:, :k]
        stays = complete & ~answered
        self.total[live] = total.masked_fill(~stays, -torch.inf)[:, :k]
        self.number[live] = numbers[:, :k]
        count = count + answered.sum(1)
        self.count[live] = count
        goes_on = kept & ~ends
        final = (count >= k) | ~goes_on.any(1)
        return StopDecision(done, goes_on, final if at_limit is None else final | at_limit)


@register(
    "stop",
    "ranked",
    LengthFlags,
    check=check_length,
    needs=("search loop", "beam", "one order"),
    example=({"stop": "ranked"},),
    paper="Yang et al. 2020, Appendix A.1",
)
def build(flags, context) -> Ranked:
    return Ranked(context.k, context.eos)
