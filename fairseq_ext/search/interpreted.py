"""The loop as a searcher: entries start and are cancelled between any two steps.

Each entry has an n-best list of its own. The sentences are those of one batch, or come and go in
an `OpenPool`. The hypotheses of a sentence do not depend on the other sentences, unless these share
a shortlist (`--shortlist-share batch`, `--lsh-share batch`).
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fairseq_ext.search.finished import Finished, Hypothesis
from fairseq_ext.search.loop import Search, advance_group, required_ids, start
from fairseq_ext.search.phrases.sentence import EMPTY, SentenceConstraints
from fairseq_ext.search.pool import STATE, Pool
from fairseq_ext.search.protocols import Setup
from fairseq_ext.search.scheduler import Entry, Searcher, common_prefix


class LoopSearch(Searcher):
    """Beam search with every strategy.

    pool: the batch of the requested sentences, or an OpenPool for sentences of any batch.
    """

    def __init__(self, setup: Setup, pool: Pool):
        self.setup, self.pool = setup, pool
        self.entry_of_sentence: dict[int, Entry] = {}  # by pool number
        self.place: dict[Entry, int] = {}  # the pool number of each

    @cached_property
    def search(self) -> Search:
        """The state of the loop, made with the first entry."""
        if not isinstance(self.pool, OpenPool):
            return Search(self.setup, self.pool)
        search = Search(replace(self.setup, strategies=replace(self.setup.strategies)), self.pool)
        search.finished = Finished.empty(len(self.pool), self.setup.k, self.pool.length.device)
        return search

    @property
    def live(self) -> int:
        return len(self.entry_of_sentence)

    @property
    def rows(self) -> int:
        return self.search.groups.rows if self.entry_of_sentence else 0

    @torch.no_grad()
    def admit(self, entries: Sequence[Entry]) -> None:
        search, places = self.search, [entry.sentence for entry in entries]
        if isinstance(self.pool, OpenPool):
            places = self.put(self.pool, entries[0].batch, places)
            for place, entry in zip(places, entries, strict=True):
                search.finished.start_(place, entry.nbest)
            if not search.strategies.softmax.is_full:
                self.pool.required = required_ids(search.strategies.select, self.pool)
        self.entry_of_sentence |= zip(places, entries, strict=True)
        self.place |= zip(entries, places, strict=True)
        start(search, places)

    def put(self, pool: OpenPool, arrivals: Pool, sentences: Sequence[int]) -> list[int]:
        """Put sentences into the pool; return their places. The row state of live rows is adapted
        to the changed pool.

        While no sentence of the pool has constraints, `Select.unconstrained` selects, which is
        faster.
        """
        strategies = self.search.strategies
        beams = [group.beam for group in self.search.groups.groups]
        places = []

        def change() -> None:
            places.extend(pool.put_(arrivals, sentences))

        before, select = strategies.select, self.setup.strategies.select
        before.follow(beams, pool, change)
        strategies.select = (
            select
            if any(given is not EMPTY for given in pool.constraints_of_place)
            else select.unconstrained()
        )
        for beam in beams:
            if strategies.select is not before:
                state = beam.aux.get(STATE)
                beam.aux.clear()
                # no phrase has begun in such a sentence
                strategies.select.start(beam, pool)
                beam.aux |= {} if state is None else {STATE: state}
            if pool.rule is not None and STATE not in beam.aux:
                pool.rule.start(beam, pool)  # it does not apply to any of these sentences
        return places

    def step(self, most: int = 1) -> list[Entry]:
        for _ in range(most):
            if ended := advance_group(self.search):
                return [self.entry_of_sentence[place] for place in ended]
        return []

    def set_aside(self) -> None:
        if self.entry_of_sentence:
            self.search.groups.set_aside()

    def take(self, entry: Entry) -> list[Hypothesis]:
        place = self.place[entry]
        found = self.search.finished.take(place, self.search.strategies.stop.answers(place))
        self.free_place(entry)
        return found

    def cancel(self, entries: Collection[Entry]) -> None:
        self.search.groups.drop({self.place[entry] for entry in entries})
        for entry in entries:
            self.free_place(entry)

    def free_place(self, entry: Entry) -> None:
        """Free the place of an entry."""
        place = self.place.pop(entry)
        del self.entry_of_sentence[place]
        if isinstance(self.pool, OpenPool):
            self.pool.free_place_(place)

    def common_prefix(self, entry: Entry) -> list[int]:
        place, rows = self.place[entry], []
        for group in self.search.groups.groups:
            beam = group.beam
            if place in beam.live:
                i = beam.live.index(place)
                first, end = beam.bounds()[i : i + 2].tolist()
                lag = 0 if beam.lags is None else beam.lags[i]
                possible = beam.last_score()[first:end] > -torch.inf
                rows += beam.tokens[first:end, 1 + lag :][possible].tolist()
        for finished, i in self.search.finished.hypotheses[place]:
            rows.append(
                finished.tokens[i, finished.lag[i] if finished.lag is not None else 0 :].tolist()
            )
        return common_prefix(rows)


# ---- A pool whose sentences come and go while the search runs
#
# It has a fixed number of places, used again. A sentence has a place, its pool number, from its
# start to its end. Waiting sentences are not in the pool.
#
# Shapes: N places, T source columns of the longest sentence, P tokens of the longest prefix.


class OpenPool(Pool):
    """Places for sentences. An empty place is a sentence without tokens that never starts."""

    def __init__(self, places: int, pad: int, device: torch.device):
        super().__init__(
            {},
            torch.zeros(places, dtype=torch.long, device=device),
            [0] * places,
            torch.arange(places),
            bos=pad,
            pad=pad,
        )
        self.seeds = [0] * places
        self.min_len_after_own_prefix = True  # each sentence's own prefix counts
        self.free_places = list(range(places))  # a heap
        # the sentences of the last `put_`, which start now
        self.arrivals: tuple[Pool, list[int]] | None = None
        self.sources = [self.length[:0]] * places  # (T,) without padding
        self.prefixes = [self.length[:0]] * places  # (P,) without padding
        self.leads = [0] * places
        self.constraints_of_place: list[SentenceConstraints] = [EMPTY] * places
        # sentence ends that a translation may have (--constraint-end)
        self.ends_allowed = [1] * places
        self.refresh_()

    def put_(self, arrivals: Pool, sentences: Sequence[int]) -> list[int]:
        """Give sentences of another pool a place each; return the places in their order. Fails if
        too few are free.
        """
        places = [heapq.heappop(self.free_places) for _ in sentences]
        for i, place in zip(sentences, places, strict=True):
            self.sources[place] = arrivals.source(i)
            self.max_len[place], self.ids[place] = arrivals.max_len[i], arrivals.ids[i]
            if arrivals.seeds:
                self.seeds[place] = arrivals.seeds[i]
            if arrivals.prefix is not None:
                prefix = arrivals.prefix[i]
                self.prefixes[place] = prefix[prefix != self.pad]
            if arrivals.lead is not None:
                self.leads[place] = arrivals.lead[i]
            given = EMPTY if arrivals.constraints is None else arrivals.constraints[i]
            if arrivals.ends is not None:
                self.ends_allowed[place] = int(arrivals.ends.allowed[i])
            self.constraints_of_place[place] = EMPTY if given.is_empty else given
        self.lead = self.leads
        self.bos = arrivals.bos
        if arrivals.constraints is not None:  # else live sentences keep theirs
            self.constraints = self.constraints_of_place
            self.ordered = arrivals.ordered
            self.boundaries = arrivals.boundaries
            self.banned_in_any_case = arrivals.banned_in_any_case
        self.rule = arrivals.rule or self.rule
        if arrivals.ends is not None:
            self.ends = replace(arrivals.ends, allowed=torch.tensor(self.ends_allowed))
        self.arrivals = arrivals, list(sentences)
        self.refresh_()
        return places

    def free_place_(self, place: int) -> None:
        """Free the place of a sentence that has ended."""
        self.sources[place] = self.prefixes[place] = self.length[:0]
        self.max_len[place], self.leads[place], self.constraints_of_place[place] = 0, 0, EMPTY
        heapq.heappush(self.free_places, place)

    def refresh_(self) -> None:
        """Build the pool's tensors again from its places."""
        rows = pad_sequence(
            self.sources, batch_first=True, padding_value=self.pad, padding_side="left"
        )
        self.length = rows.ne(self.pad).sum(1)
        self.net_input = {"src_tokens": rows, "src_lengths": self.length}
        self.prefix = None
        if any(prefix.numel() for prefix in self.prefixes):
            self.prefix = pad_sequence(self.prefixes, batch_first=True, padding_value=self.pad)
        self._limit = None
        self.version += 1

    def inputs(self, sentences: list[int]) -> dict[str, Tensor]:
        """Return the encoder's input for the sentences that start together, as their own pool has
        it."""
        assert self.arrivals is not None and len(sentences) == len(self.arrivals[1])
        return self.arrivals[0].inputs(self.arrivals[1])
