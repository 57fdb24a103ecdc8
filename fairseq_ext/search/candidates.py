"""Continuations that a select strategy proposes, banks, stop decisions, and the next rows.

Shapes: S live sentences, c candidates a sentence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_ext.search.beam import Beam, first_of, numbers, repeated, upload


@dataclass
class Candidates:
    """The best continuations of each sentence, (S, c) each, best first; a score of -inf
    marks an empty place."""

    row: Tensor  # row of the beam that is continued
    token: Tensor
    score: Tensor  # cumulative log-probability
    width: int  # most rows that a sentence continues with: k
    # (S,) finished hypotheses that are enough for each sentence, where that is not the width
    widths: Tensor | None = None
    # (S,) constraint tokens that a hypothesis must have before it may end; 0: none
    goal: Tensor | None = None
    # (S, c) bank of each candidate: how many of those tokens it has; None: no banks
    group: Tensor | None = None
    aux: dict[str, Tensor] = field(default_factory=dict)  # (S, c, ...) row state after the token
    key: Tensor | None = None  # (S, c) what candidates are ranked by where it is not their score
    # (S,) most rows of each sentence alone, where that differs between sentences
    slots: Tensor | None = None

    @property
    def most(self) -> int | Tensor:
        """The most rows that a sentence continues with when it is alone: one for all, or (S, 1)."""
        return self.width if self.slots is None else self.slots[:, None]

    def within_width(self) -> Tensor:
        """A mask (c,) or (S, c): as many candidates as that, the best."""
        c, device = self.score.size(1), self.score.device
        return (
            first_of(c, self.width, device)
            if self.slots is None
            else numbers(c, device) < self.slots[:, None]
        )

    def ends_and_goes_on(self, eos: int) -> tuple[Tensor, Tensor]:
        """(S, c) masks: the candidates that end in EOS, and those that can continue."""
        possible = self.score > -torch.inf
        ends = (self.token == eos) & possible
        return ends, possible ^ ends


@dataclass
class StopDecision:
    """Which candidates are finished, which continue, and which sentences are final."""

    done: Tensor | None  # (S, c) becomes a finished hypothesis; None: no candidate does
    # (S, c) becomes a row of the next beam, up to the width; None: every possible candidate
    stays: Tensor | None
    final: Tensor  # (S,) the sentence needs no more decoding
    possible: Tensor | None = None  # (S, c) may become a row: what `possible`, below, has found


def best_of_sentences(
    c: int, beam: Beam, score: Tensor, token: Tensor, stable: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Row, token and cumulative score (S, c) of each sentence's best continuations, of those that
    its rows have: log-probability and token (n, m). Fewer than c where its rows have fewer. stable:
    of equals the first, as everywhere else on a CPU."""
    m = score.size(1)
    # (n, m) -> (S, width x m)
    score = beam.by_sentence(score + beam.last_score()[:, None], -torch.inf).flatten(1)
    token = beam.by_sentence(token, 0).flatten(1)
    if stable:
        score, place = (x[:, :c] for x in score.sort(dim=1, descending=True, stable=True))
    else:
        score, place = score.topk(min(c, score.size(1)), dim=1)
    token = token.gather(1, place)
    if beam.counts is None:
        return (
            repeated(beam.rows, m, beam.device).view(len(beam.live), -1).gather(1, place),
            token,
            score,
        )
    # an empty place points to a row of its own sentence
    return (
        beam.first_row()[:, None] + (place // m).masked_fill(score == -torch.inf, 0),
        token,
        score,
    )


def laid_out(sentences: int, of: Tensor, value: Tensor, empty: Tensor | float) -> Tensor:
    """Values (d,) of sentences `of` (d,), which ascend, as (S, c), filled up with `empty`:
    one for all, or (S,)."""
    counts = torch.bincount(of, minlength=sentences)
    place = torch.arange(of.numel(), device=of.device) - (counts.cumsum(0) - counts)[of]
    fill = torch.as_tensor(empty, dtype=value.dtype, device=value.device).expand(sentences)
    return fill[:, None].repeat(1, int(counts.max())).index_put((of, place), value)


def pick(value: Tensor, index: Tensor) -> Tensor:
    """value (S, m, ...) at index (S, c) along its second dimension."""
    return value[numbers(value.size(0), value.device)[:, None], index]


def first_of_equals(key: Tensor) -> Tensor:
    """(S, c): false for every key that stands further left in its line already."""
    sorted_key, order = key.sort(dim=1, stable=True)
    first = F.pad(sorted_key[:, 1:] != sorted_key[:, :-1], (1, 0), value=True)
    return torch.empty_like(first).scatter_(1, order, first)


# ---- Candidates in banks
#
# Banks are groups of a sentence's hypotheses that share the beam, such as those with equally many
# constraint tokens.
#
# Shapes: S sentences, B banks, c candidates of a sentence.


def by_banks(slots: Tensor, bank: Tensor, score: Tensor, top: Tensor) -> tuple[Tensor, Tensor]:
    """The order (S, c) of candidates: first those that the banks' slots (S, B) admit, best score
    first; then the others, each bank's next best in turn from the highest bank top (S,) down;
    impossible ones last. Also how many are admitted (S,)."""
    c, B = bank.size(1), slots.size(1)
    bank = bank.masked_fill(score == -torch.inf, B)
    by_score = score.argsort(dim=1, descending=True, stable=True)
    # places in by_score: a candidate's rank by score
    by_bank = bank.gather(1, by_score).argsort(dim=1, stable=True)
    order = by_score.gather(1, by_bank)
    bank = bank.gather(1, order)
    rank = numbers(c, bank.device) - torch.searchsorted(bank, bank)  # within the bank
    slots = torch.cat([slots, torch.zeros_like(slots[:, :1])], dim=1)
    admitted = rank < slots.gather(1, bank)
    turn = c + rank * (B + 1) + (top[:, None] - bank)
    key = torch.where(admitted, by_bank, torch.where(bank < B, turn, c * (B + 3)))
    return order.gather(1, key.argsort(dim=1, stable=True)), admitted.sum(1)


# ---- From the candidates of a step to the rows of the next beam
#
# Shapes: S live sentences, S' that continue, n' rows of the next beam, c candidates a sentence.


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


def survivors(
    candidates: Candidates,
    decision: StopDecision,
    live: list[int],
    final: Tensor,
    counts: Tensor | None,
) -> Survivors | None:
    """The first staying candidates of each sentence that is not final, up to its width; None where
    every sentence is final.

    live: S pool numbers; final (S,) and counts (S,) lie on the host; counts: what `going_on` gives,
    None where every sentence has as many rows as its width.
    """
    left = [s for s, is_final in zip(live, final.tolist(), strict=True) if not is_final]
    row, token, score = candidates.row, candidates.token, candidates.score
    width = min(candidates.width, row.size(1))
    if (
        decision.stays is None
        and len(left) == len(live)
        and (counts is None or bool((score[:, :width] > -torch.inf).all()))
    ):
        row, token, score = (x[:, :width].flatten() for x in (row, token, score))
        aux = {name: value[:, :width].flatten(0, 1) for name, value in candidates.aux.items()}
        return Survivors(left, width, None, None, row, token, score, aux)
    if not left:
        return None
    gone = ~(
        possible(candidates, decision)
        if counts is not None or decision.stays is None
        else decision.stays
    )
    # where fewer stay than there are rows, the others are placeholders
    score = score.masked_fill(gone, -torch.inf)
    # staying candidates first, in their order: the sort key is the rank, behind all others where
    # a candidate does not stay
    (S, c), device = row.shape, row.device
    width, rank = min(candidates.width, c), numbers(2 * c, device)
    # (S, width)
    order = torch.where(gone, rank[c:], rank[:c]).topk(width, dim=1, largest=False).indices
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
    aux = {
        name: value.flatten(0, 1).index_select(0, place) for name, value in candidates.aux.items()
    }
    return Survivors(left, width, of_each, kept, row, token, score, aux)


def continued(beam: Beam, rows: Survivors) -> Beam:
    """The present beam's rows with one more token."""
    following = beam.select(rows.row, rows.live, rows.width, rows.counts, rows.aux)
    following.extend_(rows.token, rows.score)
    return following


# ---- How the slots of the beam are divided among banks


def deal(k: int, candidates: Tensor) -> Tensor:
    """Slots (S, B) for each bank that has so many candidates (S, B): one in turn, from the highest
    bank down, until all k are dealt or all candidates are."""
    # (S, k): slots dealt after so many full rounds
    dealt = candidates[:, :, None].minimum(numbers(k + 1, candidates.device)[1:]).sum(1)
    full = (dealt <= k).sum(1, keepdim=True)  # (S, 1)
    slots = candidates.minimum(full)
    # the round that is cut short: the highest banks that have more
    more = (candidates > full).long()
    left = k - slots.sum(1, keepdim=True)
    return slots + more * (more.flip(1).cumsum(1).flip(1) <= left)


def allocate(k: int, candidates: Tensor, top: Tensor) -> Tensor:
    """Slots (S, B) for each bank, given how many candidates (S, B) it has and each sentence's
    highest bank top (S,).

    Every bank up to the highest has k // (top + 1) slots, the highest also the remainder. Going
    down from the highest, a bank that cannot fill its slots hands the rest to the nearest banks
    with candidates left over, the lower of two first.
    """
    B = candidates.size(1)
    bank = torch.arange(B, device=candidates.device)
    share = k // (top + 1)
    slots = torch.where(bank <= top[:, None], share[:, None], 0)
    slots = slots + torch.where(bank == top[:, None], (k - share * (top + 1))[:, None], 0)
    extra = (slots - candidates).clamp(min=0)
    slots = slots - extra
    lack = candidates - slots
    near = nearest_banks(B, candidates.device)
    # on a CPU it is cheap to ask which banks have anything to hand out
    giving = extra.any(0).tolist() if candidates.device.type == "cpu" else [True] * B
    for b in reversed(range(B)):
        if giving[b]:
            wants = lack[:, near[b]]
            given = (extra[:, b, None] - (wants.cumsum(1) - wants)).clamp(min=0).minimum(wants)
            slots.index_add_(1, near[b], given)
            lack.index_add_(1, near[b], -given)
    return slots


def allocate_few(k: int, candidates: Tensor, top: Tensor) -> Tensor:
    """`allocate` for the sentences with at most k banks, so that the work stays the same however
    many constraints there are.

    The others have no slots, so that `by_banks` deals all k out in turn.
    """
    slots = torch.zeros_like(candidates)
    slots[:, :k] = allocate(k, candidates[:, :k], top)
    return slots


@lru_cache(maxsize=64)
def nearest_banks(B: int, device: torch.device) -> Tensor:
    """(B, B - 1): the other banks of each, nearest first, the lower one first at equal distance."""
    order = [
        sorted((x for x in range(B) if x != b), key=lambda x: (abs(x - b), x)) for b in range(B)
    ]
    return torch.tensor(order, dtype=torch.long, device=device).view(B, B - 1)


def bank_sizes(bank: Tensor, score: Tensor, B: int) -> Tensor:
    """(S, B): possible candidates (score above -inf) of each bank."""
    possible = (score > -torch.inf).long()
    return torch.zeros(bank.size(0), B, dtype=torch.long, device=bank.device).scatter_add_(
        1, bank, possible
    )
