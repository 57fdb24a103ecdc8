"""Beam search of sentences that start and end at any step (`beam.cpp`). Definition: search/loop.py.

Shapes: k beam, T places for the tokens of a row, B sentences that are searched together.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from ctypes import c_void_p
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from fairseq_ext.kernels.library import loaded, struct

ROWS = {"tokens": np.int64, "next_tokens": np.int64, "score": np.float32, "next_score": np.float32}
ROWS |= {"history": np.int32, "next_history": np.int32}
STEPS = 16  # of one call: between two of them signals are handled
FIRST_PLACES = 64  # for the tokens of a row, as most sentences are far shorter than their limit
FOUND = {"found_tokens": np.int64, "found_score": np.float32}


class Result(IntEnum):
    """How a call ended, or the search of a sentence."""

    GOES_ON = 0
    FOUND = 1  # of a call: some sentences are not live any more
    NO_ROOM = 2  # the reader has no room for the next step
    NOT_A_NUMBER = 3
    UNSUITABLE = 4  # fewer continuations are possible than the search wants


class StopRule(IntEnum):
    """Which strategy of strategies/stop ends sentences."""

    COUNT = 0
    RANKED = 1
    FIRST = 2
    SHRINK = 3
    OPTIMAL = 4


Rules = struct("sentence.hpp", "Rules")


@dataclass(frozen=True)
class PlugRules:
    """What a strategy does, as fields of `Rules`; None: the strategy does not set the field."""

    stop: StopRule | None = None
    paper: bool | None = None
    prune_bound: bool | None = None
    children: int | None = None
    threshold: float | None = None
    behind_finished: float | None = None
    samples: bool | None = None
    cut: ctypes.Structure | None = None

    def fields(self) -> dict[str, Any]:
        """The fields that are set."""
        return {name: value for name, value in vars(self).items() if value is not None}


SentenceStruct = struct("sentence.hpp", "Sentence")
BatchStruct = struct("beam.cpp", "Batch")


class CompiledSentence:
    """The search of one sentence, and after it of another."""

    def __init__(self, rules: ctypes.Structure):
        self.rules, self.k = rules, rules.k
        self.struct = SentenceStruct(rules=ctypes.addressof(rules))
        self.address = ctypes.addressof(self.struct)
        self.arrays: dict[str, np.ndarray] = {}
        self.addresses: dict[str, int] = {}  # of the arrays
        self.kept = {
            name: np.zeros(self.k, np.int64) for name in ("order", "waits", "found_length", "row")
        }
        self.kept["best"] = np.zeros(self.k)
        for name, array in self.kept.items():
            setattr(self.struct, name, array.ctypes.data)
        self.places_(FIRST_PLACES)

    def places_(self, T: int) -> None:
        """Have so many places for the tokens of a row; what is there stays."""
        struct = self.struct
        # the library swaps rows with the next ones
        at = {self.addresses[name]: array for name, array in self.arrays.items()}
        for name, dtype in (ROWS | FOUND).items():
            after = np.zeros((self.k, T), dtype)
            if struct.T:
                after[:, : struct.T] = at[getattr(struct, name)]
            self.arrays[name], self.addresses[name] = after, after.ctypes.data
            setattr(struct, name, self.addresses[name])
        struct.T = T

    def lengthen_(self) -> bool:
        """Have more places for tokens, where they are full; return whether they were."""
        is_full = self.struct.length + 2 > self.struct.T
        if is_full:
            self.places_(2 * self.struct.T)
        return is_full

    def start_(
        self,
        bos: int,
        limit: int,
        slot: int,
        nbest: int,
        rewarded: float,
        limit_divisor: float,
        seed: int,
        number: int,
    ) -> None:
        """Begin with a sentence of at most `limit` tokens before EOS, which lies in a
        slot of the KV cache.

        nbest: hypotheses that are asked for; rewarded: target length that a reward counts up to;
        limit_divisor: (limit + 1)^lenpen; seed, number: what it samples by.
        """
        struct = self.struct
        for name, address in self.addresses.items():
            setattr(struct, name, address)
        struct.limit, struct.slot, struct.rows, struct.m = limit, slot, 1, nbest
        struct.rewarded, struct.limit_divisor, struct.seed, struct.number = (
            rewarded,
            limit_divisor,
            seed,
            number,
        )
        struct.result = struct.length = struct.used = struct.finished = struct.waiting = (
            struct.dropped
        ) = struct.missed = 0
        struct.best_total, struct.gap = -math.inf, 0.0
        self.kept["best"].fill(-math.inf)
        self.kept["row"].fill(0)
        self.arrays["tokens"][0, 0], self.arrays["score"][0, 0] = bos, 0.0

    @property
    def is_live(self) -> bool:
        """Whether the search has not ended."""
        return self.struct.result == Result.GOES_ON

    @property
    def result(self) -> Result:
        """How the search ended; GOES_ON while it has not."""
        return Result(self.struct.result)

    def found(self, waiting: bool = False) -> list[tuple[np.ndarray, np.ndarray]]:
        """Each answer's tokens with EOS, and its sums of log-probabilities; views, in the order
        in which they were finished, or, of `--stop ranked` and `optimal`, became answers, or best
        first. waiting: also those that may yet become answers (`ranked`)."""
        places = self.kept["order"][: self.struct.finished].tolist()
        if waiting:
            places += self.kept["waits"][: self.struct.waiting].tolist()
        tokens, score, length = (
            self.arrays["found_tokens"],
            self.arrays["found_score"],
            self.kept["found_length"].tolist(),
        )
        return [(tokens[f, 1 : length[f] + 1], score[f, 1 : length[f] + 1]) for f in places]

    def tokens(self) -> np.ndarray:
        """(rows, length) the tokens chosen so far; a view."""
        # the two change places at every step
        first = self.struct.tokens == self.addresses["tokens"]
        return self.arrays["tokens" if first else "next_tokens"][
            : self.struct.rows, 1 : self.struct.length + 1
        ]


class CompiledBatch:
    """Sentences that are searched together."""

    def __init__(self) -> None:
        self.struct = BatchStruct()
        self.search_sentences = loaded().search_sentences
        self.keep_([])

    def keep_(self, live: Sequence[CompiledSentence]) -> None:
        """Search these (B,) from now on."""
        self.live = live
        self.addresses = (c_void_p * len(live))(*(sentence.address for sentence in live))
        self.struct.live, self.struct.sentences = ctypes.addressof(self.addresses), len(live)

    @property
    def rows(self) -> int:
        """Rows of all sentences."""
        return sum(sentence.struct.rows for sentence in self.live)

    def go_on(self, most: int, reader: Any, step: ctypes.Structure) -> Result:
        """At most so many steps, and none after one that ends a sentence; with NO_ROOM it is to be
        called again when reader (kernels/transformer.py, CompiledReader) and step have more."""
        return Result(
            self.search_sentences(
                ctypes.addressof(self.struct), most, reader.address, ctypes.addressof(step)
            )
        )

    def take_counts(self) -> tuple[int, int]:
        """Calls of the decoder since the last time, and their rows."""
        counts = self.struct.calls, self.struct.read
        self.struct.calls = self.struct.read = 0
        return counts
