"""No rambling: a sentence whose required words found no place is searched again, with less room.

A row that waits for a word goes on to the length limit, where the word is forced, while the model repeats itself: 200 tokens, by default,
for a sentence of 40. Where the best hypothesis has come to the limit, the sentence is searched once more with a limit of its source
tokens and the required ones, if that is less; what then meets all constraints is the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fairseq_ext.constraints.report import Meets, met_with_prefix
from fairseq_ext.search.finished import Hypothesis, OnFinal
from fairseq_ext.search.pool import Pool

NEAR = 3  # tokens before the limit that count as at the limit


class Shorter:
    """A driver of the constrained search. meets: how it is counted which constraints a hypothesis of a pool meets."""

    def __init__(self, search: Callable[[Pool, OnFinal], None], meets: Callable[[Pool], Meets]):
        self.search, self.meets = search, meets

    def __call__(self, pool: Pool, answer: OnFinal) -> None:
        """Give `answer` each sentence's hypotheses."""
        given, long, limits = pool.constraints or [], dict[int, list[Hypothesis]](), list(pool.max_len)

        def keep(number: int, found: list[Hypothesis]) -> None:
            if given and given[number].any_of and found and len(found[0].tokens) > pool.max_len[number] - NEAR:
                needed = len(pool.forced(number)) + sum(min(map(len, alternatives)) for alternatives in given[number].any_of)
                limits[number] = int(pool.length[number]) + needed
                if limits[number] + NEAR < pool.max_len[number]:
                    long[number] = found
                    return
            answer(number, found)

        def settle(number: int, found: list[Hypothesis]) -> None:
            lead = 0 if pool.lead is None else pool.lead[number]
            met = [met_with_prefix(h.tokens.tolist(), given[number], pool.ordered, self.meets(pool), lead) for h in found]
            answer(number, found if any(map(all, met)) else long[number])

        self.search(pool, keep)
        if long:
            self.search(replace(pool, max_len=limits, to_decode=sorted(long), _limit=None), settle)
