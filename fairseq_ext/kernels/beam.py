"""Beam search of sentences that start and end at any step (`beam.cpp`). Definition: search/loop.py.

Shapes: k beam, T token capacity of a row, B sentences that are searched together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from fairseq_ext.kernels.library import CData, declarations, loaded, new, pointer

if TYPE_CHECKING:  # translate.py starts without torch
    from torch import Tensor

    from fairseq_ext.kernels.banks import Banks
    from fairseq_ext.kernels.transformer import PackedLinear

ROWS = {"tokens": np.int64, "next_tokens": np.int64, "score": np.float32, "next_score": np.float32}
ROWS |= {"history": np.int32, "next_history": np.int32}
STEPS = 16  # steps of one call: signals are handled between two calls
FIRST_PLACES = 64  # initial token capacity: most sentences are far shorter than their limit
ALLOWED_STATES = ("allowed_state", "next_allowed_state")
HYPOTHESIS_ARRAYS = {"found_tokens": np.int64, "found_score": np.float32}
STATES = ("state", "next_state", "met", "next_met")  # of each row's phrases


class SearchResult(IntEnum):
    """The result of a call, or of the search of a sentence."""

    GOES_ON = 0
    FINISHED = 1  # of a call: some sentences are not live any more
    NO_ROOM = 2  # the reader has too little memory for the next step
    NOT_A_NUMBER = 3
    TOO_FEW_CONTINUATIONS = 4  # fewer continuations are possible than the search needs


class Selection(IntEnum):
    """The strategy of strategies/select that chooses continuations."""

    TOP = 0
    SAMPLES = 1
    BANKS = 2


class StopRule(IntEnum):
    """The strategy of strategies/stop that ends sentences."""

    COUNT = 0
    RANKED = 1
    FIRST = 2
    SHRINK = 3
    OPTIMAL = 4
    EARLY = 5


class CompiledSentence:
    """The search of one sentence; the object can be reused for another sentence (`start_`).

    k: largest number of rows; enough: number of hypotheses that there is room for, and that end the
    search.
    """

    def __init__(self, rules: CData, k: int, enough: int):
        self.rules, self.k, self.enough = rules, k, enough
        self.struct = new("Sentence", rules=rules, enough=enough)
        self.arrays: dict[str, np.ndarray] = {}
        self.pointers: dict[str, CData] = {}  # to the arrays
        self.order_arrays = {
            name: np.zeros(enough, np.int64) for name in ("order", "unconfirmed", "found_length")
        }
        self.order_arrays |= {name: np.zeros(k, np.int64) for name in ("row", "ends", "read")}
        self.best = np.zeros(k)
        for name, array in (*self.order_arrays.items(), ("best", self.best)):
            setattr(self.struct, name, pointer(array))
        self.states = np.zeros((len(STATES), 0), np.int64)  # (4, at least k x G)
        self.keepalive: object = None  # objects that the structure points to
        self.words: Any = None  # the ids of `list_`
        self.set_capacity_(FIRST_PLACES)

    def set_capacity_(self, T: int) -> None:
        """Set the token capacity of a row; existing tokens stay."""
        struct = self.struct
        # the library swaps the arrays of rows with those of the next rows
        at = {self.pointers[name]: array for name, array in self.arrays.items()}
        for name, dtype in (ROWS | HYPOTHESIS_ARRAYS).items():
            rows = self.enough if name in HYPOTHESIS_ARRAYS else self.k
            after = np.zeros((rows, T), dtype)
            if struct.T:
                after[:, : struct.T] = at[getattr(struct, name)]
            self.arrays[name], self.pointers[name] = after, pointer(after)
            setattr(struct, name, self.pointers[name])
        struct.T = T

    def lengthen_(self) -> bool:
        """Double the token capacity if it is full; return whether it was."""
        is_full = self.struct.length + 2 > self.struct.T
        if is_full:
            self.set_capacity_(2 * self.struct.T)
        return is_full

    def start_(
        self,
        bos: int,
        limit: int,
        slot: int,
        nbest: int,
        rewarded: float,
        lenpen: float,
        reward: float,
        seed: int,
        number: int,
        phrases: tuple[Banks, int] | None = None,
    ) -> None:
        """Begin with a sentence of at most `limit` tokens before EOS, in a slot of the KV cache.

        nbest: number of requested hypotheses; reward: of each token up to a target length of
        `rewarded`, 0 for none; seed, number: keys of the random numbers; phrases: the required
        phrases of a pool, and the number of the sentence there.
        """
        struct = self.struct
        for name, at in self.pointers.items():
            setattr(struct, name, at)
        struct.limit, struct.slot, struct.rows, struct.m = limit, slot, 1, nbest
        struct.limit_divisor, struct.lenpen = (limit + 1.0) ** lenpen, lenpen
        struct.seed, struct.number = seed, number
        self.rewarded = rewarded
        rewards = reward * np.minimum(rewarded, np.arange(limit + 2)) if reward else None
        struct.reward, struct.phrases = pointer(rewards), pointer(None)
        self.keepalive = rewards, phrases
        if phrases is not None:
            self.start_phrases_(*phrases)
        struct.result = struct.length = struct.used = struct.finished = struct.waiting = (
            struct.dropped
        ) = struct.unused_rows = struct.full = struct.remaining = 0
        struct.best_total, struct.gap = -math.inf, 0.0
        self.best.fill(-math.inf)
        self.order_arrays["row"].fill(0)
        self.arrays["tokens"][0, 0], self.arrays["score"][0, 0] = bos, 0.0

    def start_phrases_(self, banks: Banks, number: int) -> None:
        """Set the state in which no phrase of sentence `number` of the pool has begun."""
        struct, G = self.struct, banks.start.size(1)
        if self.states.shape[1] < self.k * G:
            self.states = np.zeros((len(STATES), self.k * G), np.int64)
        for name, array in zip(STATES, self.states, strict=True):
            setattr(struct, name, pointer(array))
        self.states[:, :G] = 0
        self.states[STATES.index("state"), :G] = banks.start[number].numpy()
        struct.phrases, struct.in_phrases = banks.phrases, number
        struct.goal, struct.infeasible = banks.total[number], banks.infeasible[number]
        struct.slots = banks.slots[number]

    def restrict_(self, automata: object = None, start: int = 0, keepalive: object = None) -> None:
        """Keep to the allowed outputs whose automaton has this start; automata: their struct, whose
        arrays keepalive has; None: to none. Call it after `start_`."""
        self.automata = automata, keepalive  # the structure points to them
        self.struct.allowed = pointer(None) if automata is None else automata
        if automata is not None:
            self.allowed_states = np.full((2, self.k), start, np.int64)
            for name, array in zip(ALLOWED_STATES, self.allowed_states, strict=True):
                setattr(self.struct, name, pointer(array))

    def list_(self, words: Tensor | None, columns: Tensor | None = None) -> None:
        """Score only these words (C,), ascending, which are at these columns (C,) of the batch's
        output layer; None: all. Call it after `start_`."""
        self.words, self.columns = words, columns  # the structure points to them
        self.struct.words, self.struct.columns = pointer(words), pointer(columns)
        self.struct.listed = 0 if words is None else words.numel()

    @property
    def is_live(self) -> bool:
        """Whether the search has not ended yet."""
        return self.struct.result == SearchResult.GOES_ON

    @property
    def result(self) -> SearchResult:
        """The result of the search; GOES_ON while it is live."""
        return SearchResult(self.struct.result)

    def hypotheses(self, waiting: bool = False) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return each answer's tokens with EOS, and its sums of log-probabilities, as views.

        They are in the order in which they were finished; with `--stop ranked` in the order in
        which they became answers, with `optimal` best first. waiting: also return hypotheses that
        may still become answers (`ranked`).
        """
        places = self.order_arrays["order"][: self.struct.finished].tolist()
        if waiting:
            places += self.order_arrays["unconfirmed"][: self.struct.waiting].tolist()
        tokens, score, length = (
            self.arrays["found_tokens"],
            self.arrays["found_score"],
            self.order_arrays["found_length"].tolist(),
        )
        return [(tokens[f, 1 : length[f] + 1], score[f, 1 : length[f] + 1]) for f in places]

    def tokens(self) -> np.ndarray:
        """Return the tokens chosen so far (rows, length); a view."""
        # the two arrays are swapped at every step
        first = self.struct.tokens == self.pointers["tokens"]
        return self.arrays["tokens" if first else "next_tokens"][
            : self.struct.remaining or self.struct.rows, 1 : self.struct.length + 1
        ]


