"""Continuations that a select strategy returns, banks, stop decisions, and the next rows.

Shapes: S live sentences, c candidates a sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_ext.search.beam import Beam, first_of, numbers, repeated, upload


@dataclass
class Candidates:
    """The best continuations of each sentence, (S, c) each, best first; -inf as the score marks an
    empty place."""

    row: Tensor  # row of the beam that is continued
    token: Tensor
    score: Tensor  # cumulative log-probability
    width: int  # k: largest number of rows of any sentence in the next beam
    # (S,) number of finished hypotheses that a sentence needs, if that is not the width
    widths: Tensor | None = None
    # (S,) number of constraint tokens that a hypothesis must have before it may end; 0: none
    goal: Tensor | None = None
    # (S, c) bank of each candidate: how many of those tokens it has; None: no banks
    group: Tensor | None = None
    aux: dict[str, Tensor] = field(default_factory=dict)  # (S, c, ...) row state after the token
    # (S,) largest number of rows of each sentence, if some have fewer than the width
    slots: Tensor | None = None
    competing: int = 0  # number of the best that continue and have rows whatever their bank
    # slots (S, B) of the banks for numbers of candidates (S, B); None: no rule of its own
    divide: Callable[[Tensor], Tensor] | None = None

    @property
    def most(self) -> int | Tensor:
        """The largest number of rows of each sentence: an int for all, or (S, 1)."""
        return self.width if self.slots is None else self.slots[:, None]

    def with_rows(self, slots: Tensor | None, competing: int, eos: int) -> Candidates:
        """Return these candidates with the numbers of rows slots (S,), without those that are not
        used then; None: every sentence has as many as the width."""
        if slots is not None:
            self.slots, self.competing = slots, competing
            used = self.used(eos, slots[:, None])
            self.score = self.score.masked_fill(~used, -torch.inf)
        return self

    def used(self, eos: int, most: int | Tensor) -> Tensor:
        """Return (S, c): candidates that a beam of `most` rows, an int or (S, 1), would use: those
        among the first that end, and as many that continue."""
        ends = self.token == eos
        return torch.where(
            ends, numbers(ends.size(1), ends.device) < most, (~ends).cumsum(1) <= most
        )

    def within_width(self) -> Tensor:
        """Return a mask (c,) or (S, c) of each sentence's `most` best candidates."""
        c, device = self.score.size(1), self.score.device
        return (
            first_of(c, self.width, device)
            if self.slots is None
            else numbers(c, device) < self.slots[:, None]
        )

    def split_by_eos(self, eos: int) -> tuple[Tensor, Tensor]:
        """Return (S, c) masks: the candidates that end in EOS, and those that can continue."""
        possible = self.score > -torch.inf
        ends = (self.token == eos) & possible
        return ends, possible ^ ends


@dataclass
class StopDecision:
    """The finished candidates, the candidates that continue, and the final sentences."""

    done: Tensor | None  # (S, c) candidate is a finished hypothesis; None: no candidate is
    # (S, c) candidate may be a row of the next beam, up to the width; None: every possible one may
    stays: Tensor | None
    final: Tensor  # (S,) sentence needs no more decoding
    possible: Tensor | None = None  # (S, c) result of `may_become_row`, below


