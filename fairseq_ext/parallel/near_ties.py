"""Half precision: which positions of a block are read again alone."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fairseq_ext.stats import Ratio, Section, Setting


@dataclass
class GuardCounts(Section):
    """What a guard has done: a part of the section `parallel` of the statistics."""

    margin: Setting
    checked: int = 0  # positions verified in blocks
    redone: int = 0  # of those, read again
    rate: Ratio = Ratio()  # redone of checked

    def count(self, checked: int, redone: int) -> None:
        self.checked += checked
        self.redone += redone
        self.rate += Ratio(redone, checked)


@dataclass
class Guard:
    """Half precision: a block and a single token round differently, so a position whose two best words are closer than `margin` (nats)
    is read again alone, as greedy decoding would read it. 0: off.

    subtle: rows that stand at different lengths are read under a mask, which rounds differently again; so in half precision near-ties
    can still differ from greedy's in a batch, while one sentence at a time they do not.
    """

    margin: float = 0.0
    counts: GuardCounts = field(init=False)

    def __post_init__(self) -> None:
        self.counts = GuardCounts(Setting(self.margin))

    def trusted(self, verified: np.ndarray, margin: np.ndarray) -> np.ndarray:
        """(n,) verified outputs before the first close one. margin (n, w): best less second best."""
        place = np.arange(margin.shape[1])
        close = (margin < self.margin) & (place < verified[:, None])
        first = np.where(close.any(1), close.argmax(1), verified)
        self.counts.count(int(np.minimum(first + 1, verified).sum()), int((first < verified).sum()))
        return first

    def trusted_one(self, verified: int, margin: list[float]) -> int:
        """The same for one row: margin of each verified output."""
        first = next((j for j in range(verified) if margin[j] < self.margin), verified)
        self.counts.count(min(first + 1, verified), int(first < verified))
        return first
