"""A search that never ends: sentences are added and cancelled between any two steps, each with an n-best list of its own.

Continuous batching for a server. When sentences start is the caller's business (`admit`); all else is loop.py's. The hypotheses of a
sentence are those that the search finds for it alone, whatever comes and goes beside it, so long as no strategy shares anything between
sentences (`shares` of the softmax).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch

from fairseq_ext.constraints.sentence import EMPTY
from fairseq_ext.search.finished import Finished, Hypothesis
from fairseq_ext.search.loop import advance_group, start
from fairseq_ext.search.open_pool import OpenPool
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.state import Search, SearchSetup


class OpenSearch:
    """A beam search over places. A sentence has a place from `admit` to `take` or `cancel`."""

    def __init__(self, setup: SearchSetup, places: int, device: torch.device):
        self.pool = OpenPool(places, setup.spec.pad, device)
        self.search = Search(setup, self.pool)
        self.search.plugs = replace(setup.plugs)
        self.constrained, self.plain = setup.plugs.select, setup.plugs.select.unconstrained()
        self.search.finished = Finished.empty(places, setup.spec.k, device)

    @property
    def live(self) -> int:
        """Sentences that have a place."""
        return len(self.pool) - len(self.pool.free)

    @property
    def rows(self) -> int:
        """Rows of all of them."""
        return self.search.groups.rows

    @torch.no_grad()
    def admit(self, arrivals: Pool, nbest: Collection[int]) -> list[int]:
        """Start the sentences of a pool; return their places. nbest: of each, how many hypotheses are asked for, at most the beam."""
        search = self.search
        places = self.put(arrivals)
        for place, n in zip(places, nbest, strict=True):
            search.finished.start_(place, n)
        if not search.plugs.softmax.is_full:
            self.pool.required = search.plugs.select.required_ids(self.pool)
        start(search, places)
        return places

    def put(self, arrivals: Pool) -> list[int]:
        """Put sentences into the pool; return their places. The row state of live rows is fitted to the changed pool.

        While no sentence of the pool has constraints, the faster plug of `Select.unconstrained` selects.
        """
        plugs, beams, places = self.search.plugs, [group.beam for group in self.search.groups.groups], []

        def change() -> None:
            places.extend(self.pool.put_(arrivals))

        before = plugs.select
        before.follow(beams, self.pool, change)
        plugs.select = self.constrained if any(given is not EMPTY for given in self.pool.given) else self.plain
        for beam in beams if plugs.select is not before else ():
            beam.aux.clear()
            plugs.select.start(beam, self.pool)  # whatever such a sentence has chosen, it has begun no phrase
        return places

    def step(self) -> list[int]:
        """Add a token to the rows of one group; return the places whose sentences are final now. Callers hold torch.no_grad,
        else autograd records every step."""
        return advance_group(self.search) if self.search.groups.groups else []

    def set_aside(self) -> None:
        """Leave the decoder to another search until the next step."""
        self.search.groups.set_aside()

    def cancel(self, places: Collection[int]) -> None:
        """End sentences without an answer; their rows are free for the next step."""
        self.search.groups.drop(set(places))
        for place in places:
            self.pool.leave_(place)

    def take(self, place: int) -> list[Hypothesis]:
        """The hypotheses of a sentence that is final, best first. Its place stays taken until `leave`."""
        return self.search.finished.take(place, self.search.plugs.stop.answers(place))

    def leave(self, place: int) -> None:
        """Make the place of a final sentence free."""
        self.pool.leave_(place)

    def common_prefix(self, place: int) -> list[int]:
        """The tokens that every hypothesis of a live sentence begins with, so that its answer does: of all live rows and of what is
        finished."""
        rows: list[list[int]] = []
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


def common_prefix(rows: Sequence[Sequence[int]]) -> list[int]:
    """The tokens that all rows begin with; none where there are no rows."""
    first, last = (list(edge(map(tuple, rows), default=())) for edge in (min, max))
    # of rows in order, what the outermost two have in common all have
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[:same]
