"""The search of sentences with required phrases (`constrained.cpp`): many steps in one call. Definition: search/loop.py with
strategies/select/dba.py and strategies/stop/early.py.

Shapes: N sentences, k beam, T places for the tokens of a row, G constraints of a sentence, F = 2k hypotheses of a sentence at most.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_double, c_float, c_int64, c_void_p
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairseq_ext.kernels.banks import PhrasesStruct
from fairseq_ext.kernels.library import loaded

STEPS = 16  # of one call: between two of them signals are handled
ROOM_STEPS = 4  # there is too little room where a KV cache has none for so many steps
ROWS = {"tokens": np.int64, "next_tokens": np.int64, "score": np.float32, "next_score": np.float32}
ROWS |= {"history": np.int32, "next_history": np.int32}
STATES = ("place", "next_place", "met", "next_met")


class Result(IntEnum):
    """How a call ended."""

    FOUND = 0
    NO_ROOM = 1  # for the next steps
    NOT_A_NUMBER = 2
    GOES_ON = 3


@dataclass
class Estimate:
    """What a live hypothesis is expected to end with (strategies/stop/early.py)."""

    lacking: float  # nats, of each required token that it lacks
    cost: float  # nats, of EOS and of each other token
    others: int  # tokens that it may take beside those that it lacks


@dataclass
class Banks:
    """The phrases of a pool of N sentences, as dynamic beam allocation reads them."""

    phrases: PhrasesStruct
    start: Tensor  # (N, G) the state of each constraint before the first token
    infeasible: Tensor  # (N,) bool
    highest: int  # constraint tokens of a sentence at most
    even: bool  # how slots are divided among banks
    kept: Any  # what the structure points to


@dataclass
class Settings:
    """What holds for every sentence. divisor, expected (lengths,): by length with EOS, what the totals of finished hypotheses, and of
    estimates, are divided by."""

    k: int
    nbest: int
    min_len: int
    eos: int
    pad: int
    ngram: int
    temperature: float
    estimate: Estimate
    divisor: Tensor
    expected: Tensor


class SentencesStruct(ctypes.Structure):
    _fields_ = [(name, c_int64) for name in ("k", "m", "min_len", "eos", "pad", "ngram", "T", "even", "others")]
    _fields_ += [("temperature", c_float), ("lacking", c_double), ("cost", c_double)]
    _fields_ += [(name, c_int64) for name in ("layers", "heads", "features")]
    _fields_ += [(name, c_void_p) for name in ("divisor", "expected", "phrases", "number", "limit", "infeasible")]
    _fields_ += [(name, c_int64) for name in ("length", "live", "W", "used", "ended", "dropped", "full")]
    _fields_ += [(name, c_void_p) for name in ("slot", "first", *ROWS, *STATES, "best")]
    _fields_ += [(name, c_void_p) for name in ("finished", "found_length", "found_tokens", "order", "found_score")]
    _fields_ += [("calls", c_int64), ("read", c_int64)]


class CompiledSearch:
    """One search over N sentences. sentences: their numbers in the pool; limits: most tokens before EOS of each; bos: first target token;
    shape (L, 2, N, H, positions, h): of the decoder's target keys and values."""

    def __init__(self, settings: Settings, banks: Banks, sentences: Sequence[int], limits: Sequence[int], bos: int, shape: Sequence[int]):
        N, k, T, G = len(sentences), settings.k, max(limits) + 2, banks.start.size(1)
        F, number = 2 * k, torch.tensor(sentences)
        place = np.empty((N * k, G), np.int64)
        place[:N] = banks.start[number].numpy()
        self.arrays: dict[str, np.ndarray] = {
            "number": number.numpy(), "limit": np.array(limits), "infeasible": banks.infeasible[number].numpy(),
            "divisor": settings.divisor.numpy(), "expected": settings.expected.numpy(), "slot": np.arange(N), "first": np.arange(N + 1),
            **{name: np.empty((N * k, T), dtype) for name, dtype in ROWS.items()},
            "place": place, "next_place": np.empty_like(place), "met": np.zeros_like(place), "next_met": np.empty_like(place),
            "best": np.full((N, settings.nbest), -np.inf), "finished": np.zeros(N, np.int64), "order": np.empty(N, np.int64),
            "found_length": np.empty((N, F), np.int64), "found_tokens": np.empty((N, F, T), np.int64),
            "found_score": np.empty((N, F, T), np.float32),
        }  # fmt: skip
        assert settings.divisor.dtype == settings.expected.dtype == torch.float32
        assert settings.divisor.numel() >= T and settings.expected.numel() >= T + banks.highest + settings.estimate.others + 1
        self.arrays["tokens"][:N, 0], self.arrays["score"][:N, 0] = bos, 0.0
        self.kept = banks
        self.struct = SentencesStruct(
            k=k, m=settings.nbest, min_len=settings.min_len, eos=settings.eos, pad=settings.pad, ngram=settings.ngram, T=T, even=banks.even,
            temperature=settings.temperature, **vars(settings.estimate),
            layers=shape[0], heads=shape[3], features=shape[5], phrases=ctypes.addressof(banks.phrases), live=N, W=1,
            **{name: array.ctypes.data for name, array in self.arrays.items()},
        )  # fmt: skip

    def go_on(self, reader: Any, step: ctypes.Structure) -> Result:
        """Make some steps with reader (kernels/row.py, CompiledReader), whose KV cache step describes."""
        return Result(loaded().search_constrained(ctypes.addressof(self.struct), reader.address, ctypes.addressof(step), STEPS))

    def ended(self, since: int) -> list[int]:
        """Which of the N sentences have ended, without the first `since` of them, in the order in which they did."""
        return self.arrays["order"][since : self.struct.ended].tolist()

    def found(self, sentence: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Tokens with EOS and sums of log-probabilities of each hypothesis of the i-th sentence; views, in the order in which they were
        finished."""
        a = self.arrays
        lengths = a["found_length"][sentence, : int(a["finished"][sentence])].tolist()
        return [(a["found_tokens"][sentence, f, 1 : n + 1], a["found_score"][sentence, f, 1 : n + 1]) for f, n in enumerate(lengths)]
