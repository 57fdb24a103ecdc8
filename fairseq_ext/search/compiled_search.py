"""The compiled twin of the loop (kernels/search/beam.cpp): sentences are added and cancelled between any two steps, and a step is one call.

The twin runs beam search of one model on a CPU, in float32 or with --int8: with the full softmax, fairseq's selection, every stopping
criterion but that of required phrases, every pruning, and no logits processor but the length limits and --no-repeat-ngram-size. loop.py is
the definition: hypotheses are the same, to the last bit.
"""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Collection, Container, Sequence
from typing import Any

import torch

from fairseq_ext.decoders.protocol import BatchReader
from fairseq_ext.errors import NotANumber
from fairseq_ext.kernels.library import library
from fairseq_ext.kernels.search.beam import CompiledBatch, CompiledSentence, Result, Rules, StopRule
from fairseq_ext.search.finished import Ending, Hypothesis, hypotheses
from fairseq_ext.search.log_probs import MANY
from fairseq_ext.search.open_search import common_prefix
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.state import SearchSetup

FIRST_POSITIONS, FIRST_STEPS = 32, 8  # room for as many tokens in common, and so many of each row


def knows(setup: SearchSetup) -> bool:
    """Whether kernels/search/beam.cpp knows a generator's search, the decoder left aside (`is_compiled`)."""
    plugs, scoring = setup.plugs, setup.spec.scoring
    return (
        library() is not None
        and None not in plugs.rules()
        and plugs.softmax.is_full
        and setup.processors.is_plain
        and (scoring.bounded or not scoring.reward)
        and scoring.lenpen >= 0  # with a lower one the best that a row can reach depends on its length
        and 2 * setup.spec.k <= MANY
    )


def rules_of(setup: SearchSetup) -> ctypes.Structure:
    """What a search that `knows` accepts does, as kernels/search/beam.cpp reads it."""
    spec, plugs, known = setup.spec, setup.plugs, setup.processors
    fields: dict[str, Any] = {"children": 2 * spec.k, "threshold": math.inf, "behind_finished": math.inf}
    for rules in plugs.rules():
        assert rules is not None
        fields |= rules.fields()
    return Rules(
        k=spec.k, min_len=known.min_len, eos=known.eos, pad=known.pad, ngram=known.no_repeat_ngram, variable=plugs.variable,
        temperature=plugs.softmax.temperature, normalize=spec.scoring.normalize, lenpen=spec.scoring.lenpen, reward=spec.scoring.reward,
        **fields,
    )  # fmt: skip


def is_plain(pool: Pool) -> bool:
    """Whether the sentences of a pool have nothing that kernels/search/beam.cpp does not know."""
    return pool.prefix is None and pool.constraints is None and pool.length.device.type == "cpu"


