"""The data of a decoding step.

Shapes: N sentences in the pool, S live sentences, n live rows, k beam, c candidates a sentence, V vocabulary, L tokens so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fairseq_ext.kernels.step import kernel, topk

FEW = 64  # so many of each row the compiled top-k keeps sorted by insertion
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
    pad: int = 1
    wanted: list[int] | None = None  # the sentences to decode, in the order in which they start; None: all
    first_column: int = 0  # columns of padding that `inputs` has cut off in front of the last sentences it was asked for

    def __len__(self) -> int:
        return len(self.max_len)

    def limit(self) -> Tensor:
        """(N,) most target tokens before EOS, in double precision."""
        if "limit" not in self.aux:
            self.aux["limit"] = torch.tensor(self.max_len, dtype=torch.float64, device=self.length.device)
        return self.aux["limit"]

    def queue(self, started: int) -> Sequence[int]:
        """The sentences that have not started yet."""
        return range(started, len(self)) if self.wanted is None else self.wanted[started:]

    def inputs(self, sentences: list[int]) -> dict[str, Tensor]:
        """The encoder's input for these sentences, no wider than the longest of them (an LSTM insists on it)."""
        self.first_column = 0
        inputs = {name: value for name, value in self.net_input.items() if name != "prev_output_tokens"}
        if len(sentences) == len(self) and sentences == list(range(len(self))):
            return inputs
        index = torch.tensor(sentences, device=self.length.device)
        inputs = {name: value[index] if isinstance(value, Tensor) else value for name, value in inputs.items()}
        used = inputs["src_tokens"].ne(self.pad).any(0).nonzero()[:, 0].tolist()
        self.first_column = used[0]
        inputs["src_tokens"] = inputs["src_tokens"][:, used[0] : used[-1] + 1]
        return inputs


@dataclass
class LogProbs:
    """Log-probabilities of the next token: of every word, or of a shortlist."""

    value: Tensor  # (n, C) with C = V, or the length of the shortlist
    ids: Tensor | None = None  # None: all words; (C,) ascending: the words of every row's shortlist; (n, C): each row's own, which
    # may repeat its last word behind it, with -inf

    def topk(self, k: int) -> tuple[Tensor, Tensor]:
        """The k best of each row, best first: scores (n, k) and tokens (n, k)."""
        score, column = blockwise_topk(self.value, k)
        return score, self.words(column)

    def words(self, column: Tensor) -> Tensor:
        """The words that columns (n, m) hold."""
        if self.ids is None:
            return column
        return self.ids[column] if self.ids.dim() == 1 else self.ids.gather(1, column)

    def column(self, token: Tensor) -> tuple[Tensor, Tensor]:
        """Columns that hold tokens (n or 1, m), and whether each token is on its row's shortlist at all."""
        if self.ids is None:
            return token, torch.ones_like(token, dtype=torch.bool)
        if self.ids.dim() == 2:
            token = token.expand(self.ids.size(0), -1)
        column = torch.searchsorted(self.ids, token.contiguous()).clamp_(max=self.ids.size(-1) - 1)
        return column, self.words(column) == token

    def at(self, token: Tensor) -> Tensor:
        """Log-probabilities (n, m) of tokens (n, m); -inf where a token is not on the shortlist."""
        column, known = self.column(token)
        return self.value.gather(1, column).masked_fill(~known, -torch.inf)

    def ban_(self, token: int, rows: Tensor | None = None) -> None:
        """Make a token impossible, in every row or where the mask rows (n,) is true."""
        self.add_(token, -torch.inf, rows)

    def add_(self, token: int, amount: float, rows: Tensor | None = None) -> None:
        """Add to a token's log-probability, in every row or where the mask rows (n,) is true."""
        if self.ids is None:
            if rows is None:
                self.value[:, token] += amount
            else:
                self.value[rows, token] += amount
            return
        column, known = self.column(torch.tensor([[token]], device=self.value.device))
        column, known = (x.expand(self.value.size(0), -1) for x in (column, known))
        known = known if rows is None else known & rows[:, None]
        kept = self.value.gather(1, column)
        self.value.scatter_(1, column, torch.where(known, kept + amount, kept))

    def reorder_(self, row: Tensor) -> None:
        """Row i becomes what row[i] was, among rows of one sentence."""
        self.value = self.value[row]

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
    if k <= FEW and value.device.type == "cpu" and value.dtype == torch.float32 and value.is_contiguous() and kernel() is not None:
        return topk(value, k)
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


NOT_YET = -1  # stands before the first token of a row that is shorter than others


