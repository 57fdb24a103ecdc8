"""Half precision: which positions of a block are read again alone, because their two best words are nearly tied."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fairseq_ext.core.stats import Ratio, Section, Setting


@dataclass
class NearTieCounts(Section):
    """How often positions are read again: a part of the section `parallel` of the statistics."""

    margin: Setting
    checked: int = 0  # positions verified in blocks
    redone: int = 0  # of those, read again
    rate: Ratio = Ratio()  # redone of checked

    def count(self, checked: int, redone: int) -> None:
        """Count positions that are verified in blocks, and those of them that are read again."""
        self.checked += checked
        self.redone += redone
        self.rate += Ratio(redone, checked)


@dataclass
class NearTies:
    """A margin between the two best words of a position, in nats, below which the position is read again alone; 0 switches it off.

    In half precision a block and a single token round differently. A position whose two best words are closer than the margin is read
    again as greedy decoding reads it.

    subtle: rows that stand at different lengths are read under a mask, which rounds differently again; so in half precision near-ties
    can still differ from greedy's in a batch, while one sentence at a time they do not.
    """

    margin: float = 0.0
    counts: NearTieCounts = field(init=False)

    def __post_init__(self) -> None:
        self.counts = NearTieCounts(Setting(self.margin))

    def verified_before(self, verified: np.ndarray, margin: np.ndarray) -> np.ndarray:
        """(n,) verified outputs before the first near-tie. verified (n,): all of them; margin (n, w): of each position."""
        place = np.arange(margin.shape[1])
        close = (margin < self.margin) & (place < verified[:, None])
        first = np.where(close.any(1), close.argmax(1), verified)
        self.counts.count(int(np.minimum(first + 1, verified).sum()), int((first < verified).sum()))
        return first
