"""The driver of driver.py for one sentence at a time, where bookkeeping in arrays would cost as much as the decoder.

The numbered steps are the same. On a CPU in float32 with nothing but fairseq's own softmax, a call is the compiled decoder, the
comparison of its logits with the draft (kernels/row.py) and some lists; log-probabilities are those of tokens that are kept.

Shapes: w block width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch

from fairseq_ext.parallel.rows import NONE, Iteration, Row
from fairseq_ext.search.finished import Hypothesis
from fairseq_ext.search.pool import Pool

if TYPE_CHECKING:
    from fairseq_ext.parallel.driver import ParallelSearch

# a row and its draft (w - 1,) -> each position's best word (w,), its log-probability, and how far it is before the second best
Read = Callable[[Row, list[int]], tuple[list[int], list[float], list[float]]]


def search_one(search: ParallelSearch, pool: Pool, sentence: int, answer: Callable[[int, list[Hypothesis]], None]) -> None:
    """Decode the sentence, the only one that the decoder has admitted."""
    method, guard, stats, eos = search.method, search.guard, search.stats, search.rules.eos
    row = Row(sentence, [pool.bos], limit=pool.max_len[sentence])
    read = compiled(search, pool, row.limit) or plain(search, pool)
    calls = tokens = offered = taken = positions = 0
    done = lost = False
    while not done:
        # (1) the method drafts; a position that must be read alone is
        draft = method.draft_one(row, 0 if row.redo else row.limit - row.length)
        w = len(draft) + 1
        # (2) the decoder reads the last token and the draft, (3) every position's best word
        out, score, margin = read(row, draft)
        # (4) outputs are right as far as the draft was, (5) and nothing follows EOS or the length limit
        verified = 1
        while verified < w and out[verified - 1] == draft[verified - 1] and out[verified - 1] != eos:
            verified += 1
        ended = out[verified - 1] == eos
        row.redo = False
        if guard.margin and w > 1:
            trusted = guard.trusted_one(verified, margin)
            row.redo, ended, verified = trusted < verified, ended and trusted == verified, trusted
        for place in range(max(1, verified)):
            if math.isnan(score[place]):
                raise FloatingPointError(f"the model gives NaN at target position {row.length + place} of sentence {sentence}")
        method.learn_one(row, out, verified)
        count = verified if row.redo else method.commit_one(row, verified, ended, w)
        if search.trace is not None:
            search.trace(Iteration(sentence, row.length, np.array(draft, np.int64), np.array(out), np.array(score), verified))
        calls, positions, tokens, offered, taken = calls + 1, positions + w, tokens + count, offered + w - 1, taken + max(count - 1, 0)
        # (6) what is kept becomes history, the other outputs guesses
        row.tokens += out[:count]
        row.score += score[:count]
        row.guess = out[count:]
        # (7) a finished row leaves
        lost = -math.inf in score[:count]  # every word was forbidden
        done = lost or (ended and count == verified)
    stats.decoder_calls, stats.decoder_rows = stats.decoder_calls + calls, stats.decoder_rows + calls
    stats.decoder_positions += positions
    search.counts.count(calls, calls, tokens, offered, taken)
    answer(sentence, [] if lost else [search.finished(sentence, row.tokens[1:], row.score, pool)])


def compiled(search: ParallelSearch, pool: Pool, limit: int) -> Read | None:
    """The compiled way; None where the decoder, the softmax, a rule or the guard asks for more than it gives."""
    rules, softmax = search.rules, search.softmax
    if search.guard.margin or not softmax.is_full or softmax.temperature != 1.0 or pool.prefix is not None:
        return None
    if rules.unk_penalty or rules.suppress is not None or rules.no_repeat_ngram or rules.lm is not None or rules.min_len > limit:
        return None
    reader = search.decoder.row_reader(rules.pad, rules.eos)
    if reader is None:
        return None
    every = search.trace is not None
    search.dtype = torch.float32

    def read(row: Row, draft: list[int]) -> tuple[list[int], list[float], list[float]]:
        shown = [rules.pad if token == NONE else token for token in draft] if NONE in draft else draft
        length = row.length
        out, score = reader([row.tokens[-1], *shown], length, rules.min_len - length, limit - length, every)
        return out, score, score

    return read


def plain(search: ParallelSearch, pool: Pool) -> Read:
    """The way of many rows."""
    before = np.zeros(1, np.int64)  # tokens that the decoder has read

    def read(row: Row, draft: list[int]) -> tuple[list[int], list[float], list[float]]:
        found = search.best(pool, row.as_rows(), np.array([draft], np.int64), before)
        before[0] = row.length + len(draft) + 1
        out, score, margin = (part[0].tolist() for part in found)
        return out, score, margin

    return read
