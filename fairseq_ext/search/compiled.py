"""The compiled twin of the loop, without required phrases (kernels/beam.cpp).

Sentences are added and cancelled between any two steps, and a step is one call.

The twin runs beam search of one model on a CPU, in float32 or with --int8: with the full softmax,
fairseq's selection or sampling, every stopping criterion but that of required phrases, every
pruning, and no logits processor but the length limits and --no-repeat-ngram-size. loop.py is the
definition: hypotheses are equal, to the last bit.
"""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import torch

from fairseq_ext.core.errors import NotANumber
from fairseq_ext.kernels.beam import CompiledBatch, CompiledSentence, Rules, SearchResult, StopRule
from fairseq_ext.kernels.library import library
from fairseq_ext.kernels.transformer import CompiledRows
from fairseq_ext.search.finished import Ending, Hypothesis, n_best
from fairseq_ext.search.log_probs import MANY
from fairseq_ext.search.phrases.sentence import SentenceConstraints
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import SearchSetup
from fairseq_ext.search.scheduler import CompiledSearcher, Request, common_prefix

FIRST_POSITIONS, FIRST_STEPS = 32, 8  # initial cache positions: shared, and for each row


class CompiledSearch(CompiledSearcher):
    """Beam search of sentences without constraints."""

    def __init__(self, setup: SearchSetup):
        self.setup = setup = without_constraints(setup)
        self.rules = rules_of(setup)
        self.proves = self.rules.stop == StopRule.OPTIMAL  # hypotheses get certificates
        self.drops = bool(setup.strategies.prune or self.rules.prune_bound)  # rows are pruned
        self.spare: list[CompiledSentence] = []
        self.batch = CompiledBatch()
        self.clear()

    def clear(self) -> None:
        """Drop all requests, also those of a call that an exception ended. Their sentences may be
        half changed, so they are not used again."""
        self.reader: CompiledRows | None = None  # None while there are no sentences
        self.sentences: dict[Request, CompiledSentence] = {}  # live or ended
        self.running: dict[Request, CompiledSentence] = {}  # live
        self.batch.set_sentences_([])

    @staticmethod
    def supports(setup: SearchSetup) -> bool:
        """Whether kernels/beam.cpp supports a generator's search; the decoder (`is_compiled`) is
        checked later."""
        strategies, scoring = without_constraints(setup).strategies, setup.spec.scoring
        return (
            library() is not None
            and None not in strategies.rules()
            and strategies.softmax.is_full
            and setup.processors.is_plain
            and (scoring.bounded or not scoring.reward)
            # with a lower one, the best score that a row can reach depends on its length
            and scoring.lenpen >= 0
            and 2 * setup.spec.k <= MANY
        )

    @property
    def live(self) -> int:
        return len(self.sentences)

    @property
    def rows(self) -> int:
        return self.batch.rows

    def supports_constraints(self, constraints: SentenceConstraints | None) -> bool:
        return self.setup.decoder.is_compiled and (
            constraints is None
            or constraints.is_free
            # phrases are a part of the product then
            or (constraints.allowed is not None and not constraints.prefix)
        )

    def supports_pool(self, pool: Pool) -> bool:
        is_free = pool.constraints is None or (
            pool.rule is not None and all(each.is_restricted for each in pool.constraints)
        )
        is_known = pool.prefix is None and is_free and pool.length.device.type == "cpu"
        return is_known and self.setup.decoder.is_compiled  # this changes with the models' weights

    @torch.no_grad()
    def admit(self, requests: Sequence[Request]) -> None:
        decoder, spec, pool = self.setup.decoder, self.setup.spec, requests[0].batch
        sentences = [request.sentence for request in requests]
        decoder.admit(pool.inputs(sentences))
        taken = {sentence.struct.slot for sentence in self.running.values()}
        slots = list(
            itertools.islice((i for i in itertools.count() if i not in taken), len(requests))
        )
        if self.reader is not None:
            self.reader.copy_into_slots_(decoder.set_aside().cache.models[0], slots)
        else:
            self.reader = decoder.batch_reader(FIRST_POSITIONS + FIRST_STEPS * spec.k)
            decoder.set_aside()  # from now on the reader has the rows
        self.setup.stats.encoder_calls += 1
        rewarded = (
            spec.scoring.rewarded(pool, torch.tensor(sentences)).tolist()
            if spec.scoring.reward
            else itertools.repeat(0.0)
        )
        seeds = ((pool.seeds[i] if pool.seeds else 0, int(pool.ids[i])) for i in sentences)
        for request, slot, length, keys in zip(requests, slots, rewarded, seeds, strict=False):
            self.sentences[request] = (
                self.spare.pop() if self.spare else CompiledSentence(self.rules)
            )
            limit = pool.max_len[request.sentence]
            self.sentences[request].start_(
                pool.bos,
                limit,
                slot,
                request.nbest,
                length,
                (limit + 1.0) ** spec.scoring.lenpen,
                *keys,
            )
            automata = None if pool.rule is None else pool.rule.compiled(pool, request.sentence)
            self.sentences[request].restrict_(*(automata or (None,)))
        self.refresh_running()

    def refresh_running(self) -> None:
        """Continue with the sentences that are live."""
        self.running = {
            request: sentence for request, sentence in self.sentences.items() if sentence.is_live
        }
        self.batch.set_sentences_(list(self.running.values()))

    def step(self, most: int = 1) -> list[Request]:
        running, schedule = self.running, self.setup.strategies.schedule
        lengths = (
            {sentence.struct.length for sentence in running.values()} if schedule.level else ()
        )
        if len(lengths) > 1:  # the shortest sentences, until they are as long as the others
            shortest, above = sorted(lengths)[:2]
            running = {
                request: sentence
                for request, sentence in running.items()
                if sentence.struct.length == shortest
            }
            most = min(most, above - shortest)
        if schedule.most_rows is not None and len(running) * self.setup.spec.k > schedule.most_rows:
            if schedule.longest_first:
                running = dict(
                    sorted(running.items(), key=lambda each: each[1].struct.length, reverse=True)
                )
            rows = itertools.accumulate(sentence.struct.rows for sentence in running.values())
            n = sum(1 for so_far in rows if so_far <= schedule.most_rows)
            # sentences that have waited longest, at least one
            running, most = dict(itertools.islice(running.items(), max(1, n))), 1
            for request in running:  # move them to the end of the queue
                self.sentences[request] = self.sentences.pop(request)
        if len(running) == len(self.running):
            return self.step_all(most)
        self.batch.set_sentences_(list(running.values()))
        try:
            return self.step_all(most)
        finally:
            self.refresh_running()

    def step_all(self, most: int) -> list[Request]:
        """Add at most `most` tokens to every row of the batch; stop when a sentence ends. Return
        the requests that have ended."""
        if not self.running:
            return []
        assert self.reader is not None
        while (
            result := self.batch.run_steps(most, self.reader, self.reader.step)
        ) == SearchResult.NO_ROOM:
            longest = max(sentence.struct.length for sentence in self.running.values())
            lengthened = [sentence.lengthen_() for sentence in self.running.values()]
            if not any(lengthened) and not self.reader.reserve_rows_(self.batch.rows, longest + 1):
                self.enlarge()
        self.setup.stats.count_steps(*self.batch.take_counts())
        if result == SearchResult.GOES_ON:
            return []
        ended = [request for request, sentence in self.running.items() if not sentence.is_live]
        self.refresh_running()
        return ended

    def enlarge(self) -> None:
        """Make room for more positions of the live sentences; ended ones lose their slots."""
        assert self.reader is not None
        live = sorted(
            (sentence.struct for sentence in self.running.values()), key=lambda struct: struct.slot
        )
        self.reader.enlarge_([struct.slot for struct in live], max(struct.used for struct in live))
        for slot, struct in enumerate(live):
            struct.slot = slot

    def take(self, request: Request) -> list[Hypothesis] | None:
        """Return the hypotheses; None if some continuations were impossible: then the loop searches
        the sentence."""
        sentence, found = self.sentences[request], None
        state, stats = sentence.struct, self.setup.stats
        if sentence.result == SearchResult.FINISHED:
            ending = None
            if self.proves:
                steps = state.limit - state.length
                ending = Ending(state.gap, steps, steps * self.rules.k + state.unused_rows)
            found = n_best(
                sentence.hypotheses(), self.setup.spec.scoring, request.most, state.rewarded, ending
            )
        if self.drops:
            stats.drop(torch.tensor(state.dropped))
        self.cancel([request])
        if sentence.result == SearchResult.NOT_A_NUMBER:
            raise NotANumber(
                f"the model gives NaN at target position {sentence.struct.length} of the sentence"
            )
        return found

    def cancel(self, requests: Collection[Request]) -> None:
        """Drop requests; the KV cache is freed with the last one."""
        for request in requests:
            self.spare.append(self.sentences.pop(request))
        if any(request in self.running for request in requests):
            self.refresh_running()
        if not self.sentences:
            self.reader = None

    def common_prefix(self, request: Request) -> list[int]:
        sentence = self.sentences[request]
        return common_prefix(
            [
                *sentence.tokens().tolist(),
                *(tokens.tolist() for tokens, _ in sentence.hypotheses(waiting=True)),
            ]
        )


def without_constraints(setup: SearchSetup) -> SearchSetup:
    """Return the setup of the same search, for sentences without constraints."""
    strategies = replace(
        setup.strategies,
        select=setup.strategies.select.unconstrained(),
        stop=setup.strategies.stop.unconstrained(),
    )
    return replace(setup, strategies=strategies)


def rules_of(setup: SearchSetup) -> ctypes.Structure:
    """Return the rules of a search that `supports` accepts, as kernels/beam.cpp reads them."""
    spec, strategies, known = setup.spec, setup.strategies, setup.processors
    fields: dict[str, Any] = {
        "children": 2 * spec.k,
        "threshold": math.inf,
        "finished_threshold": math.inf,
    }
    for rules in strategies.rules():
        assert rules is not None
        fields |= rules.fields()
    return Rules(
        k=spec.k,
        min_len=known.min_len,
        eos=known.eos,
        pad=known.pad,
        ngram=known.no_repeat_ngram,
        variable=strategies.variable,
        temperature=strategies.softmax.temperature,
        normalize=spec.scoring.normalize,
        lenpen=spec.scoring.lenpen,
        reward=spec.scoring.reward,
        **fields,
    )
