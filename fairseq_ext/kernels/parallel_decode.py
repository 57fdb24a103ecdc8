"""Parallel decoding of a row that is alone (`parallel_decode.cpp`): a call drafts, reads, verifies and commits in compiled code.

The definitions work on arrays of rows: search/parallel/driver.py and strategies/decoding/.

Shapes: w positions of a block, d features, V vocabulary, T most tokens.
"""

from __future__ import annotations

import ctypes
from ctypes import c_void_p
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from fairseq_ext.kernels.declarations import struct
from fairseq_ext.kernels.draft import CompiledDrafter
from fairseq_ext.kernels.library import loaded
from fairseq_ext.kernels.transformer import CompiledReader

BUFFERS = {"draft": np.int64, "sure": np.float64, "word": np.int64, "word_score": np.float64, "margin": np.float64}


class Status(IntEnum):
    """How a call ended."""

    GOES_ON = 0
    DONE = 1
    LOST = 2  # every word was forbidden
    NOT_A_NUMBER = 3
    NO_ROOM = 4  # the reader has no memory for the block


RowStruct = struct("parallel.hpp", "Row")
BlocksStruct = struct("parallel_decode.cpp", "Blocks")
WindowStruct = struct("parallel_decode.cpp", "Window")


@dataclass
class CompiledMethod:
    """A method that compiled code can ask for one sentence's blocks. learn: whether it wants to know what came of its drafts."""

    name: str  # of the functions: draft_NAME, learn_NAME, commit_NAME
    state: ctypes.Structure
    drafter: CompiledDrafter
    learn: bool = False


class CompiledRow:
    """One row's calls. tokens (1, T) int64, score (1, T) float64 and length (1,) int64 are the caller's and are written to; width: of the
    widest block."""

    def __init__(self, tokens: np.ndarray, score: np.ndarray, length: np.ndarray, width: int, method: CompiledMethod):
        assert tokens.dtype == length.dtype == np.int64 and score.dtype == np.float64
        compiled = loaded()
        self.draft_row, self.commit_row, self.call_row = compiled.draft_row, compiled.commit_row, compiled.call_row
        self.buffers = {name: np.zeros(width, dtype) for name, dtype in BUFFERS.items()}
        self.kept = (tokens, score, length, method)
        arrays = {"tokens": tokens, "score": score, "length": length, **self.buffers}
        self.struct = RowStruct(**{name: array.ctypes.data for name, array in arrays.items()})
        for field, name in (("draft_block", "draft"), ("learn", "learn"), ("commit", "commit")):
            if name != "learn" or method.learn:
                setattr(self.struct, field, ctypes.cast(compiled[f"{name}_{method.name}"], c_void_p))
        self.struct.method = ctypes.addressof(method.state)
        self.address = ctypes.addressof(self.struct)

    def limits_(self, limit: int, min_len: int, eos: int, pad: int, ngram: int) -> None:
        """limit: most tokens before EOS; min_len: least; ngram: size of n-grams that do not repeat, 0: off."""
        self.struct.limit, self.struct.min_len, self.struct.eos, self.struct.pad, self.struct.ngram = limit, min_len, eos, pad, ngram

    def draft(self) -> np.ndarray:
        """(w - 1,) the draft of the next block."""
        return self.buffers["draft"][: self.draft_row(self.address) - 1]

    def commit(self, word: np.ndarray, score: np.ndarray, margin: np.ndarray) -> Status:
        """Take the block's best words (w,), their log-probabilities, and how far each is before the second best."""
        w = self.struct.w
        for name, value in (("word", word), ("word_score", score), ("margin", margin)):
            self.buffers[name][:w] = value
        return Status(self.commit_row(self.address))

    def call(self, reader: CompiledReader) -> Status:
        """A whole call; with NO_ROOM it is to be made again when the reader has room for struct.w more positions."""
        return Status(self.call_row(self.address, reader.address))
