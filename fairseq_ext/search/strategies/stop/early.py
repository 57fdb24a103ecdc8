"""The end of constrained sentences (`--stop early`), and a second search with less room.

The default where there are constraints: a sentence is final when no live hypothesis is expected to
beat the n-best list.

Where C tokens are required, few slots of the beam may end, so the k-th finished hypothesis is long
in coming and what comes late is rarely any good. A live hypothesis of t tokens and score s (a sum
of log-probabilities) in bank b still takes the C - b tokens that it lacks, EOS, and perhaps others.
The estimate of what it reaches is optimistic: each token that it lacks costs 0.3 nats, EOS and each
other token 0.1, and it takes 0 to 4 others, whichever gives the best final score. Once the n-best
list is full, a hypothesis whose estimate is no better than the list's last is dropped. The sentence
is final when none is left, when its hypotheses are more than twice as long as the one that finished
first and 16 tokens, or when 2k hypotheses are finished.

Of a total below -1.25 nats a token, what lies below is not divided by the length. A dear word makes
a mean of -3, which every token that costs less raises: the best mean was a hypothesis that goes on
from sentence to sentence. Scores that are told stay plain means.

Why 0.3: a phrase that comes cheap has been taken already, so what a hypothesis still lacks is dear.
At 0.1 nats, as for the others, the rows of four words are 1.13 to 1.23 times those of unconstrained
search (beams 5, 10 and 20), at 0.3 1.11 to 1.19 times; at 1.5 they are 1.07 to 1.13 times, but one
sentence of 200 with three words scores lower.

The estimate proves nothing, and the constants are fitted to nothing but that they lose nothing
where that was measured (scripts/bench/constrained.py). --unnormalized --stop optimal gives a proof.

Neutral setting: no constraints. A sentence without any ends as under --stop count, also beside
constrained ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from fairseq_ext.core.stats import Stats
from fairseq_ext.kernels.banks import Estimate
from fairseq_ext.search.beam import Beam, numbers, upload
from fairseq_ext.search.candidates import Candidates, StopDecision
from fairseq_ext.search.constraints.prefix import met_with_prefix
from fairseq_ext.search.finished import Finished, Hypothesis, OnFinal, Scoring
from fairseq_ext.search.phrases.sentence import Meets
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import Stop
from fairseq_ext.search.registry import register
from fairseq_ext.search.strategies.stop.count import Count
from fairseq_ext.search.strategies.stop.length_reward import LengthFlags, check_length

LACKING = 0.3  # nats, of each required token that a live hypothesis lacks
COST = 0.1  # nats, of EOS and of each other token that it still takes
OTHERS = 4  # tokens that it may take beside those that it lacks
DEAR = 1.25  # nats a token; no rounding in float32 when multiplied by a length
LONGEST = 1 << 30  # tokens


class Early(Count):
    """fairseq's stopping criterion, and beside it the estimate for sentences with constraints."""

    def __init__(self, eos: int, scoring: Scoring, stats: Stats):
        super().__init__(eos)
        self.scoring = scoring
        self.stats = stats
        self.estimate = Estimate(LACKING, COST, DEAR, OTHERS)

    def unconstrained(self) -> Stop:
        return Count(self.eos)

    def start(self, beam: Beam, pool: Pool) -> None:
        """Drop rows where there are constraints; else a placeholder row (score -inf)
        stays, as in fairseq."""
        self.variable = any(c.any_of for c in pool.constraints or ())

    def __call__(
        self,
        candidates: Candidates,
        beam: Beam,
        pool: Pool,
        finished: Finished,
        at_limit: Tensor | None,
    ) -> StopDecision:
        if candidates.goal is None or candidates.group is None:  # no search with banks
            return super().__call__(candidates, beam, pool, finished, at_limit)
        live, goal = beam.live_index(), candidates.goal
        rewarded = beam.of_sentences("rewarded", lambda: self.scoring.rewarded(pool, live)[:, None])
        searched = beam.of_sentences("searched", lambda: goal > 0)  # (S,) has constraints
        # (S, c), (S, n)
        score, best = self.worth(candidates.score, beam.step + 1, rewarded), finished.best[live]
        # subtle: where few rows are left, poor candidates come among the k best; those that
        # end must not be counted
        useless = (score <= best[:, -1:]) & searched[:, None] & (candidates.token == self.eos)
        given = replace(candidates, score=candidates.score.masked_fill(useless, -torch.inf))
        decision = super().__call__(given, beam, pool, finished, at_limit)
        if decision.done is not None:
            best = finished.rank_(live, score.masked_fill(~decision.done, -torch.inf))
        full = (best[:, -1] > -torch.inf) & searched  # (S,) has constraints and a full list
        if candidates.score.device.type == "cpu" and not bool(full.any()):
            return decision
        _, goes_on = candidates.ends_and_goes_on(self.eos)
        # subtle: a sentence whose list is not full goes on as under --stop count, whatever
        # others of the batch do
        within = goes_on.cumsum(1) <= (
            candidates.width if candidates.widths is None else candidates.widths[:, None]
        )
        unhindered = ~full[:, None]
        goes_on &= within | unhindered
        stays = goes_on & (unhindered | (self.reach(candidates, beam, rewarded) > best[:, -1:]))
        # subtle: places that become free go to hypotheses of their neighbours, so a sentence with
        # a full list gets no more rows than it has
        # placeholder rows, which a batch may need, are none
        rows = (beam.by_sentence(beam.last_score(), -torch.inf) > -torch.inf).sum(1)
        stays &= (self.turn(candidates, stays) < rows[:, None]) | unhindered
        self.stats.drop(goes_on ^ stays)
        late, final = self.are_late(beam, finished), decision.final | ~stays.any(1)
        return StopDecision(
            decision.done, stays, final | (full & upload(late, beam.device)) if any(late) else final
        )

    def enough(self, candidates: Candidates) -> int | Tensor:
        """k, and 2k with constraints: what finishes where few rows are left would often not
        have been among the k best."""
        k = super().enough(candidates)
        return k if candidates.goal is None else k * (1 + (candidates.goal > 0).long())

    def are_late(self, beam: Beam, finished: Finished) -> list[bool]:
        """Whether each sentence is far beyond the length at which it first
        finished a hypothesis."""
        first = [finished.of[s][0] if finished.of[s] else None for s in beam.live]
        lengths = [
            f[0].tokens.size(1) - (f[0].lag[f[1]] if f[0].lag is not None else 0)
            if f is not None
            else LONGEST
            for f in first
        ]
        return [
            step + 1 > 2 * length + 16 for step, length in zip(beam.steps(), lengths, strict=True)
        ]

    def worth(self, total: Tensor, length: int | Tensor, rewarded: Tensor) -> Tensor:
        """The score, of which the part of the total (any shape) beyond DEAR nats a token is
        not divided by the length."""
        least = -DEAR * length
        return self.scoring(total.clamp(min=least), length, rewarded) + (total - least).clamp(max=0)

    def turn(self, candidates: Candidates, stays: Tensor) -> Tensor:
        """(S, c): place of each candidate that stays where the banks take turns,
        from the highest down."""
        assert candidates.goal is not None and candidates.group is not None
        # subtle: pairs are compared, where by_banks would have to know on the host how many banks
        # there are, and so wait for a device
        place = candidates.score.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        same = (candidates.group[:, :, None] == candidates.group[:, None]) & stays[:, None]
        rank = (same & (place[:, None] < place[:, :, None])).sum(2)  # within the bank
        key = (rank << 32) + candidates.goal[:, None] - candidates.group
        return ((key[:, None] < key[:, :, None]) & stays[:, None]).sum(2)

    def reach(self, candidates: Candidates, beam: Beam, rewarded: Tensor) -> Tensor:
        """(S, c): the score that each candidate is expected to end with at best."""
        assert candidates.goal is not None and candidates.group is not None
        lacks = candidates.goal[:, None] - candidates.group  # (S, c) required tokens
        more = numbers(OTHERS + 2, beam.device)[1:]  # EOS and others
        cost = beam.of_sentences("cost", lambda: (COST * more.double()).to(candidates.score.dtype))
        score, length = (
            (candidates.score - LACKING * lacks)[..., None] - cost,
            (beam.step + 1 + lacks)[..., None] + more,
        )
        return self.worth(score, length, rewarded[..., None]).amax(2)


