"""Finished hypotheses, and the scores that they are ranked by.

They are kept as tensors until their sentence is final, so that collecting them does not wait for a
device.
Shapes: N sentences in the pool, m hypotheses finished in one step, L tokens of the longest of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fairseq_ext.search.beam import Beam, upload
from fairseq_ext.search.candidates import Candidates
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.report import Ending, Outcome


@dataclass
class Hypothesis(Outcome):
    """One finished translation. Tensors are its own, never views of the search's."""

    tokens: Tensor  # (L,) ends in EOS
    score: float
    positional_scores: Tensor  # (L,)
    # texts of terms that are not placed, and the reason
    left_terms: tuple[tuple[str, str], ...] = ()


def no_hypothesis(eos: int, device: torch.device | None = None) -> Hypothesis:
    """Return the hypothesis of a sentence without one: empty, with the lowest score."""
    lost = torch.tensor([-torch.inf], dtype=torch.float32, device=device)
    return Hypothesis(torch.tensor([eos], device=device), -torch.inf, lost)


def n_best(
    found: Sequence[tuple[np.ndarray, np.ndarray]],
    scoring: Scoring,
    most: int | None = None,
    rewarded: float = 0.0,
    ending: Ending | None = None,
) -> list[Hypothesis]:
    """Return the hypotheses of a compiled search, best first (of equal ones the first), at most
    `most`.

    found: for each its tokens (L,) with EOS, and sums of log-probabilities (L,); rewarded: target
    length up to which a bounded reward counts.
    """
    scored = []
    for tokens, cumulative in found:
        total = cumulative[-1]
        if scoring.normalize:
            total = total / np.float32(len(tokens) ** scoring.lenpen)
        elif scoring.reward:
            total = np.float64(total) + scoring.reward * min(rewarded, len(tokens))
        scored.append((float(total), tokens, cumulative))
    out = []
    for score, tokens, cumulative in sorted(scored, key=lambda each: -each[0])[:most]:
        positional = cumulative.copy()
        positional[1:] -= cumulative[:-1]
        out.append(
            Hypothesis(
                torch.from_numpy(tokens.copy()), score, torch.from_numpy(positional), ending=ending
            )
        )
    return out


# called with a sentence's pool number and its hypotheses, best first
OnFinal = Callable[[int, list[Hypothesis]], None]


@dataclass
class FinishedStep:
    """The hypotheses that finished in one step."""

    tokens: Tensor  # (m, L) without the first one, with EOS; shorter ones padded on the left
    cumulative: Tensor  # (m, L) sums of log-probabilities
    score: Tensor  # (m,)
    lag: list[int] | None  # number of tokens by which each is shorter than L; None: 0
    values: list[float] | None = None  # score, on the host

    def hypothesis(self, i: int) -> Hypothesis:
        """Return the i-th hypothesis, in tensors of its own."""
        if self.values is None:
            self.values = self.score.tolist()
        first = self.lag[i] if self.lag is not None else 0
        cumulative = self.cumulative[i, first:]
        positional = torch.cat([cumulative[:1], cumulative.diff()])
        return Hypothesis(self.tokens[i, first:].clone(), self.values[i], positional)


