"""A pool whose sentences come and go while the search runs: a fixed number of places, used again.

A sentence has a place, its pool number, from its start to its end. Sentences that wait are not in the pool.

Shapes: N places, T source columns of the longest sentence, P tokens of the longest prefix.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fairseq_ext.search.phrases.sentence import EMPTY, SentenceConstraints
from fairseq_ext.search.pool import Pool


class OpenPool(Pool):
    """Places for sentences. An empty place is a sentence without tokens that nobody starts."""

    def __init__(self, places: int, pad: int, device: torch.device):
        super().__init__({}, torch.zeros(places, dtype=torch.long, device=device), [0] * places, torch.arange(places), bos=pad, pad=pad)
        self.seeds = [0] * places
        self.min_len_beside_prefix = True  # each sentence's own prefix counts
        self.free = list(range(places))  # a heap
        self.newcomers: tuple[Pool, list[int]] | None = None  # the sentences of the last `put_`, which start now
        self.sources = [self.length[:0]] * places  # (T,) without padding
        self.prefixes = [self.length[:0]] * places  # (P,) the same of the prefixes
        self.leads = [0] * places
        self.given: list[SentenceConstraints] = [EMPTY] * places
        self.ends_allowed = [1] * places  # sentence ends that a translation may have (--constraint-end)
        self.refresh_()

    def put_(self, arrivals: Pool, sentences: Sequence[int]) -> list[int]:
        """Give sentences of another pool a place each; return the places in their order. Fails where too few are free."""
        places = [heapq.heappop(self.free) for _ in sentences]
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
            self.given[place] = EMPTY if given.is_free else given
        self.lead = self.leads
        self.bos = arrivals.bos
        if arrivals.constraints is not None:  # else those that are live keep theirs
            self.constraints, self.ordered, self.boundaries = self.given, arrivals.ordered, arrivals.boundaries
            self.banned_in_any_case = arrivals.banned_in_any_case
        if arrivals.ends is not None:
            self.ends = replace(arrivals.ends, allowed=torch.tensor(self.ends_allowed))
        self.newcomers = arrivals, list(sentences)
        self.refresh_()
        return places

    def leave_(self, place: int) -> None:
        """Make a place free, whose sentence has ended."""
        self.sources[place] = self.prefixes[place] = self.length[:0]
        self.max_len[place], self.leads[place], self.given[place] = 0, 0, EMPTY
        heapq.heappush(self.free, place)

    def refresh_(self) -> None:
        """Build the pool's tensors again from its places."""
        rows = pad_sequence(self.sources, batch_first=True, padding_value=self.pad, padding_side="left")
        self.length = rows.ne(self.pad).sum(1)
        self.net_input = {"src_tokens": rows, "src_lengths": self.length}
        self.prefix = None
        if any(prefix.numel() for prefix in self.prefixes):
            self.prefix = pad_sequence(self.prefixes, batch_first=True, padding_value=self.pad)
        self._limit = None
        self.version += 1

    def inputs(self, sentences: list[int]) -> dict[str, Tensor]:
        """The encoder's input for the newcomers, which start together, as their own pool has it."""
        assert self.newcomers is not None and len(sentences) == len(self.newcomers[1])
        return self.newcomers[0].inputs(self.newcomers[1])
