"""What an optimal ending counts of the sentences whose answer is kept: the sections `certificates` and `saved` of the statistics."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fairseq_ext.core.stats import Mean, Section
from fairseq_ext.search.finished import Ending


@dataclass
class Certificates(Section):
    """Sentences whose result is proved to be the best (proved), and those that the length limit cut off without a proof (open)."""

    key = "certificates"
    of_answers = True
    proved: int = 0
    open: int = 0
    gap_mean: Mean = Mean()  # nats that the open ones may lack; 0 where fewer hypotheses are finished than the n-best list asks for

    def count(self, ending: Ending) -> None:
        """Count a sentence."""
        if ending.gap == 0:
            self.proved += 1
        else:
            self.open += 1
            self.gap_mean += Mean(ending.gap if math.isfinite(ending.gap) else 0.0, 1)


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

    def count(self, ending: Ending) -> None:
        """Count a sentence."""
        self.steps += ending.steps
        self.rows += ending.rows
        self.expansions += ending.rows
