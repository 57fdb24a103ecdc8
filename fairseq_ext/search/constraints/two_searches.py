"""A second search without required phrases (`--constraint-compete search`).

Where the best hypotheses of beam search meet every phrase by themselves, they are the answer, and
the sentence is not searched again. Else it is searched with its phrases, and hypotheses of the
first search that meet every phrase stay in the n-best list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fairseq_ext.search.finished import Hypothesis, OnFinal
from fairseq_ext.search.phrases.sentence import Meets, SentenceConstraints, met_with_prefix
from fairseq_ext.search.pool import Pool


class TwoSearches:
    """A driver of two others: `unconstrained` for sentences without their required phrases, and
    `constrained`.

    meets: returns the function that counts the constraints that a hypothesis of a pool meets;
    nbest: length of the n-best lists.
    """

    def __init__(
        self,
        unconstrained: Callable[[Pool, OnFinal], None],
        constrained: Callable[[Pool, OnFinal], None],
        meets: Callable[[Pool], Meets],
        nbest: int,
    ):
        self.unconstrained, self.constrained = unconstrained, constrained
        self.meets, self.nbest = meets, nbest

    def __call__(self, pool: Pool, answer: OnFinal) -> None:
        """Call `answer` with each sentence's hypotheses."""
        given = pool.constraints or []
        numbers = [i for i in pool.sentences_to_decode() if given and given[i].any_of]
        meeting = dict[int, list[Hypothesis]]()
        done = set[int]()

        def keep(number: int, found: list[Hypothesis]) -> None:
            meets = [self.meets_all(pool, number, h) for h in found]
            if found and all(meets[: self.nbest]):
                done.add(number)
                answer(number, found)
            else:
                meeting[number] = [
                    h for h, meets_all in zip(found, meets, strict=True) if meets_all
                ]

        if numbers:
            others = [without_phrases(each) for each in given]
            constraints = None if all(each.is_empty for each in others) else others
            self.unconstrained(replace(pool, constraints=constraints, to_decode=numbers), keep)
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


def without_phrases(given: SentenceConstraints) -> SentenceConstraints:
    """Return the constraints of a sentence without its required phrases."""
    return replace(given, any_of=(), text=(), cased=(), terms=(), unmet=())


def best_of(found: list[Hypothesis], more: list[Hypothesis]) -> list[Hypothesis]:
    """Return the hypotheses of two searches, best first, each once; of equals those of `found`."""
    known = {tuple(h.tokens.tolist()) for h in found}
    more = [h for h in more if tuple(h.tokens.tolist()) not in known]
    return sorted([*found, *more], key=lambda h: -h.score)
