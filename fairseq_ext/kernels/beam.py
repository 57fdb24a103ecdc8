"""Beam search of a sentence that is alone (`beam.cpp`): all its steps in one call. Definition: search/loop.py.

Shapes: k beam, T places for the tokens of a row.
"""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int64, c_void_p
from enum import IntEnum
from typing import Any

import numpy as np

from fairseq_ext.kernels.library import loaded

ROWS = {"tokens": np.int64, "next_tokens": np.int64, "score": np.float32, "next_score": np.float32}
ROWS |= {"history": np.int32, "next_history": np.int32}
FOUND = {"found_tokens": np.int64, "found_score": np.float32}


class Result(IntEnum):
    """How a call ended."""

    FOUND = 0
    NO_ROOM = 1  # the reader has no room for the next step
    NOT_A_NUMBER = 2
    UNSUITABLE = 3  # fewer continuations are possible than the search wants


class SentenceStruct(ctypes.Structure):
    _fields_ = [(name, c_int64) for name in ("k", "limit", "min_len", "eos", "pad", "ngram", "T")] + [("temperature", c_float)]
    _fields_ += [(name, c_int64) for name in ("length", "rows", "used", "finished")]
    _fields_ += [(name, c_void_p) for name in (*ROWS, "count", "found_length", *FOUND)]
    _fields_ += [("calls", c_int64), ("read", c_int64)]


class CompiledBeam:
    """Searches one sentence after another."""

    def __init__(self, k: int, min_len: int, eos: int, pad: int, temperature: float, ngram: int):
        self.struct = SentenceStruct(k=k, min_len=min_len, eos=eos, pad=pad, ngram=ngram, temperature=temperature)
        self.address = ctypes.addressof(self.struct)
        self.search_sentence = loaded().search_sentence
        self.count, self.found_length = np.zeros((2, k), np.int64)
        self.struct.count, self.struct.found_length = self.count.ctypes.data, self.found_length.ctypes.data

    def start_(self, bos: int, limit: int) -> None:
        """Begin with a sentence of at most `limit` tokens before EOS."""
        struct = self.struct
        if limit + 2 > struct.T:
            struct.T = limit + 2
            self.arrays = {name: np.zeros((struct.k, struct.T), dtype) for name, dtype in (ROWS | FOUND).items()}
        for name, array in self.arrays.items():
            setattr(struct, name, array.ctypes.data)
        struct.limit, struct.rows = limit, 1
        struct.length = struct.used = struct.finished = struct.calls = struct.read = 0
        self.arrays["tokens"][0, 0], self.arrays["score"][0, 0] = bos, 0.0

    def go_on(self, reader: Any, step: ctypes.Structure) -> Result:
        """Search to the end; with NO_ROOM it is to be called again when reader (kernels/row.py, CompiledReader) and step have more."""
        return Result(self.search_sentence(self.address, reader.address, ctypes.addressof(step)))

    def found(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Each hypothesis' tokens with EOS, and its sums of log-probabilities; views, in the order in which they were finished."""
        lengths = self.found_length[: self.struct.finished].tolist()
        tokens, score = self.arrays["found_tokens"], self.arrays["found_score"]
        return [(tokens[f, 1 : n + 1], score[f, 1 : n + 1]) for f, n in enumerate(lengths)]