@dataclass
class Finished:
    """The finished hypotheses of each sentence of the pool."""

    count: Tensor  # (N,) hypotheses of each sentence
    # (N, nbest) best scores of each sentence, best first, else -inf; only those that stop
    # strategies have passed to `rank_`
    best: Tensor
    total: Tensor  # (N,) highest sum of log-probabilities of each sentence's hypotheses
    # (N, 4) for each sentence, if it ends here, by stop strategies with certificates: its gap,
    # the saved steps and rows, and the rows that its steps so far did not have; -inf: none
    ending: Tensor
    # each sentence's hypotheses, in the order in which they finished
    hypotheses: list[list[tuple[FinishedStep, int]]]

    @staticmethod
    def empty(sentences: int, m: int, device: torch.device) -> Finished:
        lowest = torch.full((sentences, m), -torch.inf, dtype=torch.float64, device=device)
        none = torch.zeros(sentences, dtype=torch.long, device=device)
        return Finished(
            none,
            lowest,
            lowest[:, 0].clone(),
            lowest.new_full((sentences, 4), -torch.inf),
            [[] for _ in range(sentences)],
        )

    def start_(self, sentence: int, nbest: int) -> None:
        """Drop a sentence's hypotheses: another sentence is in its place, with an n-best list of
        this length.

        subtle: `best` is as wide as the longest list; a shorter one begins with +inf, so that the
        last column has the last entry of every list.
        """
        self.hypotheses[sentence] = []
        self.count[sentence] = 0
        self.total[sentence] = -torch.inf
        self.ending[sentence] = -torch.inf
        self.best[sentence] = -torch.inf
        self.best[sentence, : self.best.size(1) - nbest] = torch.inf

    def rank_(self, live: Tensor, score: Tensor) -> Tensor:
        """Merge scores (S, c) into `best` of sentences live (S,); return the new best scores
        (S, nbest), best first."""
        together = torch.cat([self.best[live], score.to(self.best.dtype)], dim=1)
        best = together.topk(self.best.size(1), dim=1).values
        self.best[live] = best
        return best

    def collect_(
        self, beam: Beam, candidates: Candidates, done: Tensor, scoring: Scoring, pool: Pool
    ) -> None:
        """Add the candidates that finish; done (S, c) is on the host."""
        place = done.flatten().nonzero()[:, 0]
        of = (place // done.size(1)).tolist()
        sentence = [beam.live[i] for i in of]
        place, owner = upload(place, beam.device), upload(sentence, beam.device)
        row = candidates.row.flatten()[place]  # (m,)
        last = candidates.score.flatten()[place]
        tokens = torch.cat(
            [beam.tokens[row, 1:], candidates.token.flatten()[place][:, None]], dim=1
        )
        cumulative = torch.cat([beam.score[row], last[:, None]], dim=1)
        lag = None if beam.lags is None else [beam.lags[i] for i in of]
        length = tokens.size(1) if lag is None else tokens.size(1) - upload(lag, beam.device)
        score = scoring(last, length, scoring.rewarded(pool, owner))
        step = FinishedStep(tokens, cumulative, score, lag)
        for i, s in enumerate(sentence):
            self.hypotheses[s].append((step, i))
        self.count.index_add_(0, owner, torch.ones_like(row))
        self.total.scatter_reduce_(0, owner, last.to(self.total.dtype), "amax")

    def take(self, sentence: int, answers: list[int] | None = None) -> list[Hypothesis]:
        """Return a sentence's hypotheses, best first, and drop them; answers: numbers of those to
        return, None for all.

        Equal scores keep the order in which they finished.
        """
        found, self.hypotheses[sentence] = self.hypotheses[sentence], []
        if answers is not None:
            found = [found[i] for i in answers]
        gap, steps, beyond, missed = self.ending[sentence].tolist()
        ending = (
            None if gap == -torch.inf else Ending(gap, round(steps), round(beyond + max(missed, 0)))
        )
        hypotheses = [replace(step.hypothesis(i), ending=ending) for step, i in found]
        return sorted(hypotheses, key=lambda h: -h.score)


# ---- The score
#
# Shapes: N sentences in the pool, S live sentences.


def in_float32(length: int | Tensor) -> int | Tensor:
    """Return lengths whose product with a number of Python has no default dtype of torch."""
    return length.float() if isinstance(length, Tensor) else length


@dataclass
class Scoring:
    """The score of a hypothesis from its sum of log-probabilities, and a bound for live ones.

    Lengths count EOS. rewarded: the target length up to which every token is rewarded, ratio x
    source length without EOS + offset.
    """

    normalize: bool = True
    lenpen: float = 1.0
    reward: float = 0.0  # for each target token up to `rewarded`, in nats; r of Huang et al. 2017
    ratio: float = 1.0
    offset: float = 0.0
    bounded: bool = True  # False: every target token is rewarded

    @property
    def is_total(self) -> bool:
        """Whether it is the sum of log-probabilities, whatever the length."""
        return not self.normalize and not self.reward

    def rewarded(self, pool: Pool, sentence: Tensor) -> Tensor:
        """Return (S,) target length of each sentence up to which the reward counts, at least 0, in
        float64 for every model."""
        return ((pool.length[sentence] - 1).double() * self.ratio + self.offset).clamp(min=0)

    def __call__(self, total: Tensor, length: int | Tensor, rewarded: Tensor) -> Tensor:
        """Return the score of finished hypotheses: total (any shape), all of this length, or of
        lengths that broadcast against it."""
        if self.normalize:
            if isinstance(length, Tensor):  # rounded once, as a number of the host is
                return total / (length.double() ** self.lenpen).to(total.dtype)
            return total / length**self.lenpen
        if not self.reward:
            return total
        if not self.bounded:
            return total + self.reward * in_float32(length)
        return total + self.reward * (
            rewarded.minimum(length) if isinstance(length, Tensor) else rewarded.clamp(max=length)
        )

    def divisors(self, lengths: int) -> tuple[Tensor, Tensor]:
        """Return the divisors (lengths,) in float32 of totals of these lengths, from 0: those of
        `__call__` for a number as the length, and for a tensor; only without a reward."""
        if not self.normalize:
            return (torch.ones(lengths, dtype=torch.float32),) * 2
        numbers = torch.tensor(
            [1.0, *(length**self.lenpen for length in range(1, lengths))], dtype=torch.float64
        )
        return numbers.float(), (torch.arange(lengths).clamp(min=1).double() ** self.lenpen).float()

    def bound(self, total: Tensor, step: int | Tensor, longest: Tensor, rewarded: Tensor) -> Tensor:
        """Return the best score that a live hypothesis of `step` tokens can end with:
        log-probabilities are never positive, so its total can only fall. longest: the largest
        number of target tokens of its sentence, EOS included."""
        if self.normalize:
            return total / (
                longest**self.lenpen if self.lenpen > 0 else (in_float32(step) + 1.0) ** self.lenpen
            )
        if not self.reward:
            return total
        return total + self.reward * (rewarded.minimum(longest) if self.bounded else longest)
