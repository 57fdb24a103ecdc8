"""The data of a decoding step.

Shapes: N sentences in the pool, S live sentences, n live rows, k beam, c candidates a sentence, V vocabulary, L tokens so far.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

BLOCK = 64  # columns of one block of the two-stage top-k


@dataclass
class Pool:
    """The sentences of one call, whether started or not."""

    net_input: dict[str, Tensor]  # the model's encoder input, a row a sentence
    length: Tensor  # (N,) source tokens of each sentence, EOS included, padding excluded
    max_len: list[int]  # most target tokens before EOS, per sentence
    ids: Tensor  # (N,) the data set's sentence numbers
    bos: int  # first target token
    prefix: Tensor | None = None  # (N, P) target tokens that are forced first, padded behind
    min_len_beside_prefix: bool = False  # minimum length holds for sentences whose prefix is shorter (fairseq: for none)
    aux: dict = field(default_factory=dict)  # what strategies know of each sentence

    def __len__(self) -> int:
        return len(self.max_len)


@dataclass
class LogProbs:
    """Log-probabilities of the next token: of every word, or of a shortlist."""

    value: Tensor  # (n, C) with C = V, or the length of the shortlist
    ids: Tensor | None = None  # None: all words; (C,) ascending: the words of every row's shortlist

    def topk(self, k: int) -> tuple[Tensor, Tensor]:
        """The k best of each row, best first: scores (n, k) and tokens (n, k)."""
        score, column = blockwise_topk(self.value, k)
        return score, column if self.ids is None else self.ids[column]

    def column(self, token: Tensor) -> tuple[Tensor, Tensor]:
        """Columns that hold these tokens (any shape), and whether each token is on the shortlist at all."""
        if self.ids is None:
            return token, torch.ones_like(token, dtype=torch.bool)
        column = torch.searchsorted(self.ids, token.contiguous()).clamp_(max=self.ids.numel() - 1)
        return column, self.ids[column] == token

    def at(self, token: Tensor) -> Tensor:
        """Log-probabilities (n, m) of tokens (n, m); -inf where a token is not on the shortlist."""
        column, known = self.column(token)
        return self.value.gather(1, column).masked_fill(~known, -torch.inf)

    def ban_(self, token: int, rows: Tensor | None = None) -> None:
        """Make a token impossible, in every row or where the mask rows (n,) is true."""
        column, known = self.column(torch.tensor([token], device=self.value.device))
        if self.ids is None or bool(known):
            if rows is None:
                self.value[:, column] = -torch.inf
            else:
                self.value[rows, column] = -torch.inf

    def only_(self, token: Tensor, rows: Tensor) -> None:
        """Make all but one token (n,) impossible where the mask rows (n,) is true."""
        kept = self.at(token[:, None])
        column, known = self.column(token[:, None])
        alone = torch.full_like(self.value, -torch.inf).scatter_(1, column, kept.masked_fill(~known, -torch.inf))
        self.value = torch.where(rows[:, None], alone, self.value)


def blockwise_topk(value: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """torch.topk(value, k) along the last dimension of (n, C), faster for long rows: the k best of a row lie in the k blocks
    whose maxima are best, so only those blocks are sorted."""
    n, C = value.shape
    blocks = C // BLOCK
    if value.device.type != "cpu" or blocks <= 2 * k:
        return value.topk(k, dim=1)
    head = value[:, : blocks * BLOCK].unflatten(1, (blocks, BLOCK))  # (n, C) -> (n, blocks, BLOCK)
    best = head.amax(-1).topk(k, dim=1, sorted=False).indices  # (n, k)
    inside = head.gather(1, best[:, :, None].expand(-1, -1, BLOCK)).flatten(1)  # (n, k, BLOCK) -> (n, k x BLOCK)
    tail = value[:, blocks * BLOCK :]
    score, place = torch.cat([inside, tail], dim=1).topk(k, dim=1)
    column = best.gather(1, (place // BLOCK).clamp(max=k - 1)) * BLOCK + place % BLOCK
    return score, torch.where(place < k * BLOCK, column, place - k * BLOCK + blocks * BLOCK)


@dataclass
class Beam:
    """Live hypotheses that all have the same number of tokens; rows of one sentence are neighbours, best first."""

    live: list[int]  # S pool numbers, in row order
    width: int  # rows of every sentence, or the most of any when counts is given
    counts: Tensor | None  # (S,) rows of each sentence when they differ
    tokens: Tensor  # (n, L) target tokens, the first one included
    score: Tensor  # (n, L - 1) cumulative log-probability of each token
    aux: dict[str, Tensor] = field(default_factory=dict)  # (n, ...) what strategies know of each row; reordered with it
    layout: dict[str, Tensor] = field(default_factory=dict)  # what `once` has made

    @property
    def step(self) -> int:
        """Tokens chosen so far."""
        return self.tokens.size(1) - 1

    @property
    def rows(self) -> int:
        return self.tokens.size(0)

    @property
    def device(self) -> torch.device:
        return self.tokens.device

    def once(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        """A tensor that follows from the rows' layout, made when first asked for."""
        if name not in self.layout:
            self.layout[name] = make()
        return self.layout[name]

    def live_index(self) -> Tensor:
        """(S,) pool number of each live sentence."""
        return self.once("live", lambda: torch.tensor(self.live, device=self.device))

    def sentence_of_row(self) -> Tensor:
        """(n,) place in `live` of each row's sentence."""

        def make() -> Tensor:
            place = torch.arange(len(self.live), device=self.device)
            if self.counts is None:
                return place.repeat_interleave(self.width)
            return place.repeat_interleave(self.counts, output_size=self.rows)

        return self.once("sentence", make)

    def first_row(self) -> Tensor:
        """(S,) first row of each sentence."""
        if self.counts is None:
            return self.once("first", lambda: torch.arange(0, self.rows, self.width, device=self.device))
        counts = self.counts
        return self.once("first", lambda: counts.cumsum(0) - counts)

    def by_sentence(self, value: Tensor, fill: float) -> Tensor:
        """Lay row values (n, ...) out as (S, width, ...), filled up where a sentence has fewer rows."""
        if self.counts is None:
            return value.unflatten(0, (len(self.live), self.width))
        out = value.new_full((len(self.live), self.width, *value.shape[1:]), fill)
        out[self.sentence_of_row(), self.rank_of_row()] = value
        return out

    def rank_of_row(self) -> Tensor:
        """(n,) place of each row among its sentence's."""
        return self.once("rank", lambda: torch.arange(self.rows, device=self.device) - self.first_row()[self.sentence_of_row()])

    def last_score(self) -> Tensor:
        """(n,) cumulative log-probability of each row; zeros at the first step."""
        return self.score[:, -1] if self.step else self.score.new_zeros(self.rows)

    def select(self, row: Tensor, live: list[int], width: int, counts: Tensor | None) -> Beam:
        """The rows row (m,) in this order, belonging to these sentences."""
        aux = {name: value[row] for name, value in self.aux.items()}
        return Beam(live, width, counts, self.tokens[row], self.score[row], aux)

    def extend_(self, token: Tensor, score: Tensor) -> None:
        """Append one token (n,) with its cumulative score (n,) to every row."""
        self.tokens = torch.cat([self.tokens, token[:, None]], dim=1)
        self.score = torch.cat([self.score, score[:, None]], dim=1)

    @staticmethod
    def start(sentences: list[int], bos: int, device: torch.device, dtype: torch.dtype) -> Beam:
        """One row a sentence: before the first token all rows of a beam would be the same."""
        tokens = torch.full((len(sentences), 1), bos, dtype=torch.long, device=device)
        return Beam(list(sentences), 1, None, tokens, torch.zeros(len(sentences), 0, dtype=dtype, device=device))


