"""What an optimal ending counts: the sections `certificates` and `saved` of the statistics. Both are on the device until they are read."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_ext.counters import Mean, Section


@dataclass
class Certificates(Section):
    """Sentences whose result is proved to be the best (proved), and those that the length limit cut off without a proof (open)."""

    key = "certificates"
    of_answers = True
    proved: int = 0
    open: int = 0
    gap_mean: Mean = Mean()  # nats that the open ones may lack; 0 where fewer hypotheses are finished than the n-best list asks for
    _counted: Tensor | None = None  # (3,) proved, open, sum of gaps, on the device until read

    def count(self, counts: Tensor) -> None:
        """Count (3,): sentences proved, sentences open, the sum of the open ones' gaps."""
        self._counted = counts if self._counted is None else self._counted + counts

    def settle(self) -> None:
        if self._counted is not None:
            proved, still_open, gaps = self._counted.tolist()
            self.proved += round(proved)
            self.open += round(still_open)
            self.gap_mean += Mean(gaps, round(still_open))
            self._counted = None


@dataclass
class Saved(Section):
    """What the early end has saved against the same search run to every sentence's length limit with k rows a step: steps (a token of
    one sentence each) and rows.

    An upper bound where fewer than k rows may be live (--stop-expansion paper, constraints, dictionaries of less than 2k words).
    """

    key = "saved"
    of_answers = True
    steps: int = 0
    rows: int = 0
    expansions: int = 0  # each row would have continued a live hypothesis
    _counted: Tensor | None = None  # (2,) steps, rows, on the device until read

    def count(self, steps: Tensor, rows: Tensor) -> None:
        """Add to what an early end has saved."""
        counts = torch.stack([steps, rows])
        self._counted = counts if self._counted is None else self._counted + counts

    def settle(self) -> None:
        if self._counted is not None:
            steps, rows = map(round, self._counted.tolist())
            self.steps += steps
            self.rows += rows
            self.expansions += rows
            self._counted = None
