"""Requests through parallel decoding (`--decoding window` and the Jacobi methods), in one process, one after another.

A sentence that is alone is what these methods are made for: each call of the decoder reads many of its positions. So a request waits until
the one before it is done. What has been verified is told after every call, and a request that is cancelled ends there.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from fairseq_ext.engine.intake import Intake, Request, told
from fairseq_ext.engine.jobs import Partial
from fairseq_ext.parallel.driver import ParallelSearch
from fairseq_ext.parallel.rows import Iteration
from fairseq_ext.search.finished import Hypothesis
from fairseq_ext.session.pool_of import pool_of
from fairseq_ext.translator import Translator


class Cancelled(Exception):
    """Nobody waits for the sentence that is decoded."""


class OneAtATime(Intake):
    """Requests through parallel decoding. between: called after every call of the decoder; it may add and cancel, and take `events`."""

    def __init__(self, translator: Translator):
        super().__init__(translator, 1)
        assert isinstance(self.generator.driver, ParallelSearch)
        self.driver = self.generator.driver
        self.driver.trace = self.heard
        self.between: Callable[[], None] = lambda: None
        self.running: Request | None = None
        self.prefix: list[int] = []  # what has been verified of its translation

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.waiting or self.running)

    def cancel(self, number: int) -> None:
        """Forget a request; the one that is decoded ends after this call of the decoder."""
        self.waiting.pop(number, None)
        if self.running is not None and self.running.number == number:
            self.running = None

    def work(self) -> None:
        """Decode one request."""
        if not self.waiting:
            return
        _, request = self.waiting.popitem(last=False)
        self.running, self.prefix, request.started = request, [], time.monotonic()

        def take(sentence: int, found: list[Hypothesis]) -> None:
            if self.running is not None:
                self.answer(request, self.generator.answer(pool, sentence, found))

        try:
            pool = pool_of(self.translator, [request.tokens], [request.wanted])
            self.driver(pool, take)
        except Cancelled:
            pass
        except Exception as error:
            error.__traceback__ = None  # it would keep the search's tensors alive
            self.events.append((request.number, told(error)))
        self.running = None

    def heard(self, call: Iteration) -> None:
        """What a call of the decoder gave."""
        request = self.running
        if request is not None and request.job.streams:
            self.prefix[call.length :] = call.out[: call.verified].tolist()
            if len(self.prefix) > request.told:
                request.told = len(self.prefix)
                self.events.append((request.number, Partial(self.generator.target_text.text(self.prefix), len(self.prefix))))
        self.between()
        if self.running is None:
            raise Cancelled
