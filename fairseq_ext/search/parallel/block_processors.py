"""The logits processors for blocks: rows that stand at different steps, several positions each.

A position's history is its row's verified tokens and the draft before it, so that a processor judges a position as the beam search would
if the draft is right; where it is wrong the outcome is not used.

Shapes: n rows, w positions of each, m = n x w.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fairseq_ext.search.beam import NOT_YET
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.parallel.rows import Rows
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.processors import LogitsProcessors
from fairseq_ext.search.upload import upload


def process_blocks(processors: LogitsProcessors, log_probs: LogProbs, pool: Pool, rows: Rows, draft: np.ndarray) -> None:
    """Apply all processors to log-probabilities (m, C), in place. draft (n, w - 1)."""
    w, device = draft.shape[1] + 1, log_probs.device
    step = (rows.length[:, None] + np.arange(w)).reshape(-1)  # (n, w) -> (m,) tokens before each position
    limit = step >= rows.limit.repeat(w)
    sentence = None if pool.prefix is None else upload(rows.live.repeat(w), device)
    # the host knows what need not be asked of the device
    early = int(step.min()) < max(processors.min_len, 0 if pool.prefix is None else pool.prefix.size(1))
    at_limit = upload(limit, device) if limit.any() else None
    steps = upload(step, device) if early else int(step.min())
    processors.apply_(log_probs, processors.positions(pool, sentence, steps, at_limit, lambda: upload(history(rows, draft), device)))


def history(rows: Rows, draft: np.ndarray) -> Tensor:
    """(m, T) the tokens before each position, on the right; NOT_YET before them."""
    w = draft.shape[1] + 1
    longest = int(rows.length.max()) + w - 1
    text = np.full((len(rows), longest + 1), NOT_YET)
    text[:, : rows.tokens.shape[1] - 1] = rows.tokens[:, 1 : longest + 2]
    place = rows.length[:, None] + np.arange(w - 1)
    np.put_along_axis(text, place, draft, 1)
    step = rows.length[:, None] + np.arange(w)  # (n, w)
    column = step[:, :, None] - longest + np.arange(longest)  # (n, w, T)
    found = np.take_along_axis(text[:, None], np.maximum(column, 0), 2)
    return torch.from_numpy(np.where(column >= 0, found, NOT_YET).reshape(len(rows) * w, longest))
