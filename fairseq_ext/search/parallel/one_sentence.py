"""A sentence that is alone: the calls of driver.py through their compiled twin (kernels/parallel.cpp).

The numbered steps are the driver's. On a CPU in float32, with the full softmax and no logits processor but the length limits and
--no-repeat-ngram-size, a whole call is one call of compiled code. Elsewhere the decoder is read as for many rows, and drafting and
committing are compiled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from fairseq_ext.core.errors import NotANumber
from fairseq_ext.kernels.library import library
from fairseq_ext.kernels.parallel import CompiledRow, Status
from fairseq_ext.search.parallel.block_reader import BlockReader
from fairseq_ext.search.parallel.near_ties import NearTies
from fairseq_ext.search.parallel.protocols import Method
from fairseq_ext.search.parallel.rows import Iteration, Rows
from fairseq_ext.search.pool import Pool


@dataclass
class Decoded:
    """The counts and the state of a decoded sentence. Its tokens and log-probabilities are in the rows that were given."""

    dtype: torch.dtype  # of the log-probabilities
    lost: bool  # every word was forbidden
    calls: int
    positions: int  # read
    kept: int  # tokens committed
    offered: int  # draft tokens read
    taken: int  # draft tokens committed


def decode_alone(
    method: Method, reader: BlockReader, near_ties: NearTies, pool: Pool, rows: Rows, every: bool
) -> Iterator[Iteration | Decoded]:
    """Decode the only sentence that the decoder has admitted, rows' only row, in place. Give each call where `every` is set, and Decoded
    after the last; nothing where its method has no compiled twin.

    Errors: NotANumber where the model gives NaN.
    """
    sentence, limit = int(rows.live[0]), int(rows.limit[0])
    compiled = method.compiled(sentence) if library() is not None else None
    if compiled is None:
        return
    processors = reader.processors
    row = CompiledRow(rows.tokens, rows.score, rows.length, limit + 2, compiled)
    row.limits_(limit, processors.min_len, processors.eos, processors.pad, processors.no_repeat_ngram)
    state = row.struct
    state.every, state.least_margin = every, near_ties.margin
    fast = None if near_ties.margin or not takes_full_softmax(reader, pool, limit) else reader.decoder.row_reader()
    dtype, read = torch.float32, np.zeros(1, np.int64)  # read: tokens that the decoder has read
    status = Status.GOES_ON
    while status == Status.GOES_ON:
        before = int(rows.length[0])
        if fast is not None:
            # (1) to (7)
            while (status := row.call(fast.compiled)) == Status.NO_ROOM:
                fast.reserve_(before, state.w)
        else:
            draft = row.draft()[None]  # (1)
            best = reader.best(pool, rows, draft, read, near_ties.margin > 0)  # (2), (3)
            read[0], dtype = before + draft.shape[1] + 1, best.dtype
            status = row.commit(best.word[0], best.score[0], best.margin[0])  # (4) to (7)
        if status == Status.NOT_A_NUMBER:
            raise NotANumber(f"the model gives NaN at target position {before + state.broken}")
        if every:
            w = state.first_guess + state.guesses
            draft, word, score = (row.buffers[name][:m].copy() for name, m in (("draft", w - 1), ("word", w), ("word_score", w)))
            yield Iteration(sentence, before, draft, word, score, state.verified)
    near_ties.counts.count(state.checked, state.redone)
    yield Decoded(dtype, status == Status.LOST, state.calls, state.positions, state.kept, state.offered, state.taken)


def takes_full_softmax(reader: BlockReader, pool: Pool, limit: int) -> bool:
    """Whether the best words are those of the full softmax, but for the length limits and repeated n-grams."""
    processors, softmax = reader.processors, reader.softmax
    if not softmax.is_full or softmax.temperature != 1.0 or pool.prefix is not None or processors.min_len > limit:
        return False
    return processors.is_plain
