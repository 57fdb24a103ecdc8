"""The continuations that a select strategy proposes, and the stop strategy's decision on them.

Shapes: S live sentences, c candidates a sentence.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_ext.search.beam import Beam, first_of, numbers, repeated


@dataclass
class Candidates:
    """The best continuations of each sentence, (S, c) each, best first; a score of -inf marks an empty place."""

    row: Tensor  # row of the beam that is continued
    token: Tensor
    score: Tensor  # cumulative log-probability
    width: int  # most rows that a sentence continues with: k
    widths: Tensor | None = None  # (S,) finished hypotheses that are enough for each sentence, where that is not the width
    goal: Tensor | None = None  # (S,) constraint tokens that a hypothesis must have before it may end; 0: none
    group: Tensor | None = None  # (S, c) bank of each candidate: how many of those tokens it has; None: no banks
    aux: dict[str, Tensor] = field(default_factory=dict)  # (S, c, ...) row state after the token
    key: Tensor | None = None  # (S, c) what candidates are ranked by where it is not their score
    slots: Tensor | None = None  # (S,) most rows of each sentence alone, where that differs between sentences

    @property
    def most(self) -> int | Tensor:
        """The most rows that a sentence continues with when it is alone: one for all, or (S, 1)."""
        return self.width if self.slots is None else self.slots[:, None]

    def within_width(self) -> Tensor:
        """A mask (c,) or (S, c): as many candidates as that, the best."""
        c, device = self.score.size(1), self.score.device
        return first_of(c, self.width, device) if self.slots is None else numbers(c, device) < self.slots[:, None]

    def ends_and_goes_on(self, eos: int) -> tuple[Tensor, Tensor]:
        """(S, c) masks: the candidates that end in EOS, and those that can continue."""
        possible = self.score > -torch.inf
        ends = (self.token == eos) & possible
        return ends, possible ^ ends


@dataclass
class StopDecision:
    """Which candidates are finished, which continue, and which sentences are final."""

    done: Tensor | None  # (S, c) becomes a finished hypothesis; None: no candidate does
    stays: Tensor | None  # (S, c) becomes a row of the next beam, up to the width; None: every possible candidate
    final: Tensor  # (S,) the sentence needs no more decoding
    possible: Tensor | None = None  # (S, c) may become a row: what search/survivors.py, `possible`, has found


def best_of_sentences(c: int, beam: Beam, score: Tensor, token: Tensor, stable: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Row, token and cumulative score (S, c) of each sentence's best continuations, of those that its rows have: log-probability and token
    (n, m). Fewer than c where its rows have fewer. stable: of equals the first, as everywhere else on a CPU."""
    m = score.size(1)
    score = beam.by_sentence(score + beam.last_score()[:, None], -torch.inf).flatten(1)  # (n, m) -> (S, width x m)
    token = beam.by_sentence(token, 0).flatten(1)
    if stable:
        score, place = (x[:, :c] for x in score.sort(dim=1, descending=True, stable=True))
    else:
        score, place = score.topk(min(c, score.size(1)), dim=1)
    token = token.gather(1, place)
    if beam.counts is None:
        return repeated(beam.rows, m, beam.device).view(len(beam.live), -1).gather(1, place), token, score
    # an empty place points to a row of its own sentence
    return beam.first_row()[:, None] + (place // m).masked_fill(score == -torch.inf, 0), token, score


def laid_out(sentences: int, of: Tensor, value: Tensor, empty: Tensor | float) -> Tensor:
    """Values (d,) of sentences `of` (d,), which ascend, as (S, c), filled up with `empty`: one for all, or (S,)."""
    counts = torch.bincount(of, minlength=sentences)
    place = torch.arange(of.numel(), device=of.device) - (counts.cumsum(0) - counts)[of]
    fill = torch.as_tensor(empty, dtype=value.dtype, device=value.device).expand(sentences)
    return fill[:, None].repeat(1, int(counts.max())).index_put((of, place), value)


def pick(value: Tensor, index: Tensor) -> Tensor:
    """value (S, m, ...) at index (S, c) along its second dimension."""
    return value[numbers(value.size(0), value.device)[:, None], index]


def first_of_equals(key: Tensor) -> Tensor:
    """(S, c): false for every key that stands further left in its line already."""
    sorted_key, order = key.sort(dim=1, stable=True)
    first = F.pad(sorted_key[:, 1:] != sorted_key[:, :-1], (1, 0), value=True)
    return torch.empty_like(first).scatter_(1, order, first)