@dataclass
class Beam:
    """Live hypotheses; rows of one sentence are neighbours, best first, and have the same number of tokens.

    Sentences that have fewer tokens than others (they started later) stand on the right, so that the last column is always the
    last token.
    """

    live: list[int]  # S pool numbers, in row order
    width: int  # rows of every sentence, or the most of any when counts is given
    counts: Tensor | None  # (S,) rows of each sentence when they differ
    tokens: Tensor  # (n, L) target tokens, the first one included
    score: Tensor  # (n, L - 1) cumulative log-probability of each token
    aux: dict[str, Tensor] = field(default_factory=dict)  # (n, ...) what strategies know of each row; reordered with it
    lags: list[int] | None = None  # S, by how many tokens each sentence is shorter than the longest; None: by none
    layout: dict[str, Tensor] = field(default_factory=dict)  # what `once` has made

    @property
    def longest(self) -> int:
        """Tokens that the longest rows have chosen so far."""
        return self.tokens.size(1) - 1

    @property
    def step(self) -> int | Tensor:
        """Tokens chosen so far: a number, or (S, 1) where sentences differ."""
        return self.longest if self.lags is None else self.once("step", lambda: self.longest - self.lag()[:, None])

    def steps(self) -> list[int]:
        """Tokens chosen so far, by sentence."""
        return [self.longest] * len(self.live) if self.lags is None else [self.longest - lag for lag in self.lags]

    def lag(self) -> Tensor:
        """(S,) by how many tokens each sentence is shorter than the longest."""
        return self.once("lag", lambda: torch.tensor(self.lags or [0] * len(self.live), device=self.device))

    def chosen(self) -> Tensor:
        """(n, L - 1) the tokens after the first one; NOT_YET where a shorter row has none."""
        tokens = self.tokens[:, 1:]
        if self.lags is None:
            return tokens
        before = torch.arange(self.longest, device=self.device) < self.lag()[self.sentence_of_row()][:, None]
        return tokens.masked_fill(before, NOT_YET)

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
        return self.score[:, -1] if self.longest else self.score.new_zeros(self.rows)

    def select(self, row: Tensor, live: list[int], width: int, counts: Tensor | None) -> Beam:
        """The rows row (m,) in this order, belonging to these sentences."""
        aux = {name: value[row] for name, value in self.aux.items()}
        out = Beam(live, width, counts, self.tokens[row], self.score[row], aux)
        if self.lags is not None and live:
            of = dict(zip(self.live, self.lags, strict=True))
            out.lags = [of[s] for s in live]
            out.trim_()
        return out

    def part(self, places: list[int]) -> tuple[Beam, Tensor]:
        """The sentences at these places of `live` as a beam of their own, and its rows (m,) among the present ones."""
        place = torch.tensor(places, device=self.device)
        live = [self.live[i] for i in places]
        if self.counts is None:
            row = (place[:, None] * self.width + torch.arange(self.width, device=self.device)).flatten()
            return self.select(row, live, self.width, None), row
        counts = self.counts[place]
        row = torch.cat([torch.arange(a, a + n) for a, n in zip(self.first_row()[place].tolist(), counts.tolist(), strict=True)])
        row = row.to(self.device)
        return self.select(row, live, int(counts.max()), counts), row

    @staticmethod
    def join(a: Beam, b: Beam) -> Beam:
        """Both beams' rows as one, a's first."""
        longest = max(a.longest, b.longest)

        def both(x: Tensor, y: Tensor, fill: float) -> Tensor:
            """Rows of different lengths (., L, ...), the shorter ones to the right."""
            wide = max(x.size(1), y.size(1))
            return torch.cat([torch.cat([z.new_full((z.size(0), wide - z.size(1), *z.shape[2:]), fill), z], dim=1) for z in (x, y)])

        aux = {name: torch.cat([value, b.aux[name]]) for name, value in a.aux.items() if name != "attention"}
        if "attention" in a.aux:
            aux["attention"] = both(a.aux["attention"], b.aux["attention"], 0.0)
        counts = None
        if a.counts is not None or b.counts is not None or a.width != b.width:
            counts = torch.cat([torch.full((len(x.live),), x.width, device=x.device) if x.counts is None else x.counts for x in (a, b)])
        lags = [longest - step for x in (a, b) for step in x.steps()]
        return Beam(
            a.live + b.live,
            max(a.width, b.width),
            counts,
            both(a.tokens, b.tokens, NOT_YET),
            both(a.score, b.score, 0.0),
            aux,
            lags if any(lags) else None,
        )

    def trim_(self) -> None:
        """Drop the columns that no sentence uses any more."""
        assert self.lags is not None
        unused = min(self.lags)
        if unused:
            self.tokens, self.score = self.tokens[:, unused:], self.score[:, unused:]
            if "attention" in self.aux:
                self.aux["attention"] = self.aux["attention"][:, unused:]
            self.lags = [lag - unused for lag in self.lags]
        if not any(self.lags):
            self.lags = None

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
    group: Tensor | None = None  # (S, c) bank of each candidate: how many of those tokens it has; None: no banks
    aux: dict[str, Tensor] = field(default_factory=dict)  # (S, c, ...) row state after the token


@dataclass
class Fate:
    """What becomes of the candidates: the stop plug's answer."""

    done: Tensor | None  # (S, c) becomes a finished hypothesis; None: none does
    stays: Tensor | None  # (S, c) becomes a row of the next beam, but for those beyond the width; None: all that are possible do
    final: Tensor  # (S,) the sentence needs no more decoding
    best: Tensor | None = None  # (S, m) the sentence's m best finished scores so far, these included
    counted: bool = False  # the plug itself has counted the sentence's hypotheses
