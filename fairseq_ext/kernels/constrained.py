"""The search of sentences with required phrases (`constrained.cpp`): many steps in one call.

Definition: search/loop.py with search/strategies/select/dba.py and search/strategies/stop/early.py.

Shapes: N sentences, k beam, T token capacity of a row, G constraints of a sentence, F = 2k: largest
number of hypotheses of a sentence.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_double, c_float, c_int64, c_void_p
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairseq_ext.kernels.banks import Banks, Estimate
from fairseq_ext.kernels.beam import FIRST_PLACES, HYPOTHESIS_ARRAYS, ROWS, SearchResult
from fairseq_ext.kernels.library import address, loaded

STATES = ("state", "next_state", "met", "next_met")


@dataclass
class ConstrainedSettings:
    """Settings of every sentence.

    divisor, estimate_divisor (lengths,): divisors of the totals of finished hypotheses, and of
    estimates, by length with EOS.
    """

    k: int
    nbest: int
    min_len: int
    eos: int
    pad: int
    ngram: int
    temperature: float
    estimate: Estimate
    divisor: Tensor
    estimate_divisor: Tensor


class ConstrainedSearchStruct(ctypes.Structure):
    __slots__ = ()
    _fields_ = [
        (name, c_int64)
        for name in (
            "k",
            "m",
            "min_len",
            "eos",
            "pad",
            "ngram",
            "T",
            "even",
            "per_row",
            "max_extra_tokens",
        )
    ]
    _fields_ += [
        ("temperature", c_float),
        *((name, c_double) for name in ("missing_token_cost", "token_cost", "max_nats_per_token")),
    ]
    _fields_ += [
        (name, c_void_p)
        for name in ("divisor", "estimate_divisor", "phrases", "number", "limit", "infeasible")
    ]
    _fields_ += [
        (name, c_int64) for name in ("length", "live", "W", "used", "ended", "dropped", "full")
    ]
    _fields_ += [(name, c_void_p) for name in ("slot", "first", *ROWS, *STATES, "best")]
    _fields_ += [
        (name, c_void_p)
        for name in ("finished", "found_length", "found_tokens", "order", "found_score")
    ]
    _fields_ += [("calls", c_int64), ("decoder_rows", c_int64)]


class CompiledConstrainedSearch:
    """One search over N sentences.

    sentences: their numbers in the pool; limits: the largest number of tokens before EOS of each;
    bos: first target token; lists: the length of each n-best list, at most that of the settings.
    """

    def __init__(
        self,
        settings: ConstrainedSettings,
        banks: Banks,
        sentences: Sequence[int],
        limits: Sequence[int],
        bos: int,
        lists: Sequence[int],
    ):
        N, k, G = len(sentences), settings.k, banks.start.size(1)
        self.token_capacity = max(limits) + 2  # largest token capacity that a row may need
        # number of lengths of an estimate
        lengths = self.token_capacity + banks.highest + settings.estimate.max_extra_tokens + 1
        if (
            settings.divisor.numel() < self.token_capacity
            or settings.estimate_divisor.numel() < lengths
        ):
            raise ValueError("the divisors end before the longest target")
        for part in (settings.divisor, settings.estimate_divisor):
            address(part, torch.float32, None)
        T, F, number = min(self.token_capacity, FIRST_PLACES), 2 * k, torch.tensor(sentences)
        state = np.empty((N * k, G), np.int64)
        state[:N] = banks.start[number].numpy()
        self.arrays: dict[str, np.ndarray] = {
            "number": number.numpy(),
            "limit": np.array(limits),
            "infeasible": banks.infeasible[number].numpy(),
            "divisor": settings.divisor.numpy(),
            "estimate_divisor": settings.estimate_divisor.numpy(),
            "slot": np.arange(N),
            "first": np.arange(N + 1),
            **{name: np.empty((N * k, T), dtype) for name, dtype in ROWS.items()},
            "state": state,
            "next_state": np.empty_like(state),
            "met": np.zeros_like(state),
            "next_met": np.empty_like(state),
            "best": np.full((N, settings.nbest), -np.inf),
            "finished": np.zeros(N, np.int64),
            "order": np.empty(N, np.int64),
            "found_length": np.empty((N, F), np.int64),
            **{name: np.empty((N, F, T), dtype) for name, dtype in HYPOTHESIS_ARRAYS.items()},
        }
        self.arrays["tokens"][:N, 0], self.arrays["score"][:N, 0] = bos, 0.0
        for best, n in zip(self.arrays["best"], lists, strict=True):
            # subtle: a shorter list is filled with +inf in front, so that its worst entry is always
            # the last column
            best[: settings.nbest - n] = np.inf
        self.keepalive = banks
        self.struct = ConstrainedSearchStruct(
            k=k,
            m=settings.nbest,
            min_len=settings.min_len,
            eos=settings.eos,
            pad=settings.pad,
            ngram=settings.ngram,
            T=T,
            even=banks.even,
            per_row=banks.per_row,
            temperature=settings.temperature,
            **vars(settings.estimate),
            phrases=ctypes.addressof(banks.phrases),
            live=N,
            W=1,
            **{name: array.ctypes.data for name, array in self.arrays.items()},
        )

    def run_steps(self, reader: Any, step: ctypes.Structure, most: int) -> SearchResult:
        """Make at most `most` steps with reader (kernels/transformer.py, CompiledReader); step has
        the addresses of its KV cache."""
        return SearchResult(
            loaded().search_constrained(
                ctypes.addressof(self.struct), reader.address, ctypes.addressof(step), most
            )
        )

    def take_counts(self) -> tuple[int, int]:
        """Return the decoder calls and their rows since the last call of this method."""
        counts = self.struct.calls, self.struct.decoder_rows
        self.struct.calls = self.struct.decoder_rows = 0
        return counts

    def lengthen_(self) -> bool:
        """Double the token capacity of rows and hypotheses if it is full; return whether it was."""
        struct, finished = self.struct, self.arrays["finished"].tolist()
        if struct.length + 2 <= struct.T:
            return False
        T, n = struct.T, int(self.arrays["first"][struct.live])
        struct.T = min(2 * T, self.token_capacity)
        for name, before in self.current_arrays(*ROWS, *HYPOTHESIS_ARRAYS).items():
            after = self.arrays[name] = np.empty((*before.shape[:-1], struct.T), before.dtype)
            if name in HYPOTHESIS_ARRAYS:
                for sentence, m in enumerate(finished):
                    after[sentence, :m, :T] = before[sentence, :m]
            elif not name.startswith("next"):
                after[:n, :T] = before[:n]
            setattr(struct, name, after.ctypes.data)
        return True

    def current_arrays(self, *names: str) -> dict[str, np.ndarray]:
        """Return the arrays that have these names now: the library swaps the arrays of rows with
        those of the next rows."""
        at = {array.ctypes.data: array for array in self.arrays.values()}
        return {name: at[getattr(self.struct, name)] for name in names}

    def rows_of(self, sentence: int) -> slice | None:
        """Return the rows of the i-th sentence; None if it is not live."""
        slots = self.arrays["slot"][: self.struct.live].tolist()
        if sentence not in slots:
            return None
        first, end = self.arrays["first"][slots.index(sentence) :][:2].tolist()
        return slice(first, end)

    def tokens(self, sentence: int) -> list[list[int]]:
        """Return the tokens chosen so far in each row of the i-th sentence."""
        rows = self.rows_of(sentence)
        if rows is None:
            return []
        at, length = self.current_arrays("tokens", "score"), self.struct.length
        possible = at["score"][rows, length] > -np.inf
        return at["tokens"][rows, 1 : length + 1][possible].tolist()

    def drop_(self, sentence: int) -> None:
        """End the i-th sentence if it is live, without reporting it as ended."""
        rows, struct = self.rows_of(sentence), self.struct
        if rows is None:
            return
        slot, first = self.arrays["slot"], self.arrays["first"]
        live, n = struct.live, int(first[struct.live])
        for array in self.current_arrays("tokens", "score", "history", "state", "met").values():
            array[rows.start : n + rows.start - rows.stop] = array[rows.stop : n].copy()
        i = slot[:live].tolist().index(sentence)
        sizes = np.delete(np.diff(first[: live + 1]), i)
        slot[: live - 1] = np.delete(slot[:live], i)
        first[1:live] = sizes.cumsum()
        struct.live, struct.W = live - 1, sizes.max(initial=0)

    def ended_sentences(self, since: int) -> list[int]:
        """Return the numbers (0 to N - 1) of the sentences that have ended, in the order in which
        they ended, without the first `since`."""
        return self.arrays["order"][since : self.struct.ended].tolist()

    def hypotheses(self, sentence: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return tokens with EOS and sums of log-probabilities of each hypothesis of the i-th
        sentence, as views, in the order in which they were finished."""
        a = self.arrays
        lengths = a["found_length"][sentence, : int(a["finished"][sentence])].tolist()
        return [
            (a["found_tokens"][sentence, f, 1 : n + 1], a["found_score"][sentence, f, 1 : n + 1])
            for f, n in enumerate(lengths)
        ]
