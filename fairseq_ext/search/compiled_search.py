"""The compiled twin of the loop (kernels/beam.cpp): sentences are added and cancelled between any two steps, and a step is one call.

The twin runs what most people ask for, on a CPU in float32 or with --int8: beam search of one model, with the full softmax, fairseq's
selection and stopping criterion, and no logits processor but the length limits and --no-repeat-ngram-size. loop.py is the definition:
hypotheses are the same, to the last bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Container

import torch

from fairseq_ext.decoders.protocol import BatchReader
from fairseq_ext.errors import NotANumber
from fairseq_ext.kernels.beam import CompiledBatch, CompiledSentence, Result
from fairseq_ext.kernels.library import library
from fairseq_ext.search.finished import Hypothesis, hypotheses
from fairseq_ext.search.log_probs import MANY
from fairseq_ext.search.open_search import common_prefix
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.state import SearchSetup

FIRST_POSITIONS, FIRST_STEPS = 32, 8  # room for as many tokens in common, and so many of each row


def knows(setup: SearchSetup) -> bool:
    """Whether kernels/beam.cpp knows a generator's search, the decoder left aside (`is_compiled`)."""
    plugs, processors = setup.plugs, setup.processors
    return (
        library() is not None
        and plugs.select.is_topk
        and plugs.stop.is_count
        and plugs.softmax.is_full
        and not plugs.prune
        and processors.is_plain
        and not setup.spec.scoring.reward
        and 2 * setup.spec.k <= MANY
    )


def is_plain(pool: Pool) -> bool:
    """Whether the sentences of a pool have nothing that kernels/beam.cpp does not know."""
    return pool.prefix is None and pool.constraints is None and pool.length.device.type == "cpu"


class CompiledSearch:
    """A beam search over places. A sentence has a place from `admit` to `take` or `cancel`."""

    def __init__(self, setup: SearchSetup):
        self.setup = setup
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
    def admit(self, pool: Pool, sentences: list[int]) -> list[int]:
        """Start these sentences of a plain pool, which may be encoded together; return their places."""
        decoder = self.setup.decoder
        decoder.admit(pool.inputs(sentences))
        slots = self.free(len(sentences), {sentence.struct.slot for sentence in self.live.values()})
        if self.reader is not None:
            self.reader.take_in_(decoder.set_aside(), slots)
        else:
            self.reader = decoder.batch_reader(FIRST_POSITIONS + FIRST_STEPS * self.setup.spec.k)
            decoder.set_aside()
        self.setup.stats.encoder_calls += 1
        places = self.free(len(sentences), self.sentences)
        for sentence, place, slot in zip(sentences, places, slots, strict=True):
            self.sentences[place] = self.spare.pop() if self.spare else self.new()
            self.sentences[place].start_(pool.bos, pool.max_len[sentence], slot)
        self.keep()
        return places

    @staticmethod
    def free(n: int, taken: Container[int]) -> list[int]:
        """The first n numbers that are not taken."""
        return list(itertools.islice((i for i in itertools.count() if i not in taken), n))

    def new(self) -> CompiledSentence:
        """Memory for a sentence."""
        setup = self.setup
        known, temperature = setup.processors, setup.plugs.softmax.temperature
        return CompiledSentence(setup.spec.k, known.min_len, known.eos, known.pad, temperature, known.no_repeat_ngram)

    def keep(self) -> None:
        """Search the sentences that are live."""
        self.live = {place: sentence for place, sentence in self.sentences.items() if sentence.is_live}
        self.batch.keep_(list(self.live.values()))

    def step_level(self, most: int) -> list[int]:
        """Add tokens to the rows of the shortest sentences, at most so many, until they are level with the others or one of them ends.
        Return the places of those that have ended."""
        lengths = {sentence.struct.length for sentence in self.live.values()}
        if len(lengths) < 2:
            return self.step(most)
        shortest, above = sorted(lengths)[:2]
        self.batch.keep_([sentence for sentence in self.live.values() if sentence.struct.length == shortest])
        try:
            return self.step(min(most, above - shortest))
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
        sentence = self.sentences[place]
        found = hypotheses(sentence.found(), self.setup.spec.scoring, most) if sentence.result == Result.FOUND else None
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
        return common_prefix([*sentence.tokens().tolist(), *(tokens.tolist() for tokens, _ in sentence.found())])
