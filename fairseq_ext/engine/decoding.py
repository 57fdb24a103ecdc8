"""The search of one worker process: it starts requests, decodes them together and answers them.

A request is segmented and checked when it arrives, so that its errors are reported at once.

Every few steps, or at once if no request is live, as many requests start as there is room for
(--stream-width sentences, or --stream-rows rows). --refill-threshold waits until few are live, and
--schedule batch until none is. With another --decoding than beam, requests are decoded one after
another, since these methods are made for single sentences.

A request whose preparation fails is answered with the error. If a step fails, for any reason, all
its sentences run again, in halves until the one that fails is alone; its request gets the error.

With --glossary-placement align a request is searched without its glossary terms, which are then
written into the draft. If there is no place for a term, or it fits badly there, the request is
searched again with that term required; if the result lacks another phrase, with all of them.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fairseq_ext.core.errors import NotANumber, UsageError, explain, halves
from fairseq_ext.engine.jobs import Job, Partial, Work
from fairseq_ext.engine.languages import LanguagesOfRequests, Pair
from fairseq_ext.engine.requirements import Requirements
from fairseq_ext.plugin.calls import make_pool, pool_without_constraints
from fairseq_ext.plugin.loading.settings import TooLong
from fairseq_ext.search.constraints.drafts import SEARCHED, elsewhere
from fairseq_ext.search.constraints.placement import GlossaryPlacement
from fairseq_ext.search.constraints.report import ConstraintCounts
from fairseq_ext.search.finished import Hypothesis
from fairseq_ext.search.interpreted import LoopSearch, OpenPool
from fairseq_ext.search.mbr import check_seed
from fairseq_ext.search.parallel.driver import ParallelSearch
from fairseq_ext.search.phrases.sentence import SentenceConstraints
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import Schedule
from fairseq_ext.search.report import Report, Translation
from fairseq_ext.search.scheduler import Request, Scheduler, Searcher, Searchers
from fairseq_ext.search.strategies.decoding.beam import compiled
from fairseq_ext.search.strategies.stop.early import LengthRetry
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
        self.scheduler: Scheduler[JobRequest] = Scheduler(schedule)
        self.requirements = Requirements(translator, no_constraints)
        self.languages = LanguagesOfRequests(translator)
        self.events: list[Event] = []
        self.last_work = Work()
        self.take_work()
        driver = self.generator.driver
        self.placement = driver if isinstance(driver, GlossaryPlacement) else None
        forced = driver if self.placement is None else self.placement.forced
        self.shorter = forced if isinstance(forced, LengthRetry) else None
        # parts that run by themselves, after a step that failed
        self.apart: deque[list[JobRequest]] = deque()
        self.clear()

    def add(self, number: int, job: Job) -> None:
        """Check a request and let it wait for its start, or answer it with its error."""
        try:
            check_seed(job.seed, self.translator.generator.settings)
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
        translator, setup = self.translator, self.generator.setup
        nbest = translator.nbest if job.nbest is None else job.nbest
        if not 1 <= nbest <= setup.k:
            raise UsageError(
                f"nbest is {nbest} and the beam is {setup.k}: ask for 1 to {setup.k} hypotheses"
            )
        tokens = translator.checked(job.source, "the source")
        if self.longest is not None and tokens.numel() > self.longest:
            raise TooLong(
                f"the source has {tokens.numel()} tokens and the limit is {self.longest}: "
                "shorten or split it"
            )
        constraints = self.requirements.of_job(job, tokens)
        search_constraints = constraints
        searched = nbest if self.generator.bayes_risk is None else setup.k
        if constraints is not None and constraints.is_placed:
            search_constraints = constraints.without_terms()
            searched = min(setup.k, max(nbest, SEARCHED))
        return JobRequest(
            number,
            searched,
            searched,
            job=job,
            tokens=tokens,
            requested=nbest,
            constraints=constraints,
            search_constraints=search_constraints,
        )

    def clear(self) -> None:
        """Drop all live requests and make new searches."""
        self.live: dict[int, JobRequest] = {}  # by number
        self.search = Searchers(self.searchers())

    def searchers(self) -> list[Searcher]:
        """Return the searches that --decoding names, without requests."""
        setup, driver = self.generator.setup, self.generator.driver
        if isinstance(driver, ParallelSearch):
            driver.clear()
            return [driver]
        device = torch.device("cuda" if self.translator.cuda else "cpu")
        return [*compiled(setup), LoopSearch(setup, OpenPool(self.places, setup.pad, device))]

    @property
    def busy(self) -> bool:
        """Whether requests are live or wait."""
        return bool(self.live or self.scheduler.waiting or self.apart)

    def cancel(self, number: int) -> None:
        """Drop a request; its rows are free at the next step."""
        self.scheduler.cancel(number)
        left = ([each for each in part if each.number != number] for part in self.apart)
        self.apart = deque(part for part in left if part)
        if (request := self.live.pop(number, None)) is not None:
            self.search.cancel([request])

    def work(self) -> None:
        """Start the requests that the schedule allows, and decode one step."""
        arrivals = self.arrivals()
        try:
            self.start(arrivals)
            arrivals = []  # a search has each of them now
            for request in self.search.step():
                self.finish(self.live[request.number])
            self.report_prefixes()
        except Exception as error:
            self.fail(arrivals, error)

    def arrivals(self) -> list[JobRequest]:
        """Return the requests that start now."""
        if self.apart:
            return [] if self.live else self.apart.popleft()
        return self.scheduler.start(len(self.live), self.search.rows)

    def start(self, requests: list[JobRequest]) -> None:
        """Put these requests into the search, in a batch for each of its searchers and for each
        kind of constraints."""
        now = time.monotonic()
        batches: dict[tuple[Searcher, bool, bool, Pair | None], list[JobRequest]] = {}
        for request in requests:
            request.started = request.started or now
            taker = next(
                searcher
                for searcher in self.search.searchers
                if searcher.supports_constraints(request.search_constraints)
            )
            given = request.search_constraints
            is_unconstrained = given is None or given.is_empty
            has_outputs = given is not None and given.allowed is not None
            key = (taker, is_unconstrained, has_outputs, request.job.languages)
            batches.setdefault(key, []).append(request)
        for (_, is_unconstrained, _, languages), batch in batches.items():
            tokens = [request.tokens for request in batch]
            with self.languages.selected(languages):
                if is_unconstrained:
                    pool = pool_without_constraints(self.translator, tokens)
                else:
                    pool = make_pool(
                        self.translator, tokens, [request.search_constraints for request in batch]
                    )
            batch = [batch[i] for i in pool.ids.tolist()]
            # random numbers of samples depend on the number, and on no neighbour
            pool.ids = pool.ids.new_tensor([request.job.number for request in batch])
            pool.seeds = [
                self.generator.setup.seed if request.job.seed is None else request.job.seed
                for request in batch
            ]
            for sentence, request in enumerate(batch):
                request.pool, request.sentence = pool, sentence
                pool.max_len[sentence] = request.room or pool.max_len[sentence]
            self.search.admit(batch)
            self.live |= {request.number: request for request in batch}

    def finish(self, request: JobRequest) -> None:
        """Answer a request whose search is over."""
        try:
            found = self.search.take(request)
        except NotANumber as error:
            self.events.append((request.number, reported_error(error)))
        else:
            if found is None:
                return
            with self.languages.selected(request.job.languages):
                self.settle(request, request.batch, request.sentence, found)
        del self.live[request.number]  # now: a step that fails runs it again

    def settle(
        self, request: JobRequest, pool: Pool, sentence: int, found: list[Hypothesis]
    ) -> None:
        """Answer a request with what the search has found.

        A request that has reached its length limit is searched again with a lower limit. A draft
        that lacks phrases is searched again with them.
        """
        if self.shorter is not None and request.room is not None:
            found, request.room = self.shorter.choose(pool, sentence, request.long, found), None
        elif (
            self.shorter is not None
            and (room := self.shorter.retry_limit(pool, sentence, found)) is not None
        ):
            request.room, request.long = room, found
            return self.scheduler.add(request, first=True)
        if self.placement is not None and request.is_draft and found:
            pool, sentence = make_pool(self.translator, [request.tokens], [request.constraints]), 0
            placed = self.placement.sentence(pool, 0, found, request.requested)
            with_terms = self.placement.placed(pool, [placed])[0]
            if with_terms is None:
                request.search_constraints = request.constraints
                request.nbest = request.most = request.requested
                return self.scheduler.add(request, first=True)
            found = with_terms
        elif (
            self.placement is not None
            and request.constraints is not None
            and request.constraints.is_placed
        ):
            found = elsewhere(request.constraints, found)
        self.answer(request, self.generator.answer(pool, sentence, found))

    def answer(self, request: JobRequest, found: list[Hypothesis]) -> None:
        """Answer a request with its hypotheses, best first."""
        hypotheses = [self.translator.translation(h) for h in found[: request.requested]]
        if request.job.align:
            self.translator.align([request.job.source] * len(hypotheses), hypotheses)
        job, started = request.job, request.started
        constraints = self.requirements.report(
            job, request.tokens, request.constraints, hypotheses[0]
        )
        times = started - job.submitted, time.monotonic() - started
        self.events.append((request.number, Report(hypotheses, constraints, *times)))

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
        """Report the certain beginnings of the requests that stream, where they have grown.

        There is none for a request that may be searched again.
        """
        for request in self.live.values():
            again = (
                self.shorter is not None
                and request.constraints is not None
                and bool(request.constraints.required)
            )
            if not request.job.streams or request.is_draft or again:
                continue
            prefix = self.search.common_prefix(request)
            if len(prefix) > request.reported:
                request.reported = len(prefix)
                part = Partial(self.generator.target_text.text(prefix), len(prefix))
                self.events.append((request.number, part))

    def fail(self, arrivals: list[JobRequest], error: Exception) -> None:
        """Handle a failed step: its sentences run again in halves, until the one that fails is
        alone."""
        error.__traceback__ = None  # it would keep the step's tensors alive
        known = {request.number: request for request in [*arrivals, *self.live.values()]}
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
