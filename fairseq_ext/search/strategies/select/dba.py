"""Dynamic beam allocation: any number of required phrases at constant cost (`--select dba`).

    M. Post and D. Vilar. Fast Lexically Constrained Decoding with Dynamic Beam Allocation for
    Neural Machine Translation. NAACL 2018. https://aclanthology.org/N18-1119/
    Batching after J. E. Hu et al., NAACL 2019, https://aclanthology.org/N19-1090/

The beam of one size k is divided at every step among *banks*: bank i has hypotheses with i of the C
constraint tokens. Candidates (Algorithm 2, `continuations`) are the best of all rows, the best of
each row, and the next token of every unmet phrase. --dba-allocation says how many, and how the k
slots are divided (search/candidates.py):
- even (Hu et al.; fairseq): the 2k best of all rows, the three best of each row; the banks that
  have candidates get a slot each in turn, from the highest down.
- paper (3.1, 3.2): the k best of all rows, the best of each row; each bank has k // (C + 1) slots,
  bank C also the remainder, and gives slots that it cannot fill to the nearest bank that can. With
  C >= k, where all slots begin in bank C, the rule is the same. The paper's text has k / C slots,
  which for its C + 1 banks are more than the beam: 15 of 10 with two constraints.
Phrases, unwinding and overlaps: search/phrases/phrase_table.py. Banned phrases:
search/constraints/banned.py.

| symbol | flag |
| --- | --- |
| k | --beam |
| constraints | --constraints, --constraints-file, --glossary; --avoid-file |
| rule of division | --dba-allocation |
| pruning of Table 3 | --prune-finished (search/strategies/prune.py) |

Neutral setting: no constraints; a sentence without constraints is searched as in fairseq, also in a
batch with constrained ones.
The paper's search: --dba-allocation paper --stop ranked --prune-finished 20. Its stopping criterion
("all hypotheses on the beam are finished", 6.4) is in search/strategies/stop/ranked.py.
Differences from the paper under both rules: If the word that ends a phrase may continue, a row's
best continuations are taken from those that end it, else a hypothesis that had met everything was
lost where the model would write "packing" after "pack" (--constraint-boundary; no such phrases
without it). A hypothesis with just enough steps left for its missing tokens may only take those, so
a feasible sentence always meets its constraints. A pruned candidate leaves its slot to others.
Missing phrases are
counted as if each followed the one before: an overlap of two of them is used if it occurs but not
relied on, so {[1, 2], [2, 3]} counts as infeasible in three tokens. When a constrained sentence is
final: search/strategies/stop/early.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from fairseq_ext.kernels.banks import BankRows, Banks, select_by_banks
from fairseq_ext.search.beam import Beam, upload
from fairseq_ext.search.candidates import (
    Candidates,
    allocate,
    bank_sizes,
    deal,
    first_of_equals,
    order_by_banks,
    pick,
)
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.phrases.phrase_table import PhraseTable
from fairseq_ext.search.phrases.sentence import EMPTY
from fairseq_ext.search.pool import PerPoolCache, Pool
from fairseq_ext.search.protocols import Select
from fairseq_ext.search.registry import register
from fairseq_ext.search.strategies.select._constraints import (
    Compilers,
    Tables,
    limit_pending_,
    tables,
)
from fairseq_ext.search.strategies.select.topk import Best, TopK, best_of_rows, merge_phrase_tokens


class DBA(Select):
    """The select strategy.

    Its row state in beam.aux: state, count (search/phrases/phrase_table.py) and banned
    (search/constraints/banned.py).
    """

    per_row = 3  # continuations of each row among the candidates, at least; the paper: 1
    # kernels/banks.cpp may select, and kernels/constrained.cpp search
    may_compile = True

    def __init__(
        self,
        k: int,
        eos: int,
        vocabulary: int,
        children: int | None = None,
        even: bool = True,
        min_len: int = 1,
    ):
        self.k = k
        self.eos = eos
        self.vocabulary = vocabulary
        self.compilers = Compilers()
        self.tables = PerPoolCache(
            lambda pool: tables(pool, vocabulary, self.compilers, eos, min_len)
        )
        # limit of continuations of one row, without those for constraints; None: no limit
        self.children = children
        self.variable = self.variable or children is not None
        self.even = even  # candidates, and how slots are divided among banks: even, or the paper's
        if not even:
            self.per_row = 1

    def start(self, beam: Beam, pool: Pool) -> None:
        """Set the state in which no phrase has begun."""
        table = self.tables(pool)
        sentence = beam.live_index()[beam.sentence_of_row()]
        beam.aux["state"], beam.aux["count"] = table.phrases.begin(sentence)
        if table.banned is not None:
            beam.aux["banned"] = table.banned.start[sentence]
        if table.ends is not None:
            table.ends.start(beam)

    def follow(self, beams: Sequence[Beam], pool: Pool, change: Callable[[], None]) -> None:
        """Shift the states of live rows to the new numbers of their automata after the change; each
        constraint keeps its column."""
        before = self.tables(pool)
        change()
        after = self.tables(pool)
        for beam in beams:
            sentence = beam.live_index()[beam.sentence_of_row()]
            state, count = after.phrases.begin(sentence)
            # further columns belong to sentences that are no longer here
            G = min(state.size(1), beam.aux["state"].size(1))
            state[:, :G] += beam.aux["state"][:, :G] - before.phrases.start[sentence][:, :G]
            count[:, :G] = beam.aux["count"][:, :G]
            beam.aux["state"], beam.aux["count"] = state, count
            beam.live_cache = {}
            old = beam.aux.pop("banned", None)
            if after.banned is not None:
                inside = (
                    0
                    if old is None or before.banned is None
                    else old - before.banned.start[sentence]
                )
                beam.aux["banned"] = after.banned.start[sentence] + inside

    def unconstrained(self) -> Select:
        return TopK(self.k, self.children)

    def required_ids(self, pool: Pool) -> list[Collection[int]]:
        """Return every token of every required phrase, and of its other cases."""
        given = pool.constraints or [EMPTY] * len(pool)
        phrases = ([*c.any_of, *(cased.forms for cased in c.cased)] for c in given)
        return [
            {token for alternatives in each for phrase in alternatives for token in phrase}
            for each in phrases
        ]

    def banks(self, pool: Pool) -> Banks | None:
        if type(self) is not DBA or not self.may_compile or self.children is not None:
            return None
        table = self.tables(pool)
        if table.banned is not None or table.ends is not None:
            return None
        phrases = table.phrases
        return Banks(
            table.compiled_phrases(),
            phrases.start,
            table.infeasible,
            int(phrases.total.max()),
            self.even,
            self.per_row,
            table,
        )

    def __call__(self, beam: Beam, log_probs: LogProbs, pool: Pool) -> Candidates:
        table = self.tables(pool)
        live = beam.live_index()
        done = beam.longest - (0 if beam.lags is None else beam.lag())  # (S,) or the same for all
        limits = (table.max_len, table.infeasible, table.forced)
        max_len, infeasible, forced = beam.cached_for_live(
            "limits", lambda: [x[live] for x in limits]
        )
        steps_left = max_len - done  # (S,) tokens that may follow before EOS
        proposed = self.forbid_(beam, log_probs, table, steps_left)
        if (
            self.may_compile
            and self.children is None
            and (dense := log_probs.dense_for_library()) is not None
        ):
            return self.compiled(beam, dense, table, done, steps_left, proposed)
        phrases = beam.cached_for_live("phrases", lambda: table.phrases.for_sentences(live))
        # (S, width, G)
        state, count = (beam.by_sentence(beam.aux[name], 0) for name in ("state", "count"))

        # EOS only when all constraints are met; a sentence that cannot meet them may end at its
        # limit
        free = infeasible & (steps_left <= 0)
        unmet = phrases.total[:, None] - phrases.bank(state, count)  # (S, width)
        gate = (unmet > 0) & ~free[:, None]
        eos = beam.cached_for_live("eos", lambda: upload([[self.eos]], beam.device))
        eos_score = log_probs.scores_at(eos)[:, 0] + beam.last_score()
        log_probs.ban_(self.eos, beam.by_row(gate))

        row, token, score = self.continuations(
            self.width(table), beam, log_probs, phrases, state, count
        )
        # subtle: if no word may follow (banned phrases can forbid all), the best row ends as it is,
        # and is reported
        best, at = beam.by_sentence(eos_score, -torch.inf).max(1, keepdim=True)
        more = beam.first_row()[:, None] + at, eos.expand_as(at), best
        row, token, score = (
            torch.cat(pair, dim=1) for pair in zip((row, token, score), more, strict=True)
        )
        # the state after each candidate (S, c, ...), and whether the steps left are enough for its
        # missing tokens
        rank = row - beam.first_row()[:, None]
        state, count = phrases.advance(pick(state, rank), pick(count, rank), token)
        bank = phrases.bank(state, count)
        in_time = phrases.total[:, None] - bank <= steps_left[:, None] - 1
        in_time |= (token == self.eos) | (infeasible | (done < forced))[:, None]
        # an impossible copy must not hide a possible one, so it has a key of its own
        valid = (score > -torch.inf) & in_time
        valid &= first_of_equals(
            (rank * self.vocabulary + token).masked_fill(score == -torch.inf, -1)
        )
        valid[:, -1] = ~valid[:, :-1].any(1)
        # its sentence is final, and its state is not read any more
        for known in (state, count, bank):
            known[:, -1] = 0
        score = score.masked_fill(~valid, -torch.inf)
        order, score = self.order(phrases, table, state, count, bank, score)  # (S, 2k)
        row, token = row.gather(1, order), token.gather(1, order)
        group = bank.gather(1, order)
        aux = {"state": pick(state, order), "count": pick(count, order)} | self.state_after(
            beam, table, row, token, proposed
        )
        return Candidates(
            row,
            token,
            score,
            self.width(table),
            self.widths(phrases),
            phrases.total,
            group,
            aux,
            divide=partial(self.divide, top=phrases.total),
        )

    def compiled(
        self,
        beam: Beam,
        log_probs: Tensor,
        table: Tables,
        done: int | Tensor,
        steps_left: Tensor,
        proposed: Tensor | None,
    ) -> Candidates:
        """Return the result of `__call__` by one call of the compiled library, from
        log-probabilities (n, V)."""
        live, state, count = beam.live_index(), beam.aux["state"], beam.aux["count"]
        infeasible = table.infeasible[live]
        exempt = infeasible | (done < table.forced[live])
        best = min(2 * self.k, beam.width * log_probs.size(1) - 1)
        out = min(
            2 * self.k,
            best + beam.width * (self.per_row + state.size(1) * table.phrases.proposed.size(1)) + 1,
        )
        rows = BankRows(
            log_probs,
            beam.last_score().contiguous(),
            state.contiguous(),
            count.contiguous(),
            beam.bounds(),
            live,
            steps_left,
            exempt,
            infeasible,
            self.eos,
            self.k,
            best,
            self.per_row,
            out,
            self.even,
        )
        row, token, group, score, state, count = select_by_banks(table.compiled_phrases(), rows)
        aux = {"state": state, "count": count} | self.state_after(beam, table, row, token, proposed)
        goal = table.phrases.total[live]
        divide = partial(self.divide, top=goal)
        return Candidates(row, token, score, self.k, None, goal, group, aux, divide=divide)

    def forbid_(
        self, beam: Beam, log_probs: LogProbs, table: Tables, steps_left: Tensor
    ) -> Tensor | None:
        """Ban what banned phrases and --constraint-end forbid, in place; return the result of
        EndRule.forbid_, None without that rule.

        steps_left (S,): tokens that may follow before EOS."""
        if table.banned is not None:
            table.banned.ban_(
                log_probs, beam.aux["banned"], (steps_left <= 1)[beam.sentence_of_row()]
            )
            widths = self.widths(table.phrases.for_sentences(beam.live_index()))
            limit_pending_(
                table,
                beam,
                log_probs,
                torch.full_like(steps_left, self.k) if widths is None else widths,
                steps_left,
            )
        if table.ends is None:
            return None
        return table.ends.forbid_(
            beam, log_probs, table.phrases.for_sentences(beam.live_index()), not self.soft
        )

    def state_after(
        self, beam: Beam, table: Tables, row: Tensor, token: Tensor, proposed: Tensor | None
    ) -> dict[str, Tensor]:
        """Return the row state that `forbid_` reads, after the candidates' tokens (S, c); proposed:
        the result of `forbid_`."""
        aux = {}
        if table.banned is not None:
            aux["banned"] = table.banned.advance(beam.aux["banned"][row], token)
        if table.ends is not None and proposed is not None:
            aux["ends"] = table.ends.next_state(beam, row, token, proposed)
        return aux

    def width(self, table: Tables) -> int:
        """Return the number of rows that a sentence may continue with."""
        return self.k

    def widths(self, phrases: PhraseTable) -> Tensor | None:
        """Return (S,) that number for each sentence if sentences differ, else None."""
        return None

    def order(
        self,
        phrases: PhraseTable,
        table: Tables,
        state: Tensor,
        count: Tensor,
        bank: Tensor,
        score: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return places and scores (S, 2k) of the 2k candidates of each sentence, the k in the
        banks' slots first."""
        slots = self.divide(bank_sizes(bank, score, table.banks), phrases.total)
        order, _ = order_by_banks(slots, bank, score, phrases.total)
        order = order[:, : 2 * self.k]
        return order, score.gather(1, order)

    def divide(self, sizes: Tensor, top: Tensor) -> Tensor:
        """Return slots (S, B) of each bank for numbers of candidates (S, B), and each sentence's
        highest bank top (S,)."""
        return deal(self.k, sizes) if self.even else allocate(self.k, sizes, top)

    def best(self, k: int, beam: Beam, log_probs: LogProbs, phrases: PhraseTable) -> Best:
        """Return the 2k best continuations of each sentence; under the paper's rule k, but for a
        sentence without phrases, which is plain beam search."""
        best = best_of_rows(k, beam, log_probs, self.children)
        if self.even:
            return best
        beyond = torch.arange(best.score.size(1), device=beam.device) >= k
        beyond = beyond & (phrases.total > 0)[:, None]
        return replace(best, score=best.score.masked_fill(beyond, -torch.inf))

    def continuations(
        self,
        k: int,
        beam: Beam,
        log_probs: LogProbs,
        phrases: PhraseTable,
        state: Tensor,
        count: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return row, token and score (S, c) of the best of all rows, each row's best, and all next
        tokens of unmet phrases (Algorithm 2, lines 3-8). A continuation may occur more than
        once."""
        best = self.best(k, beam, log_probs, phrases)
        more = merge_phrase_tokens(
            beam,
            log_probs,
            phrases,
            state,
            count,
            self.likeliest(beam, log_probs, phrases, state, count),
        )
        row, token, score = (
            torch.cat(pair, dim=1)
            for pair in zip((best.row, best.token, best.score), more, strict=True)
        )
        return row, token, score

    def likeliest(
        self, beam: Beam, log_probs: LogProbs, phrases: PhraseTable, state: Tensor, count: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return scores and tokens (n, each) of each row's likeliest continuations; if a phrase is
        pending, of those that do not continue its word."""
        most = min(self.per_row, self.children or self.per_row, log_probs.size)
        if not phrases.is_bounded:
            return log_probs.topk(most)
        pending = beam.by_row(phrases.is_pending(state, count).any(-1))  # (n,)
        if pending.device.type == "cpu" and not bool(pending.any()):
            return log_probs.topk(most)
        return log_probs.topk(most, without=(pending, phrases.continues_word))


@dataclass
class DBAFlags:
    dba_allocation: Literal["even", "paper"] = field(
        default="even",
        metadata={
            "help": "candidates of dba and how it divides the beam among its banks: a row for each "
            "in turn, or the paper's (default: even; the paper: also --stop ranked)",
            "shapes": "required phrases",
        },
    )


@register(
    "select",
    "dba",
    DBAFlags,
    needs=("search loop", "beam"),
    neutral=({"select": "dba"}, {"select": "dba", "constraint_end": True}),
    example=(
        {"select": "dba"},
        {"select": "dba", "dba_allocation": "paper"},
        {"select": "dba", "dba_allocation": "paper", "stop": "ranked"},
        {"select": "dba", "constraint_end": True},
    ),
    paper="Post and Vilar 2018, dynamic beam allocation",
    constrained=True,
)
def build(flags, context) -> DBA:
    even = str(flags.dba_allocation) == "even"
    return DBA(
        context.k, context.eos, len(context.dictionary), context.children, even, context.min_len
    )
