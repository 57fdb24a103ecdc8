"""A search that never ends for sentences with required phrases, in compiled steps: some are added and cancelled between any two.

Those that start together are a group (constrained.py) with a KV cache of its own, and every group makes a step at a time. Definition:
open_search.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

import torch

from fairseq_ext.kernels.constraints.constrained import Banks
from fairseq_ext.search.constrained import ConstrainedGroup
from fairseq_ext.search.finished import Hypothesis
from fairseq_ext.search.open_search import common_prefix
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.state import SearchSetup


class OpenConstrained:
    """A search over places. A sentence has a place from `admit` to `take` or `cancel`."""

    def __init__(self, setup: SearchSetup):
        self.setup = setup
        self.at: dict[int, tuple[ConstrainedGroup, int]] = {}  # by place: the group, and which of its sentences

    def __len__(self) -> int:
        return len(self.at)

    @torch.no_grad()
    def admit(self, pool: Pool, banks: Banks, nbest: Sequence[int]) -> list[int]:
        """Start the sentences of a pool; return their places. nbest: of each, how many hypotheses are asked for, at most the beam."""
        group = ConstrainedGroup(self.setup, pool, banks, range(len(pool)), nbest)
        places = list(itertools.islice((i for i in itertools.count() if i not in self.at), len(pool)))
        self.at |= {place: (group, i) for i, place in enumerate(places)}
        return places

    def step(self) -> list[int]:
        """Add a token to every row. Return the places of the sentences that have ended. Raises NotANumber where the model gives NaN."""
        ended = set()
        for group in dict.fromkeys(group for group, _ in self.at.values()):
            if group.is_live:
                ended |= {(group, i) for i in group.step()}
        return [place for place, sentence in self.at.items() if sentence in ended]

    def take(self, place: int) -> list[Hypothesis]:
        """The hypotheses of a sentence that has ended, best first; its place is free then."""
        group, i = self.at.pop(place)
        return group.found(i)

    def cancel(self, places: Collection[int]) -> None:
        """End sentences without an answer; their rows are free for the next step."""
        for place in places:
            group, i = self.at.pop(place)
            group.search.drop_(i)

    def common_prefix(self, place: int) -> list[int]:
        """The tokens that every hypothesis of a live sentence begins with, so that its answer does."""
        group, i = self.at[place]
        return common_prefix([*group.search.tokens(i), *(tokens.tolist() for tokens, _ in group.search.found(i))])
