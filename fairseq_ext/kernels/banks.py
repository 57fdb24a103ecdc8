"""The selection of search/strategies/select/dba.py on the CPU (`banks.cpp`), float32; what it
computes is defined there."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fairseq_ext.kernels.library import address, loaded, struct

LONGS = (
    "first",
    "token",
    "target",
    "hits",
    "base",
    "root",
    "pending",
    "value",
    "proposed",
    "need",
    "size",
    "total",
)
PhrasesStruct = struct("phrases.hpp", "Phrases")
RowsStruct = struct("banks.hpp", "Rows")
FoundStruct = struct("banks.cpp", "Found")


@dataclass
class BankRows:
    """The n rows of S sentences, and how their candidates are chosen.

    V vocabulary, G constraints.
    """

    x: Tensor  # (n, V) log-probabilities; the column of EOS is changed
    before: Tensor  # (n,) cumulative scores
    state: Tensor  # (n, G)
    count: Tensor  # (n, G)
    first: Tensor  # (S + 1,) each sentence's first row
    sentence: Tensor  # (S,) numbers in the table of phrases
    left: Tensor  # (S,) tokens that may still come before EOS
    excused: Tensor  # (S,) bool: need not be in time
    infeasible: Tensor  # (S,) bool
    eos: int
    k: int
    best: int  # continuations looked at
    each: int  # of each row, too
    out: int  # candidates returned
    even: bool  # how slots are divided among banks


def phrases_struct(
    longs: Sequence[Tensor], behind: Tensor, glued: Tensor, ordered: bool
) -> ctypes.Structure:
    """Return the addresses of the whole pool's phrases, whose tensors must live as long.

    longs: LONGS, and behind, glued and ordered, as in search/phrases/phrase_table.py, PhraseTable.
    """
    (_, W), (_, G) = (longs[LONGS.index(name)].shape for name in ("proposed", "need"))
    words: list[int | None] = [None, None]
    if glued.numel() > 1:
        words = [address(behind, torch.long), address(glued, torch.bool)]
    return PhrasesStruct(*(address(part, torch.long) for part in longs), *words, G, W, int(ordered))


def select_by_banks(phrases: ctypes.Structure, rows: BankRows) -> tuple[Tensor, ...]:
    """Row, token, bank and score (S, out), state and count (S, out, G) of the candidates of each
    sentence, in the order of DBA.order."""
    S, out = rows.sentence.numel(), rows.out
    longs = (rows.state, rows.count, rows.first, rows.sentence, rows.left)
    given = RowsStruct(
        *(address(part, torch.float32) for part in (rows.x, rows.before)),
        *(address(part, torch.long) for part in longs),
        *(address(part, torch.bool) for part in (rows.excused, rows.infeasible)),
        S,
        rows.x.size(1),
        rows.eos,
        rows.k,
        rows.best,
        rows.each,
        out,
        rows.even,
    )
    row, token, bank = torch.empty(3, S, out, dtype=torch.long)
    score = rows.x.new_empty(S, out)
    state, count = (
        torch.empty(S, out, t.size(1), dtype=torch.long) for t in (rows.state, rows.count)
    )
    found = FoundStruct(*(t.data_ptr() for t in (row, token, bank, score, state, count)))
    loaded().select_by_banks(
        ctypes.addressof(phrases), ctypes.addressof(given), ctypes.addressof(found)
    )
    return row, token, bank, score, state, count


@dataclass
class Estimate:
    """What a live hypothesis is expected to end with (search/strategies/stop/early.py)."""

    lacking: float  # nats, of each required token that it lacks
    cost: float  # nats, of EOS and of each other token
    dear: float  # nats a token, beyond which a total is not divided by the length
    others: int  # tokens that it may take beside those that it lacks


@dataclass
class Banks:
    """The phrases of a pool of N sentences, as dynamic beam allocation reads them."""

    phrases: ctypes.Structure
    start: Tensor  # (N, G) the state of each constraint before the first token
    infeasible: Tensor  # (N,) bool
    highest: int  # constraint tokens of a sentence at most
    even: bool  # how slots are divided among banks
    each: int  # continuations of each row looked at
    kept: Any  # what the structure points to
