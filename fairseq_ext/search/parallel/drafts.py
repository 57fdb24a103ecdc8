"""Drafters: the base class, `--draft pad`, `repeat` and `none`, and an earlier translation.

Shapes: n live rows, m draft tokens of each.

Compiled twin: kernels/parallel.cpp.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod

import numpy as np

from fairseq_ext.core.errors import counted
from fairseq_ext.kernels.library import address, new, pointer
from fairseq_ext.kernels.parallel import CompiledDrafter
from fairseq_ext.search.parallel.blocks import NONE, Rows
from fairseq_ext.search.pool import Pool

# tokens (n, m) and the probability (n, m) that each is right if those before it are
Draft = tuple[np.ndarray, np.ndarray]


class Drafter(ABC):
    """A source of draft tokens, which follow each row's verified ones."""

    def start(self, pool: Pool) -> None:  # noqa: B027  most have no state of a pool
        """Begin with a new pool."""

    @abstractmethod
    def propose(self, rows: Rows, most: int) -> Draft:
        """Return at most `most` tokens a row. NONE: no proposal."""

    @abstractmethod
    def compiled(self, sentence: int) -> CompiledDrafter:
        """Return the compiled twin for a single sentence without tokens (kernels/parallel.cpp).
        Only called if the compiled library is available."""


def without_end(tokens: np.ndarray, sure: np.ndarray) -> Draft:
    """Return the draft (n, m) up to the last column in which a row has a proposal."""
    column = np.arange(1, tokens.shape[1] + 1)
    m = int((column * (tokens != NONE).any(0)).max(initial=0))
    return tokens[:, :m], sure[:, :m]


class Trajectory(Drafter):
    """The previous call's outputs (Jacobi's iteration), followed by a fixed token: PAD as in the
    paper, or the last verified one."""

    def __init__(self, pad: int | None):
        self.pad = pad

    def propose(self, rows: Rows, most: int) -> Draft:
        filler = rows.last(1) if self.pad is None else np.full((len(rows), 1), self.pad)
        tokens = np.concatenate(
            [rows.guess[:, :most], np.repeat(filler, max(0, most - rows.guess.shape[1]), 1)], 1
        )
        return np.where(tokens == NONE, filler, tokens), np.full(tokens.shape, 0.5)

    def compiled(self, sentence: int) -> CompiledDrafter:
        filler = NONE if self.pad is None else self.pad
        return CompiledDrafter("trajectory", new("Trajectory", filler))


class NoDrafter(Drafter):
    """No drafts: greedy decoding."""

    def propose(self, rows: Rows, most: int) -> Draft:
        empty = np.zeros((len(rows), 0), np.int64)
        return empty, empty.astype(float)

    def compiled(self, sentence: int) -> CompiledDrafter:
        return CompiledDrafter("nothing")


# ---- An earlier translation as the draft (`--draft-file`)
#
# It is for translating again after a change of the source or of the model.
#
# As long as the output equals the old one, the rest of the old one is the draft. After a
# difference, the last verified tokens are searched for in the old output, the longest match nearest
# to the expected place first, and the draft continues after it. Without a match, the old output is
# assumed to have other words in the same number. So a change in the middle costs a few calls, not
# the rest.
#
# Shapes: N sentences, n live rows, M old tokens.


logger = logging.getLogger("fairseq_ext")
TAIL = 3  # verified tokens that are searched for
# probability that an old output which was right so far is right for one more token
CONFIDENCE = 0.9999
DOUBT_DECAY = 0.7  # factor of the doubt, after each token of the old output that was right again
MIN_CONFIDENCE = 0.6  # below this probability the fallback drafter is used as well
# probability after a difference, by the length of the match
MATCH_CONFIDENCE = np.array([0.5, 0.8, 0.95, 0.97])