@register(
    "stop",
    "early",
    LengthFlags,
    check=check_length,
    needs=("search loop", "beam"),
    neutral=({"stop": "early"},),
    example=({"stop": "early", "select": "dba"}, {"stop": "early", "select": "gbs"}),
    paper="none; an addition for constrained search",
)
def build(flags, context) -> Early:
    return Early(context.eos, context.scoring, context.stats)


# ---- A second search with less room
#
# For a sentence whose required words found no place, and which therefore rambles.
#
# A row that waits for a word goes on to the length limit, where the word is forced, while the model
# repeats itself: 200 tokens, by default, for a sentence of 40. Where the best hypothesis has come
# to the limit, the sentence is searched once more with a limit of its source tokens and the
# required ones, if that is less; what then meets all constraints is the answer.


NEAR = 3  # tokens before the limit that count as at the limit


class Shorter:
    """A driver of the constrained search.

    meets: how it is counted which constraints a hypothesis of a pool meets; min_len:
    least tokens of one.
    """

    def __init__(
        self, search: Callable[[Pool, OnFinal], None], meets: Callable[[Pool], Meets], min_len: int
    ):
        self.search, self.meets, self.min_len = search, meets, min_len

    def __call__(self, pool: Pool, answer: OnFinal) -> None:
        """Give `answer` each sentence's hypotheses."""
        long, limits = dict[int, list[Hypothesis]](), list(pool.max_len)

        def keep(number: int, found: list[Hypothesis]) -> None:
            if (room := self.room(pool, number, found)) is None:
                answer(number, found)
            else:
                long[number], limits[number] = found, room

        self.search(pool, keep)
        if long:
            again = replace(pool, max_len=limits, to_decode=sorted(long), _limit=None)
            self.search(
                again,
                lambda number, found: answer(
                    number, self.better(pool, number, long[number], found)
                ),
            )

    def room(self, pool: Pool, number: int, found: list[Hypothesis]) -> int | None:
        """The lower limit with which a sentence of these hypotheses is searched again;
        None where it is not."""
        limit, given = pool.max_len[number], pool.constraints[number] if pool.constraints else None
        if given is None or not given.any_of or not found or len(found[0].tokens) <= limit - NEAR:
            return None
        forced = len(pool.forced(number))
        room = (
            int(pool.length[number])
            + forced
            + sum(min(map(len, alternatives)) for alternatives in given.any_of)
        )
        return room if self.min_len + forced <= room < limit - NEAR else None

    def better(
        self, pool: Pool, number: int, long: list[Hypothesis], short: list[Hypothesis]
    ) -> list[Hypothesis]:
        """A sentence's hypotheses of the second search where one of them meets all constraints,
        else those of the first."""
        assert pool.constraints is not None
        lead = 0 if pool.lead is None else pool.lead[number]
        met = (
            met_with_prefix(
                h.tokens.tolist(), pool.constraints[number], pool.ordered, self.meets(pool), lead
            )
            for h in short
        )
        return short if any(map(all, met)) else long