@dataclass
class Candidates:
    """The continuations that a select plug proposes, (S, c) each, best first; score -inf marks an empty place."""

    row: Tensor  # row of the beam that is continued
    token: Tensor
    score: Tensor  # cumulative log-probability
    width: int  # rows a sentence may go on with: k
    widths: Tensor | None = None  # (S,) the same where it differs between sentences
    goal: Tensor | None = None  # (S,) tokens that a sentence's hypotheses must have before they may end; 0: none
    aux: dict[str, Tensor] = field(default_factory=dict)  # (S, c, ...) row state after the token


@dataclass
class Fate:
    """What becomes of the candidates: the stop plug's answer."""

    done: Tensor  # (S, c) becomes a finished hypothesis
    stays: Tensor  # (S, c) becomes a row of the next beam, but for those beyond the width
    final: Tensor  # (S,) the sentence needs no more decoding
    best: Tensor | None = None  # (S, m) the sentence's m best finished scores so far, these included


@dataclass
class Scoring:
    """From the sum of log-probabilities to the score by which hypotheses compete, and what a live one can still reach.

    Lengths count EOS. wanted: the target length up to which every token is rewarded, ratio x source length without EOS.
    """

    normalize: bool = True
    lenpen: float = 1.0
    reward: float = 0.0  # for each target token up to `wanted`, in nats; r of Huang et al. 2017
    ratio: float = 1.0
    bounded: bool = True  # False: every target token is rewarded

    def wanted(self, pool: Pool) -> Tensor:
        """(N,) target length of each sentence that the reward counts up to, in double precision whatever the model's."""
        return (pool.length - 1).double() * self.ratio

    def __call__(self, total: Tensor, length: int, wanted: Tensor) -> Tensor:
        """Score of finished hypotheses: total (any shape), all of this length."""
        if self.normalize:
            return total / length**self.lenpen
        if not self.reward:
            return total
        return total + self.reward * (wanted.clamp(max=length) if self.bounded else length)

    def bound(self, total: Tensor, step: int, longest: Tensor, wanted: Tensor) -> Tensor:
        """The best score that a live hypothesis of step tokens can end with: log-probabilities are never positive, so its total
        can only fall. longest: the most target tokens of its sentence, EOS included."""
        if self.normalize:
            return total / (longest**self.lenpen if self.lenpen > 0 else (step + 1.0) ** self.lenpen)
        if not self.reward:
            return total
        return total + self.reward * (wanted.minimum(longest) if self.bounded else longest)


