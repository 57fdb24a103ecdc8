"""A pool's constraints as tensors, and the number of rows that may wait for the end of a word."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from fairseq_ext.kernels.banks import Banks
from fairseq_ext.search.beam import Beam
from fairseq_ext.search.constraints.banned import BannedTable, build_banned
from fairseq_ext.search.constraints.sentence_end import EndRule
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.phrases.phrase_table import Compiler, PhraseTable, build_table
from fairseq_ext.search.phrases.sentence import EMPTY
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import Setup

Strategy = TypeVar("Strategy")


@dataclass
class Tables:
    """The tables of N sentences."""

    phrases: PhraseTable
    banned: BannedTable | None
    max_len: Tensor  # (N,)
    forced: Tensor  # (N,) tokens of the prefix
    infeasible: Tensor  # (N,) whether the constraints have more tokens than the sentence may have
    banks: int  # of the sentence with the most constraint tokens
    most_words: int  # required words of the sentence with the most
    ends: EndRule | None = None  # --constraint-end

    def compiled_banks(self, slots: Tensor) -> Banks | None:
        """Return the required phrases as the compiled search reads them, None if there are other
        constraints. slots (N,): rows that the banks of each sentence share."""
        if self.banned is not None or self.ends is not None:
            return None
        phrases, infeasible = self.phrases, self.infeasible.tolist()
        return Banks(
            phrases.struct(),
            phrases.start,
            infeasible,
            phrases.total.tolist(),
            slots.tolist(),
            self,
        )

    def state_after(
        self, beam: Beam, row: Tensor, token: Tensor, proposed: Tensor | None
    ) -> dict[str, Tensor]:
        """Return the row state of banned phrases and sentence ends after the candidates' tokens
        (S, c); proposed: the result of EndRule.forbid_."""
        aux = {}
        if self.banned is not None:
            aux["banned"] = self.banned.advance(beam.aux["banned"][row], token)
        if self.ends is not None and proposed is not None:
            aux["ends"] = self.ends.next_state(beam, row, token, proposed)
        return aux

    def take_over_(self, beam: Beam, before: Tables) -> None:
        """Shift the states of a beam's rows from the numbers of the automata of `before` to those
        of these tables."""
        sentence = beam.live_index()[beam.sentence_of_row()]
        state, count = self.phrases.begin(sentence)
        # further columns belong to sentences that are no longer here
        G = min(state.size(1), beam.aux["state"].size(1))
        state[:, :G] += beam.aux["state"][:, :G] - before.phrases.start[sentence][:, :G]
        count[:, :G] = beam.aux["count"][:, :G]
        beam.aux["state"], beam.aux["count"] = state, count
        beam.live_cache = {}
        old = beam.aux.pop("banned", None)
        if self.banned is not None:
            inside = (
                0 if old is None or before.banned is None else old - before.banned.start[sentence]
            )
            beam.aux["banned"] = self.banned.start[sentence] + inside


def make_select(
    kind: Callable[..., Strategy], setup: Setup, k: int | None = None, **more: float
) -> Strategy:
    """Return a select strategy with constraints; k: instead of the beam."""
    more["min_len"] = setup.min_len
    return kind(k or setup.k, setup.eos, len(setup.dictionary), setup.children, **more)


def tables(pool: Pool, compiler: Compiler, eos: int, min_len: int) -> Tables:
    """Return the tables of a pool's constraints. min_len: target tokens before EOS, at least."""
    device = pool.length.device
    given = pool.constraints or [EMPTY] * len(pool)
    required = [each.required for each in given]
    phrases = build_table(required, pool.ordered, device, compiler)
    lists = {id(c.banned): tuple(c.banned) for c in given}  # often one object for all
    of_each = [lists[id(c.banned)] for c in given]
    banned = build_banned(of_each, device, compiler) if any(of_each) else None
    max_len = torch.tensor(pool.max_len, device=device)
    prefixes = [pool.forced(i) for i in range(len(pool))]
    forced = torch.tensor([len(prefix) for prefix in prefixes], device=device)
    missing = phrases.total - phrases.bank_after(prefixes)
    infeasible = missing + forced > max_len
    ends = (
        None
        if pool.ends is None
        else EndRule(pool.ends, (phrases.total > 0) & ~infeasible, forced, min_len, eos)
    )
    return Tables(
        phrases,
        banned,
        max_len,
        forced,
        infeasible,
        int(phrases.total.max()) + 1,
        int(phrases.words.max()),
        ends,
    )


