"""Estimates a draft table (table.py) from token sequences: next-word probabilities from target text, word translations from parallel
text by IBM model 1 (P. F. Brown et al. 1993, https://aclanthology.org/J93-2003/).

Shapes: t target tokens of the whole text, V target vocabulary, K words listed for a history.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from fairseq_ext.parallel.drafts.table import Table, fingerprint

LISTED = 32  # K
ROUNDS = 6  # of expectation maximisation
ENTRIES = 20  # translations kept of each source word


def estimate(target: Sequence[Sequence[int]], source: Sequence[Sequence[int]] | None, target_dict: Any, source_dict: Any) -> Table:
    """target: lines of token ids that end in EOS; source: the lines that they translate, or None."""
    V, pad, eos = len(target_dict), target_dict.pad(), target_dict.eos()
    text = np.concatenate([[pad, eos, *line] for line in target]).astype(np.int64)
    is_word = np.concatenate([[False, False, *[True] * len(line)] for line in target])
    at = is_word.nonzero()[0]
    word, last, before = text[at], text[at - 1], text[at - 2]
    unigram = np.bincount(word, minlength=V) / len(word)
    any_token = np.argsort(-unigram, kind="stable")[:LISTED]
    short = distributions(last, word, V, lambda history: unigram[None].repeat(len(history), 0))
    place_of = {int(h): i for i, h in enumerate(short[0])}

    def back_off(history: np.ndarray) -> np.ndarray:
        """(m, V) from the lists of the last token."""
        out = np.zeros((len(history), V), np.float32)
        index = np.array([place_of[int(h)] for h in history % V])
        out[np.arange(len(history))[:, None], short[1][index]] = short[2][index]
        return out

    long = distributions(before * V + last, word, V, back_off)
    key = np.concatenate([long[0], V * V + short[0]])
    dtype = np.uint16 if V <= 1 << 16 else np.int32
    empty = np.zeros(0, np.int64)
    lexical = (empty, empty, empty) if source is None else translations(source, target, len(source_dict), V, eos)
    return Table(
        key,
        np.concatenate([long[1], short[1]]).astype(dtype),
        np.concatenate([long[2], short[2]]).astype(np.float16),
        unigram.astype(np.float32),
        any_token,
        lexical[0],
        lexical[1].astype(dtype),
        lexical[2].astype(np.float16),
        fingerprint(target_dict),
        fingerprint(source_dict) if source is not None else "",
        digest_of(target, source or []),
    )


def digest_of(*texts: Sequence[Sequence[int]]) -> str:
    """SHA-256 of lines of token ids."""
    out = hashlib.sha256()
    for text in texts:
        for line in text:
            out.update(np.array([len(line), *line], np.int64).tobytes())
        out.update(b"|")
    return out.hexdigest()


def distributions(history: np.ndarray, word: np.ndarray, V: int, back_off: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Interpolated Witten-Bell: histories (m,) ascending, their likeliest next words (m, K) and probabilities (m, K).

    history (t,), word (t,): what follows what; back_off: histories (m,) -> probabilities (m, V) of the shorter history.
    """
    known, inverse = np.unique(history, return_inverse=True)
    pair, count = np.unique(inverse * V + word, return_counts=True)
    owner, following = pair // V, pair % V
    total, kinds = np.bincount(owner, count), np.bincount(owner)
    start = np.searchsorted(owner, np.arange(len(known) + 1))
    tokens, probs = np.empty((len(known), min(LISTED, V)), np.int64), np.empty((len(known), min(LISTED, V)), np.float32)
    m = max(1, 8_000_000 // V)
    for first in range(0, len(known), m):
        end = min(first + m, len(known))
        weight = (total / (total + kinds))[first:end, None]
        p = back_off(known[first:end]) * (1 - weight)
        inside = slice(start[first], start[end])
        p[owner[inside] - first, following[inside]] += (weight[:, 0] / total[first:end])[owner[inside] - first] * count[inside]
        best = np.argpartition(-p, tokens.shape[1] - 1, 1)[:, : tokens.shape[1]]
        tokens[first:end], probs[first:end] = best, np.take_along_axis(p, best, 1)
    return known, tokens, probs


def translations(source: Sequence[Sequence[int]], target: Sequence[Sequence[int]], S: int, V: int, eos: int) -> tuple:
    """t(e | f) of IBM model 1 as rows of entries: start (S + 1,), token (entries,), probability (entries,).

    Source token eos, which every sentence ends in, is the empty word.
    """
    pieces, links = [], 0
    for f, e in zip(source, target, strict=True):
        pieces.append((np.repeat(np.array([f]), len(e), 0).ravel() * V + np.repeat(np.array(e), len(f)), len(f), len(e)))
        links += len(f) * len(e)
    pair, inverse = np.unique(np.concatenate([p for p, _, _ in pieces]), return_inverse=True)
    position = np.repeat(np.arange(sum(e for _, _, e in pieces)), np.concatenate([[f] * e for _, f, e in pieces]))
    word = pair // V
    t = np.ones(len(pair))
    for _ in range(ROUNDS):
        share = t[inverse]
        share /= np.bincount(position, share)[position]
        count = np.bincount(inverse, share, len(pair))
        t = count / np.bincount(word, count)[word]
    # the likeliest entries of each source word
    order = np.lexsort((-t, word))
    rank = np.arange(len(order)) - np.searchsorted(word[order], word[order])
    order = order[(rank < ENTRIES) & (t[order] > 1e-3)]
    return np.searchsorted(word[order], np.arange(S + 1)), pair[order] % V, t[order]
