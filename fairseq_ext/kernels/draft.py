"""The compiled table of drafts for one row (`draft.cpp`) behind arrays and lists; parallel/drafts/ngram.py is the definition.

Shapes: m histories, K listed words, V target vocabulary.
"""

from __future__ import annotations

import ctypes
from ctypes import c_double, c_float, c_int64, c_void_p

import numpy as np

from fairseq_ext.kernels.library import loaded


class TableStruct(ctypes.Structure):
    _fields_ = [(name, c_void_p) for name in ("key", "token", "prob", "floor", "unigram")]
    _fields_ += [(name, c_void_p) for name in ("lexical_start", "lexical_token", "lexical_prob")]
    _fields_ += [(name, c_int64) for name in ("m", "K", "V", "source_vocabulary", "source_pad")]
    _fields_ += [(name, c_float) for name in ("covered", "eps", "lambda")]


TYPES = {"key": np.int64, "token": np.int32, "lexical_start": np.int64, "lexical_token": np.int32}  # of the arrays; others are float32


class CompiledTable:
    """A table's arrays where the compiled functions find them."""

    def __init__(self, arrays: dict[str, np.ndarray], numbers: dict[str, float]):
        """Arrays and numbers of `TableStruct` by name; m, K and V follow from them."""
        self.speak, self.propose = loaded().speak, loaded().propose
        self.arrays = {name: np.ascontiguousarray(value, TYPES.get(name, np.float32)) for name, value in arrays.items()}
        m, K = len(arrays["key"]), arrays["token"].shape[1]
        self.struct = TableStruct(m=m, K=K, V=len(arrays["unigram"]), **numbers)
        for name, value in self.arrays.items():
            setattr(self.struct, name, value.ctypes.data)
        self.address = ctypes.addressof(self.struct)
        self.sum = np.zeros(len(arrays["unigram"]))
        self.sum_address = self.sum.ctypes.data
        self.grow_(32)

    def grow_(self, most: int) -> None:
        self.most = most
        self.text, self.token, self.sure = (c_int64 * (most + 2))(), (c_int64 * most)(), (c_double * most)()

    def factors_(self, source: np.ndarray, length: int, factor: np.ndarray) -> None:
        """Fill a sentence's factors (V,) from its source tokens (columns,) int64, padding included."""
        self.speak(self.address, source.ctypes.data, len(source), length, factor.ctypes.data, self.sum_address)

    def draft(self, factor: int, text: list[int], fresh: int, most: int, least: float) -> tuple[list[int], list[float]]:
        """Draft tokens behind text (two tokens at least), the last `fresh` of which are new, and how sure each is. factor: address of
        the sentence's factors, 0 for none."""
        n = len(text)
        if max(n, most) > self.most:
            self.grow_(2 * max(n, most))
        self.text[:n] = text  # type: ignore[assignment]
        m = self.propose(self.address, factor, self.text, n, fresh, most, least, self.token, self.sure)
        return self.token[:m], self.sure[:m]
