"""From the candidates of a step to the rows of the next beam.

Shapes: S live sentences, S' that continue, n' rows of the next beam, c candidates a sentence.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_ext.search.beam import Beam, numbers
from fairseq_ext.search.candidates import Candidates, StopDecision
from fairseq_ext.search.upload import upload


@dataclass
class Survivors:
    """The candidates that become rows, in row order."""

    live: list[int]  # S' pool numbers
    width: int  # rows of every sentence, or the most of any when counts is given
    counts: Tensor | None  # (S',) rows of each sentence where they may differ
    kept: Tensor | None  # (S',) places of these sentences among the S; None: all continue
    row: Tensor  # (n',) row of the present beam that is continued
    token: Tensor  # (n',)
    score: Tensor  # (n',) cumulative log-probability
    aux: dict[str, Tensor]  # (n', ...) row state after the token


def possible(candidates: Candidates, decision: StopDecision) -> Tensor:
    """(S, c): candidates that may become rows; what pruning dropped may not."""
    if decision.possible is None:
        found = candidates.score > -torch.inf
        decision.possible = found if decision.stays is None else found & decision.stays
    return decision.possible


def going_on(candidates: Candidates, decision: StopDecision) -> Tensor:
    """(S,): how many rows each sentence goes on with, where that may be fewer than its width."""
    return possible(candidates, decision).sum(1).clamp_(max=candidates.width)


def survivors(candidates: Candidates, decision: StopDecision, live: list[int], final: Tensor, counts: Tensor | None) -> Survivors | None:
    """The first staying candidates of each sentence that is not final, up to its width; None where every sentence is final.

    live: S pool numbers; final (S,) and counts (S,) lie on the host; counts: what `going_on` gives, None where every sentence has as many
    rows as its width.
    """
    left = [s for s, is_final in zip(live, final.tolist(), strict=True) if not is_final]
    row, token, score = candidates.row, candidates.token, candidates.score
    width = min(candidates.width, row.size(1))
    if decision.stays is None and len(left) == len(live) and (counts is None or bool((score[:, :width] > -torch.inf).all())):
        row, token, score = (x[:, :width].flatten() for x in (row, token, score))
        aux = {name: value[:, :width].flatten(0, 1) for name, value in candidates.aux.items()}
        return Survivors(left, width, None, None, row, token, score, aux)
    if not left:
        return None
    gone = ~(possible(candidates, decision) if counts is not None or decision.stays is None else decision.stays)
    score = score.masked_fill(gone, -torch.inf)  # where fewer stay than there are rows, the others are placeholders
    # staying candidates first, in their order: the sort key is the rank, behind all others where a candidate does not stay
    (S, c), device = row.shape, row.device
    width, rank = min(candidates.width, c), numbers(2 * c, device)
    order = torch.where(gone, rank[c:], rank[:c]).topk(width, dim=1, largest=False).indices  # (S, width)
    place = order + numbers(S, device, c)[:, None]  # among all S x c
    kept = of_each = None
    if len(left) < len(live):
        kept = upload((~final).nonzero()[:, 0], device)
        place = place[kept]
    place = place.flatten()
    if counts is not None and int((counts := counts[~final]).min()) < width:
        of_each, width = upload(counts, device), int(counts.max())
        # subtle: a mask as an index would make the host wait for a device once for each tensor
        place = place[gone.flatten()[place].byte().argsort(stable=True)[: int(counts.sum())]]
    row, token, score = (x.flatten().index_select(0, place) for x in (row, token, score))
    aux = {name: value.flatten(0, 1).index_select(0, place) for name, value in candidates.aux.items()}
    return Survivors(left, width, of_each, kept, row, token, score, aux)


def continued(beam: Beam, rows: Survivors) -> Beam:
    """The present beam's rows with one more token."""
    following = beam.select(rows.row, rows.live, rows.width, rows.counts, rows.aux)
    following.extend_(rows.token, rows.score)
    return following
