"""Sentences with required phrases in compiled calls (kernels/constraints/constrained.cpp) of many steps each.

The loop (loop.py) is the definition: hypotheses are the same, to the last bit. The steps of a few rows that go on for long cost the loop
more than their rows do.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fairseq_ext.errors import NotANumber
from fairseq_ext.kernels.constraints.constrained import Banks, CompiledConstrained, Settings
from fairseq_ext.kernels.search.beam import STEPS, Result
from fairseq_ext.search.compiled_search import FIRST_POSITIONS, FIRST_STEPS
from fairseq_ext.search.finished import Hypothesis, OnFinal, hypotheses
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.state import SearchSetup


def knows(setup: SearchSetup) -> bool:
    """Whether kernels/constraints/constrained.cpp knows a generator's search, the decoder and the phrases left aside."""
    plugs = setup.plugs
    return (
        plugs.stop.estimate is not None
        and plugs.softmax.is_full
        and not plugs.prune
        and setup.processors.is_plain
        and not setup.spec.scoring.reward
    )


def banks_of(setup: SearchSetup, pool: Pool) -> Banks | None:
    """A pool's phrases, where the search is one that is known; None where the sentences have something that is not."""
    fits = (
        pool.prefix is None
        and not (pool.alone and len(pool.queue(0)) > 1)
        and pool.length.device.type == "cpu"
        and any(c.any_of for c in pool.constraints or ())
    )
    return setup.plugs.select.banks(pool) if fits else None


class ConstrainedGroup:
    """Sentences of a pool that start together. nbest: of each, the length of its n-best list; None: as the flags say."""

    def __init__(self, setup: SearchSetup, pool: Pool, banks: Banks, sentences: Sequence[int], nbest: Sequence[int] | None = None):
        self.setup = setup
        setup.decoder.admit(pool.inputs(list(sentences)))
        self.reader = setup.decoder.batch_reader(FIRST_POSITIONS + FIRST_STEPS * setup.spec.k)
        setup.decoder.set_aside()
        setup.stats.encoder_calls += 1
        limits = [pool.max_len[s] for s in sentences]
        lists = [setup.spec.nbest] * len(limits) if nbest is None else nbest
        settings = self.settings(max(limits), banks.highest, max(lists))
        self.search = CompiledConstrained(settings, banks, sentences, limits, pool.bos, lists)
        self.most_rows = len(limits) * setup.spec.k
        self.told = 0  # sentences that have ended, and were returned

    def settings(self, limit: int, highest: int, nbest: int) -> Settings:
        """What holds for sentences that have at most `limit` tokens before EOS, `highest` required ones and an n-best list of `nbest`."""
        setup, known, estimate = self.setup, self.setup.processors, self.setup.plugs.stop.estimate
        assert estimate is not None
        return Settings(
            setup.spec.k, nbest, known.min_len, known.eos, known.pad, known.no_repeat_ngram, setup.plugs.softmax.temperature,
            estimate, *setup.spec.scoring.divisors(limit + highest + estimate.others + 3),
        )  # fmt: skip

    @property
    def is_live(self) -> bool:
        """Whether a sentence has not ended."""
        return self.search.struct.live > 0

    def step(self, most: int = 1) -> list[int]:
        """Add tokens to every row, so many or fewer. Return the sentences that have ended, as places among those given.

        Raises NotANumber where the model gives NaN.
        """
        search, reader, state, stats = self.search, self.reader, self.search.struct, self.setup.stats
        while (result := search.go_on(reader.compiled, reader.struct, most)) == Result.NO_ROOM:
            if not (search.lengthen_() or reader.make_room_(self.most_rows, state.length + 1)):
                reader.enlarge_(range(reader.slots), state.used)
        stats.count_steps(*search.take_counts())
        if state.full:
            stats.drop(torch.tensor(state.dropped))
            state.dropped = 0
        if result == Result.NOT_A_NUMBER:
            which = "one of the sentences" if state.live > 1 else "the sentence"
            raise NotANumber(f"the model gives NaN at target position {state.length} of {which}")
        ended = search.ended(self.told)
        self.told += len(ended)
        return ended

    def found(self, i: int) -> list[Hypothesis]:
        """The hypotheses of the i-th sentence, best first."""
        return hypotheses(self.search.found(i), self.setup.spec.scoring)


class ConstrainedSearch:
    """Searches of whole pools that dynamic beam allocation and the early end make, and no other strategy."""

    def __init__(self, setup: SearchSetup):
        self.setup = setup

    def banks(self, pool: Pool) -> Banks | None:
        """The pool's phrases, where the search is one that is known, the decoder left aside; else None."""
        return banks_of(self.setup, pool) if knows(self.setup) and not self.setup.refills else None

    @torch.no_grad()
    def __call__(self, pool: Pool, banks: Banks, answer: OnFinal) -> None:
        """Give `answer` each wanted sentence of the pool.

        Raises NotANumber where the model gives NaN.
        """
        sentences = list(pool.queue(0))
        if not sentences:
            return
        group = ConstrainedGroup(self.setup, pool, banks, sentences)
        while group.is_live:
            for i in group.step(STEPS):
                answer(sentences[i], group.found(i))