class CompiledBatch:
    """Sentences that are searched together."""

    def __init__(self) -> None:
        self.struct = new("Batch")
        self.search_sentences = loaded().search_sentences
        self.set_sentences_([])

    def set_sentences_(self, live: Sequence[CompiledSentence]) -> None:
        """Set the sentences (B,) that are searched."""
        self.live = live
        self.pointers = declarations().new("Sentence *[]", [each.struct for each in live])
        self.struct.live, self.struct.sentences = self.pointers, len(live)

    def set_output_(self, output: PackedLinear | None) -> None:
        """Set the output layer of all sentences' listed words; None: the reader's."""
        self.output = output  # the structure points to it
        self.struct.output = pointer(None) if output is None else output.struct
        self.struct.columns = 0 if output is None else output.outputs

    @property
    def rows(self) -> int:
        """Number of rows of all sentences."""
        return sum(sentence.struct.rows for sentence in self.live)

    def run_steps(self, most: int, reader: CData, step: CData) -> SearchResult:
        """Make at most `most` steps; stop after a step that ends a sentence.

        reader, step: `struct` and `step_struct` of a CompiledReader (kernels/transformer.py).
        NO_ROOM: enlarge the reader, or lengthen sentences, and call again.
        """
        return SearchResult(self.search_sentences(self.struct, most, reader, step))

    def take_counts(self) -> tuple[int, int]:
        """Return the decoder calls and their rows since the last call of this method."""
        counts = self.struct.calls, self.struct.decoder_rows
        self.struct.calls = self.struct.decoder_rows = 0
        return counts
