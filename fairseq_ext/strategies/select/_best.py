"""The best continuations of each sentence, from which every selection starts.

Shapes: S live sentences, n live rows, c candidates a sentence.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_ext.search.beam import Beam
from fairseq_ext.search.log_probs import LogProbs


@dataclass
class Best:
    """The best continuations of each sentence; scores are cumulative."""

    row: Tensor  # (S, c) best first
    token: Tensor
    score: Tensor


def best_of_rows(k: int, beam: Beam, log_probs: LogProbs, children: int | None = None) -> Best:
    """The 2k best continuations of each sentence (or all but one where there are fewer: fairseq never takes pad), at most so many
    children of one row."""
    width, words = beam.width, log_probs.size
    c = min(2 * k, width * words - log_probs.is_dense)  # a shortlist has no pad
    if children is None or children >= min(c, words):
        found = log_probs.best_of_sentences(c, beam.last_score(), beam.bounds())
        if found is not None:
            return Best(*found)
    per_row = min(c, words)
    if children is not None and children < per_row:
        per_row = children
        c = min(c, width * per_row)
    row_score, row_token = log_probs.topk(per_row)  # (n, per_row)
    row_score = row_score + beam.last_score()[:, None]
    score = beam.by_sentence(row_score, -torch.inf).flatten(1)  # (n, per_row) -> (S, width x per_row)
    token = beam.by_sentence(row_token, 0).flatten(1)
    if children is None:
        score, place = score.topk(c, dim=1)
    else:  # of equals the first, as everywhere else on a CPU
        score, place = (x[:, :c] for x in score.sort(dim=1, descending=True, stable=True))
    token = token.gather(1, place)
    row = place // per_row
    if beam.counts is not None:  # an empty place points to a row of its own sentence
        row = row.masked_fill(score == -torch.inf, 0)
    if len(beam.live) > 1:
        row = beam.first_row()[:, None] + row
    return Best(row, token, score)
