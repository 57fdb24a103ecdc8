"""Requests through beam search, in one process: started as the schedule says, decoded together, answered.

The search is never empty on purpose: every few steps (`Refill.steps`), or at once where nothing runs, as many requests start as there is
room for (--stream-width sentences, or --stream-rows rows); --refill-threshold waits until few are left, and --schedule batch until none is.
Requests without constraints, and those with required phrases, are decoded in compiled steps, where there are such (compiled.py), all
others in those of the loop.

A request whose preparation fails is answered with the error. When a step fails, whatever the reason, all its sentences run again, each
alone, so that the error goes to the request that is to blame.

With --constraint-draft-first a request is searched without its required phrases, and with --glossary-placement align without its glossary
terms, which are then written into the draft. Where the draft lacks a phrase after that, the request starts once more, with all of them.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, replace

import torch

from fairseq_ext.engine.compiled import Compiled, Plain, WithPhrases
from fairseq_ext.engine.intake import Intake, Request, told
from fairseq_ext.engine.jobs import Partial
from fairseq_ext.errors import NotANumber
from fairseq_ext.placement.align import GlossaryPlacement, elsewhere
from fairseq_ext.search import compiled_search, constrained
from fairseq_ext.search.finished import Hypothesis
from fairseq_ext.search.open_search import OpenSearch
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.state import SearchSetup
from fairseq_ext.session.pool_of import pool_of
from fairseq_ext.translator import Translator


@dataclass(frozen=True)
class Refill:
    """When waiting requests start."""

    places: int  # most sentences at once
    threshold: float  # they start when at most this share of the places is taken
    steps: int = 8  # between two starts: an encoder call has costs that several sentences share

    def newcomers(self, live: int, since: int) -> int:
        """How many may start beside so many live sentences, so many steps after the last start."""
        if live and (live > self.threshold * self.places or since < self.steps):
            return 0
        return self.places - live


class Decoding(Intake):
    """Requests through beam search."""

    def __init__(self, translator: Translator, refill: Refill):
        super().__init__(translator, refill.places)
        self.refill = refill
        self.device = torch.device("cuda" if translator.cuda else "cpu")
        setup, driver = self.generator.setup, self.generator.driver
        self.placement = driver if isinstance(driver, GlossaryPlacement) else None
        plugs = replace(setup.plugs, select=setup.plugs.select.unconstrained(), stop=setup.plugs.stop.unconstrained())
        of_plain = replace(setup, plugs=plugs)
        self.kinds: dict[type[Compiled], SearchSetup] = {}  # the compiled searches that there may be, with what they search by
        if setup.decoder.is_compiled and compiled_search.knows(of_plain):
            self.kinds[Plain] = of_plain
        if setup.decoder.is_compiled and constrained.knows(setup):
            self.kinds[WithPhrases] = setup
        self.alone: deque[Request] = deque()  # that run by themselves, after a step that failed
        self.since = 0  # steps since requests started
        self.clear()

    def clear(self) -> None:
        """Start with no live requests."""
        self.search = OpenSearch(self.generator.setup, self.refill.places, self.device)
        self.live: dict[int, Request] = {}  # by place
        self.compiled = [kind(self.translator, setup) for kind, setup in self.kinds.items()]

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.started or self.waiting or self.alone)

    @property
    def started(self) -> int:
        """How many requests are being decoded."""
        return len(self.live) + sum(len(compiled.held) for compiled in self.compiled)

    def cancel(self, number: int) -> None:
        """Forget a request; its rows are free at the next step."""
        self.waiting.pop(number, None)
        self.alone = deque(request for request in self.alone if request.number != number)
        for place, request in self.live.items():
            if request.number == number:
                del self.live[place]
                return self.search.cancel([place])
        any(compiled.cancel(number) for compiled in self.compiled)

    def work(self) -> None:
        """Start what may start, and decode one step."""
        newcomers = self.newcomers()
        try:
            if newcomers:
                self.start(newcomers)
                newcomers = []  # a search has each of them now
            for place in self.search.step():
                self.finish(place)
            for compiled in self.compiled:
                for place in compiled.search.step():
                    self.finish_compiled(compiled, place)
            self.since += 1
            self.tell_prefixes()
        except Exception as error:
            self.fail(newcomers, error)

    def newcomers(self) -> list[Request]:
        """The requests that start now."""
        if self.alone:
            return [] if self.started else [self.alone.popleft()]
        room = min(self.refill.newcomers(self.started, self.since), len(self.waiting)) if self.waiting else 0
        return [self.waiting.popitem(last=False)[1] for _ in range(room)]

    def start(self, requests: list[Request]) -> None:
        """Put these requests into the searches."""
        now, self.since = time.monotonic(), 0
        for request in requests:
            request.started = request.started or now
        for compiled in list(self.compiled):
            known = [request for request in requests if compiled.knows(request)]
            if known and self.start_compiled(compiled, known):
                requests = [request for request in requests if not compiled.knows(request)]
        if requests:
            self.start_in_loop(requests)

    def start_compiled(self, compiled: Compiled, requests: list[Request]) -> bool:
        """Put requests into a compiled search. False where the flags force something on every sentence that the search does not know; then
        it is not asked again."""
        pool = compiled.pool(requests)
        self.search.set_aside()
        is_known = compiled.start(pool, requests)
        if not is_known:
            self.compiled.remove(compiled)
            del self.kinds[type(compiled)]
        return is_known

    def start_in_loop(self, requests: list[Request]) -> None:
        """Put requests into the loop's search."""
        arrivals = pool_of(self.translator, [request.tokens for request in requests], [request.sought for request in requests])
        requests = [requests[i] for i in arrivals.ids.tolist()]
        places = self.search.admit(arrivals, [request.hypotheses for request in requests])
        self.live |= zip(places, requests, strict=True)

    def finish(self, place: int) -> None:
        """Answer a request whose search is over."""
        self.settle(self.live[place], self.search.pool, place, self.search.take(place))
        self.search.leave(place)
        del self.live[place]

    def finish_compiled(self, compiled: Compiled, place: int) -> None:
        """Answer a request whose compiled search is over; one that it cannot decode goes to the loop."""
        held = compiled.held[place]  # until it is answered: a step that fails runs it again
        request = held.request
        try:
            found = compiled.take(place)
        except NotANumber as error:
            self.events.append((request.number, told(error)))
        else:
            if found is None:
                self.search_again(request)
            else:
                self.settle(request, held.pool, held.sentence, found)
        del compiled.held[place]

    def settle(self, request: Request, pool: Pool, sentence: int, found: list[Hypothesis]) -> None:
        """Answer a request with what the search has found; a draft that lacks phrases is searched once more, with them."""
        if request.is_draft:
            pool, sentence = pool_of(self.translator, [request.tokens], [request.wanted]), 0
            complete = self.completed(request, pool, found)
            if complete is None:
                request.sought, request.hypotheses = request.wanted, request.nbest
                return self.search_again(request)
            found = complete
        elif self.placement is not None and request.wanted is not None and request.wanted.terms:
            found = elsewhere(request.wanted, found)
        self.answer(request, self.generator.answer(pool, sentence, found), gap_of(found))

    def completed(self, request: Request, pool: Pool, drafts: list[Hypothesis]) -> list[Hypothesis] | None:
        """A draft's hypotheses with all that is required, best first; None where they lack something. pool: of the request alone."""
        if self.placement is not None:
            return self.placement.placed(pool, [self.placement.sentence(pool, 0, drafts, request.nbest)])[0] if drafts else drafts
        assert request.wanted is not None
        has_all = drafts and all(self.generator.meets(pool)(drafts[0].tokens.tolist(), request.wanted, pool.ordered))
        return drafts if has_all else None

    def search_again(self, request: Request) -> None:
        """Start a request once more in the loop or with its phrases, before all that wait."""
        request.is_plain = False
        self.waiting[request.number] = request
        self.waiting.move_to_end(request.number, last=False)

    def tell_prefixes(self) -> None:
        """Tell what has become certain of the requests that stream; nothing is of a draft."""
        for place, request in self.live.items():
            if request.job.streams and not request.is_draft:
                self.tell(request, self.search.common_prefix(place))
        for compiled in self.compiled:
            for place, held in compiled.held.items():
                if held.request.job.streams and not held.request.is_draft:
                    self.tell(held.request, compiled.search.common_prefix(place))

    def tell(self, request: Request, prefix: list[int]) -> None:
        """Tell that an answer begins with these tokens, where that is more than has been told."""
        if len(prefix) > request.told:
            request.told = len(prefix)
            self.events.append((request.number, Partial(self.generator.target_text.text(prefix), len(prefix))))

    def fail(self, newcomers: list[Request], error: Exception) -> None:
        """A step has failed: its sentences run again alone; the one that was alone is to blame."""
        error.__traceback__ = None  # it would keep the step's tensors alive
        in_compiled = [held.request for compiled in self.compiled for held in compiled.held.values()]
        known = {request.number: request for request in [*newcomers, *self.live.values(), *in_compiled]}
        if len(known) == 1:
            self.events.append((next(iter(known)), told(error)))
        else:
            self.alone.extend(request for request in known.values())
        self.clear()


def gap_of(found: list[Hypothesis]) -> float | None:
    """What the certificate of an answer leaves open, in nats; None where there is none."""
    return found[0].ending.gap if found and found[0].ending is not None else None
