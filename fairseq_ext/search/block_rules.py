"""The rules of rules.py for a block: rows that stand at different steps, several positions each.

A position's history is its row's verified tokens and the draft before it, so that a rule judges a position as the beam search would
if the draft is right; where it is wrong the outcome is not used.

Shapes: n rows, w positions of each, m = n x w.
"""

from __future__ import annotations

import numpy as np
import torch

from fairseq_ext.search.beam import LogProbs, Pool
from fairseq_ext.search.rules import Rules, penalise


def apply_rules(
    rules: Rules, log_probs: LogProbs, pool: Pool, live: np.ndarray, length: np.ndarray, tokens: np.ndarray, draft: np.ndarray
) -> LogProbs:
    """Apply all rules to log-probabilities (m, C), in the order of `Rules`.

    live (n,): pool numbers; length (n,): verified tokens; tokens (n, T): first token and verified ones; draft (n, w - 1).
    """
    w = draft.shape[1] + 1
    step = length[:, None] + np.arange(w)  # (n, w)
    device = log_probs.value.device

    def rows(mask: np.ndarray) -> torch.Tensor | None:
        """(n, w) as a mask of rows of the log-probabilities; None: all."""
        return None if mask.all() else torch.from_numpy(mask.reshape(-1)).to(device)

    def only_(token: np.ndarray, mask: np.ndarray) -> None:
        log_probs.only_(torch.from_numpy(token.reshape(-1)).to(device), torch.from_numpy(mask.reshape(-1)).to(device))

    log_probs.ban_(rules.pad)
    if rules.unk_penalty:
        penalise(log_probs, rules.unk, rules.unk_penalty)
    limit = np.array([pool.max_len[s] for s in live])[:, None]
    at_limit = step >= limit
    if at_limit.any():
        only_(np.full(step.shape, rules.eos), at_limit)
    under_prefix = np.zeros(step.shape, bool)
    if pool.prefix is not None:
        P = pool.prefix.size(1)
        under_prefix = step < min(P, max(pool.max_len))
        if under_prefix.any():
            word = pool.prefix.cpu().numpy()[live[:, None], np.minimum(step, P - 1)]  # (n, w)
            only_(word, under_prefix & (word != rules.pad) & ~at_limit)
    short = (step < rules.min_len) & ~under_prefix
    if short.any():
        log_probs.ban_(rules.eos, rows(short))
    if rules.suppress is not None:
        for token in rules.suppress.tolist():
            log_probs.ban_(token, rows(~under_prefix))
    if rules.no_repeat_ngram:
        block_ngrams_(log_probs, rules.no_repeat_ngram, length, tokens, draft)
    return log_probs


def block_ngrams_(log_probs: LogProbs, n: int, length: np.ndarray, tokens: np.ndarray, draft: np.ndarray) -> None:
    """Ban every token that would complete an n-gram that the position's history already holds."""
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
