"""The compiled drafters of a row that is alone (`draft.cpp`); parallel/drafts/ holds the definitions, for arrays of rows.

Shapes: m histories, K listed words, V target vocabulary.
"""

from __future__ import annotations

import ctypes
from ctypes import c_void_p
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairseq_ext.kernels.declarations import struct
from fairseq_ext.kernels.library import loaded

DrafterStruct = struct("parallel.hpp", "Drafter")
TrajectoryStruct = struct("draft.cpp", "Trajectory")
PreviousStruct = struct("draft.cpp", "Previous")
TableStruct = struct("draft.cpp", "Table")
NgramStruct = struct("draft.cpp", "Ngram")


TYPES = {"key": np.int64, "token": np.int32, "lexical_start": np.int64, "lexical_token": np.int32}  # of the arrays; others are float32


@dataclass
class CompiledDrafter:
    """A drafter that compiled code can ask for one sentence's drafts. kept: what the structure points to."""

    struct: ctypes.Structure
    kept: tuple

    @staticmethod
    def of(name: str, state: ctypes.Structure | None = None, *kept: Any) -> CompiledDrafter:
        """name: of the function, propose_NAME."""
        function = ctypes.cast(loaded()[f"propose_{name}"], c_void_p)
        return CompiledDrafter(DrafterStruct(function, None if state is None else ctypes.addressof(state)), (state, *kept))


def nothing() -> CompiledDrafter:
    """No drafts."""
    return CompiledDrafter.of("nothing")


def trajectory(pad: int) -> CompiledDrafter:
    """pad: the token behind the last call's outputs; NONE: the last verified one."""
    return CompiledDrafter.of("trajectory", TrajectoryStruct(pad))


def previous(old: list[int], sure: float, found: np.ndarray, regained: float, weak: float, other: CompiledDrafter) -> CompiledDrafter:
    """old: the earlier output; found (tail + 1,) float64; other: the drafter of the parts that it lacks."""
    text = np.array(old, np.int64)
    state = PreviousStruct(other.struct, text.ctypes.data, found.ctypes.data, len(old), len(found) - 1, 0, 0, regained, weak, sure)
    return CompiledDrafter.of("previous", state, text, found, other)


class CompiledTable:
    """A table's arrays where the compiled functions find them."""

    def __init__(self, arrays: dict[str, np.ndarray], numbers: dict[str, float]):
        """Arrays and numbers of `TableStruct` by name; m, K and V follow from them."""
        self.speak = loaded().speak
        self.arrays = {name: np.ascontiguousarray(value, TYPES.get(name, np.float32)) for name, value in arrays.items()}
        m, K = len(arrays["key"]), arrays["token"].shape[1]
        self.struct = TableStruct(m=m, K=K, V=len(arrays["unigram"]), **numbers)
        for name, value in self.arrays.items():
            setattr(self.struct, name, value.ctypes.data)
        self.address = ctypes.addressof(self.struct)
        self.sum = np.zeros(len(arrays["unigram"]))

    def factors(self, source: np.ndarray, length: int) -> np.ndarray:
        """(V,) float32: how much more than by chance a sentence speaks of each word. source (columns,) int64, padding included; length:
        tokens without padding."""
        factor = np.empty(self.struct.V, np.float32)
        self.speak(self.address, source.ctypes.data, len(source), length, factor.ctypes.data, self.sum.ctypes.data)
        return factor

    def drafter(self, factor: np.ndarray | None, pad: int) -> CompiledDrafter:
        """A sentence's drafter. factor (V,): from `factors`, or None; pad: the token before the first one."""
        state = NgramStruct(self.address, None if factor is None else factor.ctypes.data, pad, 0)
        return CompiledDrafter.of("ngram", state, factor, self)