class CompiledSearch:
    """A beam search over places. A sentence has a place from `admit` to `take` or `cancel`."""

    def __init__(self, setup: SearchSetup):
        self.setup = setup
        self.rules = rules_of(setup)
        self.proves = self.rules.stop == StopRule.OPTIMAL
        self.drops = bool(setup.plugs.prune or self.rules.prune_bound)
        self.reader: BatchReader | None = None  # None while there are no sentences
        self.sentences: dict[int, CompiledSentence] = {}  # by place, live or ended
        self.live: dict[int, CompiledSentence] = {}
        self.spare: list[CompiledSentence] = []
        self.batch = CompiledBatch()

    def __len__(self) -> int:
        return len(self.sentences)

    @property
    def rows(self) -> int:
        """Rows of all live sentences."""
        return self.batch.rows

    @torch.no_grad()
    def admit(self, pool: Pool, sentences: list[int], nbest: Sequence[int] | None = None) -> list[int]:
        """Start these sentences of a plain pool, which may be encoded together; return their places. nbest: of each, how many hypotheses
        are asked for."""
        decoder, spec = self.setup.decoder, self.setup.spec
        decoder.admit(pool.inputs(sentences))
        slots = self.free(len(sentences), {sentence.struct.slot for sentence in self.live.values()})
        if self.reader is not None:
            self.reader.take_in_(decoder.set_aside(), slots)
        else:
            self.reader = decoder.batch_reader(FIRST_POSITIONS + FIRST_STEPS * spec.k)
            decoder.set_aside()
        self.setup.stats.encoder_calls += 1
        places = self.free(len(sentences), self.sentences)
        wanted = spec.scoring.wanted(pool, torch.tensor(sentences)).tolist() if spec.scoring.reward else itertools.repeat(0.0)
        each = zip(sentences, places, slots, nbest or itertools.repeat(spec.nbest), wanted, strict=False)
        for sentence, place, slot, n, length in each:
            self.sentences[place] = self.spare.pop() if self.spare else CompiledSentence(self.rules)
            limit = pool.max_len[sentence]
            self.sentences[place].start_(pool.bos, limit, slot, n, length, (limit + 1.0) ** spec.scoring.lenpen)
        self.keep()
        return places

    @staticmethod
    def free(n: int, taken: Container[int]) -> list[int]:
        """The first n numbers that are not taken."""
        return list(itertools.islice((i for i in itertools.count() if i not in taken), n))

    def keep(self) -> None:
        """Search the sentences that are live."""
        self.live = {place: sentence for place, sentence in self.sentences.items() if sentence.is_live}
        self.batch.keep_(list(self.live.values()))

    def step_some(self, most: int, level: bool, most_rows: int | None) -> list[int]:
        """Add tokens to rows, at most so many; stop when a sentence ends. Return the places of those that have ended.

        level: to the shortest sentences only, until they are level with the others; most_rows: to no more rows at once, of the sentences
        that have waited longest, but to those of one sentence at least.
        """
        live = self.live
        lengths = {sentence.struct.length for sentence in live.values()} if level else ()
        if len(lengths) > 1:
            shortest, above = sorted(lengths)[:2]
            live = {place: sentence for place, sentence in live.items() if sentence.struct.length == shortest}
            most = min(most, above - shortest)
        if most_rows is not None and len(live) * self.setup.spec.k > most_rows:
            rows = itertools.accumulate(sentence.struct.rows for sentence in live.values())
            n = sum(1 for so_far in rows if so_far <= most_rows)
            live, most = dict(itertools.islice(live.items(), max(1, n))), 1
            for place in live:  # to the end of the turn
                self.sentences[place] = self.sentences.pop(place)
        if len(live) == len(self.live):
            return self.step(most)
        self.batch.keep_(list(live.values()))
        try:
            return self.step(most)
        finally:
            self.keep()

    def step(self, most: int = 1) -> list[int]:
        """Add a token to every row, at most so often; stop when a sentence ends. Return the places of those that have ended."""
        if not self.live:
            return []
        assert self.reader is not None
        while (result := self.batch.go_on(most, self.reader.compiled, self.reader.struct)) == Result.NO_ROOM:
            longest = max(sentence.struct.length for sentence in self.live.values())
            lengthened = [sentence.lengthen_() for sentence in self.live.values()]
            if not any(lengthened) and not self.reader.make_room_(self.batch.rows, longest + 1):
                self.enlarge()
        self.setup.stats.count_steps(*self.batch.take_counts())
        if result == Result.GOES_ON:
            return []
        ended = [place for place, sentence in self.live.items() if not sentence.is_live]
        self.keep()
        return ended

    def enlarge(self) -> None:
        """Make room for positions of the live sentences; those that have ended lose their slots."""
        assert self.reader is not None
        live = sorted((sentence.struct for sentence in self.live.values()), key=lambda struct: struct.slot)
        self.reader.enlarge_([struct.slot for struct in live], max(struct.used for struct in live))
        for slot, struct in enumerate(live):
            struct.slot = slot

    def take(self, place: int, most: int | None = None) -> list[Hypothesis] | None:
        """The hypotheses of a sentence that has ended, best first, of equals those that were finished first, at most so many; its place is
        free then.

        None where some continuations were impossible: the loop knows how to go on from there. Raises NotANumber where the model gives NaN.
        """
        sentence, found = self.sentences[place], None
        state, stats = sentence.struct, self.setup.stats
        if sentence.result == Result.FOUND:
            ending = None
            if self.proves:
                steps = state.limit - state.length
                ending = Ending(state.gap, steps, steps * self.rules.k + state.missed)
            found = hypotheses(sentence.found(), self.setup.spec.scoring, most, state.wanted, ending)
        if self.drops:
            stats.drop(torch.tensor(state.dropped))
        self.cancel([place])
        if sentence.result == Result.NOT_A_NUMBER:
            raise NotANumber(f"the model gives NaN at target position {sentence.struct.length} of the sentence")
        return found

    def clear(self) -> None:
        """End all sentences."""
        self.cancel(list(self.sentences))

    def cancel(self, places: Collection[int]) -> None:
        """End sentences without an answer; their places are free, and with the last of them the KV cache."""
        for place in places:
            self.spare.append(self.sentences.pop(place))
        if any(place in self.live for place in places):
            self.keep()
        if not self.sentences:
            self.reader = None

    def common_prefix(self, place: int) -> list[int]:
        """The tokens that every hypothesis of a live sentence begins with, so that its answer does."""
        sentence = self.sentences[place]
        return common_prefix([*sentence.tokens().tolist(), *(tokens.tolist() for tokens, _ in sentence.found(waiting=True))])
