"""A sentence whose required words found no place, and which therefore rambles, is searched again with less room (--stop early).

A row that waits for a word goes on to the length limit, where the word is forced, while the model repeats itself: 200 tokens, by default,
for a sentence of 40. Where the best hypothesis has come to the limit, the sentence is searched once more with a limit of its source
tokens and the required ones, if that is less; what then meets all constraints is the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fairseq_ext.search.constraints.prefix import met_with_prefix
from fairseq_ext.search.finished import Hypothesis, OnFinal
from fairseq_ext.search.phrases.sentence import Meets
from fairseq_ext.search.pool import Pool

NEAR = 3  # tokens before the limit that count as at the limit


class Shorter:
    """A driver of the constrained search. meets: how it is counted which constraints a hypothesis of a pool meets; min_len: least tokens of
    one."""

    def __init__(self, search: Callable[[Pool, OnFinal], None], meets: Callable[[Pool], Meets], min_len: int):
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
            self.search(again, lambda number, found: answer(number, self.better(pool, number, long[number], found)))

    def room(self, pool: Pool, number: int, found: list[Hypothesis]) -> int | None:
        """The lower limit with which a sentence of these hypotheses is searched again; None where it is not."""
        limit, given = pool.max_len[number], pool.constraints[number] if pool.constraints else None
        if given is None or not given.any_of or not found or len(found[0].tokens) <= limit - NEAR:
            return None
        forced = len(pool.forced(number))
        room = int(pool.length[number]) + forced + sum(min(map(len, alternatives)) for alternatives in given.any_of)
        return room if self.min_len + forced <= room < limit - NEAR else None

    def better(self, pool: Pool, number: int, long: list[Hypothesis], short: list[Hypothesis]) -> list[Hypothesis]:
        """A sentence's hypotheses of the second search where one of them meets all constraints, else those of the first."""
        assert pool.constraints is not None
        lead = 0 if pool.lead is None else pool.lead[number]
        met = (met_with_prefix(h.tokens.tolist(), pool.constraints[number], pool.ordered, self.meets(pool), lead) for h in short)
        return short if any(map(all, met)) else long
