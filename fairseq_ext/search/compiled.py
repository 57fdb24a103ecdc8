"""The compiled twin of the loop (kernels/beam.cpp).

Sentences are added and cancelled between any two steps, and a step is one call.

The twin runs beam search of one model on a CPU, in float32 or with --int8: with the full softmax
(with --select topk, also top and lexical for each sentence), no logits processor but the length
limits and --no-repeat-ngram-size, and fairseq's selection or sampling, every stopping criterion and
every pruning; sentences with required phrases with dynamic beam allocation, --stop early and no
pruning. Sentences with and without phrases share decoder calls. loop.py is the definition:
hypotheses are equal, to the last bit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import torch

from fairseq_ext.core.errors import NotANumber
from fairseq_ext.kernels.banks import (
    MAX_EXTRA_TOKENS,
    Banks,
    extra_cost,
    finished_needed,
    missing_cost,
)
from fairseq_ext.kernels.beam import (
    CompiledBatch,
    CompiledSentence,
    SearchResult,
    Selection,
    StopRule,
)
from fairseq_ext.kernels.library import address, library, new
from fairseq_ext.kernels.transformer import CompiledRows
from fairseq_ext.search.finished import Hypothesis, n_best
from fairseq_ext.search.log_probs import MANY
from fairseq_ext.search.phrases.sentence import SentenceConstraints
from fairseq_ext.search.pool import PerPoolCache, Pool
from fairseq_ext.search.protocols import Setup
from fairseq_ext.search.report import Ending
from fairseq_ext.search.scheduler import CompiledSearcher, Entry, common_prefix
from fairseq_ext.search.shortlists import CompiledLists

FIRST_POSITIONS, FIRST_STEPS = 32, 8  # initial cache positions: shared, and for each row


class CompiledSearch(CompiledSearcher):
    """Beam search of sentences without constraints, or with required phrases only."""

    def __init__(self, setup: Setup):
        self.setup, unconstrained = setup, without_constraints(setup)
        # those of sentences without constraints, and of pools with required phrases; None: the loop
        # searches them
        self.rules = SearchRules(unconstrained) if supports_unconstrained(setup) else None
        self.phrase_rules = SearchRules(setup) if supports_phrases(setup) else None
        self.drops = bool(unconstrained.strategies.prune) or (
            self.rules is not None and bool(self.rules.struct.prune_bound)
        )
        self.banks = PerPoolCache(setup.strategies.select.banks)
        self.spare: list[CompiledSentence] = []
        self.batch = CompiledBatch()
        self.lists = CompiledLists(setup) if setup.strategies.softmax.is_own else None
        self.clear()

    def clear(self) -> None:
        """Drop all entries, also those of a call that an exception ended. Their sentences may be
        half changed, so they are not used again."""
        self.reader: CompiledRows | None = None  # None while there are no sentences
        self.sentences: dict[Entry, CompiledSentence] = {}  # live or ended
        self.running: dict[Entry, CompiledSentence] = {}  # live
        self.batch.set_sentences_([])
        if self.lists is not None:
            self.lists.clear()

    @staticmethod
    def supports(setup: Setup) -> bool:
        """Return whether kernels/beam.cpp supports a generator's search; decoder (`is_compiled`)
        and phrases are checked later."""
        return supports_unconstrained(setup) or supports_phrases(setup)

    @property
    def live(self) -> int:
        return len(self.sentences)

    @property
    def rows(self) -> int:
        return self.batch.rows

    def supports_constraints(self, constraints: SentenceConstraints | None) -> bool:
        if not self.setup.decoder.is_compiled:  # this changes with the models' weights
            return False
        # where outputs are given, phrases are a part of the product
        is_restricted = constraints is not None and constraints.allowed is not None
        if is_restricted and self.lists is not None:
            return False
        if constraints is None or constraints.is_empty:
            return self.rules is not None
        if is_restricted:
            return self.rules is not None and not constraints.prefix
        has_others = constraints.banned or constraints.prefix
        return self.phrase_rules is not None and bool(constraints.required) and not has_others

    def supports_pool(self, pool: Pool) -> bool:
        if (
            pool.prefix is not None
            or pool.length.device.type != "cpu"
            or not self.setup.decoder.is_compiled
        ):
            return False
        if self.is_unconstrained(pool):
            return self.rules is not None and (pool.rule is None or self.lists is None)
        return (
            self.phrase_rules is not None
            and pool.rule is None
            and not pool.encodes_separately
            and any(given.required for given in pool.constraints or ())
            and self.banks(pool) is not None
        )

    def is_unconstrained(self, pool: Pool) -> bool:
        """Return whether no sentence of a pool has other constraints than its allowed outputs, so
        that the search without constraints gives the same result.

        subtle: with dba it does for empty constraints, too; grid beam search has a narrower beam.
        """
        return pool.constraints is None or (
            (pool.rule is not None or self.phrase_rules is not None)
            and all(each.is_restricted for each in pool.constraints)
        )

    @torch.no_grad()
    def admit(self, entries: Sequence[Entry]) -> None:
        decoder, setup, pool = self.setup.decoder, self.setup, entries[0].batch
        sentences = [entry.sentence for entry in entries]
        decoder.admit(pool.inputs(sentences))
        taken = {sentence.struct.slot for sentence in self.running.values()}
        slots = list(
            itertools.islice((i for i in itertools.count() if i not in taken), len(entries))
        )
        if self.reader is not None:
            self.reader.copy_into_slots_(decoder.set_aside().cache.models[0], slots)
        else:
            self.reader = decoder.batch_reader(FIRST_POSITIONS + FIRST_STEPS * setup.k)
            decoder.set_aside()  # from now on the reader has the rows
        self.setup.stats.encoder_calls += 1
        banks = None if self.is_unconstrained(pool) else self.banks(pool)
        rules = self.rules if banks is None else self.phrase_rules
        assert rules is not None
        highest = 0 if banks is None else max(banks.total)
        rules.reserve_(max(pool.max_len[i] for i in sentences), highest)
        rewarded = [0.0] * len(entries)
        if setup.scoring.reward:
            rewarded = setup.scoring.rewarded(pool, torch.tensor(sentences)).tolist()
        words: list[Any] = [None] * len(entries)
        if self.lists is not None:
            words = [*self.lists.softmax.lists_of(pool, sentences)]
        for entry, slot, length, listed in zip(entries, slots, rewarded, words, strict=True):
            i = entry.sentence
            limit = pool.max_len[i]
            self.sentences[entry] = sentence = self.new_sentence(rules, banks, i)
            sentence.start_(
                pool.bos,
                limit,
                slot,
                entry.nbest,
                length,
                setup.scoring.lenpen,
                setup.scoring.reward,
                pool.seeds[i] if pool.seeds else 0,
                int(pool.ids[i]),
                None if banks is None else (banks, i),
            )
            automata = None
            if pool.rule is not None:
                bounded = rules.struct.stop == StopRule.OPTIMAL and not setup.scoring.is_total
                automata = pool.rule.compiled(pool, entry.sentence, bounded)
            sentence.restrict_(*(automata or ()))
            sentence.list_(listed)
        self.refresh_running()

    def new_sentence(
        self, rules: SearchRules, banks: Banks | None, number: int
    ) -> CompiledSentence:
        """Return a sentence that can start: one that is not used any more, if it has the arrays.

        banks: the phrases of its pool, None for none; number: its number there.
        """
        k = enough = rules.struct.k
        if banks is not None:
            k = enough = banks.slots[number]
            if banks.total[number]:
                competing = rules.struct.competing
                k, enough = k + competing, finished_needed(bool(competing)) * k
        for i, sentence in enumerate(self.spare):
            if (sentence.rules, sentence.k, sentence.enough) == (rules.struct, k, enough):
                return self.spare.pop(i)
        return CompiledSentence(rules.struct, k, enough)

    def refresh_running(self) -> None:
        """Continue with the sentences that are live."""
        self.running = {
            entry: sentence for entry, sentence in self.sentences.items() if sentence.is_live
        }
        self.batch.set_sentences_(list(self.running.values()))
        if self.lists is not None:
            self.lists.update_(self.batch, self.running.values())

    def step(self, most: int = 1) -> list[Entry]:
        running, schedule = self.running, self.setup.strategies.schedule
        lengths = (
            {sentence.struct.length for sentence in running.values()} if schedule.level else ()
        )
        if len(lengths) > 1:  # the shortest sentences, until they are as long as the others
            shortest, above = sorted(lengths)[:2]
            running = {
                entry: sentence
                for entry, sentence in running.items()
                if sentence.struct.length == shortest
            }
            most = min(most, above - shortest)
        most_rows = sum(sentence.k for sentence in running.values())
        if schedule.most_rows is not None and most_rows > schedule.most_rows:
            if schedule.longest_first:
                running = dict(
                    sorted(running.items(), key=lambda each: each[1].struct.length, reverse=True)
                )
            rows = itertools.accumulate(sentence.struct.rows for sentence in running.values())
            n = sum(1 for so_far in rows if so_far <= schedule.most_rows)
            # sentences that have waited longest, at least one
            running, most = dict(itertools.islice(running.items(), max(1, n))), 1
            for entry in running:  # move them to the end of the queue
                self.sentences[entry] = self.sentences.pop(entry)
        if len(running) == len(self.running):
            return self.step_all(most)
        self.batch.set_sentences_(list(running.values()))
        try:
            return self.step_all(most)
        finally:
            self.refresh_running()

    def step_all(self, most: int) -> list[Entry]:
        """Add at most `most` tokens to every row of the batch; stop when a sentence ends. Return
        the entries that have ended."""
        if not self.running:
            return []
        assert self.reader is not None
        rows, is_sample = [sentence.struct.rows for sentence in self.batch.live], False
        if self.lists is not None:
            most, is_sample = self.lists.steps_to_sample(most)
        while (
            result := self.batch.run_steps(most, self.reader.struct, self.reader.step_struct)
        ) == SearchResult.NO_ROOM:
            longest = max(sentence.struct.length for sentence in self.running.values())
            lengthened = [sentence.lengthen_() for sentence in self.running.values()]
            if not any(lengthened) and not self.reader.reserve_rows_(self.batch.rows, longest + 1):
                self.enlarge()
        calls, decoded = self.batch.take_counts()
        self.setup.stats.count_steps(calls, decoded)
        if self.lists is not None:
            self.lists.softmax.meter.calls += calls
            if is_sample:
                self.lists.sample(self.batch, rows, self.reader)
        if result == SearchResult.GOES_ON:
            return []
        ended = [entry for entry, sentence in self.running.items() if not sentence.is_live]
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

    def take(self, entry: Entry) -> list[Hypothesis] | None:
        """Return the hypotheses; None if some continuations were impossible: then the loop searches
        the sentence."""
        sentence, found = self.sentences[entry], None
        state, stats = sentence.struct, self.setup.stats
        if sentence.result == SearchResult.FINISHED:
            ending, most = None, entry.most if not state.phrases else None
            if sentence.rules.stop == StopRule.OPTIMAL:
                steps = state.limit - state.length
                ending = Ending(state.gap, steps, steps * sentence.k + state.unused_rows)
            found = n_best(
                sentence.hypotheses(),
                self.setup.scoring,
                most,
                sentence.rewarded,
                ending,
            )
        if state.full or (not state.phrases and self.drops):
            stats.drop(torch.tensor(state.dropped))
        self.cancel([entry])
        if sentence.result == SearchResult.NOT_A_NUMBER:
            raise NotANumber(
                f"the model gives NaN at target position {sentence.struct.length} of the sentence"
            )
        return found

    def cancel(self, entries: Collection[Entry]) -> None:
        """Drop entries; the KV cache is freed with the last one."""
        for entry in entries:
            self.spare.append(sentence := self.sentences.pop(entry))
            if self.lists is not None:
                self.lists.forget_(sentence)
        if any(entry in self.running for entry in entries):
            self.refresh_running()
        if not self.sentences:
            self.reader = None

    def common_prefix(self, entry: Entry) -> list[int]:
        sentence = self.sentences[entry]
        return common_prefix(
            [
                *sentence.tokens().tolist(),
                *(tokens.tolist() for tokens, _ in sentence.hypotheses(waiting=True)),
            ]
        )


def without_constraints(setup: Setup) -> Setup:
    """Return the setup of the same search, for sentences without constraints."""
    strategies = replace(
        setup.strategies,
        select=setup.strategies.select.unconstrained(),
        stop=setup.strategies.stop.unconstrained(),
    )
    return replace(setup, strategies=strategies)


def is_supported(setup: Setup) -> bool:
    """Return whether kernels/beam.cpp supports each of the strategies of a search."""
    strategies = setup.strategies
    return (
        library() is not None
        and None not in strategies.rules()
        and (strategies.softmax.is_full or strategies.softmax.is_own)
        and setup.processors.is_plain
        and 2 * setup.k <= MANY
    )


def supports_unconstrained(setup: Setup) -> bool:
    """Return whether kernels/beam.cpp can search sentences without constraints."""
    setup = without_constraints(setup)
    scoring = setup.scoring
    return (
        is_supported(setup)
        and (scoring.bounded or not scoring.reward)
        # with a lower one, the best score that a row can reach depends on its length
        and scoring.lenpen >= 0
        and (setup.strategies.softmax.is_full or fields_of(setup)["selection"] == Selection.TOP)
    )


def supports_phrases(setup: Setup) -> bool:
    """Return whether kernels/beam.cpp can search sentences with required phrases."""
    strategies = setup.strategies
    return (
        is_supported(setup)
        and strategies.softmax.is_full
        and not strategies.prune
        and not setup.scoring.reward
        and fields_of(setup)["selection"] == Selection.BANKS
        and fields_of(setup)["stop"] == StopRule.EARLY
    )


def fields_of(setup: Setup) -> dict[str, object]:
    """Return the fields of the rules that strategies set."""
    fields: dict[str, object] = {
        "selection": Selection.TOP,
        "children": 2 * setup.k,
        "threshold": math.inf,
        "finished_threshold": math.inf,
    }
    for rules in setup.strategies.rules():
        fields |= rules or {}
    return fields


class SearchRules:
    """The rules of a search as kernels/beam.cpp reads them (`struct`), and the tables that they
    point to."""

    def __init__(self, setup: Setup):
        strategies, known = setup.strategies, setup.processors
        self.scoring = setup.scoring
        self.struct = new(
            "Rules",
            k=setup.k,
            min_len=known.min_len,
            eos=known.eos,
            pad=known.pad,
            ngram=known.no_repeat_ngram,
            variable=strategies.variable,
            temperature=strategies.softmax.temperature,
            normalize=setup.scoring.normalize,
            **fields_of(setup),
        )
        self.lengths = self.highest = 0

    def reserve_(self, limit: int, highest: int) -> None:
        """Make the tables long enough for sentences of at most `limit` tokens before EOS and
        `highest` required tokens."""
        lengths = limit + highest + MAX_EXTRA_TOKENS + 3
        if lengths <= self.lengths and highest <= self.highest:
            return
        self.lengths, self.highest = 2 * lengths, 2 * highest
        divisor, estimate_divisor = self.scoring.divisors(self.lengths)
        self.tables = {"divisor": divisor, "estimate_divisor": estimate_divisor}
        if self.struct.stop == StopRule.EARLY:
            self.tables["missing_cost"] = missing_cost(torch.arange(self.highest + 1))
            self.tables["extra_cost"] = extra_cost()
        for name, table in self.tables.items():
            setattr(self.struct, name, address(table, torch.float32))
