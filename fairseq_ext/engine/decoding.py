"""The search of one worker process: it starts requests, decodes them together and answers them.

A request is segmented and checked when it arrives, so that its errors are reported at once.

Every few steps, or at once if no request is live, as many requests start as there is room for
(--stream-width sentences, or --stream-rows rows). --refill-threshold waits until few are live, and
--schedule batch until none is. With another --decoding than beam, requests are decoded one after
another, since these methods are made for single sentences.

A request whose preparation fails is answered with the error. If a step fails, for any reason, all
its sentences run again, in halves until the one that fails is alone; its request gets the error.

What stands around the search, such as the placement of glossary terms, is in plugin/steps.py; a
request may be searched again for it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from fairseq.tasks.translation_multi_simple_epoch import TranslationMultiSimpleEpochTask

from fairseq_ext.core.errors import NotANumber, UsageError, cut, explain, halves
from fairseq_ext.core.language_codes import two_letters
from fairseq_ext.engine.requirements import Requirements
from fairseq_ext.engine.tickets import Partial, Work
from fairseq_ext.plugin.calls import make_pool, pool_without_constraints
from fairseq_ext.plugin.loading.settings import TooLong, languages_of
from fairseq_ext.plugin.steps import RequestEntry, SentenceSteps
from fairseq_ext.search.constraints.placement import GlossaryPlacement
from fairseq_ext.search.constraints.report import ConstraintCounts
from fairseq_ext.search.finished import Hypothesis
from fairseq_ext.search.interpreted import LoopSearch, OpenPool
from fairseq_ext.search.mbr import check_seed
from fairseq_ext.search.parallel.driver import ParallelSearch
from fairseq_ext.search.protocols import Schedule
from fairseq_ext.search.report import Report, Translation
from fairseq_ext.search.request import Request
from fairseq_ext.search.scheduler import Scheduler, Searcher, Searchers
from fairseq_ext.search.strategies.decoding.beam import compiled
from fairseq_ext.translator import Translator

# ---- The languages of a request to a model with many (`LanguagesOfRequests`)
#
# Their tokens are part of source and translation (M2M-100, NLLB-200, mBART), or the target's token
# is the first of the source (OPUS-MT). fairseq's task reads both languages from its settings
# whenever it makes a batch, so the settings are changed for each batch.


Pair = tuple[str, str]  # source and target language


class LanguagesOfRequests:
    """The languages that requests of one translator may name.

    targets, sources: codes that may be target and source, in the model's order; none if the model
    has one pair.
    """

    def __init__(self, translator: Any):
        task, generator = translator.task, translator.generator
        self.settings, self.placement = task.flags(), generator.steps.find(GlossaryPlacement)
        self.targets = tuple(word[2:-2] for word in translator.sentences.language_words)
        self.sources: tuple[str, ...] = (self.settings.source_lang,) if self.targets else ()
        if isinstance(task, TranslationMultiSimpleEpochTask) and self.settings.fixed_dictionary:
            self.targets = self.sources = tuple(task.langs)
            for each in self.targets:
                task.dicts.setdefault(each, task.target_dictionary)
            spec = self.settings.langtoks["main"][1]
            if spec and not generator.settings.command.keeps_language_token:
                generator.symbols_to_strip_from_output.update(
                    task.data_manager.get_decoder_langtok(each, spec) for each in self.targets
                )

    @contextlib.contextmanager
    def selected(self, pair: Pair | None) -> Iterator[None]:
        """Return a context in which the task has this pair of languages; None: that of its flags
        (raises UsageError for a language that the model does not have)."""
        own = dataclasses.astuple(languages_of(self.settings))
        if pair is None or pair == own:
            yield
            return
        for each, known in zip(pair, (self.sources, self.targets), strict=True):
            if each not in known:
                there = (
                    f"use one of {cut(', '.join(known))}"
                    if known
                    else f"it translates from {own[0]} to {own[1]} alone"
                )
                raise UsageError(f"the model does not have the language '{cut(each)}': {there}")
        try:
            self.use(pair)
            yield
        finally:
            self.use(own)

    def use(self, pair: tuple) -> None:
        self.settings.source_lang, self.settings.target_lang = pair
        if self.placement is not None:
            self.placement.use_languages(*(two_letters(each or "") for each in pair))


# the number of a request, and its news; None: it is gone
Event = tuple[int, Partial | Report | Exception | Work | None]


class Decoding:
    """The requests of a worker and their search.

    places: number of sentences that are decoded at once; no_constraints: that of Requirements;
    longest: largest number of source tokens, where it is less than the model takes.

    Call `add` and `cancel` at any time, `work` as long as it is `busy`; the results are in
    `events`.
    """

    def __init__(
        self,
        translator: Translator,
        schedule: Schedule,
        places: int,
        no_constraints: str = "",
        longest: int | None = None,
    ):
        self.translator, self.places, self.longest = translator, places, longest
        self.generator = translator.generator
        self.scheduler: Scheduler[RequestEntry] = Scheduler(schedule)
        self.requirements = Requirements(translator, no_constraints)
        self.languages = LanguagesOfRequests(translator)
        self.events: list[Event] = []
        self.last_work = Work()
        self.take_work()
        self.steps = SentenceSteps(self.generator, lambda each: make_pool(translator, [each])[0])
        # parts that run by themselves, after a step that failed
        self.apart: deque[list[RequestEntry]] = deque()
        self.clear()

    def add(self, number: int, request: Request) -> None:
        """Check a request and let it wait for its start, or answer it with its error. number: the
        engine's, by which it is answered; `request.number` is the sentence's in its text."""
        try:
            check_seed(request.seed, self.translator.generator.settings)
            with self.languages.selected(request.languages):
                if request.source.strip():
                    return self.scheduler.add(self.prepared(number, request))
                self.requirements.named(request)  # errors of a glossary are reported all the same
            constraints, now = self.requirements.of_empty(request), time.monotonic()
            empty = Translation("", [], 0.0, [])
            self.events.append((number, Report([empty], constraints, now - request.submitted)))
        except Exception as error:
            self.events.append((number, reported_error(error)))

    def prepared(self, number: int, request: Request) -> RequestEntry:
        """Return the entry of a request, segmented and checked (raises UsageError)."""
        translator, setup = self.translator, self.generator.setup
        nbest = translator.nbest if request.nbest is None else request.nbest
        if not 1 <= nbest <= setup.k:
            raise UsageError(
                f"nbest is {nbest} and the beam is {setup.k}: ask for 1 to {setup.k} hypotheses"
            )
        tokens = translator.checked(request.source, "the source")
        if self.longest is not None and tokens.numel() > self.longest:
            raise TooLong(
                f"the source has {tokens.numel()} tokens and the limit is {self.longest}: "
                "shorten or split it"
            )
        request = self.requirements.with_constraints(replace(request, tokens=tokens))
        return self.steps.entry(number, request, nbest)

    def clear(self) -> None:
        """Drop all live entries and make new searches."""
        self.live: dict[int, RequestEntry] = {}  # by number
        self.search = Searchers(self.searchers())

    def searchers(self) -> list[Searcher]:
        """Return the searches that --decoding names, without entries."""
        setup, driver = self.generator.setup, self.generator.driver
        if isinstance(driver, ParallelSearch):
            driver.clear()
            return [driver]
        device = torch.device("cuda" if self.translator.cuda else "cpu")
        return [*compiled(setup), LoopSearch(setup, OpenPool(self.places, setup.pad, device))]

    @property
    def busy(self) -> bool:
        """Whether entries are live or wait."""
        return bool(self.live or self.scheduler.waiting or self.apart)

    def cancel(self, number: int) -> None:
        """Drop an entry; its rows are free at the next step."""
        self.scheduler.cancel(number)
        left = ([each for each in part if each.number != number] for part in self.apart)
        self.apart = deque(part for part in left if part)
        if (entry := self.live.pop(number, None)) is not None:
            self.search.cancel([entry])

    def work(self) -> None:
        """Start the entries that the schedule allows, and decode one step."""
        arrivals = self.arrivals()
        try:
            self.start(arrivals)
            arrivals = []  # a search has each of them now
            for entry in self.search.step():
                self.finish(self.live[entry.number])
            self.report_prefixes()
        except Exception as error:
            self.fail(arrivals, error)

    def arrivals(self) -> list[RequestEntry]:
        """Return the entries that start now."""
        if self.apart:
            return [] if self.live else self.apart.popleft()
        return self.scheduler.start(len(self.live), self.search.rows)

    def start(self, entries: list[RequestEntry]) -> None:
        """Put these entries into the search, in a batch for each of its searchers and for each
        kind of constraints."""
        now = time.monotonic()
        batches: dict[tuple[Searcher, bool, bool, Pair | None], list[RequestEntry]] = {}
        for entry in entries:
            entry.started = entry.started or now
            taker = next(
                searcher
                for searcher in self.search.searchers
                if searcher.supports_constraints(entry.searched.constraints)
            )
            given = entry.searched.all_constraints
            key = (taker, given.is_empty, given.allowed is not None, entry.request.languages)
            batches.setdefault(key, []).append(entry)
        for (_, is_unconstrained, _, languages), batch in batches.items():
            make = pool_without_constraints if is_unconstrained else make_pool
            with self.languages.selected(languages):
                pool, order = make(self.translator, [entry.searched for entry in batch])
            batch = [batch[i] for i in order]
            for sentence, entry in enumerate(batch):
                entry.pool, entry.sentence = pool, sentence
                pool.max_len[sentence] = entry.room or pool.max_len[sentence]
            self.search.admit(batch)
            self.live |= {entry.number: entry for entry in batch}

    def finish(self, entry: RequestEntry) -> None:
        """Answer an entry whose search is over."""
        try:
            found = self.search.take(entry)
        except NotANumber as error:
            self.events.append((entry.number, reported_error(error)))
        else:
            if found is None:
                return
            with self.languages.selected(entry.request.languages):
                hypotheses = self.steps.settle(entry, entry.batch, entry.sentence, found)
                if hypotheses is None:
                    self.scheduler.add(entry, first=True)
                else:
                    self.answer(entry, hypotheses)
        del self.live[entry.number]  # now: a step that fails runs it again

    def answer(self, entry: RequestEntry, found: list[Hypothesis]) -> None:
        """Answer a request with its hypotheses, best first."""
        request, started = entry.request, entry.started
        hypotheses = [self.translator.translation(h) for h in found[: entry.requested]]
        if request.align:
            self.translator.align([request.source] * len(hypotheses), hypotheses)
        best = hypotheses[0]
        constraints = self.translator.sentences.report(request, best, best.text)
        times = started - request.submitted, time.monotonic() - started
        self.events.append((entry.number, Report(hypotheses, constraints, *times)))

    def take_work(self) -> Work:
        """Return the counts of the work since the last call."""
        stats = self.generator.stats
        counts = stats.find_section(ConstraintCounts)
        if counts is not None:
            counts.unmet.clear()  # every request has its own report; here they would grow for ever
        now = Work(
            stats.decoder_calls,
            stats.decoder_rows,
            stats.encoder_calls,
            stats.target_tokens,
            stats.sentences,
        )
        before, self.last_work = self.last_work, now
        return Work(**{name: value - getattr(before, name) for name, value in vars(now).items()})

    def report_prefixes(self) -> None:
        """Report the certain beginnings of the entries that stream, where they have grown.

        There is none for an entry that may be searched again.
        """
        for entry in self.live.values():
            if not entry.request.streams or self.steps.may_repeat(entry):
                continue
            prefix = self.search.common_prefix(entry)
            if len(prefix) > entry.reported:
                entry.reported = len(prefix)
                part = Partial(self.generator.target_text.text(prefix), len(prefix))
                self.events.append((entry.number, part))

    def fail(self, arrivals: list[RequestEntry], error: Exception) -> None:
        """Handle a failed step: its sentences run again in halves, until the one that fails is
        alone."""
        error.__traceback__ = None  # it would keep the step's tensors alive
        known = {entry.number: entry for entry in [*arrivals, *self.live.values()]}
        if len(known) == 1:
            self.events.append((next(iter(known)), reported_error(error)))
        else:
            self.apart += map(list, halves([*known.values()]))
        self.clear()


def reported_error(error: Exception) -> Exception:
    """Return the error that the caller gets: a UsageError for a known mistake, else one
    sentence."""
    if isinstance(error, TooLong):
        return error
    sentence = explain(error)
    if sentence is not None:
        return UsageError(sentence)
    first = (str(error).splitlines() or [""])[0]
    return RuntimeError(f"the sentence could not be translated: {type(error).__name__}: {first}")
