"""The end of constrained sentences (`--stop early`), and a second search with a shorter limit.

It is the default with constraints: a sentence is final when no live hypothesis is expected to beat
the n-best list.

If C tokens are required, few slots of the beam may end, so the k-th hypothesis finishes late, and
late ones are rarely good. A live hypothesis of t tokens and score s (a sum of log-probabilities) in
bank b still needs its C - b missing tokens, EOS, and perhaps others. The estimate of its final
score is optimistic: each missing token costs 0.3 nats, EOS and each other token 0.1, with the
number of other tokens (0 to 4) that gives the best final score. Once the n-best list is full, a
hypothesis whose estimate is not better than the list's last is dropped. The sentence is final when
none is left, when its hypotheses are more than 16 tokens longer than twice the one that finished
first, or when 2k hypotheses are finished; where the unconstrained output competes, 4k: a required
word at a wrong place ended up to 2k hypotheses, each a little less improbable than the one before,
and the good one did not have the word yet.

The part of a total below -1.25 nats a token is not divided by the length. An improbable word gives
a mean of -3, which every more probable token raises: without this rule, the best mean was that of a
hypothesis that continues with sentence after sentence. Reported scores are plain means.

Why 0.3: phrases with a high probability are placed early, so the missing ones are improbable. With
0.1 nats, as for the other tokens, the search for four words takes 1.13 to 1.23 times the rows of
unconstrained search (beams 5, 10 and 20), with 0.3 1.11 to 1.19 times, with 1.5 1.07 to 1.13 times,
but then one sentence of 200 with three words scores lower.

The estimate proves nothing. The constants are chosen such that no score is lost in the measured
cases (scripts/bench/constrained.py). --unnormalized --stop optimal gives a proof.

Neutral setting: no constraints. A sentence without constraints ends as under --stop count, also in
a batch with constrained ones.

Compiled twin: kernels/early.hpp.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from fairseq_ext.core.stats import Stats
from fairseq_ext.kernels.banks import (
    MAX_EXTRA_TOKENS,
    extra_cost,
    finished_needed,
    missing_cost,
)
from fairseq_ext.kernels.beam import StopRule
from fairseq_ext.search.beam import Beam, numbers, upload
from fairseq_ext.search.candidates import Candidates, StopDecision
from fairseq_ext.search.finished import Finished, Hypothesis, OnFinal, Scoring, in_float32
from fairseq_ext.search.phrases.sentence import Meets, met_with_prefix
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import Setup, Stop
from fairseq_ext.search.registry import register
from fairseq_ext.search.strategies.stop.count import Count
from fairseq_ext.search.strategies.stop.length_reward import LengthFlags, check_length

MAX_NATS_PER_TOKEN = 1.25  # nats a token; float32 does not round its product with a length
LONGEST = 1 << 30  # tokens


class Early(Count):
    """fairseq's stopping criterion, and the estimate for sentences with constraints."""

    def __init__(self, eos: int, scoring: Scoring, stats: Stats):
        super().__init__(eos)
        self.scoring = scoring
        self.stats = stats

    @property
    def rules(self) -> dict[str, object] | None:
        return {
            "stop": StopRule.EARLY,
            "max_nats_per_token": MAX_NATS_PER_TOKEN,
            "max_extra_tokens": MAX_EXTRA_TOKENS,
        }

    def unconstrained(self) -> Stop:
        return Count(self.eos)

    def start(self, beam: Beam, pool: Pool) -> None:
        """Drop rows if there are constraints; else a placeholder row (score -inf) stays, as in
        fairseq."""
        self.variable = any(c.required for c in pool.constraints or ())

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
        rewarded = beam.cached_for_live(
            "rewarded", lambda: self.scoring.rewarded(pool, live)[:, None]
        )
        searched = beam.cached_for_live("searched", lambda: goal > 0)  # (S,) has constraints
        # (S, c), (S, n)
        score = self.ranking_score(candidates.score, beam.step + 1, rewarded)
        best = finished.best[live]
        # subtle: if few rows are left, poor candidates are among the k best; those of them that end
        # must not be counted
        useless = (score <= best[:, -1:]) & searched[:, None] & (candidates.token == self.eos)
        given = replace(candidates, score=candidates.score.masked_fill(useless, -torch.inf))
        decision = super().__call__(given, beam, pool, finished, at_limit)
        if decision.done is not None:
            best = finished.rank_(live, score.masked_fill(~decision.done, -torch.inf))
        full = (best[:, -1] > -torch.inf) & searched  # (S,) has constraints and a full list
        if candidates.score.device.type == "cpu" and not bool(full.any()):
            return decision
        _, goes_on = candidates.split_by_eos(self.eos)
        # subtle: a sentence without a full list continues as under --stop count, whatever the other
        # sentences of the batch do
        most = candidates.most
        if candidates.slots is None and candidates.widths is not None:
            most = candidates.widths[:, None]
        within = goes_on.cumsum(1) <= most
        unhindered = ~full[:, None]
        goes_on &= within | unhindered
        stays = goes_on & (
            unhindered | (self.best_expected_score(candidates, beam, rewarded) > best[:, -1:])
        )
        # subtle: free slots would be filled by neighbouring hypotheses, so a sentence with a full
        # list gets no more rows than it has; placeholder rows, which a batch may need, do not count
        rows = (beam.by_sentence(beam.last_score(), -torch.inf) > -torch.inf).sum(1)
        stays &= (self.bank_turn_rank(candidates, stays) < rows[:, None]) | unhindered
        self.stats.drop(goes_on ^ stays)
        late, final = self.exceed_first_length(beam, finished), decision.final | ~stays.any(1)
        return StopDecision(
            decision.done, stays, final | (full & upload(late, beam.device)) if any(late) else final
        )

    def finished_needed(self, candidates: Candidates) -> int | Tensor:
        """Return k, and with constraints 2k, or 4k where hypotheses compete: if few rows are left,
        many finished hypotheses would not have been among the k best."""
        k = super().finished_needed(candidates)
        if candidates.goal is None:
            return k
        return k * torch.where(candidates.goal > 0, finished_needed(candidates.competing > 0), 1)

    def exceed_first_length(self, beam: Beam, finished: Finished) -> list[bool]:
        """Return whether each sentence is far longer than its first finished hypothesis."""
        first = [finished.hypotheses[s][0] if finished.hypotheses[s] else None for s in beam.live]
        lengths = [
            f[0].tokens.size(1) - (f[0].lag[f[1]] if f[0].lag is not None else 0)
            if f is not None
            else LONGEST
            for f in first
        ]
        return [
            step + 1 > 2 * length + 16 for step, length in zip(beam.steps(), lengths, strict=True)
        ]

    def ranking_score(self, total: Tensor, length: int | Tensor, rewarded: Tensor) -> Tensor:
        """Return the score, except that the part of the total (any shape) beyond MAX_NATS_PER_TOKEN
        nats a token is not divided by the length."""
        least = -MAX_NATS_PER_TOKEN * in_float32(length)
        return self.scoring(total.clamp(min=least), length, rewarded) + (total - least).clamp(max=0)

    def bank_turn_rank(self, candidates: Candidates, stays: Tensor) -> Tensor:
        """Return (S, c): rank of each staying candidate if the banks take turns, from the highest
        down, after the best ones that compete whatever their bank."""
        assert candidates.goal is not None and candidates.group is not None
        # subtle: pairs are compared, since order_by_banks would need the number of banks on the
        # host, and so wait for a device
        place = candidates.score.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        same = (candidates.group[:, :, None] == candidates.group[:, None]) & stays[:, None]
        rank = (same & (place[:, None] < place[:, :, None])).sum(2)  # in the bank
        key = (rank << 32) + candidates.goal[:, None] - candidates.group
        if candidates.competing:
            first = (stays[:, None] & (place[:, None] < place[:, :, None])).sum(2)
            key = torch.where(first < candidates.competing, first - candidates.competing, key)
        return ((key[:, None] < key[:, :, None]) & stays[:, None]).sum(2)

    def best_expected_score(self, candidates: Candidates, beam: Beam, rewarded: Tensor) -> Tensor:
        """Return (S, c): the best score that each candidate is expected to end with."""
        assert candidates.goal is not None and candidates.group is not None
        lacks = candidates.goal[:, None] - candidates.group  # (S, c) required tokens
        more = numbers(MAX_EXTRA_TOKENS + 2, beam.device)[1:]  # EOS and other tokens
        cost = beam.cached_for_live("cost", lambda: extra_cost(beam.device))
        score = (candidates.score - missing_cost(lacks))[..., None] - cost
        length = (beam.step + 1 + lacks)[..., None] + more
        return self.ranking_score(score, length, rewarded[..., None]).amax(2)


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
def build(flags: LengthFlags, setup: Setup) -> Early:
    return Early(setup.eos, setup.scoring, setup.stats)