@dataclass
class Hypothesis:
    """One finished translation. Tensors are its own, never views of the search's."""

    tokens: Tensor  # (L,) ends in EOS
    score: float
    positional_scores: Tensor  # (L,)
    attention: Tensor | None = None  # (source width, L)


@dataclass
class Finished:
    """Finished hypotheses, kept as tensors until the end so that collecting them costs no synchronisation."""

    count: Tensor  # (N,) hypotheses of each sentence
    best: Tensor  # (N, m) best scores of each sentence, best first; -inf where there are fewer
    total: Tensor  # (N,) highest sum of log-probabilities among each sentence's
    batches: list[tuple[list[int], Tensor, Tensor, Tensor, Tensor | None]] = field(default_factory=list)

    @staticmethod
    def empty(sentences: int, m: int, device: torch.device) -> Finished:
        lowest = torch.full((sentences, m), -torch.inf, dtype=torch.float64, device=device)
        return Finished(torch.zeros(sentences, dtype=torch.long, device=device), lowest, lowest[:, 0].clone())

    def best_with(self, live: Tensor, score: Tensor) -> Tensor:
        """(S, m): the best of sentences live (S,) if scores (S, c) are finished too."""
        together = torch.cat([self.best[live], score.to(self.best.dtype)], dim=1)
        return together.topk(self.best.size(1), dim=1).values

    def add_(self, sentence: list[int], tokens: Tensor, cumulative: Tensor, score: Tensor, attention: Tensor | None) -> None:
        """sentence: m pool numbers; tokens (m, L) without the first one, with EOS; cumulative (m, L); score (m,)."""
        self.batches.append((sentence, tokens, cumulative, score, attention))

    def lists(self, sentences: int) -> list[list[Hypothesis]]:
        """Each sentence's hypotheses, best first; equal scores keep the order in which they were found."""
        out: list[list[Hypothesis]] = [[] for _ in range(sentences)]
        for sentence, tokens, cumulative, score, attention in self.batches:
            positional = torch.cat([cumulative[:, :1], cumulative.diff(dim=1)], dim=1)
            for i, (s, value) in enumerate(zip(sentence, score.tolist(), strict=True)):
                # attention (m, L, source) -> (source, L), as fairseq keeps it
                attn = None if attention is None else attention[i].t().clone()
                out[s].append(Hypothesis(tokens[i].clone(), value, positional[i].clone(), attn))
        for hypotheses in out:
            hypotheses.sort(key=lambda h: -h.score)
        return out
