"""Phrases are forced only where a draft misses one (`--constraint-draft-first`).

A sentence is searched first without its required phrases (or with --constraint-bonus, which prefers them); where the best hypothesis
holds them all, as its text is read, it is the answer. The others are searched once more, with their phrases forced. Banned phrases and
prefixes hold in both searches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fairseq_ext.constraints.report import ConstraintCounts, Meets
from fairseq_ext.constraints.sentence import SentenceConstraints
from fairseq_ext.search.finished import Hypothesis, OnFinal
from fairseq_ext.search.pool import Pool
from fairseq_ext.stats import Stats

Driver = Callable[[Pool, OnFinal], None]


class DraftFirst:
    """A driver of two. draft: searches first, over pools without required phrases unless it prefers them (soft); forced: searches what
    is left; meets: how it is counted which constraints a hypothesis of a pool meets."""

    def __init__(self, draft: Driver, forced: Driver, soft: bool, meets: Callable[[Pool], Meets], stats: Stats):
        self.draft, self.forced, self.soft, self.meets, self.stats = draft, forced, soft, meets, stats

    def __call__(self, pool: Pool, answer: OnFinal) -> None:
        """Give `answer` each sentence's hypotheses, drafts as they are found."""
        given = pool.constraints
        if given is None:
            return self.forced(pool, answer)
        left: list[int] = []

        def keep(sentence: int, found: list[Hypothesis]) -> None:
            if given[sentence].any_of and not self.holds_all(pool, sentence, found):
                left.append(sentence)
            else:
                answer(sentence, found)

        self.draft(pool if self.soft else replace(pool, constraints=[without_phrases(c) for c in given]), keep)
        counts = self.stats.section(ConstraintCounts)
        counts.redone = (counts.redone or 0) + len(left)
        if left:
            self.forced(replace(pool, to_decode=sorted(left)), answer)

    def holds_all(self, pool: Pool, sentence: int, found: list[Hypothesis]) -> bool:
        """Whether a sentence's best hypothesis has all that is required of it."""
        assert pool.constraints is not None
        return bool(found) and all(self.meets(pool)(found[0].tokens.tolist(), pool.constraints[sentence], pool.ordered))


def without_phrases(constraints: SentenceConstraints) -> SentenceConstraints:
    """The same without its required phrases: what a draft is searched with."""
    return replace(constraints, any_of=(), text=(), cased=())
