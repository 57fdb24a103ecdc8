"""The rules of search/logits_processors.py for a block: rows that stand at different steps, several positions each.

A position's history is its row's verified tokens and the draft before it, so that a rule judges a position as the beam search would
if the draft is right; where it is wrong the outcome is not used.

Shapes: n rows, w positions of each, m = n x w.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.logits_processors import Rules
from fairseq_ext.search.pool import Pool

if TYPE_CHECKING:
    from fairseq_ext.parallel.rows import Rows


def apply_rules(rules: Rules, log_probs: LogProbs, pool: Pool, rows: Rows, draft: np.ndarray) -> LogProbs:
    """Apply all rules to log-probabilities (m, C), in the order of `Rules`. draft (n, w - 1)."""
    w = draft.shape[1] + 1
    device = log_probs.value.device

    def flat(value: np.ndarray) -> torch.Tensor:
        """(n, w) -> (m,)"""
        return torch.from_numpy(np.ascontiguousarray(value).reshape(-1)).to(device)

    def ban_(token: int, where: np.ndarray | None = None) -> None:
        if where is not None and not where.all():
            log_probs.ban_(token, flat(where))
        elif log_probs.ids is None:
            log_probs.value[:, token] = -torch.inf
        else:
            log_probs.ban_(token)

    ban_(rules.pad)
    if rules.unk_penalty:
        log_probs.add_(rules.unk, -rules.unk_penalty)
    step = rows.length[:, None] + np.arange(w)  # (n, w) tokens before each position
    at_limit = step >= rows.limit[:, None]
    if at_limit.any():
        log_probs.only_(flat(np.full(step.shape, rules.eos)), flat(at_limit))
    free = None  # where no prefix reaches
    if pool.prefix is not None:
        P = pool.prefix.size(1)
        free = step >= min(P, max(pool.max_len))
        if not free.all():
            word = pool.prefix.cpu().numpy()[rows.live[:, None], np.minimum(step, P - 1)]  # (n, w)
            log_probs.only_(flat(word), flat(~free & (word != rules.pad) & ~at_limit))
    if step[:, 0].min() < rules.min_len:
        short = step < rules.min_len if free is None else (step < rules.min_len) & free
        if short.any():
            ban_(rules.eos, short)
    if rules.suppress is not None:
        for token in rules.suppress.tolist():
            ban_(token, free)
    if rules.no_repeat_ngram:
        block_ngrams_(log_probs, rules.no_repeat_ngram, rows.length, rows.tokens, draft)
    return log_probs


def block_ngrams_(log_probs: LogProbs, n: int, length: np.ndarray, tokens: np.ndarray, draft: np.ndarray) -> None:
    """Ban every token that would complete an n-gram that the position's history already holds.

    length (rows,): verified tokens; tokens (rows, T): the first token and the verified ones; draft (rows, w - 1).
    """
    w = draft.shape[1] + 1
    step = length[:, None] + np.arange(w)  # (rows, w) tokens in each history
    if step.max() < n:
        return
    text = np.full((len(length), step.max()), -1)
    row, place = (np.arange(length.max()) < length[:, None]).nonzero()
    text[row, place] = tokens[row, 1 + place]
    place = length[:, None] + np.arange(w - 1)
    np.put_along_axis(text, place, draft, 1)
    grams = np.lib.stride_tricks.sliding_window_view(text, n, axis=1)  # (rows, grams, n)
    column = step[:, :, None] + np.arange(1 - n, 0)  # (rows, w, n - 1)
    tail = np.take_along_axis(text[:, None].repeat(w, 1), np.maximum(column, 0), 2)
    before = np.arange(grams.shape[1]) + n <= step[:, :, None]  # (rows, w, grams) the gram lies in the history
    repeats = (grams[:, None, :, : n - 1] == tail[:, :, None]).all(-1) & before & (step >= n)[:, :, None]
    row, position, gram = repeats.nonzero()
    if row.size:
        device = log_probs.value.device
        column_of, known = log_probs.column(torch.from_numpy(grams[row, gram, n - 1]).to(device))
        at = torch.from_numpy(row * w + position).to(device)
        log_probs.value[at[known], column_of[known]] = -torch.inf
