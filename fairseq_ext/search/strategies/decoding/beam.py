"""Beam search (`--decoding beam`, the default): the compiled and interpreted searches as one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch

from fairseq_ext.search.compiled import CompiledSearch
from fairseq_ext.search.constrained import ConstrainedSearch
from fairseq_ext.search.finished import Hypothesis, OnFinal
from fairseq_ext.search.interpreted import LoopSearch
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import SearchSetup
from fairseq_ext.search.registry import register
from fairseq_ext.search.scheduler import Request, Searcher, search_all


@register("decoding", "beam", neutral=({"decoding": "beam"},), paper="fairseq's own")
def build(flags, context) -> Callable[[SearchSetup], Callable[..., None]]:
    """From a setup to the driver (pool, answer)."""
    return BeamSearch


# ---- The searches of a generator as one
#
# A request goes to the first that knows all that it asks for; the loop knows everything.


class Searchers(Searcher):
    """Several searches that share a decoder; the last one takes every request."""

    def __init__(self, searchers: Sequence[Searcher]):
        self.searchers = searchers
        self.at: dict[Request, Searcher] = {}  # that has it; in the order in which they came

    @property
    def live(self) -> int:
        return sum(searcher.live for searcher in self.searchers)

    @property
    def rows(self) -> int:
        return sum(searcher.rows for searcher in self.searchers)

    def admit(self, requests: Sequence[Request]) -> None:
        pool = requests[0].batch
        taker = next(searcher for searcher in self.searchers if searcher.takes(pool))
        parts = [requests]
        if pool.alone:
            of_sentence = {request.sentence: request for request in requests}
            parts = [
                [of_sentence[sentence] for sentence in part]
                for part in pool.together(list(of_sentence))
            ]
        for part in parts:
            for searcher in self.searchers:
                if searcher is not taker:
                    searcher.set_aside()
            taker.admit(part)
            self.at |= dict.fromkeys(part, taker)

    def step(self, most: int = 1) -> list[Request]:
        busy = [searcher for searcher in self.searchers if searcher.live]
        return [
            request for searcher in busy for request in searcher.step(most if len(busy) == 1 else 1)
        ]

    def take(self, request: Request) -> list[Hypothesis] | None:
        found = self.at.pop(request).take(request)
        if found is None:
            self.searchers[-1].admit([request])
            self.at[request] = self.searchers[-1]
        return found

    def cancel(self, requests: Collection[Request]) -> None:
        for request in requests:
            self.at.pop(request).cancel([request])

    def common_prefix(self, request: Request) -> list[int]:
        return self.at[request].common_prefix(request)


def compiled(setup: SearchSetup) -> list[CompiledSearch | ConstrainedSearch]:
    """The compiled searches that know a generator's strategies."""
    kinds = (CompiledSearch, ConstrainedSearch)
    return [kind(setup) for kind in kinds if kind.knows(setup)]


@torch.no_grad()
def beam_search(setup: SearchSetup, pool: Pool, answer: OnFinal) -> None:
    """The driver of --decoding beam without the compiled searches: the definition."""
    search_all(
        setup.strategies.schedule,
        Searchers([LoopSearch(setup, pool)]),
        pool,
        setup.spec.nbest,
        setup.stats,
        answer,
    )


class BeamSearch:
    """The driver of --decoding beam."""

    def __init__(self, setup: SearchSetup):
        self.setup = setup
        self.compiled = compiled(setup)

    @torch.no_grad()
    def __call__(self, pool: Pool, answer: OnFinal) -> None:
        """Decode the pool's sentences `to_decode`; give `answer` each of them as
        soon as it is final."""
        self.clear()
        try:
            search_all(
                self.setup.strategies.schedule,
                Searchers([*self.compiled, LoopSearch(self.setup, pool)]),
                pool,
                self.setup.spec.nbest,
                self.setup.stats,
                answer,
            )
        except BaseException:  # whose memory goes now; the next call clears what this one leaves
            self.clear()
            raise

    def clear(self) -> None:
        """Empty the compiled searches, which are used again."""
        for searcher in self.compiled:
            searcher.clear()
