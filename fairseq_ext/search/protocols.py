"""The six plug points of the loop, each a Protocol of one method, with fairseq's own behaviour as its default.

A strategy implements one of them; `fairseq_ext.config` builds a `Plugs` from the command's flags. The sixth point, the driver,
is the loop itself (loop.py): a parallel driver replaces it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from fairseq_ext.search.beam import Beam, Candidates, Fate
from fairseq_ext.search.finished import Finished, Hypothesis
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.scoring import Scoring


class Decoder(Protocol):
    """A fairseq model (or ensemble) seen by the loop: rows that grow by a token a step (decoders/)."""

    name: str
    joins: bool  # groups of rows that have read equally many tokens can be joined
    mixes: bool  # and so can groups that have not
    need_attention: bool  # whether `attention` is asked for

    @property
    def rows(self) -> int:
        """Rows at present."""

    def admit(self, pool: Pool, sentences: list[int]) -> None:
        """Encode these sentences; they become one row each."""

    def step(self, tokens: Tensor) -> list[Tensor]:
        """Read the last of tokens (n, L) in every row; return each model's features (n, d)."""

    def log_probs(self, features: list[Tensor], temperature: float) -> Tensor:
        """Log-probabilities of the next token (n, V), float32 or better."""

    def select(self, row: Tensor, sentence: Tensor | None, width: int, sentence_of_row: Tensor) -> None:
        """Row i becomes what row[i] was, for n' new rows.

        sentence (S',): places, among the sentences before, of those kept, None for all; sentence_of_row (n',): place of each new
        row's sentence among the kept; width: rows of every sentence, 0 when they differ.
        """

    def set_aside(self) -> Any:
        """Give away the present rows as a group; none are left."""

    def resume(self, group: Any) -> None:
        """Go on with a group that was set aside."""

    def join(self, group: Any) -> None:
        """Add a group's rows behind the present ones."""

    def part(self, row: Tensor, sentence: Tensor, width: int, sentence_of_row: Tensor) -> Any:
        """A copy of some rows as a group; arguments as in `select`. The present rows stay."""

    def attention(self) -> Tensor | None:
        """Attention of the last step over the source (n, source), averaged over models; None when it was not asked for."""


class Schedule(Protocol):
    level: bool  # sentences with the fewest tokens go on first, until the others are level with them; else all in turn
    most_rows: int | None  # of one decoder call

    def __call__(self, pool: Pool, started: int, live: int, rows: int) -> Sequence[int]:
        """The sentences that start now, given how many have started, how many of those are still live, and their rows."""


class Softmax(Protocol):
    def __call__(self, decoder: Decoder, features: list[Tensor], beam: Beam | None = None, pool: Pool | None = None) -> LogProbs:
        """Log-probabilities of the next token of rows; beam and pool (None: not known) say what else must be scored for them."""


class Rescores(Protocol):
    """A softmax that scores finished hypotheses anew."""

    def rescore(self, sentence: int, found: list[Hypothesis], pool: Pool, scoring: Scoring) -> list[Hypothesis]:
        """A sentence's hypotheses with other scores, best first."""


class Select(Protocol):
    """A select plug with a method `start(beam, pool)` is shown every beam that starts, to add its row state to it."""

    def __call__(self, beam: Beam, log_probs: LogProbs, pool: Pool) -> Candidates:
        """The best continuations of each sentence, best first."""


class Prune(Protocol):
    def __call__(self, candidates: Candidates, beam: Beam, pool: Pool, finished: Finished) -> Tensor:
        """(S, c): which candidates stay."""


class Stop(Protocol):
    def __call__(self, candidates: Candidates, beam: Beam, pool: Pool, finished: Finished, at_limit: Tensor | None) -> Fate:
        """What becomes of the candidates. at_limit (S,): sentences that may not grow any more; None when there is none."""


class WholeBatch:
    """fairseq's schedule: all sentences start together."""

    level = True
    most_rows: int | None = None

    def __call__(self, pool: Pool, started: int, live: int, rows: int) -> Sequence[int]:
        return pool.queue(started)


class FullSoftmax:
    """fairseq's softmax: every word is scored."""

    def __init__(self, temperature: float = 1.0):
        self.temperature = temperature

    def __call__(self, decoder: Decoder, features: list[Tensor], beam: Beam | None = None, pool: Pool | None = None) -> LogProbs:
        return LogProbs(decoder.log_probs(features, self.temperature))


@dataclass
class Best:
    """The best continuations of each sentence; scores are cumulative."""

    row: Tensor  # (S, c) best first
    token: Tensor
    score: Tensor
    row_token: Tensor | None = None  # (n,) the best of each row, where asked for
    row_score: Tensor | None = None


