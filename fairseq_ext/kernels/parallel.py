"""Parallel decoding of a single row, and its drafts, in compiled code (`parallel.cpp`).

A call drafts, reads, verifies and commits. The definitions work on arrays of rows:
search/parallel/driver.py and search/strategies/decoding/.

Shapes: w positions of a block, d features, V vocabulary, T token capacity.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from fairseq_ext.kernels.library import CData, address, loaded, new, pointer
from fairseq_ext.kernels.transformer import CompiledReader

BUFFERS = {
    "draft": np.int64,
    "confidence": np.float64,
    "word": np.int64,
    "word_score": np.float64,
    "margin": np.float64,
}


class Status(IntEnum):
    """The result of a call."""

    GOES_ON = 0
    DONE = 1
    ALL_BANNED = 2  # every word was banned
    NOT_A_NUMBER = 3
    NO_ROOM = 4  # the reader has too little memory for the block


@dataclass
class CompiledMethod:
    """A method that compiled code calls for the blocks of one sentence.

    learns: whether it has a function that receives the results of its drafts.
    """

    name: str  # of the functions: draft_NAME, learn_NAME
    state: CData
    drafter: CompiledDrafter
    learns: bool = False


class CompiledRow:
    """The calls of one row.

    tokens (1, T) int64, score (1, T) float64 and length (1,) int64 belong to the caller and are
    modified; width: of the widest block.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        score: np.ndarray,
        length: np.ndarray,
        width: int,
        method: CompiledMethod,
        **fields: float,
    ):
        """fields: others of `Row`."""
        compiled = loaded()
        self.draft_row, self.commit_row, self.call_row = (
            compiled.draft_row,
            compiled.commit_row,
            compiled.call_row,
        )
        self.buffers = {name: np.zeros(width, dtype) for name, dtype in BUFFERS.items()}
        self.keepalive = (tokens, score, length, method)
        functions, name = compiled.functions, method.name
        self.struct = new(
            "Row",
            tokens=address(tokens, np.int64, 1, None),
            score=address(score, np.float64, 1, tokens.shape[1]),
            length=address(length, np.int64, 1),
            **{buffer: pointer(array) for buffer, array in self.buffers.items()},
            draft_block=getattr(functions, f"draft_{name}"),
            learn=getattr(functions, f"learn_{name}") if method.learns else pointer(None),
            method=method.state,
            **fields,
        )

    def draft(self) -> np.ndarray:
        """Return the draft of the next block (w - 1,)."""
        return self.buffers["draft"][: self.draft_row(self.struct) - 1]

    def commit(self, word: np.ndarray, score: np.ndarray, margin: np.ndarray) -> Status:
        """Commit the block's best words (w,), with their log-probabilities and their distances to
        the second best words."""
        w = self.struct.w
        for name, value in (("word", word), ("word_score", score), ("margin", margin)):
            self.buffers[name][:w] = value
        return Status(self.commit_row(self.struct))

    def call(self, reader: CompiledReader) -> Status:
        """Make a whole call. NO_ROOM: reserve struct.w more positions in the reader, and repeat the
        call."""
        return Status(self.call_row(self.struct, reader.struct))


# ---- Drafters
#
# Definitions, for arrays of rows: search/parallel/drafts.py.


@dataclass
class CompiledDrafter:
    """A drafter that compiled code calls for the drafts of one sentence.

    name: of its function, propose_NAME; keepalive: objects that its state points to.
    """

    name: str
    state: CData = None
    keepalive: tuple = ()

    @property
    def fields(self) -> tuple[CData, CData]:
        """The fields of its structure."""
        function = getattr(loaded().functions, f"propose_{self.name}")
        return function, pointer(None) if self.state is None else self.state
