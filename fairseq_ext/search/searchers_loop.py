"""The loop as a searcher: sentences start and are cancelled between any two steps, each with an n-best list of its own.

The sentences are those of one batch, or come and go in an `OpenPool`. The hypotheses of a sentence are those that the search finds for it
alone, whatever comes and goes beside it, so long as no strategy shares anything between sentences (`shares` of the softmax).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property

import torch

from fairseq_ext.search.finished import Finished, Hypothesis
from fairseq_ext.search.loop import advance_group, start
from fairseq_ext.search.open_pool import OpenPool
from fairseq_ext.search.phrases.sentence import EMPTY
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocol import Searcher, common_prefix
from fairseq_ext.search.protocols import SearchSetup
from fairseq_ext.search.request import Request
from fairseq_ext.search.state import Search


class LoopSearch(Searcher):
    """Beam search with every strategy. pool: the batch whose sentences are requested, or an OpenPool for those of any batch."""

    def __init__(self, setup: SearchSetup, pool: Pool):
        self.setup, self.pool = setup, pool
        self.at: dict[int, Request] = {}  # by pool number
        self.place: dict[Request, int] = {}  # the pool number of each

    @cached_property
    def search(self) -> Search:
        """The state of the loop, made when the first request comes."""
        if not isinstance(self.pool, OpenPool):
            return Search(self.setup, self.pool)
        search = Search(replace(self.setup, strategies=replace(self.setup.strategies)), self.pool)
        search.finished = Finished.empty(len(self.pool), self.setup.spec.k, self.pool.length.device)
        return search

    @property
    def live(self) -> int:
        return len(self.at)

    @property
    def rows(self) -> int:
        return self.search.groups.rows if self.at else 0

    @torch.no_grad()
    def admit(self, requests: Sequence[Request]) -> None:
        search, places = self.search, [request.sentence for request in requests]
        if isinstance(self.pool, OpenPool):
            places = self.put(self.pool, requests[0].batch, places)
            for place, request in zip(places, requests, strict=True):
                search.finished.start_(place, request.nbest)
            if not search.strategies.softmax.is_full:
                self.pool.required = search.strategies.select.required_ids(self.pool)
        self.at |= zip(places, requests, strict=True)
        self.place |= zip(requests, places, strict=True)
        start(search, places)

    def put(self, pool: OpenPool, arrivals: Pool, sentences: Sequence[int]) -> list[int]:
        """Put sentences into the pool; return their places. The row state of live rows is fitted to the changed pool.

        While no sentence of the pool has constraints, the faster strategy of `Select.unconstrained` selects.
        """
        strategies, beams, places = self.search.strategies, [group.beam for group in self.search.groups.groups], []

        def change() -> None:
            places.extend(pool.put_(arrivals, sentences))

        before, select = strategies.select, self.setup.strategies.select
        before.follow(beams, pool, change)
        strategies.select = select if any(given is not EMPTY for given in pool.given) else select.unconstrained()
        for beam in beams if strategies.select is not before else ():
            beam.aux.clear()
            strategies.select.start(beam, pool)  # whatever such a sentence has chosen, it has begun no phrase
        return places

    def step(self, most: int = 1) -> list[Request]:
        for _ in range(most):
            if ended := advance_group(self.search):
                return [self.at[place] for place in ended]
        return []

    def set_aside(self) -> None:
        if self.at:
            self.search.groups.set_aside()

    def take(self, request: Request) -> list[Hypothesis]:
        place = self.place[request]
        found = self.search.finished.take(place, self.search.strategies.stop.answers(place))
        self.leave(request)
        return found

    def cancel(self, requests: Collection[Request]) -> None:
        self.search.groups.drop({self.place[request] for request in requests})
        for request in requests:
            self.leave(request)

    def leave(self, request: Request) -> None:
        """Make the place of a request free."""
        place = self.place.pop(request)
        del self.at[place]
        if isinstance(self.pool, OpenPool):
            self.pool.leave_(place)

    def common_prefix(self, request: Request) -> list[int]:
        place, rows = self.place[request], []
        for group in self.search.groups.groups:
            beam = group.beam
            if place in beam.live:
                i = beam.live.index(place)
                first, behind = beam.bounds()[i : i + 2].tolist()
                lag = 0 if beam.lags is None else beam.lags[i]
                possible = beam.last_score()[first:behind] > -torch.inf
                rows += beam.tokens[first:behind, 1 + lag :][possible].tolist()
        for finished, i in self.search.finished.of[place]:
            rows.append(finished.tokens[i, finished.lag[i] if finished.lag is not None else 0 :].tolist())
        return common_prefix(rows)
