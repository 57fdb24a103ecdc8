"""The live rows of parallel decoding and one decoder call on their blocks, near ties included.

A call reads a block of tokens and returns each position's best word. A `Method` decides on blocks.

Shapes: n live rows, w block width, m = n x w positions, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fairseq_ext.core.stats import Ratio, Section, Setting
from fairseq_ext.kernels.parallel import CompiledMethod
from fairseq_ext.model.protocol import Decoder
from fairseq_ext.search.beam import NOT_YET, upload
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.processors import LogitsProcessors
from fairseq_ext.search.protocols import Softmax


@dataclass
class Best:
    """Each position's best word, on the host."""

    word: np.ndarray  # (n, w)
    score: np.ndarray  # (n, w) its log-probability
    # (n, w) its distance from the second best, in nats; the log-probability if the margin is not
    # requested
    margin: np.ndarray
    dtype: torch.dtype  # of the log-probabilities


@dataclass
class BlockReader:
    """The decoder together with the softmax and the logits processors."""

    decoder: Decoder
    softmax: Softmax
    processors: LogitsProcessors

    def best(
        self, pool: Pool, rows: Rows, draft: np.ndarray, read: np.ndarray, margin: bool = False
    ) -> Best:
        """Read each row's last token and its draft (n, w - 1).

        read (n,): number of tokens that the decoder has read of each row; those after the verified
        ones are dropped. margin: whether the second best word is required.
        """
        n, w = len(rows), draft.shape[1] + 1
        # (n, w)
        block = np.concatenate(
            [rows.last(1), np.where(draft == NONE, self.processors.pad, draft)], 1
        )
        device = pool.length.device
        length: int | Tensor | None = None
        if (read != rows.length).any():
            first = int(rows.length[0])
            length = first if (rows.length == first).all() else upload(rows.length, device)
        features = self.decoder.step(upload(block, device), w, length)
        # (n, w, d) -> (m, d)
        log_probs = self.softmax(self.decoder, [x.reshape(n * w, -1) for x in features], None)
        process_blocks(self.processors, log_probs, pool, rows, draft)
        word, score, apart = (part.reshape(n, w) for part in fetch(log_probs, margin))
        return Best(word, score, apart, log_probs.dtype)


