"""The search of one worker process: it starts requests, decodes them together and answers them.

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

import torch

from fairseq_ext.core.errors import NotANumber, halves
from fairseq_ext.engine.intake import Intake, JobRequest, Pair, reported_error
from fairseq_ext.engine.jobs import Partial
from fairseq_ext.plugin.calls import make_pool, pool_without_constraints
from fairseq_ext.search.constraints.drafts import elsewhere
from fairseq_ext.search.constraints.placement import GlossaryPlacement
from fairseq_ext.search.finished import Hypothesis
from fairseq_ext.search.interpreted import LoopSearch, OpenPool
from fairseq_ext.search.parallel.driver import ParallelSearch
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import Schedule
from fairseq_ext.search.scheduler import Searcher, Searchers
from fairseq_ext.search.strategies.decoding.beam import compiled
from fairseq_ext.search.strategies.stop.early import LengthRetry
from fairseq_ext.translator import Translator


class Decoding(Intake):
    """The live requests of a worker and their search.

    Call `add` and `cancel` at any time, `work` as long as it is `busy`; the results are in
    `events`.
    """

    def __init__(self, translator: Translator, schedule: Schedule, places: int):
        super().__init__(translator, schedule, places)
        driver = self.generator.driver
        self.placement = driver if isinstance(driver, GlossaryPlacement) else None
        forced = driver if self.placement is None else self.placement.forced
        self.shorter = forced if isinstance(forced, LengthRetry) else None
        # parts that run by themselves, after a step that failed
        self.apart: deque[list[JobRequest]] = deque()
        self.clear()

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
        return [*compiled(setup), LoopSearch(setup, OpenPool(self.places, setup.spec.pad, device))]

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
                self.generator.spec.seed if request.job.seed is None else request.job.seed
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
            and request.constraints.terms
        ):
            found = elsewhere(request.constraints, found)
        self.answer(request, self.generator.answer(pool, sentence, found))

    def report_prefixes(self) -> None:
        """Report the certain beginnings of the requests that stream. There is none for a
        request that may be searched again."""
        for request in self.live.values():
            again = (
                self.shorter is not None
                and request.constraints is not None
                and bool(request.constraints.required)
            )
            if request.job.streams and not request.is_draft and not again:
                self.report_prefix(request, self.search.common_prefix(request))

    def report_prefix(self, request: JobRequest, prefix: list[int]) -> None:
        """Report that an answer begins with these tokens, where these are more than before."""
        if len(prefix) > request.reported:
            request.reported = len(prefix)
            self.events.append(
                (request.number, Partial(self.generator.target_text.text(prefix), len(prefix)))
            )

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
