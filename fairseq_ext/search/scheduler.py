"""The queue of sentences that wait for their start, and the loop around every searcher."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

from fairseq_ext.core.stats import Stats
from fairseq_ext.kernels.beam import STEPS
from fairseq_ext.search.finished import OnFinal
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocol import Searcher
from fairseq_ext.search.protocols import Schedule
from fairseq_ext.search.request import Request

R = TypeVar("R", bound=Request)


class Scheduler(Generic[R]):
    """Requests that wait, first come first served. They start when the schedule says so."""

    def __init__(self, schedule: Schedule):
        self.schedule = schedule
        self.waiting: OrderedDict[int, R] = OrderedDict()
        self.since = 0  # steps since requests started

    def __len__(self) -> int:
        return len(self.waiting)

    def add(self, request: R, first: bool = False) -> None:
        """Put a request behind all that wait, or before them."""
        self.waiting[request.number] = request
        if first:
            self.waiting.move_to_end(request.number, last=False)

    def cancel(self, number: int) -> None:
        """Forget a request, if it waits here."""
        self.waiting.pop(number, None)

    def start(self, live: int, rows: int) -> list[R]:
        """Take out the requests that start now, beside so many sentences and their rows. To be asked before each step."""
        self.since += 1
        n = self.schedule(len(self.waiting), live, rows, self.since) if self.waiting else 0
        if n:
            self.since = 0
        return [self.waiting.popitem(last=False)[1] for _ in range(n)]

    def steps(self, live: int, rows: int) -> int:
        """How many steps may pass before it is asked again, unless a sentence ends."""
        if not self.waiting:
            return STEPS
        # where rows are counted, any step may make room for a new sentence
        waits = self.schedule.most_rows is not None or self.schedule(len(self.waiting), live, rows, self.since)
        return 1 if waits else STEPS


def search_all(schedule: Schedule, searcher: Searcher, pool: Pool, nbest: int, stats: Stats, answer: OnFinal) -> None:
    """Decode the pool's sentences `to_decode`; give `answer` each of them as soon as it is final. nbest: length of their lists."""
    scheduler: Scheduler[Request] = Scheduler(schedule)
    has_started = False
    for sentence in pool.sentences_to_decode():
        scheduler.add(Request(sentence, nbest, pool=pool, sentence=sentence))
    while True:
        if newcomers := scheduler.start(searcher.live, searcher.rows):
            if has_started and stats.refills is not None:
                stats.refill()
            searcher.admit(newcomers)
            has_started = True
        if not searcher.live:
            return
        for request in searcher.step(scheduler.steps(searcher.live, searcher.rows)):
            found = searcher.take(request)
            if found is not None:
                answer(request.sentence, found)