# ---- A second search with a shorter limit
#
# A row that waits for a required word continues to the length limit, where the word is forced, and
# the model repeats itself: 200 tokens, by default, for a sentence of 40. If the best hypothesis
# reaches the limit, the sentence is searched once more, with a limit of the number of its source
# tokens plus the required ones, if that is lower. If a hypothesis of the second search meets all
# constraints, that search has the answer.


LIMIT_MARGIN = 3  # tokens: a hypothesis above the limit less this has reached the limit


class LengthRetry:
    """A driver of the constrained search.

    meets: returns the function that counts the constraints that a hypothesis of a pool meets;
    min_len: minimum length.
    """

    def __init__(
        self, search: Callable[[Pool, OnFinal], None], meets: Callable[[Pool], Meets], min_len: int
    ):
        self.search, self.meets, self.min_len = search, meets, min_len

    def __call__(self, pool: Pool, answer: OnFinal) -> None:
        """Call `answer` with each sentence's hypotheses."""
        long, limits = dict[int, list[Hypothesis]](), list(pool.max_len)

        def keep(number: int, found: list[Hypothesis]) -> None:
            if (room := self.retry_limit(pool, number, found)) is None:
                answer(number, found)
            else:
                long[number], limits[number] = found, room

        self.search(pool, keep)
        if long:
            again = replace(pool, max_len=limits, to_decode=sorted(long), _limit=None)
            self.search(
                again,
                lambda number, found: answer(
                    number, self.choose(pool, number, long[number], found)
                ),
            )

    def retry_limit(self, pool: Pool, number: int, found: list[Hypothesis]) -> int | None:
        """Return the lower limit with which a sentence with these hypotheses is searched again;
        None if it is not."""
        limit, given = pool.max_len[number], pool.constraints[number] if pool.constraints else None
        if (
            given is None
            or not given.required
            or not found
            or len(found[0].tokens) <= limit - LIMIT_MARGIN
        ):
            return None
        forced = len(pool.forced(number))
        room = (
            int(pool.length[number])
            + forced
            + sum(min(map(len, alternatives)) for alternatives in given.any_of)
        )
        return room if self.min_len + forced <= room < limit - LIMIT_MARGIN else None

    def choose(
        self, pool: Pool, number: int, long: list[Hypothesis], short: list[Hypothesis]
    ) -> list[Hypothesis]:
        """Return a sentence's hypotheses of the second search if one of them meets all constraints,
        else those of the first."""
        assert pool.constraints is not None
        lead = pool.lead_of(number)
        met = (
            met_with_prefix(
                h.tokens.tolist(), pool.constraints[number], pool.ordered, self.meets(pool), lead
            )
            for h in short
        )
        return short if any(map(all, met)) else long
