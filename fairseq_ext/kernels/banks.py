"""The selection of strategies/select/dba.py on the CPU (`banks.cpp`), float32; what it computes is defined there."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_int64, c_void_p

import torch
from torch import Tensor

from fairseq_ext.kernels.library import loaded


class PhrasesStruct(ctypes.Structure):
    _fields_ = [(name, c_void_p) for name in ("token", "fail", "length", "group", "need", "size", "total")]
    _fields_ += [(name, c_int64) for name in ("Q", "G", "L", "ordered")]


class RowsStruct(ctypes.Structure):
    _fields_ = [(name, c_void_p) for name in ("x", "before", "place", "count", "first", "sentence", "left", "excused", "infeasible")]
    _fields_ += [(name, c_int64) for name in ("S", "V", "eos", "k", "best", "out", "even")]


class FoundStruct(ctypes.Structure):
    _fields_ = [(name, c_void_p) for name in ("row", "token", "group", "score", "place", "count")]


def phrases_struct(parts: Sequence[Tensor], ordered: bool) -> PhrasesStruct:
    """Return the addresses of the whole pool's phrases, whose tensors must live as long.

    parts: token, fail, length, group, need, size and total, and ordered, as in constraints/required.py, PhraseTable.
    """
    assert all(part.is_contiguous() and part.dtype == torch.long for part in parts)
    (_, Q, L), (_, G) = parts[0].shape, parts[4].shape
    return PhrasesStruct(*(part.data_ptr() for part in parts), Q, G, L, int(ordered))


def select_by_banks(
    phrases: PhrasesStruct, x: Tensor, before: Tensor, place: Tensor, count: Tensor, first: Tensor, sentence: Tensor, left: Tensor,
    excused: Tensor, infeasible: Tensor, eos: int, k: int, best: int, out: int, even: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Row, token, bank and score (S, out), place (S, out, Q) and count (S, out, G) of the candidates of each sentence, in the order of
    DBA.order. x (n, V), whose EOS column is changed; before (n,); place (n, Q); count (n, G); first (S + 1,); the rest (S,)."""
    floats, longs, flags = (x, before), (place, count, first, sentence, left), (excused, infeasible)
    assert all(t.is_contiguous() for t in (*floats, *longs, *flags)) and all(t.dtype == torch.float32 for t in floats)
    assert all(t.dtype == torch.long for t in longs) and all(t.dtype == torch.bool for t in flags)
    S = sentence.numel()
    row, token, bank = torch.empty(3, S, out, dtype=torch.long)
    score = x.new_empty(S, out)
    place_, count_ = (torch.empty(S, out, t.size(1), dtype=torch.long) for t in (place, count))
    rows = RowsStruct(*(t.data_ptr() for t in (*floats, *longs, *flags)), S, x.size(1), eos, k, best, out, even)
    found = FoundStruct(*(t.data_ptr() for t in (row, token, bank, score, place_, count_)))
    loaded().select_by_banks(ctypes.addressof(phrases), ctypes.addressof(rows), ctypes.addressof(found))
    return row, token, bank, score, place_, count_