class Previous(Drafter):
    """Earlier outputs, and a fallback drafter for sentences without one."""

    def __init__(self, old: list[list[int]], fallback: Drafter):
        """old: every sentence's earlier output, EOS included."""
        self.old = old
        self.fallback = fallback
        self.has_warned = False  # whether the log says that sentences have no line

    def start(self, pool: Pool) -> None:
        self.fallback.start(pool)
        numbers = pool.ids.tolist()
        lines = [self.old[i] if 0 <= i < len(self.old) else [] for i in numbers]
        self.lines = lines
        if max(numbers, default=-1) >= len(self.old) and not self.has_warned:
            logger.warning(
                "--draft-file has %s, and the input a sentence number %d: sentences without a line "
                "are drafted as without the file",
                counted(len(self.old), "line"),
                max(numbers) + 1,
            )
            self.has_warned = True
        width = max((len(line) for line in lines), default=0) + 1
        self.text = np.array([line + [NONE] * (width - len(line)) for line in lines])  # (N, M)
        # place in the old output after the verified tokens
        self.next = np.zeros(len(lines), np.int64)
        self.tracked_length = np.zeros(
            len(lines), np.int64
        )  # number of verified tokens that `next` follows
        self.confidence = np.full(len(lines), CONFIDENCE)

    def follow_(self, rows: Rows) -> None:
        """Move `next` after the newly verified tokens."""
        live = rows.live
        fresh = rows.length - self.tracked_length[live]
        if not fresh.any():
            return
        m = int(fresh.max())
        column = np.arange(m)
        place = np.minimum(self.next[live][:, None] + column, self.text.shape[1] - 1)
        new = rows.tokens[
            np.arange(len(rows))[:, None],
            np.minimum(self.tracked_length[live][:, None] + 1 + column, rows.tokens.shape[1] - 1),
        ]
        differ = ((self.text[live[:, None], place] != new) & (column < fresh[:, None])).any(1)
        self.confidence[live] = 1 - (1 - self.confidence[live]) * DOUBT_DECAY ** (fresh * ~differ)
        self.next[live] += fresh
        self.tracked_length[live] = rows.length
        if differ.any():
            self.find_(live[differ], rows.last(TAIL)[differ])

    def find_(self, live: np.ndarray, tail: np.ndarray) -> None:
        """Search for the last verified tokens (n', TAIL) in the old outputs."""
        text = self.text[live]
        match = np.zeros(text.shape, np.int64)  # tokens of the tail that end here
        going = np.ones(text.shape, bool)
        width = text.shape[1]
        for back in range(min(TAIL, width)):
            shifted = np.concatenate([np.full((len(live), back), NONE), text[:, : width - back]], 1)
            going &= (shifted == tail[:, TAIL - 1 - back, None]) & (shifted != NONE)
            match += going
        distance = np.abs(np.arange(text.shape[1]) + 1 - self.next[live][:, None])
        best = (match * 4 * text.shape[1] - distance).argmax(1)
        length = match[np.arange(len(live)), best]
        self.next[live] = np.where(length > 0, best + 1, self.next[live])
        self.confidence[live] = MATCH_CONFIDENCE[length]

    def propose(self, rows: Rows, most: int) -> Draft:
        self.follow_(rows)
        first, live = self.next[rows.live], rows.live
        left = self.text.shape[1] - int(first.min())
        place = first[:, None] + np.arange(max(0, min(most, left)))
        tokens = np.where(
            place < self.text.shape[1],
            self.text[live[:, None], np.minimum(place, self.text.shape[1] - 1)],
            NONE,
        )
        sure = np.where(tokens == NONE, 0.0, self.confidence[live][:, None])
        weak: np.ndarray = np.all(sure[:, :1] < MIN_CONFIDENCE, axis=1)
        # rows whose old output has ended, never existed, or has no match
        if weak.any():
            others, others_sure = self.fallback.propose(rows, most)
            if others.shape[1]:
                tokens, sure = filled(tokens, sure, weak, others, others_sure)
        return without_end(tokens, sure)

    def compiled(self, sentence: int) -> CompiledDrafter:
        fallback, text = self.fallback.compiled(sentence), np.array(self.lines[sentence], np.int64)
        state = new(
            "Previous",
            fallback.fields,
            pointer(text),
            address(MATCH_CONFIDENCE, np.float64),
            len(text),
            TAIL,
            0,
            0,
            DOUBT_DECAY,
            MIN_CONFIDENCE,
            CONFIDENCE,
        )
        return CompiledDrafter("previous", state, (text, fallback))


def filled(
    tokens: np.ndarray,
    sure: np.ndarray,
    rows: np.ndarray,
    others: np.ndarray,
    others_sure: np.ndarray,
) -> Draft:
    """Return `tokens` with the other draft in `rows` (mask (n,)), as wide as the wider draft."""
    m = max(tokens.shape[1], others.shape[1])
    pad = ((0, 0), (0, m - tokens.shape[1])), ((0, 0), (0, m - others.shape[1]))
    tokens = np.pad(tokens, pad[0], constant_values=NONE)
    others = np.pad(others, pad[1], constant_values=NONE)
    sure, others_sure = np.pad(sure, pad[0]), np.pad(others_sure, pad[1])
    return np.where(rows[:, None], others, tokens), np.where(rows[:, None], others_sure, sure)
