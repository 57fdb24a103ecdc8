"""Parallel decoding of a row that is alone, and its drafts, in compiled code (`parallel.cpp`).

A call drafts, reads, verifies and commits. The definitions work on arrays of rows:
search/parallel/driver.py and search/strategies/decoding/.

Shapes: w positions of a block, d features, V vocabulary, T most tokens.
"""

from __future__ import annotations

import ctypes
from ctypes import c_void_p
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from fairseq_ext.kernels.library import address, loaded, struct
from fairseq_ext.kernels.transformer import CompiledReader

BUFFERS = {
    "draft": np.int64,
    "sure": np.float64,
    "word": np.int64,
    "word_score": np.float64,
    "margin": np.float64,
}


class Status(IntEnum):
    """How a call ended."""

    GOES_ON = 0
    DONE = 1
    LOST = 2  # every word was forbidden
    NOT_A_NUMBER = 3
    NO_ROOM = 4  # the reader has no memory for the block


RowStruct = struct("parallel.hpp", "Row")
BlocksStruct = struct("parallel.cpp", "Blocks")
WindowStruct = struct("parallel.cpp", "Window")


@dataclass
class CompiledMethod:
    """A method that compiled code can ask for one sentence's blocks.

    learn: whether it wants to know what came of its drafts.
    """

    name: str  # of the functions: draft_NAME, learn_NAME, commit_NAME
    state: ctypes.Structure
    drafter: CompiledDrafter
    learn: bool = False


class CompiledRow:
    """One row's calls.

    tokens (1, T) int64, score (1, T) float64 and length (1,) int64 are the caller's and are written
    to; width: of the widest block.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        score: np.ndarray,
        length: np.ndarray,
        width: int,
        method: CompiledMethod,
    ):
        compiled = loaded()
        self.draft_row, self.commit_row, self.call_row = (
            compiled.draft_row,
            compiled.commit_row,
            compiled.call_row,
        )
        self.buffers = {name: np.zeros(width, dtype) for name, dtype in BUFFERS.items()}
        self.kept = (tokens, score, length, method)
        self.struct = RowStruct(
            tokens=address(tokens, np.int64, 1, None),
            score=address(score, np.float64, 1, tokens.shape[1]),
            length=address(length, np.int64, 1),
            **{name: array.ctypes.data for name, array in self.buffers.items()},
        )
        for field, name in (("draft_block", "draft"), ("learn", "learn"), ("commit", "commit")):
            if name != "learn" or method.learn:
                setattr(
                    self.struct, field, ctypes.cast(compiled[f"{name}_{method.name}"], c_void_p)
                )
        self.struct.method = ctypes.addressof(method.state)
        self.address = ctypes.addressof(self.struct)

    def limits_(self, limit: int, min_len: int, eos: int, pad: int, ngram: int) -> None:
        """limit: most tokens before EOS; min_len: least; ngram: size of n-grams that
        do not repeat, 0: off."""
        (
            self.struct.limit,
            self.struct.min_len,
            self.struct.eos,
            self.struct.pad,
            self.struct.ngram,
        ) = limit, min_len, eos, pad, ngram

    def draft(self) -> np.ndarray:
        """(w - 1,) the draft of the next block."""
        return self.buffers["draft"][: self.draft_row(self.address) - 1]

    def commit(self, word: np.ndarray, score: np.ndarray, margin: np.ndarray) -> Status:
        """Take the block's best words (w,), their log-probabilities, and how far each is
        before the second best."""
        w = self.struct.w
        for name, value in (("word", word), ("word_score", score), ("margin", margin)):
            self.buffers[name][:w] = value
        return Status(self.commit_row(self.address))

    def call(self, reader: CompiledReader) -> Status:
        """A whole call; with NO_ROOM it is to be made again when the reader has room for
        struct.w more positions."""
        return Status(self.call_row(self.address, reader.address))


# ---- Drafters
#
# Definitions, for arrays of rows: search/parallel/drafts.py and search/parallel/ngram.py.
#
# Shapes: m histories, K listed words, V target vocabulary.


DrafterStruct = struct("parallel.hpp", "Drafter")
TrajectoryStruct = struct("parallel.cpp", "Trajectory")
PreviousStruct = struct("parallel.cpp", "Previous")
TableStruct = struct("parallel.cpp", "Table")
NgramStruct = struct("parallel.cpp", "Ngram")


# of the arrays; others are float32
TYPES = {"key": np.int64, "token": np.int32, "lexical_start": np.int64, "lexical_token": np.int32}


@dataclass
class CompiledDrafter:
    """A drafter that compiled code can ask for one sentence's drafts.

    kept: what the structure points to.
    """

    struct: ctypes.Structure
    kept: tuple

    @staticmethod
    def of(name: str, state: ctypes.Structure | None = None, *kept: Any) -> CompiledDrafter:
        """name: of the function, propose_NAME."""
        function = ctypes.cast(loaded()[f"propose_{name}"], c_void_p)
        return CompiledDrafter(
            DrafterStruct(function, None if state is None else ctypes.addressof(state)),
            (state, *kept),
        )


def nothing() -> CompiledDrafter:
    """No drafts."""
    return CompiledDrafter.of("nothing")


def trajectory(pad: int) -> CompiledDrafter:
    """pad: the token behind the last call's outputs; NONE: the last verified one."""
    return CompiledDrafter.of("trajectory", TrajectoryStruct(pad))


def previous(
    old: list[int],
    sure: float,
    found: np.ndarray,
    regained: float,
    weak: float,
    other: CompiledDrafter,
) -> CompiledDrafter:
    """old: the earlier output; found (tail + 1,) float64; other: the drafter of the
    parts that it lacks."""
    text = np.array(old, np.int64)
    state = PreviousStruct(
        other.struct,
        text.ctypes.data,
        address(found, np.float64, None),
        len(old),
        len(found) - 1,
        0,
        0,
        regained,
        weak,
        sure,
    )
    return CompiledDrafter.of("previous", state, text, found, other)


class CompiledTable:
    """A table's arrays where the compiled functions find them."""

    def __init__(self, arrays: dict[str, np.ndarray], numbers: dict[str, float]):
        """Arrays and numbers of `TableStruct` by name; m, K and V follow from them."""
        self.speak = loaded().speak
        self.arrays = {
            name: np.ascontiguousarray(value, TYPES.get(name, np.float32))
            for name, value in arrays.items()
        }
        m, K = len(arrays["key"]), arrays["token"].shape[1]
        self.struct = TableStruct(m=m, K=K, V=len(arrays["unigram"]), **numbers)
        for name, value in self.arrays.items():
            setattr(self.struct, name, value.ctypes.data)
        self.address = ctypes.addressof(self.struct)
        self.sum = np.zeros(len(arrays["unigram"]))

    def factors(self, source: np.ndarray, length: int) -> np.ndarray:
        """(V,) float32: how much more than by chance a sentence speaks of each word.

        source (columns,) int64, padding included; length: tokens without padding.
        """
        factor = np.empty(self.struct.V, np.float32)
        self.speak(
            self.address,
            address(source, np.int64, None),
            len(source),
            length,
            factor.ctypes.data,
            self.sum.ctypes.data,
        )
        return factor

    def drafter(self, factor: np.ndarray | None, pad: int) -> CompiledDrafter:
        """A sentence's drafter.

        factor (V,): from `factors`, or None; pad: the token before the first one.
        """
        at = None if factor is None else address(factor, np.float32, self.struct.V)
        state = NgramStruct(self.address, at, pad, 0)
        return CompiledDrafter.of("ngram", state, factor, self)
