"""fairseq's selection: the 2k best continuations of a sentence (`--select topk`, the default).

2k, so that k remain even if k of them end in EOS. k = --beam.

Compiled twin: kernels/beam.cpp.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_ext.search.beam import Beam, numbers
from fairseq_ext.search.candidates import Candidates, best_of_sentences
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.phrases.phrase_table import PhraseTable
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import Select, Setup
from fairseq_ext.search.registry import register
from fairseq_ext.search.settings import NoFlags


class TopK(Select):
    """The 2k best continuations of each sentence."""

    def __init__(self, k: int, children: int | None = None):
        self.k = k
        self.children = children  # largest number of continuations of one row; None: no limit
        self.variable = children is not None

    @property
    def rules(self) -> dict[str, object] | None:
        return {} if self.children is None else {"children": self.children}

    def __call__(self, beam: Beam, log_probs: LogProbs, pool: Pool) -> Candidates:
        row, token, score = best_of_rows(self.k, beam, log_probs, self.children)
        return Candidates(row, token, score, self.k)


@register("select", "topk", needs=("no constraints",), neutral=({},), paper="fairseq's own")
def build(flags: NoFlags, setup: Setup) -> TopK:
    return TopK(setup.k, setup.children)


# ---- The best continuations of each sentence, with which every selection starts
#
# Shapes: S live sentences, n live rows, c candidates a sentence.


def best_of_rows(
    k: int, beam: Beam, log_probs: LogProbs, children: int | None = None
) -> tuple[Tensor, ...]:
    """Return row, token and cumulative score (S, c) of the 2k best continuations of each sentence,
    best first (or of all but one if there are fewer: fairseq never takes pad). children: largest
    number of continuations of one row."""
    width, words = beam.width, log_probs.size
    c = min(2 * k, width * words - log_probs.is_dense)  # a shortlist has no pad
    if children is None or children >= min(c, words):
        found = log_probs.best_of_sentences(c, beam.last_score(), beam.bounds())
        if found is not None:
            return found
    per_row = min(c, words)
    if children is not None and children < per_row:
        per_row = children
        c = min(c, width * per_row)
    row_score, row_token = log_probs.topk(per_row)  # (n, per_row)
    return best_of_sentences(c, beam, row_score, row_token, stable=children is not None)


def merge_phrase_tokens(
    beam: Beam,
    log_probs: LogProbs,
    phrases: PhraseTable,
    state: Tensor,
    count: Tensor,
    likeliest: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return row, token and score (S, c) of each row's likeliest words, score and token (n, m), and
    of all next tokens of unmet phrases."""
    proposed = beam.by_row(phrases.next_token(state, count))  # (S, width, G x W) -> (n, G x W)
    known = proposed.clamp(min=0)
    score = (
        torch.cat(
            [likeliest[0], log_probs.scores_at(known).masked_fill(proposed < 0, -torch.inf)], dim=1
        )
        + beam.last_score()[:, None]
    )
    token = torch.cat([likeliest[1], known], dim=1)
    row = numbers(beam.rows, beam.device)[:, None].expand_as(token)
    row, token, score = (
        beam.by_sentence(x, fill).flatten(1)
        for x, fill in ((row, 0), (token, 0), (score, -torch.inf))
    )
    return torch.where(score > -torch.inf, row, beam.first_row()[:, None]), token, score


def likeliest(
    most: int, beam: Beam, log_probs: LogProbs, phrases: PhraseTable, state: Tensor, count: Tensor
) -> tuple[Tensor, Tensor]:
    """Return scores and tokens (n, most) of each row's likeliest continuations; if a phrase is
    pending, of those that do not continue its word."""
    if not phrases.automata.is_bounded:
        return log_probs.topk(most)
    pending = beam.by_row(phrases.is_pending(state, count).any(-1))  # (n,)
    if pending.device.type == "cpu" and not bool(pending.any()):
        return log_probs.topk(most)
    return log_probs.topk(most, without=(pending, phrases.automata.continues_word))
