"""How many rows may stand behind a banned word that is complete but for its end: *pending* rows, which must go on with the word.

What scores well at `man` is mostly `man`, not the beginning of a longer word. With all rows there, only words like "mann't" could follow.

Shapes: S live sentences, n rows, B tokens that lead to a pending state at most, V vocabulary.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fairseq_ext.search.beam import Beam
from fairseq_ext.search.constraints.banned import BannedTable
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.strategies.select._tables import Tables

SHARE = 4  # one row in so many may become pending
LIKELY = 0.1  # a pending row goes on where the model gives this much to tokens that continue the word


def limit_pending_(table: Tables, beam: Beam, log_probs: LogProbs, width: Tensor, steps_left: Tensor) -> None:
    """Ban tokens in place, so that at most `width` (S,) / SHARE rows of a sentence become pending, and unlikely pending rows end.

    Next tokens of required phrases are neither banned nor counted; nor is anything where a prefix is forced.
    steps_left (S,): tokens that may still come before EOS."""
    banned = table.banned
    if banned is None or banned.glued.numel() == 1:
        return
    live = beam.live_index()
    proposed = None
    if table.banks > 1:
        state, count = (beam.by_sentence(beam.aux[name], 0) for name in ("state", "count"))
        proposed = beam.by_row(table.phrases.of(live).next_token(state, count))  # (n, .)
    free = table.max_len[live] - steps_left < table.forced[live]
    drop_unlikely_(banned, beam, log_probs, width, free, proposed)
    limit_new_(banned, beam, log_probs, (width // SHARE).masked_fill(free, beam.rows * log_probs.size), proposed)


def drop_unlikely_(banned: BannedTable, beam: Beam, log_probs: LogProbs, width: Tensor, free: Tensor, proposed: Tensor | None) -> None:
    """End pending rows whose continuations have less than probability LIKELY together, where the other rows have 2 x width continuations.

    The second condition keeps every row of a beam that is wide enough for all sequences."""
    sentence = beam.sentence_of_row()
    pending = banned.pending[beam.aux["banned"]] & ~free[sentence]
    if pending.device.type == "cpu" and not bool(pending.any()):
        return
    log_probs.make_exact_(pending)
    if pending.device.type == "cpu":  # the sentences that have such rows, as few have
        at = torch.zeros_like(width, dtype=torch.bool).index_fill(0, sentence[pending], True)[sentence].nonzero()[:, 0]
    else:
        at = torch.arange(sentence.numel(), device=sentence.device)
    (likely, possible), of = log_probs.mass(at), sentence[at]
    unlikely = pending[at] & (likely < math.log(LIKELY))
    impossible = beam.last_score()[at] == -torch.inf  # rows of a beam that is wider than there are continuations
    others = possible.masked_fill(unlikely | impossible, 0)
    unlikely &= (torch.zeros_like(width).index_add(0, of, others) >= 2 * width)[of]
    if unlikely.device.type != "cpu" or bool(unlikely.any()):
        kept = torch.full_like(sentence[:, None], -1) if proposed is None else proposed
        log_probs.only_(kept, torch.zeros_like(pending).index_put((at,), unlikely))


def limit_new_(banned: BannedTable, beam: Beam, log_probs: LogProbs, most: Tensor, proposed: Tensor | None) -> None:
    """Of the continuations of a sentence that lead to a pending state, ban all but the best `most` (S,); those that equal the last stay."""
    state = beam.aux["banned"]
    root = banned.root[state]
    token = torch.cat([banned.closing[state].masked_fill((state == root)[:, None], -1), banned.closing[root]], dim=1)  # (n, 2B)
    counted = token >= 0
    if proposed is not None:
        counted &= ~(token[:, :, None] == proposed[:, None]).any(2)
    if state.device.type == "cpu" and not bool(counted.any()):
        return
    score = (log_probs.at(token.clamp(min=0)) + beam.last_score()[:, None]).masked_fill(~counted, -torch.inf)
    of_sentence = beam.by_sentence(score, -torch.inf).flatten(1)
    best = of_sentence.topk(min(max(1, int(most.max())), of_sentence.size(1)), dim=1).values
    least = best.gather(1, (most - 1).clamp(0, best.size(1) - 1)[:, None])[:, 0].masked_fill(most == 0, torch.inf)
    log_probs.ban_each_(token.masked_fill(~counted | (score >= least[beam.sentence_of_row()][:, None]), -1))