def best_of_sentences(
    c: int, beam: Beam, score: Tensor, token: Tensor, stable: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Return row, token and cumulative score (S, c) of each sentence's best continuations, from
    log-probability and token (n, m) of its rows' best ones. Fewer than c if its rows have fewer.
    stable: the first of equal ones is better, as everywhere else on a CPU."""
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
    # an empty place refers to a row of its own sentence
    return (
        beam.first_row()[:, None] + (place // m).masked_fill(score == -torch.inf, 0),
        token,
        score,
    )


def pad_by_sentence(sentences: int, of: Tensor, value: Tensor, empty: Tensor | float) -> Tensor:
    """Return values (d,) of sentences `of` (d,), which ascend, as (S, c), filled up with `empty`:
    a number, or (S,)."""
    counts = torch.bincount(of, minlength=sentences)
    place = torch.arange(of.numel(), device=of.device) - (counts.cumsum(0) - counts)[of]
    fill = torch.as_tensor(empty, dtype=value.dtype, device=value.device).expand(sentences)
    return fill[:, None].repeat(1, int(counts.max())).index_put((of, place), value)


def pick(value: Tensor, index: Tensor) -> Tensor:
    """Return value (S, m, ...) at index (S, c) along its second dimension."""
    return value[numbers(value.size(0), value.device)[:, None], index]


def first_of_equals(key: Tensor) -> Tensor:
    """Return (S, c): false for every key that occurs further left in its row."""
    sorted_key, order = key.sort(dim=1, stable=True)
    first = F.pad(sorted_key[:, 1:] != sorted_key[:, :-1], (1, 0), value=True)
    return torch.empty_like(first).scatter_(1, order, first)


def best_of_mask(most: int, mask: Tensor, score: Tensor) -> Tensor:
    """Return (S, c): the `most` with the highest score of those in a mask; of equals the first."""
    order = score.argsort(dim=1, descending=True, stable=True)
    masked = mask.gather(1, order)
    return torch.zeros_like(mask).scatter_(1, order, masked & (masked.cumsum(1) <= most))


# ---- Candidates in banks
#
# A bank is a group of a sentence's hypotheses that share the beam's slots, such as those with
# equally many constraint tokens.
#
# Shapes: S sentences, B banks, c candidates of a sentence.


def order_by_banks(
    slots: Tensor, bank: Tensor, score: Tensor, top: Tensor, competes: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the order (S, c) of candidates: first those in the banks' slots (S, B) and those in
    `competes` (S, c), best score first; then the others, each bank's next best in turn from the
    highest bank top (S,) down; impossible ones last. Also return how many are first (S,)."""
    c, B = bank.size(1), slots.size(1)
    bank = bank.masked_fill(score == -torch.inf, B)
    by_score = score.argsort(dim=1, descending=True, stable=True)
    # places in by_score: a candidate's rank by score
    by_bank = bank.gather(1, by_score).argsort(dim=1, stable=True)
    order = by_score.gather(1, by_bank)
    bank = bank.gather(1, order)
    rank = numbers(c, bank.device) - torch.searchsorted(bank, bank)  # in its bank
    slots = torch.cat([slots, torch.zeros_like(slots[:, :1])], dim=1)
    admitted = rank < slots.gather(1, bank)
    if competes is not None:
        admitted |= competes.gather(1, order)
    turn = c + rank * (B + 1) + (top[:, None] - bank)
    key = torch.where(admitted, by_bank, torch.where(bank < B, turn, c * (B + 3)))
    return order.gather(1, key.argsort(dim=1, stable=True)), admitted.sum(1)


# ---- From the candidates of a step to the rows of the next beam
#
# Shapes: S live sentences, S' that continue, n' rows of the next beam, c candidates a sentence.


@dataclass
class Survivors:
    """The candidates that become rows, in the order of the rows."""

    live: list[int]  # S' pool numbers
    width: int  # rows of every sentence; the largest number of rows if counts is given
    counts: Tensor | None  # (S',) rows of each sentence if they may differ
    sentence_index: Tensor | None  # (S',) places of these sentences among the S; None: all continue
    row: Tensor  # (n',) row of the current beam that is continued
    token: Tensor  # (n',)
    score: Tensor  # (n',) cumulative log-probability
    aux: dict[str, Tensor]  # (n', ...) row state after the token


def may_become_row(candidates: Candidates, decision: StopDecision) -> Tensor:
    """Return (S, c): candidates that may become rows, without pruned ones."""
    if decision.possible is None:
        found = candidates.score > -torch.inf
        decision.possible = found if decision.stays is None else found & decision.stays
    return decision.possible


def rows_per_sentence(candidates: Candidates, decision: StopDecision) -> Tensor:
    """Return (S,): the number of rows of each sentence in the next beam, at most its width."""
    return may_become_row(candidates, decision).sum(1).clamp_(max=candidates.width)


def survivors(
    candidates: Candidates,
    decision: StopDecision,
    live: list[int],
    final: Tensor,
    counts: Tensor | None,
) -> Survivors | None:
    """Return the first staying candidates of each sentence that is not final, up to its width; None
    if every sentence is final.

    live: S pool numbers; final (S,) and counts (S,) are on the host; counts: from
    `rows_per_sentence`, None if every sentence has as many rows as its width.
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
        may_become_row(candidates, decision)
        if counts is not None or decision.stays is None
        else decision.stays
    )
    # if fewer stay than there are rows, the others are placeholders
    score = score.masked_fill(gone, -torch.inf)
    # staying candidates first, in their order: the sort key is the rank, larger than all ranks for
    # a candidate that does not stay
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
        # subtle: a mask as an index would make the host wait for the device, once for each tensor
        place = place[gone.flatten()[place].byte().argsort(stable=True)[: int(counts.sum())]]
    row, token, score = (x.flatten().index_select(0, place) for x in (row, token, score))
    aux = {
        name: value.flatten(0, 1).index_select(0, place) for name, value in candidates.aux.items()
    }
    return Survivors(left, width, of_each, kept, row, token, score, aux)


def next_beam(beam: Beam, rows: Survivors) -> Beam:
    """Return the current beam's rows with one more token."""
    following = beam.select(rows.row, rows.live, rows.width, rows.counts, rows.aux)
    following.extend_(rows.token, rows.score)
    return following


# ---- How the slots of the beam are divided among banks


def deal(k: int | Tensor, candidates: Tensor) -> Tensor:
    """Return slots (S, B) of each bank for numbers of candidates (S, B): one in turn, from the
    highest bank down, until all k (an int, or (S, 1)) are used or all candidates have one."""
    most = k if isinstance(k, int) else int(k.max())
    # (S, most): slots used after each number of full rounds
    dealt = candidates[:, :, None].minimum(numbers(most + 1, candidates.device)[1:]).sum(1)
    full = (dealt <= k).sum(1, keepdim=True)  # (S, 1)
    slots = candidates.minimum(full)
    # the incomplete round: the highest banks that have more candidates
    more = (candidates > full).long()
    left = k - slots.sum(1, keepdim=True)
    return slots + more * (more.flip(1).cumsum(1).flip(1) <= left)


def allocate(k: int | Tensor, candidates: Tensor, top: Tensor) -> Tensor:
    """Return slots (S, B) of each bank, for k slots (an int, or (S, 1)), numbers of candidates
    (S, B) and each sentence's highest bank top (S,).

    Every bank up to the highest has k // (top + 1) slots, the highest also the remainder; with more
    banks than slots these are all k. From the highest down, a bank that cannot fill its slots gives
    the rest to the nearest banks with more candidates, the lower of two first.
    """
    B = candidates.size(1)
    bank = torch.arange(B, device=candidates.device)
    top = top[:, None]
    share = k // (top + 1)
    slots = torch.where(bank <= top, share, 0)
    slots = slots + torch.where(bank == top, k - share * (top + 1), 0)
    extra = (slots - candidates).clamp(min=0)
    slots = slots - extra
    lack = candidates - slots
    near = nearest_banks(B, candidates.device)
    # on a CPU it is cheap to check which banks have slots to give away
    giving = extra.any(0).tolist() if candidates.device.type == "cpu" else [True] * B
    for b in reversed(range(B)):
        if giving[b]:
            wants = lack[:, near[b]]
            given = (extra[:, b, None] - (wants.cumsum(1) - wants)).clamp(min=0).minimum(wants)
            slots.index_add_(1, near[b], given)
            lack.index_add_(1, near[b], -given)
    return slots


@lru_cache(maxsize=64)
def nearest_banks(B: int, device: torch.device) -> Tensor:
    """Return (B, B - 1): the other banks of each, nearest first, the lower first at equal
    distance."""
    order = [
        sorted((x for x in range(B) if x != b), key=lambda x: (abs(x - b), x)) for b in range(B)
    ]
    return torch.tensor(order, dtype=torch.long, device=device).view(B, B - 1)


def bank_sizes(bank: Tensor, score: Tensor, B: int) -> Tensor:
    """Return (S, B): the number of possible candidates (score above -inf) of each bank."""
    possible = (score > -torch.inf).long()
    return torch.zeros(bank.size(0), B, dtype=torch.long, device=bank.device).scatter_add_(
        1, bank, possible
    )
