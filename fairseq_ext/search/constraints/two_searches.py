"""Searches without some of the required phrases (`--constraint-compete search`).

Where the best hypotheses of beam search meet every phrase by themselves, they are the answer, and
the sentence is not searched again. Else it is searched with its phrases, and without each one of
them: each may come by itself, and a search with fewer banks finds more probable hypotheses. Those
of all searches that meet every phrase are in the n-best list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fairseq_ext.search.finished import Hypothesis, OnFinal
from fairseq_ext.search.phrases.sentence import Meets, SentenceConstraints, met_with_prefix
from fairseq_ext.search.pool import Pool

Driver = Callable[[Pool, OnFinal], None]


class TwoSearches:
    """A driver of two others: `unconstrained` for sentences without their required phrases, and
    `constrained`, with all of them or all but one.

    meets: returns the function that counts the constraints that a hypothesis of a pool meets;
    nbest: length of the n-best lists.
    """

    def __init__(
        self,
        unconstrained: Driver,
        constrained: Driver,
        meets: Callable[[Pool], Meets],
        nbest: int,
    ):
        self.unconstrained, self.constrained = unconstrained, constrained
        self.meets, self.nbest = meets, nbest

    def __call__(self, pool: Pool, answer: OnFinal) -> None:
        """Call `answer` with each sentence's hypotheses."""
        given = pool.constraints or []
        numbers = [i for i in pool.sentences_to_decode() if given and given[i].required]
        meeting = dict[int, list[Hypothesis]]()
        done = set[int]()

        def keep(number: int, found: list[Hypothesis]) -> None:
            meets = [self.meets_all(pool, number, h) for h in found]
            if found and all(meets[: self.nbest]) and number not in meeting:
                done.add(number)
                answer(number, found)
            else:
                more = [h for h, meets_all in zip(found, meets, strict=True) if meets_all]
                meeting[number] = best_of(meeting.get(number, []), more)

        def searched(driver: Driver, numbers: list[int], left_out: int | None = None) -> None:
            others = [without_phrases(each, left_out) for each in given]
            constraints = None if all(each.is_empty for each in others) else others
            driver(replace(pool, constraints=constraints, to_decode=numbers), keep)

        if numbers:
            searched(self.unconstrained, numbers)
        left = [i for i in numbers if i not in done]
        for place in range(max((len(given[i].required) for i in left), default=0)):
            if several := [i for i in left if len(given[i].required) > max(1, place)]:
                searched(self.constrained, several, place)
        left = [i for i in pool.sentences_to_decode() if i not in done]
        if left:
            self.constrained(
                replace(pool, to_decode=left) if done else pool,
                lambda number, found: answer(number, best_of(found, meeting.get(number, []))),
            )

    def meets_all(self, pool: Pool, number: int, hypothesis: Hypothesis) -> bool:
        """Return whether a hypothesis of a sentence meets all its constraints."""
        assert pool.constraints is not None
        lead = pool.lead_of(number)
        tokens = hypothesis.tokens.tolist()
        return all(
            met_with_prefix(tokens, pool.constraints[number], pool.ordered, self.meets(pool), lead)
        )


def without_phrases(given: SentenceConstraints, left_out: int | None) -> SentenceConstraints:
    """Return the constraints of a sentence without one of its required phrases; None: all."""
    kept = [each for i, each in enumerate(given.required) if left_out is not None and i != left_out]
    return replace(given, required=tuple(kept), dropped=(), unmet=())


def best_of(found: list[Hypothesis], more: list[Hypothesis]) -> list[Hypothesis]:
    """Return the hypotheses of two searches, best first, each once; of equals those of `found`."""
    known = {tuple(h.tokens.tolist()) for h in found}
    more = [h for h in more if tuple(h.tokens.tolist()) not in known]
    return sorted([*found, *more], key=lambda h: -h.score)