# ---- A limit on the number of *pending* rows
#
# A pending row ends in a banned word that is complete unless the next token continues it. Such a
# row must continue the word, or be dropped.
#
# After `man`, the model mostly expects the word `man`, not a longer word that begins so. If all
# rows were there, only words like "mann't" could follow.
#
# Shapes: S live sentences, n rows, B tokens that lead to a pending state at most, V vocabulary.


SHARE = 4  # one of this number of rows may become pending
# a pending row continues if the model gives at least this probability to continuations of the word
LIKELY = 0.1


def limit_pending_(
    table: Tables, beam: Beam, log_probs: LogProbs, width: Tensor, steps_left: Tensor
) -> None:
    """Ban tokens in place, so that at most `width` (S,) / SHARE rows of a sentence become pending,
    and unlikely pending rows end.

    Next tokens of required phrases are neither banned nor counted, and no token is where a prefix
    is forced. steps_left (S,): tokens that may follow before EOS."""
    banned = table.banned
    if banned is None or not banned.automata.is_bounded:
        return
    live = beam.live_index()
    proposed = None
    if table.banks > 1:
        state, count = (beam.by_sentence(beam.aux[name], 0) for name in ("state", "count"))
        proposed = beam.by_row(table.phrases.for_sentences(live).next_token(state, count))  # (n, .)
    free = table.max_len[live] - steps_left < table.forced[live]
    drop_unlikely_(banned, beam, log_probs, width, free, proposed)
    limit_new_(
        banned,
        beam,
        log_probs,
        (width // SHARE).masked_fill(free, beam.rows * log_probs.size),
        proposed,
    )


def drop_unlikely_(
    banned: BannedTable,
    beam: Beam,
    log_probs: LogProbs,
    width: Tensor,
    free: Tensor,
    proposed: Tensor | None,
) -> None:
    """End pending rows whose continuations have a total probability below LIKELY, if the other rows
    have 2 x width continuations.

    Without the second condition, a beam that is wide enough for all sequences would lose some."""
    sentence = beam.sentence_of_row()
    pending = banned.automata.pending[beam.aux["banned"]] & ~free[sentence]
    if pending.device.type == "cpu" and not bool(pending.any()):
        return
    log_probs.make_exact_(pending)
    if pending.device.type == "cpu":  # only the few sentences with such rows
        at = (
            torch.zeros_like(width, dtype=torch.bool)
            .index_fill(0, sentence[pending], True)[sentence]
            .nonzero()[:, 0]
        )
    else:
        at = torch.arange(sentence.numel(), device=sentence.device)
    (likely, possible), of = log_probs.mass(at), sentence[at]
    unlikely = pending[at] & (likely < math.log(LIKELY))
    # placeholder rows of a beam that is wider than its number of continuations
    impossible = beam.last_score()[at] == -torch.inf
    others = possible.masked_fill(unlikely | impossible, 0)
    unlikely &= (torch.zeros_like(width).index_add(0, of, others) >= 2 * width)[of]
    if unlikely.device.type != "cpu" or bool(unlikely.any()):
        kept = torch.full_like(sentence[:, None], -1) if proposed is None else proposed
        log_probs.only_(kept, torch.zeros_like(pending).index_put((at,), unlikely))


def limit_new_(
    banned: BannedTable, beam: Beam, log_probs: LogProbs, most: Tensor, proposed: Tensor | None
) -> None:
    """Ban all but the best `most` (S,) continuations of a sentence that lead to a pending state;
    those that equal the last one stay."""
    state = beam.aux["banned"]
    root = banned.automata.root[state]
    # (n, 2B)
    token = torch.cat(
        [
            banned.pending_tokens[state].masked_fill((state == root)[:, None], -1),
            banned.pending_tokens[root],
        ],
        dim=1,
    )
    counted = token >= 0
    if proposed is not None:
        counted &= ~(token[:, :, None] == proposed[:, None]).any(2)
    if state.device.type == "cpu" and not bool(counted.any()):
        return
    score = (log_probs.scores_at(token.clamp(min=0)) + beam.last_score()[:, None]).masked_fill(
        ~counted, -torch.inf
    )
    of_sentence = beam.by_sentence(score, -torch.inf).flatten(1)
    best = of_sentence.topk(min(max(1, int(most.max())), of_sentence.size(1)), dim=1).values
    least = best.gather(1, (most - 1).clamp(0, best.size(1) - 1)[:, None])[:, 0].masked_fill(
        most == 0, torch.inf
    )
    log_probs.ban_each_(
        token.masked_fill(~counted | (score >= least[beam.sentence_of_row()][:, None]), -1)
    )