def fetch(log_probs: LogProbs, margin: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return every position's best word (m,), its log-probability and its margin, on the host after
    one transfer."""
    if margin:
        best, words = log_probs.topk(2)
        value, token, apart = best[:, 0], words[:, 0], best[:, 0] - best[:, 1]
    else:
        best, words = log_probs.topk(1)
        value = apart = best[:, 0]
        token = words[:, 0]
    if value.device.type == "cpu":
        score = value.double().numpy()
        return token.numpy(), score, apart.double().numpy() if margin else score
    host = torch.stack([token.double(), value.double(), apart.double()]).cpu().numpy()
    return host[0].astype(np.int64), host[1], host[2]


# ---- The logits processors for blocks
#
# Rows are at different steps, with several positions each. A position's history is its row's
# verified tokens and the draft before it, so that a processor judges a position as in beam search
# if the draft is right; if it is wrong, the result is not used.
#
# Shapes: n rows, w positions of each, m = n x w.


def process_blocks(
    processors: LogitsProcessors, log_probs: LogProbs, pool: Pool, rows: Rows, draft: np.ndarray
) -> None:
    """Apply all processors to log-probabilities (m, C), in place. draft (n, w - 1)."""
    w, device = draft.shape[1] + 1, log_probs.device
    # (n, w) -> (m,) tokens before each position
    step = (rows.length[:, None] + np.arange(w)).reshape(-1)
    limit = step >= rows.limit.repeat(w)
    sentence = None if pool.prefix is None else upload(rows.live.repeat(w), device)
    # values that the host knows need no transfer from the device
    early = int(step.min()) < max(
        processors.min_len, 0 if pool.prefix is None else pool.prefix.size(1)
    )
    at_limit = upload(limit, device) if limit.any() else None
    steps = upload(step, device) if early else int(step.min())
    processors.apply_(
        log_probs,
        processors.positions(
            pool, sentence, steps, at_limit, lambda: upload(history(rows, draft), device)
        ),
    )


def history(rows: Rows, draft: np.ndarray) -> Tensor:
    """Return (m, T) the tokens before each position, on the right; NOT_YET before them."""
    w = draft.shape[1] + 1
    longest = int(rows.length.max()) + w - 1
    text = np.full((len(rows), longest + 1), NOT_YET)
    text[:, : rows.tokens.shape[1] - 1] = rows.tokens[:, 1 : longest + 2]
    place = rows.length[:, None] + np.arange(w - 1)
    np.put_along_axis(text, place, draft, 1)
    step = rows.length[:, None] + np.arange(w)  # (n, w)
    column = step[:, :, None] - longest + np.arange(longest)  # (n, w, T)
    found = np.take_along_axis(text[:, None], np.maximum(column, 0), 2)
    return torch.from_numpy(np.where(column >= 0, found, NOT_YET).reshape(len(rows) * w, longest))


# ---- Near ties
#
# In half precision, positions of a block whose two best words are nearly tied are read again,
# alone.


@dataclass
class NearTieCounts(Section):
    """Positions that are read again: a part of the section `parallel` of the statistics."""

    margin: Setting
    checked: int = 0  # positions verified in blocks
    redone: int = 0  # positions read again
    rate: Ratio = Ratio()  # redone of checked

    def count(self, checked: int, redone: int) -> None:
        """Count positions that are verified in blocks, and positions that are read again."""
        self.checked += checked
        self.redone += redone
        self.rate += Ratio(redone, checked)


@dataclass
class NearTies:
    """A margin between the two best words of a position, in nats, below which the position is read
    again alone; 0 switches it off.

    In half precision a block and a single token round differently. A position whose two best words
    are closer than the margin is read again as greedy decoding reads it.

    subtle: rows of different lengths are read under a mask, which rounds differently again; so in
    half precision near-ties can still differ from those of greedy decoding in a batch, but not for
    a single sentence.
    """

    margin: float = 0.0
    counts: NearTieCounts = field(init=False)

    def __post_init__(self) -> None:
        self.counts = NearTieCounts(Setting(self.margin))

    def verified_before(self, verified: np.ndarray, margin: np.ndarray) -> np.ndarray:
        """Return (n,) the number of verified outputs before the first near-tie.

        verified (n,): number of verified outputs; margin (n, w): of each position.
        """
        place = np.arange(margin.shape[1])
        close = (margin < self.margin) & (place < verified[:, None])
        first = np.where(close.any(1), close.argmax(1), verified)
        self.counts.count(int(np.minimum(first + 1, verified).sum()), int((first < verified).sum()))
        return first


# ---- The live rows: their tokens, scores, lengths and guesses, as numpy arrays
#
# Shapes: n live rows, one a sentence, T most tokens, w block width.


NONE = -1  # no guess at this position


@dataclass
class Rows:
    """The live rows, one a sentence, on the host."""

    live: np.ndarray  # (n,) pool number of each row
    tokens: np.ndarray  # (n, T + 2) the first token, then the verified ones
    score: np.ndarray  # (n, T + 2) log-probability of each verified token
    length: np.ndarray  # (n,) verified tokens
    limit: np.ndarray  # (n,) most tokens before EOS
    # (n, g) outputs of the last call for the positions after the verified ones; NONE for no output
    guess: np.ndarray
    redo: np.ndarray  # (n,) whether the next position is read alone (a near tie)

    @staticmethod
    def start(pool: Pool, sentences: list[int]) -> Rows:
        """Return rows without tokens, one for each of these sentences."""
        n, most = len(sentences), max(pool.max_len) + 2
        tokens = np.full((n, most), pool.bos)
        nothing = np.full((n, 0), NONE)
        zeros = np.zeros(n, np.int64)
        limit = np.array([pool.max_len[s] for s in sentences], np.int64)
        return Rows(
            np.array(sentences, np.int64),
            tokens,
            np.zeros((n, most)),
            zeros,
            limit,
            nothing,
            zeros.astype(bool),
        )

    def __len__(self) -> int:
        return len(self.live)

    def last(self, m: int) -> np.ndarray:
        """Return (n, m) the last m tokens of each row, the first token included; else NONE."""
        column = self.length[:, None] + np.arange(1 - m, 1)
        return np.where(
            column >= 0, np.take_along_axis(self.tokens, np.maximum(column, 0), 1), NONE
        )

    def room(self) -> int:
        """Return the largest number of tokens that any row can still take, including EOS."""
        return int((self.limit + 1 - self.length).max())

    def append_(self, out: np.ndarray, score: np.ndarray, count: np.ndarray) -> None:
        """Keep the first count (n,) of outputs (n, w); the others become guesses."""
        w = out.shape[1]
        row, place = (np.arange(w) < count[:, None]).nonzero()
        column = self.length[row] + 1 + place
        self.tokens[row, column] = out[row, place]
        self.score[row, column] = score[row, place]
        self.length = self.length + count
        index = count[:, None] + np.arange(w)
        self.guess = np.where(index < w, np.take_along_axis(out, np.minimum(index, w - 1), 1), NONE)

    def keep(self, row: np.ndarray) -> Rows:
        """Return these rows (n',)."""
        parts = (self.live, self.tokens, self.score, self.length, self.limit, self.guess, self.redo)
        return Rows(*(part[row] for part in parts))

    @staticmethod
    def join(a: Rows, b: Rows) -> Rows:
        """Return the rows of both, a's first."""
        wide = max(a.guess.shape[1], b.guess.shape[1])
        guess = [
            np.pad(x.guess, ((0, 0), (0, wide - x.guess.shape[1])), constant_values=NONE)
            for x in (a, b)
        ]
        pairs = (
            (a.live, b.live),
            (a.tokens, b.tokens),
            (a.score, b.score),
            (a.length, b.length),
            (a.limit, b.limit),
            guess,
            (a.redo, b.redo),
        )
        return Rows(*map(np.concatenate, pairs))


@dataclass
class Iteration:
    """The result of one decoder call for one row, for graph.py; arrays are that row's part of the
    block."""

    sentence: int  # pool number
    length: int  # verified tokens before the call
    draft: np.ndarray  # (w - 1,)
    out: np.ndarray  # (w,)
    score: np.ndarray  # (w,)
    verified: int


# ---- The protocol of a decoding method (search/strategies/decoding/)
#
# Shapes: n live rows, w block width.


Trace = Callable[[Iteration], None]  # called for every row of every call


class Method(ABC):
    """A method of --decoding: it decides on the width of blocks and on drafts."""

    @abstractmethod
    def start(self, pool: Pool) -> None:
        """Begin with a new pool."""

    @abstractmethod
    def draft(self, rows: Rows, most: int) -> np.ndarray:
        """Return (n, w - 1) draft tokens, w - 1 <= most, which the next call reads after each row's
        last token."""

    def learn(  # noqa: B027
        self, rows: Rows, out: np.ndarray, verified: np.ndarray, w: int
    ) -> None:
        """Learn from the result of the draft: outputs (n, w), of which the first verified (n,) are
        right."""

    @abstractmethod
    def compiled(self, sentence: int) -> CompiledMethod:
        """Return the compiled twin for a single sentence (kernels/parallel.cpp)."""
