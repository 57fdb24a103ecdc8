"""The driver of beam search (at the end), its queue of sentences (`Entry`), and the protocol of all
searchers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import torch

from fairseq_ext.core.stats import Stats
from fairseq_ext.kernels.beam import STEPS
from fairseq_ext.search.finished import Hypothesis, OnFinal
from fairseq_ext.search.phrases.sentence import SentenceConstraints
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import Schedule, Setup

# ---- Entries, and the queue


@dataclass(eq=False)
class Entry:
    """A sentence of a pool in the queue and in a search, until it has its hypotheses. A caller may
    add fields in a subclass."""

    number: int  # chosen by the caller; unique among the entries of a Scheduler
    nbest: int  # length of the n-best list that is searched
    most: int | None = None  # hypotheses to return, at most; None: all
    pool: Pool | None = None  # the batch that it is encoded in; None before that
    sentence: int = 0  # its number in that pool

    @property
    def batch(self) -> Pool:
        """The batch that it is encoded in."""
        assert self.pool is not None
        return self.pool


R = TypeVar("R", bound=Entry)


class WholeBatch(Schedule):
    """Starts every sentence at once (`--schedule batch`)."""

    def __call__(self, waiting: int, live: int, rows: int, since: int) -> int:
        return waiting


class Scheduler(Generic[R]):
    """Waiting entries, first come first served; the schedule decides when they start."""

    def __init__(self, schedule: Schedule):
        self.schedule = schedule
        self.waiting: OrderedDict[int, R] = OrderedDict()
        self.since = 0  # steps since entries started
        self.begun = 0  # entries started since none was live

    def __len__(self) -> int:
        return len(self.waiting)

    def add(self, entry: R, first: bool = False) -> None:
        """Add an entry after all that wait, or before them."""
        self.waiting[entry.number] = entry
        if first:
            self.waiting.move_to_end(entry.number, last=False)

    def cancel(self, number: int) -> None:
        """Drop an entry, if it waits here."""
        self.waiting.pop(number, None)

    def start(self, live: int, rows: int) -> list[R]:
        """Remove and return the entries that start now; live, rows: of the sentences that are
        being decoded. Call it before each step."""
        self.since += 1
        if not live:
            self.begun = 0
        n = self.schedule(len(self.waiting), live, rows, self.since) if self.waiting else 0
        flush = self.schedule.flush
        if flush is not None:
            n = min(n, flush - self.begun)
        if n:
            self.since = 0
        self.begun += n
        return [self.waiting.popitem(last=False)[1] for _ in range(n)]

    def steps(self, live: int, rows: int) -> int:
        """Return how many steps may pass until the next call of `start`, unless a sentence ends."""
        if not self.waiting:
            return STEPS
        # where rows are counted, any step may make room for a new sentence
        waits = self.schedule.most_rows is not None or self.schedule(
            len(self.waiting), live, rows, self.since
        )
        return 1 if waits else STEPS


def search_all(
    schedule: Schedule, searcher: Searcher, pool: Pool, nbest: int, stats: Stats, answer: OnFinal
) -> None:
    """Decode the pool's sentences `to_decode`; call `answer` with each as soon as it is final.

    nbest: length of each sentence's n-best list.
    """
    scheduler: Scheduler[Entry] = Scheduler(schedule)
    has_started = False
    for sentence in pool.sentences_to_decode():
        scheduler.add(Entry(sentence, nbest, pool=pool, sentence=sentence))
    while True:
        if arrivals := scheduler.start(searcher.live, searcher.rows):
            if has_started and stats.refills is not None:
                stats.refill()
            searcher.admit(arrivals)
            has_started = True
        if not searcher.live:
            return
        for entry in searcher.step(scheduler.steps(searcher.live, searcher.rows)):
            found = searcher.take(entry)
            if found is not None:
                answer(entry.sentence, found)


# ---- The protocol of all searchers: entries go in, steps are made, hypotheses come out
#
# The loop (interpreted.py) is the definition of beam search; compiled.py is its compiled twin, and
# the driver of parallel decoding (search/parallel/driver.py) is the third. A command adds all
# sentences of a batch and steps until none is live; a worker of an engine adds and cancels entries
# between any two steps.


class Searcher(ABC):
    """A search that entries join and leave between any two steps.

    Callers hold torch.no_grad, else autograd records every step.
    """

    @property
    @abstractmethod
    def live(self) -> int:
        """Number of entries that are being decoded."""

    @property
    @abstractmethod
    def rows(self) -> int:
        """Number of their rows."""

    def supports_constraints(self, constraints: SentenceConstraints | None) -> bool:
        """Return whether this search supports a sentence with these constraints, as far as they
        decide; true by default."""
        return True

    def supports_pool(self, pool: Pool) -> bool:
        """Return whether this search supports the sentences of a pool; true by default."""
        return True

    @abstractmethod
    def admit(self, entries: Sequence[Entry]) -> None:
        """Encode entries of one pool, which are live then."""

    @abstractmethod
    def step(self, most: int = 1) -> list[Entry]:
        """Add at most `most` tokens to rows, as the schedule says; stop when a sentence ends.

        Return the entries that have ended; call `take` for each. Errors: NotANumber if the model
        gives NaN.
        """

    @abstractmethod
    def take(self, entry: Entry) -> list[Hypothesis] | None:
        """Return the hypotheses of an entry that has ended, best first, and drop it. None: it has
        not ended, and continues in another search.

        Errors: NotANumber if the model gives NaN for it.
        """

    @abstractmethod
    def cancel(self, entries: Collection[Entry]) -> None:
        """Drop entries without an answer; their rows are free for the next step."""

    @abstractmethod
    def common_prefix(self, entry: Entry) -> list[int]:
        """Return the tokens that every hypothesis of a live entry begins with, and so will its
        answer."""

    def set_aside(self) -> None:  # noqa: B027  most hold no rows in it between two steps
        """Leave the decoder to another search until the next step."""


class CompiledSearcher(Searcher):
    """A search that is used for pools one after another."""

    @abstractmethod
    def clear(self) -> None:
        """Drop all entries, also those of a call that an exception ended."""


def common_prefix(rows: Sequence[Sequence[int]]) -> list[int]:
    """Return the tokens that all rows begin with; none if there are no rows."""
    first, last = (list(edge(map(tuple, rows), default=())) for edge in (min, max))
    # if rows are sorted, the first and the last have in common what all have
    same = next(
        (i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b),
        min(len(first), len(last)),
    )
    return first[:same]


# ---- The searches of a generator as one
#
# An entry goes to the first search that supports it; the loop supports every entry.


class Searchers(Searcher):
    """Several searches that share a decoder; the last one takes every entry.

    last: a function that makes the last search when an entry needs it; None if `searchers` ends
    with it.
    """

    def __init__(self, searchers: Sequence[Searcher], last: Callable[[], Searcher] | None = None):
        self.searchers, self.make_last = list(searchers), last
        self.searcher_of_entry: dict[Entry, Searcher] = {}  # in the order of their start

    @property
    def last(self) -> Searcher:
        """The search that takes every entry."""
        if self.make_last is not None:
            self.searchers.append(self.make_last())
            self.make_last = None
        return self.searchers[-1]

    @property
    def live(self) -> int:
        return sum(searcher.live for searcher in self.searchers)

    @property
    def rows(self) -> int:
        return sum(searcher.rows for searcher in self.searchers)

    def admit(self, entries: Sequence[Entry]) -> None:
        pool = entries[0].batch
        taker = (
            next((each for each in self.searchers if each.supports_pool(pool)), None) or self.last
        )
        parts = [entries]
        if pool.encodes_separately:
            of_sentence = {entry.sentence: entry for entry in entries}
            parts = [
                [of_sentence[sentence] for sentence in part]
                for part in pool.encoder_batches(list(of_sentence))
            ]
        for part in parts:
            for searcher in self.searchers:
                if searcher is not taker:
                    searcher.set_aside()
            taker.admit(part)
            self.searcher_of_entry |= dict.fromkeys(part, taker)

    def step(self, most: int = 1) -> list[Entry]:
        busy = [searcher for searcher in self.searchers if searcher.live]
        return [
            entry for searcher in busy for entry in searcher.step(most if len(busy) == 1 else 1)
        ]

    def take(self, entry: Entry) -> list[Hypothesis] | None:
        found = self.searcher_of_entry.pop(entry).take(entry)
        if found is None:
            self.last.admit([entry])
            self.searcher_of_entry[entry] = self.last
        return found

    def cancel(self, entries: Collection[Entry]) -> None:
        for entry in entries:
            self.searcher_of_entry.pop(entry).cancel([entry])

    def common_prefix(self, entry: Entry) -> list[int]:
        return self.searcher_of_entry[entry].common_prefix(entry)


class BeamSearch:
    """The driver of --decoding beam.

    compiled: the compiled searches that support the strategies; loop: makes the search that
    supports every sentence of a pool.
    """

    def __init__(
        self,
        setup: Setup,
        compiled: Sequence[CompiledSearcher],
        loop: Callable[[Setup, Pool], Searcher],
    ):
        self.setup, self.compiled, self.loop = setup, compiled, loop

    @torch.no_grad()
    def __call__(self, pool: Pool, answer: OnFinal) -> None:
        """Decode the pool's sentences `to_decode`; call `answer` with each when it is final."""
        self.clear()
        try:
            search_all(
                self.setup.strategies.schedule,
                Searchers(self.compiled, partial(self.loop, self.setup, pool)),
                pool,
                self.setup.nbest,
                self.setup.stats,
                answer,
            )
        except BaseException:  # free their memory now; the next call clears the searches
            self.clear()
            raise

    def clear(self) -> None:
        """Clear the compiled searches, which are used again."""
        for searcher in self.compiled:
            searcher.clear()
