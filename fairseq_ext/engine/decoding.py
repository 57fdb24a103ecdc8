"""Requests through one beam search, in one process: started as the schedule says, decoded together, answered.

The search is never empty on purpose: at every step, as many requests start as there is room for (--stream-width sentences, or
--stream-rows rows); --refill-threshold waits until few are left, and --schedule batch until none is. While few requests
are there, each is decoded in one call, where that is less work (one_call.py).

A request whose preparation fails is answered with the error. When a step fails, whatever the reason, all its sentences run again, each
alone, so that the error goes to the request that is to blame.

With --constraint-draft-first a request is searched without its required phrases; where the draft misses one, it starts once more, with
them.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

import torch

from fairseq_ext.constraints.draft_first import without_phrases
from fairseq_ext.engine.intake import Intake, Request, told
from fairseq_ext.engine.jobs import Partial
from fairseq_ext.engine.one_call import OneCall
from fairseq_ext.search.finished import Hypothesis
from fairseq_ext.search.open_search import OpenSearch
from fairseq_ext.session.pool_of import pool_of
from fairseq_ext.translator import Translator


@dataclass(frozen=True)
class Refill:
    """When waiting requests start."""

    places: int  # most sentences at once
    threshold: float  # they start when at most this share of the places is taken

    def newcomers(self, live: int) -> int:
        """How many may start beside so many live sentences."""
        return self.places - live if live <= self.threshold * self.places else 0


class Decoding(Intake):
    """Requests through one beam search."""

    def __init__(self, translator: Translator, refill: Refill):
        super().__init__(translator, refill.places)
        self.refill = refill
        self.device = torch.device("cuda" if translator.cuda else "cpu")
        self.one_call = OneCall(self.generator.setup)
        self.alone: deque[Request] = deque()  # that run by themselves, after a step that failed
        self.clear()

    def clear(self) -> None:
        """Start with an empty search."""
        self.search = OpenSearch(self.generator.setup, self.refill.places, self.device)
        self.live: dict[int, Request] = {}  # by place
        self.place: dict[int, int] = {}  # by number

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.live or self.waiting or self.alone)

    def cancel(self, number: int) -> None:
        """Forget a request; its rows are free at the next step."""
        self.waiting.pop(number, None)
        self.alone = deque(request for request in self.alone if request.number != number)
        if number in self.place:
            place = self.place.pop(number)
            del self.live[place]
            self.search.cancel([place])

    def work(self) -> None:
        """Start what may start, and decode one step."""
        if not self.live and not self.alone and self.in_one_call():
            return
        newcomers = self.newcomers()
        try:
            if newcomers:
                self.start(newcomers)
            start = time.perf_counter()
            final = self.search.step()
            self.one_call.shared.add(len(self.live), time.perf_counter() - start)
            for place in final:
                self.finish(place)
            self.tell_prefixes()
        except Exception as error:
            self.fail(newcomers, error)

    def newcomers(self) -> list[Request]:
        """The requests that start now."""
        if self.alone:
            return [] if self.live else [self.alone.popleft()]
        room = min(self.refill.newcomers(len(self.live)), len(self.waiting)) if self.waiting else 0
        return [self.waiting.popitem(last=False)[1] for _ in range(room)]

    def in_one_call(self) -> bool:
        """Answer the request that came first in one call, where it has no constraints, nobody watches it, and that is less work than the
        shared search of all that wait; whether that was so."""
        number, request = next(iter(self.waiting.items()))
        is_free = request.wanted is None or request.wanted.is_free
        if request.job.streams or not is_free or not self.one_call.pays(request.tokens, len(self.waiting)):
            return False
        request.started = time.monotonic()
        try:
            pool = pool_of(self.translator, [request.tokens], [None])
            pool.constraints = None  # an engine that takes constraints gives every sentence some, if empty ones
            found = self.one_call(pool)
            if found is None:
                return False
            self.answer(request, self.generator.answer(pool, 0, found))
        except Exception as error:
            self.fail([request], error)
        del self.waiting[number]
        return True

    def start(self, requests: list[Request]) -> None:
        """Put these requests into the search."""
        drafts = [without_phrases(r.wanted) if r.is_draft and r.wanted is not None else r.wanted for r in requests]
        arrivals = pool_of(self.translator, [request.tokens for request in requests], drafts)
        order = arrivals.ids.tolist()
        requests = [requests[i] for i in order]
        places = self.search.admit(arrivals, [request.nbest for request in requests])
        now = time.monotonic()
        for place, request in zip(places, requests, strict=True):
            request.started = request.started or now
            self.live[place] = request
            self.place[request.number] = place

    def finish(self, place: int) -> None:
        """Answer a request whose search is over; a draft that misses a phrase starts once more, before all that wait."""
        request, found = self.live[place], self.search.take(place)
        misses = request.is_draft and not self.holds_all(request, found)
        if misses:
            request.is_draft = False
            self.waiting[request.number] = request
            self.waiting.move_to_end(request.number, last=False)
        else:
            if request.wanted is not None:
                self.search.pool.given[place] = request.wanted  # all of them are reported, a draft's too
            gap = found[0].ending.gap if found and found[0].ending is not None else None
            self.answer(request, self.generator.answer(self.search.pool, place, found), gap)
        self.search.leave(place)
        del self.live[place], self.place[request.number]

    def holds_all(self, request: Request, found: list[Hypothesis]) -> bool:
        """Whether a draft has all that is required of it."""
        assert request.wanted is not None
        meets = self.generator.meets(self.search.pool)
        return bool(found) and all(meets(found[0].tokens.tolist(), request.wanted, self.search.pool.ordered))

    def tell_prefixes(self) -> None:
        """Tell what has become certain of the requests that stream; nothing is of a draft."""
        for place, request in self.live.items():
            if request.job.streams and not request.is_draft:
                prefix = self.search.common_prefix(place)
                if len(prefix) > request.told:
                    request.told = len(prefix)
                    self.events.append((request.number, Partial(self.generator.target_text.text(prefix), len(prefix))))

    def fail(self, newcomers: list[Request], error: Exception) -> None:
        """A step has failed: its sentences run again alone; the one that was alone is to blame."""
        error.__traceback__ = None  # it would keep the step's tensors alive
        known = {request.number: request for request in [*newcomers, *self.live.values()]}
        if len(known) == 1:
            self.events.append((next(iter(known)), told(error)))
        else:
            self.alone.extend(request for request in known.values())
        self.clear()
