"""Sentences with required phrases in compiled calls (kernels/constrained.cpp) of many steps each.

The loop (loop.py) is the definition: hypotheses are the same, to the last bit. The steps of a few rows that go on for long cost the loop
more than their rows do.
"""

from __future__ import annotations

import torch

from fairseq_ext.errors import NotANumber
from fairseq_ext.kernels.beam import Result
from fairseq_ext.kernels.constrained import Banks, CompiledConstrained, Settings
from fairseq_ext.search.compiled_search import FIRST_POSITIONS, FIRST_STEPS
from fairseq_ext.search.finished import OnFinal, hypotheses
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.state import SearchSetup


class ConstrainedSearch:
    """Searches of whole pools that dynamic beam allocation and the early end make, and no other strategy."""

    def __init__(self, setup: SearchSetup):
        self.setup = setup

    def banks(self, pool: Pool) -> Banks | None:
        """The pool's phrases, where the search is one that kernels/constrained.cpp knows, the decoder left aside; else None."""
        setup = self.setup
        plugs = setup.plugs
        fits = (
            plugs.stop.estimate is not None
            and plugs.softmax.is_full
            and not plugs.prune
            and not setup.refills
            and setup.processors.is_plain
            and not setup.spec.scoring.reward
            and pool.prefix is None
            and not (pool.alone and len(pool.queue(0)) > 1)
            and pool.length.device.type == "cpu"
            and any(c.any_of for c in pool.constraints or ())
        )
        return plugs.select.banks(pool) if fits else None

    @torch.no_grad()
    def __call__(self, pool: Pool, banks: Banks, answer: OnFinal) -> None:
        """Give `answer` each wanted sentence of the pool.

        Raises NotANumber where the model gives NaN.
        """
        setup, sentences = self.setup, list(pool.queue(0))
        if not sentences:
            return
        setup.decoder.admit(pool.inputs(sentences))
        reader = setup.decoder.batch_reader(FIRST_POSITIONS + FIRST_STEPS * setup.spec.k)
        setup.decoder.set_aside()
        limits = [pool.max_len[s] for s in sentences]
        search = CompiledConstrained(self.settings(max(limits), banks.highest), banks, sentences, limits, pool.bos)
        state, stats, scoring, given = search.struct, setup.stats, setup.spec.scoring, 0
        stats.encoder_calls += 1
        rows = len(sentences) * setup.spec.k
        result = Result.GOES_ON
        while result != Result.FOUND:
            result = search.go_on(reader.compiled, reader.struct)
            if result == Result.NO_ROOM and not (search.lengthen_() or reader.make_room_(rows, state.length + 1)):
                reader.enlarge_(range(len(sentences)), state.used)
            if result == Result.NOT_A_NUMBER:
                break
            for i in search.ended(given):
                given += 1
                answer(sentences[i], hypotheses(search.found(i), scoring))
        stats.count_steps(state.calls, state.read)
        if state.full:
            stats.drop(torch.tensor(state.dropped))
        if result == Result.NOT_A_NUMBER:
            which = "one of the sentences" if state.live > 1 else "the sentence"
            raise NotANumber(f"the model gives NaN at target position {state.length} of {which}")

    def settings(self, limit: int, highest: int) -> Settings:
        """What holds for every sentence of a pool whose sentences have at most `limit` tokens before EOS and `highest` required ones."""
        setup, known, estimate = self.setup, self.setup.processors, self.setup.plugs.stop.estimate
        assert estimate is not None
        return Settings(
            setup.spec.k, setup.spec.nbest, known.min_len, known.eos, known.pad, known.no_repeat_ngram, setup.plugs.softmax.temperature,
            estimate, *setup.spec.scoring.divisors(limit + highest + estimate.others + 3),
        )  # fmt: skip
