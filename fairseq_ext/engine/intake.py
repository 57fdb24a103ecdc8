"""The preparation of requests (`Intake`): each is segmented and checked when it arrives, so that
its errors are reported at once."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fairseq.tasks.translation_multi_simple_epoch import TranslationMultiSimpleEpochTask
from torch import Tensor

from fairseq_ext.core.errors import UsageError, cut, explain
from fairseq_ext.core.language_codes import two_letters
from fairseq_ext.engine.jobs import Job, Partial, Work
from fairseq_ext.engine.requirements import Requirements
from fairseq_ext.plugin.loading.settings import TooLong
from fairseq_ext.plugin.options import languages_of
from fairseq_ext.search.constraints.drafts import SEARCHED
from fairseq_ext.search.constraints.glossary import Required, places_terms
from fairseq_ext.search.constraints.placement import GlossaryPlacement
from fairseq_ext.search.constraints.report import ConstraintCounts
from fairseq_ext.search.finished import Hypothesis
from fairseq_ext.search.mbr import check_seed
from fairseq_ext.search.phrases.sentence import SentenceConstraints
from fairseq_ext.search.protocols import Schedule
from fairseq_ext.search.report import Report, Translation
from fairseq_ext.search.scheduler import Request, Scheduler
from fairseq_ext.translator import Translator

# the number of a request, and its news; None: it is gone
Event = tuple[int, Partial | Report | Exception | Work | None]


@dataclass(eq=False, kw_only=True)
class JobRequest(Request):
    """A request with its tokens and constraints, as the search has it."""

    job: Job
    tokens: Tensor  # (L,)
    requested: int  # hypotheses of its answer; its search may keep more
    constraints: SentenceConstraints | None
    terms: list[Required]
    # what the search obeys: fewer than `constraints`, while a draft is searched
    search_constraints: SentenceConstraints | None
    started: float = 0.0  # time.monotonic()
    reported: int = 0  # tokens of the prefix that has been reported
    # most tokens of a search that is repeated (search/strategies/stop/early.py)
    room: int | None = None
    long: list[Hypothesis] = field(default_factory=list)  # what the first one has found

    @property
    def is_draft(self) -> bool:
        """Whether the search leaves out phrases that are required
        (--glossary-placement align)."""
        return self.search_constraints is not self.constraints


class Intake:
    """The requests of one model before their search, and their results in `events`.

    places: number of sentences that are decoded at once.
    """

    def __init__(self, translator: Translator, schedule: Schedule, places: int):
        self.translator, self.places = translator, places
        self.generator = translator.generator
        self.scheduler: Scheduler[JobRequest] = Scheduler(schedule)
        self.requirements = Requirements(translator)
        self.languages = LanguagesOfRequests(translator)
        # most source tokens, where fewer are allowed than the model takes
        self.longest: int | None = None
        self.events: list[Event] = []
        self.last_work = self.work_done()

    def add(self, number: int, job: Job) -> None:
        """Check a request and let it wait for its start, or answer it with its error."""
        try:
            check_seed(job.seed, self.translator.generator.options.flags)
            with self.languages.selected(job.languages):
                if job.source.strip():
                    return self.scheduler.add(self.prepared(number, job))
                self.requirements.named(job)  # errors of a glossary are reported all the same
            constraints, now = self.requirements.of_empty(job), time.monotonic()
            empty = Translation("", [], 0.0, [])
            self.events.append((number, Report([empty], constraints, now - job.submitted)))
        except Exception as error:
            self.events.append((number, reported_error(error)))

    def prepared(self, number: int, job: Job) -> JobRequest:
        """Return the request, segmented and checked (raises UsageError)."""
        translator, spec = self.translator, self.generator.spec
        nbest = translator.nbest if job.nbest is None else job.nbest
        if not 1 <= nbest <= spec.k:
            raise UsageError(
                f"nbest is {nbest} and the beam is {spec.k}: ask for 1 to {spec.k} hypotheses"
            )
        tokens = translator.checked(job.source, "the source")
        if self.longest is not None and tokens.numel() > self.longest:
            raise TooLong(
                f"the source has {tokens.numel()} tokens and the limit is {self.longest}: "
                "shorten or split it"
            )
        constraints, terms = self.requirements.of_job(job, tokens)
        search_constraints = constraints
        searched = nbest if self.generator.bayes_risk is None else spec.k
        if (
            constraints is not None
            and constraints.terms
            and places_terms(translator.generator.options.flags)
        ):
            search_constraints = constraints.without_terms()
            searched = min(spec.k, max(nbest, SEARCHED))
        return JobRequest(
            number,
            searched,
            searched,
            job=job,
            tokens=tokens,
            requested=nbest,
            constraints=constraints,
            terms=terms,
            search_constraints=search_constraints,
        )

    def answer(self, request: JobRequest, found: list[Hypothesis]) -> None:
        """Answer a request with its hypotheses, best first."""
        hypotheses = [self.translator.translation(h) for h in found[: request.requested]]
        if request.job.align:
            self.translator.align([request.job.source] * len(hypotheses), hypotheses)
        given = request.job, request.tokens, request.constraints, request.terms
        constraints = self.requirements.report(*given, hypotheses[0])
        queued, decoded = (
            request.started - request.job.submitted,
            time.monotonic() - request.started,
        )
        self.events.append((request.number, Report(hypotheses, constraints, queued, decoded)))

    def work_done(self) -> Work:
        """Return the counts of all work so far."""
        stats = self.generator.stats
        counts = stats.find_section(ConstraintCounts)
        if counts is not None:
            counts.unmet.clear()  # every request has its own report; here they would grow for ever
        return Work(
            stats.decoder_calls,
            stats.decoder_rows,
            stats.encoder_calls,
            stats.target_tokens,
            stats.sentences,
        )

    def take_work(self) -> Work:
        """Return the counts of the work since the last call."""
        now, before = self.work_done(), self.last_work
        self.last_work = now
        return Work(**{name: value - getattr(before, name) for name, value in vars(now).items()})


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


# ---- The languages of a request to a model with many
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
        self.settings, self.driver = task.flags(), generator.driver
        self.targets = tuple(word[2:-2] for word in translator.sentences.language_words)
        self.sources: tuple[str, ...] = (self.settings.source_lang,) if self.targets else ()
        if isinstance(task, TranslationMultiSimpleEpochTask) and self.settings.fixed_dictionary:
            self.targets = self.sources = tuple(task.langs)
            for each in self.targets:
                task.dicts.setdefault(each, task.target_dictionary)
            spec = self.settings.langtoks["main"][1]
            if spec and not generator.options.settings.keeps_language_token:
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
        if isinstance(self.driver, GlossaryPlacement):
            self.driver.use_languages(*(two_letters(each or "") for each in pair))