def best_of_rows(k: int, beam: Beam, log_probs: LogProbs, children: int | None = None, of_each_row: bool = False) -> Best:
    """The 2k best continuations of each sentence (or all but one where there are fewer: fairseq never takes pad), at most so many
    children of one row."""
    width, words = beam.width, log_probs.value.size(1)
    c = min(2 * k, width * words - (log_probs.ids is None))  # a shortlist has no pad
    if children is None or children >= min(c, words):
        found = log_probs.best_of_sentences(c, beam.last_score(), beam.bounds(), of_each_row)
        if found is not None:
            return Best(*found)
    per_row = min(c, words)
    if children is not None and children < per_row:
        per_row = children
        c = min(c, width * per_row)
    row_score, row_token = log_probs.topk(per_row)  # (n, per_row)
    row_score = row_score + beam.last_score()[:, None]
    score = beam.by_sentence(row_score, -torch.inf).flatten(1)  # (n, per_row) -> (S, width x per_row)
    token = beam.by_sentence(row_token, 0).flatten(1)
    score, place = score.topk(c, dim=1)
    token = token.gather(1, place)
    row = place // per_row
    if beam.counts is not None:  # an empty place points to a row of its own sentence
        row = row.masked_fill(score == -torch.inf, 0)
    if len(beam.live) > 1:
        row = beam.first_row()[:, None] + row
    return Best(row, token, score, row_token[:, 0], row_score[:, 0])


class TopK:
    """fairseq's selection: the 2k best continuations of a sentence, so that k remain even if k of them end in EOS."""

    def __init__(self, k: int, children: int | None = None):
        self.k = k
        self.children = children  # most continuations of one row; None: no limit

    def __call__(self, beam: Beam, log_probs: LogProbs, pool: Pool) -> Candidates:
        best = best_of_rows(self.k, beam, log_probs, self.children)
        return Candidates(best.row, best.token, best.score, self.k)


def ends_and_goes_on(candidates: Candidates, eos: int) -> tuple[Tensor, Tensor]:
    """(S, c) each: candidates that end in EOS, and those that could go on."""
    possible = candidates.score > -torch.inf
    ends = candidates.token == eos
    return ends & possible, ~ends & possible


class Count:
    """fairseq's stopping rule: a sentence is final with k finished hypotheses, or at its length limit.

    A hypothesis that ends in EOS is finished when it is among the k best candidates, and is lost when it is not; the k best
    others go on. patience: multiple of k that makes a sentence final, 1 in fairseq; None: 1, and less for constrained sentences.

    subtle: where C tokens are required few rows may end, so the k-th finished hypothesis is long in coming and what comes late is
    rarely any good. Without a patience such a sentence is also final once k / C hypotheses (two at least) are finished, its n-best
    list is full, and no live hypothesis, with all or only some of its constraints, has a better score at present than the list's
    last. With --nbest k this changes nothing.
    """

    def __init__(self, eos: int, scoring: Scoring, patience: int | None = None):
        self.eos = eos
        self.scoring = scoring
        self.patience = patience or 1
        self.early = patience is None

    def __call__(self, candidates: Candidates, beam: Beam, pool: Pool, finished: Finished, at_limit: Tensor | None) -> Fate:
        before = finished.count[beam.live_index()]
        if candidates.score.device.type == "cpu" and at_limit is None and self.nothing_ends(candidates, before):
            return Fate(None, None, ~(candidates.score > -torch.inf).any(1))
        ends, goes_on = ends_and_goes_on(candidates, self.eos)
        done = ends.clone()
        done[:, candidates.width :] = False
        enough = self.patience * (before.new_tensor(candidates.width) if candidates.widths is None else candidates.widths)
        done &= before[:, None] + done.cumsum(1) <= enough[..., None]
        # nothing left that could go on: fairseq would decode such a sentence to the limit, with the same result
        final = (before + done.sum(1) >= enough) | ~goes_on.any(1)
        if at_limit is not None:
            final = final | at_limit
        if candidates.goal is None or not self.early:
            return Fate(done, ~ends, final)
        live = beam.live_index()
        score = self.scoring(candidates.score, beam.step + 1, self.scoring.wanted(pool, live)[:, None])
        best = finished.best_with(live, score.masked_fill(~done, -torch.inf))
        stays = goes_on & (goes_on.cumsum(1) <= candidates.width)
        leads = score.masked_fill(~stays, -torch.inf).amax(1)
        share = (enough // candidates.goal.clamp(min=1)).clamp(min=2).minimum(enough)
        over = (candidates.goal > 0) & (before + done.sum(1) >= share) & (best[:, -1] >= leads)
        return Fate(done, ~ends, final | over, best)

    def nothing_ends(self, candidates: Candidates, before: Tensor) -> bool:
        """Whether this is a step in which nothing can finish, as most are: worth asking where that does not mean to wait."""
        constrained = candidates.goal is not None and self.early
        if constrained and bool((before > 1).any()):
            return False
        return not bool((candidates.token == self.eos).any())


@dataclass
class Plugs:
    """What the loop calls, step by step."""

    select: Select
    stop: Stop
    schedule: Schedule = field(default_factory=WholeBatch)
    softmax: Softmax = field(default_factory=FullSoftmax)
    prune: list[Prune] = field(default_factory=list)
    variable: bool = False  # sentences may have fewer rows than the beam: set where a plug drops candidates
