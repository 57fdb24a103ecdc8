"""The driver of --decoding beam: the loop (loop.py), or for a sentence that is alone its compiled twin (kernels/beam.cpp), in one call.
Batches with required phrases have a compiled twin too (constrained.py).

The twin runs what most people ask for, on a CPU in float32 or with --int8: beam search of one model, with the full softmax, fairseq's
selection and stopping criterion, and no logits processor but the length limits and --no-repeat-ngram-size. Everything else, and every
other batch of several sentences, goes through the loop, which is the definition: hypotheses are the same, to the last bit.
"""

from __future__ import annotations

import torch

from fairseq_ext.errors import NotANumber
from fairseq_ext.kernels.beam import CompiledBeam, Result
from fairseq_ext.kernels.library import library
from fairseq_ext.search.constrained import ConstrainedSearch
from fairseq_ext.search.finished import Hypothesis, OnFinal, hypotheses
from fairseq_ext.search.log_probs import MANY
from fairseq_ext.search.loop import beam_search
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.state import SearchSetup


class BeamSearch:
    """The driver of --decoding beam: sentences that are alone in one call each, others in the loop."""

    def __init__(self, setup: SearchSetup):
        self.setup = setup
        self.constrained = ConstrainedSearch(setup)
        self.compiled: CompiledBeam | None = None
        self.is_compiled = library() is not None  # so far; the decoder tells when it has a sentence

    def __call__(self, pool: Pool, answer: OnFinal) -> None:
        """Decode the sentences of the pool that are wanted; give `answer` each of them as soon as it is final."""
        sentences = list(pool.queue(0))
        if len(sentences) == 1 and self.is_plain(pool):
            found = self.search(pool, sentences[0])
            if found is not None:
                answer(sentences[0], found)
                return
        if self.is_compiled and (banks := self.constrained.banks(pool)) is not None:
            if self.constrained(pool, banks, answer):
                return
            self.is_compiled = False
        beam_search(self.setup, pool, answer)

    def is_plain(self, pool: Pool) -> bool:
        """Whether the search is one that kernels/beam.cpp knows, the decoder left aside."""
        setup = self.setup
        plugs, processors, spec = setup.plugs, setup.processors, setup.spec
        return (
            self.is_compiled
            and plugs.select.is_topk
            and plugs.stop.is_count
            and plugs.softmax.is_full
            and not plugs.prune
            and not setup.refills
            and processors.is_plain
            and not spec.scoring.reward
            and 2 * spec.k <= MANY
            and pool.prefix is None
            and pool.constraints is None
            and pool.length.device.type == "cpu"
        )

    @torch.no_grad()
    def search(self, pool: Pool, sentence: int) -> list[Hypothesis] | None:
        """The hypotheses of a sentence, best first; None where the decoder is not compiled, or not every continuation is possible.

        Raises NotANumber where the model gives NaN.
        """
        setup, limit = self.setup, pool.max_len[sentence]
        setup.decoder.admit(pool.inputs([sentence]))
        reader = setup.decoder.row_reader()
        if reader is None:
            self.is_compiled = False
            setup.decoder.set_aside()
            return None
        if self.compiled is None:
            known, temperature = setup.processors, setup.plugs.softmax.temperature
            self.compiled = CompiledBeam(setup.spec.k, known.min_len, known.eos, known.pad, temperature, known.no_repeat_ngram)
        search, state = self.compiled, self.compiled.struct
        search.start_(pool.bos, limit)
        result = Result.NO_ROOM
        while result == Result.NO_ROOM:
            reader.reserve_rows_(state.k, state.used, state.length)
            result = search.go_on(reader.compiled, reader.struct)
        setup.decoder.set_aside()
        if result == Result.NOT_A_NUMBER:
            raise NotANumber(f"the model gives NaN at target position {state.length} of the sentence")
        if result == Result.UNSUITABLE:
            return None
        setup.stats.encoder_calls += 1
        setup.stats.count_steps(state.calls, state.read)
        return hypotheses(self.compiled.found(), setup.spec.scoring)
