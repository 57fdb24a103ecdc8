"""Requests in the compiled searches: those without constraints (search/compiled_search.py), and those whose only constraints are phrases
that must appear (search/open_constrained.py). What they do not take is for the loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from fairseq_ext.engine.intake import Request
from fairseq_ext.search.compiled_search import CompiledSearch, is_plain
from fairseq_ext.search.constrained import banks_of
from fairseq_ext.search.finished import Hypothesis
from fairseq_ext.search.open_constrained import OpenConstrained
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.state import SearchSetup
from fairseq_ext.session.pool_of import pool_of, pool_without_constraints
from fairseq_ext.translator import Translator

S = TypeVar("S", CompiledSearch, OpenConstrained)


@dataclass(frozen=True)
class Held:
    """A request in a compiled search."""

    request: Request
    pool: Pool  # that it came in
    sentence: int  # there


class Compiled(ABC, Generic[S]):
    """A compiled search and its requests."""

    def __init__(self, translator: Translator, setup: SearchSetup):
        self.translator = translator
        self.search: S = self.made(setup)
        self.held: dict[int, Held] = {}  # by place

    @staticmethod
    @abstractmethod
    def made(setup: SearchSetup) -> S:
        """The search, without sentences."""

    @abstractmethod
    def knows(self, request: Request) -> bool:
        """Whether the search can decode a request."""

    @abstractmethod
    def pool(self, requests: Sequence[Request]) -> Pool:
        """These requests as a pool, whose ids are their places here."""

    @abstractmethod
    def admit(self, pool: Pool, requests: Sequence[Request]) -> list[int] | None:
        """Start the sentences of a pool, which are those of the requests; their places. None where the flags force something on every
        sentence that the search does not know."""

    @abstractmethod
    def take(self, place: int) -> list[Hypothesis] | None:
        """The hypotheses of a sentence that has ended; None where it is for the loop. Raises NotANumber where the model gives NaN."""

    def start(self, pool: Pool, requests: Sequence[Request]) -> bool:
        """Put requests, whose pool it is, into the search; False where the flags force something on all that it does not know."""
        of_sentence = [requests[number] for number in pool.ids.tolist()]
        places = self.admit(pool, of_sentence)
        for i, place in enumerate(places or ()):
            self.held[place] = Held(of_sentence[i], pool, i)
        return places is not None

    def cancel(self, number: int) -> bool:
        """Forget a request; whether it was here."""
        place = next((place for place, held in self.held.items() if held.request.number == number), None)
        if place is not None:
            del self.held[place]
            self.search.cancel([place])
        return place is not None


class Plain(Compiled[CompiledSearch]):
    """Requests without constraints."""

    @staticmethod
    def made(setup: SearchSetup) -> CompiledSearch:
        return CompiledSearch(setup)

    def knows(self, request: Request) -> bool:
        return request.is_plain

    def pool(self, requests: Sequence[Request]) -> Pool:
        return pool_without_constraints(self.translator, [request.tokens for request in requests])

    def admit(self, pool: Pool, requests: Sequence[Request]) -> list[int] | None:
        sentences, hypotheses = list(range(len(requests))), [request.hypotheses for request in requests]
        return self.search.admit(pool, sentences, hypotheses) if is_plain(pool) else None

    def take(self, place: int) -> list[Hypothesis] | None:
        return self.search.take(place, self.held[place].request.hypotheses)


class WithPhrases(Compiled[OpenConstrained]):
    """Requests with phrases that must appear, and no other constraints."""

    @staticmethod
    def made(setup: SearchSetup) -> OpenConstrained:
        return OpenConstrained(setup)

    def knows(self, request: Request) -> bool:
        sought = request.sought
        return sought is not None and bool(sought.any_of) and not (sought.banned or sought.prefix)

    def pool(self, requests: Sequence[Request]) -> Pool:
        return pool_of(self.translator, [request.tokens for request in requests], [request.sought for request in requests])

    def admit(self, pool: Pool, requests: Sequence[Request]) -> list[int] | None:
        banks = banks_of(self.search.setup, pool)
        return None if banks is None else self.search.admit(pool, banks, [request.hypotheses for request in requests])

    def take(self, place: int) -> list[Hypothesis] | None:
        return self.search.take(place)
