"""Dynamic beam allocation: any number of required phrases at constant cost (`--select dba`).

    M. Post and D. Vilar. Fast Lexically Constrained Decoding with Dynamic Beam Allocation for
    Neural Machine Translation. NAACL 2018. https://aclanthology.org/N18-1119/
    Batching after J. E. Hu et al., NAACL 2019, https://aclanthology.org/N19-1090/

The beam of one size k is divided at every step among *banks*: bank i has hypotheses with i of the C
constraint tokens. Candidates (Algorithm 2, `continuations`) are the best of all rows, the best of
each row, and the next token of every unmet phrase. --dba-allocation says how many, and how the k
slots are divided (search/candidates.py):
- even (after Hu et al. and fairseq, which takes the best one of each row): the 2k best of all
  rows, the three best of each row; the banks that have candidates get a slot each in turn, from the
  highest down.
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
| further rows | --constraint-compete, --constraint-rows |
| pruning of Table 3 | --prune-finished (search/strategies/prune.py) |

Neutral setting: no constraints; a sentence without constraints is searched as in fairseq, also in a
batch with constrained ones.
The paper's search: --dba-allocation paper --stop ranked --prune-finished 20. Its stopping criterion
("all hypotheses on the beam are finished", 6.4) is in search/strategies/stop/ranked.py.
Differences from the paper: --constraint-compete rows, with even only: the best candidate that
continues has a row whatever its bank, a row more if its bank has no slot for it, or if there are
more banks than slots. Under both rules: If the word that ends a phrase may continue, a row's
best continuations are taken from those that end it, else a hypothesis that had met everything was
lost where the model would write "packing" after "pack" (--constraint-boundary; no such phrases
without it). A hypothesis with just enough steps left for its missing tokens may only take those, so
a feasible sentence always meets its constraints. A pruned candidate leaves its slot to others.
Missing phrases are counted as if each followed the one before: an overlap of two of them is used if
it occurs but not relied on, so {[1, 2], [2, 3]} counts as infeasible in three tokens. When a
constrained sentence is final: search/strategies/stop/early.py.

Compiled twin: kernels/banks.hpp.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from fairseq_ext.kernels.banks import Banks
from fairseq_ext.kernels.beam import Selection
from fairseq_ext.search.beam import Beam, numbers, upload
from fairseq_ext.search.candidates import (
    Candidates,
    allocate,
    bank_sizes,
    best_of_mask,
    deal,
    first_of_equals,
    order_by_banks,
    pick,
)
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.phrases.phrase_table import Compiler, PhraseTable
from fairseq_ext.search.phrases.sentence import EMPTY
from fairseq_ext.search.pool import PerPoolCache, Pool
from fairseq_ext.search.protocols import Select, Setup
from fairseq_ext.search.registry import register
from fairseq_ext.search.strategies.select._constraints import (
    Tables,
    limit_pending_,
    make_select,
    tables,
)
from fairseq_ext.search.strategies.select.topk import (
    TopK,
    best_of_rows,
    likeliest,
    merge_phrase_tokens,
)

COMPETING_ROWS = 1  # of --constraint-compete rows


class DBA(Select):
    """The select strategy.

    Its row state in beam.aux: state, count (search/phrases/phrase_table.py) and banned
    (search/constraints/banned.py).
    """

    per_row = 3  # continuations of each row among the candidates, at least; the paper: 1

    def __init__(
        self,
        k: int,
        eos: int,
        vocabulary: int,
        children: int | None = None,
        even: bool = True,
        min_len: int = 1,
        competing: int = 0,
        more: int = 0,
    ):
        self.k = k
        self.eos = eos
        self.vocabulary = vocabulary
        self.compiler = Compiler()  # caches automata
        self.tables = PerPoolCache(lambda pool: tables(pool, self.compiler_of(pool), eos, min_len))
        # limit of continuations of one row, without those for constraints; None: no limit
        self.children = children
        self.even = even  # candidates, and how slots are divided among banks: even, or the paper's
        if not even:
            self.per_row = 1
        # rows of a sentence with phrases in addition to k: for its best candidates whatever their
        # bank, and for each required word
        self.competing, self.more = competing, more
        self.adds_rows = bool(competing or more)
        self.always_variable = self.variable = self.variable or children is not None

    def compiler_of(self, pool: Pool) -> Compiler:
        """Return the compiler of the last pool, if this one has its word boundaries and its case of
        banned phrases, else a new one."""
        key = pool.boundaries, pool.banned_in_any_case
        if key != (self.compiler.boundaries, self.compiler.any_case):
            self.compiler = Compiler(*key)
        return self.compiler

    def start(self, beam: Beam, pool: Pool) -> None:
        """Set the state in which no phrase has begun."""
        table = self.tables(pool)
        self.variable = self.always_variable or (self.adds_rows and table.banks > 1)
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
            after.take_over_(beam, before)

    def unconstrained(self) -> Select:
        return TopK(self.k, self.children)

    def required_ids(self, pool: Pool) -> list[Collection[int]]:
        """Return every token of every required phrase, and of its other cases."""
        return [set(each.required_tokens()) for each in pool.constraints or [EMPTY] * len(pool)]

    @property
    def rules(self) -> dict[str, object] | None:
        if self.children is not None:
            return None
        rows = {"per_row": self.per_row, "competing": self.competing}
        return {"selection": Selection.BANKS, "even": self.even, **rows}

    def banks(self, pool: Pool) -> Banks | None:
        table = self.tables(pool)
        return table.compiled_banks(self.k + self.more * table.phrases.words)

    def __call__(self, beam: Beam, log_probs: LogProbs, pool: Pool) -> Candidates:
        table = self.tables(pool)
        live = beam.live_index()
        done = beam.longest - (0 if beam.lags is None else beam.lag())  # (S,) or the same for all
        limits = (table.max_len, table.infeasible, table.forced)
        max_len, infeasible, forced = beam.cached_for_live(
            "limits", lambda: [x[live] for x in limits]
        )
        phrases = beam.cached_for_live("phrases", lambda: table.phrases.for_sentences(live))
        steps_left = max_len - done  # (S,) tokens that may follow before EOS
        proposed = self.forbid_(beam, log_probs, table, steps_left)
        free = infeasible & (steps_left <= 0)
        exempt = infeasible | (done < forced)
        row, token, bank, score, state, count, slots = self.chosen(
            beam, log_probs, table, phrases, steps_left, free, exempt
        )
        after = table.state_after(beam, row, token, proposed)
        return Candidates(
            row,
            token,
            score,
            self.width(table),
            self.widths(phrases),
            phrases.total,
            bank,
            {"state": state, "count": count} | after,
            divide=partial(self.divide, top=phrases.total, k=self.slots(phrases)),
        ).with_rows(slots, self.competing, self.eos)

    def chosen(
        self,
        beam: Beam,
        log_probs: LogProbs,
        table: Tables,
        phrases: PhraseTable,
        steps_left: Tensor,
        free: Tensor,
        exempt: Tensor,
    ) -> tuple[Any, ...]:
        """Return row, token, bank and score (S, 2k) of the candidates, their state and count
        (S, 2k, G), and the largest number of rows of each sentence (S,), None: the width.

        free, exempt (S,): sentences that may end as they are, and those without a deadline.
        """
        # (S, width, G)
        state, count = (beam.by_sentence(beam.aux[name], 0) for name in ("state", "count"))

        # EOS only when all constraints are met; a sentence that cannot meet them may end at its
        # limit
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
        in_time |= (token == self.eos) | exempt[:, None]
        valid = (score > -torch.inf) & in_time & self.are_first(rank, token, score)
        valid[:, -1] = ~valid[:, :-1].any(1)
        # its sentence is final, and its state is not read any more
        for known in (state, count, bank):
            known[:, -1] = 0
        score = score.masked_fill(~valid, -torch.inf)
        order, score, slots = self.order(phrases, table, count, bank, token, score)
        row, token, bank = (each.gather(1, order) for each in (row, token, bank))
        return row, token, bank, score, pick(state, order), pick(count, order), slots

    def are_first(self, rank: Tensor, token: Tensor, score: Tensor) -> Tensor:
        """Return (S, c): false for each copy of a candidate further left; rank: its row among its
        sentence's. An impossible copy must not hide a possible one, so it has a key of its own."""
        key = rank * self.vocabulary + token
        return first_of_equals(key.masked_fill(score == -torch.inf, -1))

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

    def width(self, table: Tables) -> int:
        """Return the number of rows that a sentence may continue with."""
        if not self.adds_rows or table.banks == 1:
            return self.k
        return self.k + self.more * table.most_words + self.competing

    def widths(self, phrases: PhraseTable) -> Tensor | None:
        """Return (S,) the number of rows that the banks of each sentence share, if sentences differ
        in it or the width is another one; else None."""
        return self.k + self.more * phrases.words if self.adds_rows else None

    def own_width(self, phrases: PhraseTable) -> Tensor | None:
        """Return (S,) the `width` of a sentence by itself, None if they do not differ."""
        if not self.adds_rows:
            return None
        return self.k + self.more * phrases.words + self.competing * (phrases.total > 0)

    def order(
        self,
        phrases: PhraseTable,
        table: Tables,
        count: Tensor,
        bank: Tensor,
        token: Tensor,
        score: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return places and scores (S, 2k) of the 2k candidates of each sentence, first those in
        the banks' slots and those that compete, and the number of rows of each sentence (S,); None:
        the width."""
        width, widths = self.width(table), self.widths(phrases)
        sizes = bank_sizes(bank, score, table.banks)
        slots = self.divide(sizes, phrases.total, self.slots(phrases))
        competes = None
        if self.competing:
            goes_on = (token != self.eos) & (score > -torch.inf) & (phrases.total > 0)[:, None]
            competes = best_of_mask(self.competing, goes_on, score)
        order, admitted = order_by_banks(slots, bank, score, phrases.total, competes)
        order = order[:, : 2 * width]
        if widths is None or table.banks == 1:
            return order, score.gather(1, order), None
        rows = torch.where(
            phrases.total < widths, widths + admitted - slots.sum(1), widths + self.competing
        )
        return order, score.gather(1, order), rows

    def slots(self, phrases: PhraseTable) -> int | Tensor:
        """Return the number of rows that the banks of each sentence share: (S, 1), or an int."""
        return self.k + self.more * phrases.words[:, None] if self.more else self.k

    def divide(self, sizes: Tensor, top: Tensor, k: int | Tensor) -> Tensor:
        """Return slots (S, B) of each bank for numbers of candidates (S, B), each sentence's
        highest bank top (S,), and k slots of all banks: (S, 1), or an int."""
        return deal(k, sizes) if self.even else allocate(k, sizes, top)

    def best(
        self, k: int, beam: Beam, log_probs: LogProbs, phrases: PhraseTable
    ) -> tuple[Tensor, ...]:
        """Return the best continuations of each sentence, as many as it considers by itself, though
        a batch is as wide as its widest sentence: twice its rows; under the paper's rule as many as
        its banks share, but for a sentence without phrases, which is plain beam search."""
        row, token, score = best_of_rows(k, beam, log_probs, self.children)
        most = self.own_width(phrases)
        if most is None and self.even:
            return row, token, score
        most = 2 * (torch.full_like(phrases.total, self.k) if most is None else most)
        if not self.even:
            k_of_banks = torch.as_tensor(self.slots(phrases), device=most.device).flatten()
            most = torch.where(phrases.total > 0, k_of_banks, most)
        beyond = numbers(score.size(1), beam.device) >= most[:, None]
        return row, token, score.masked_fill(beyond, -torch.inf)

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
        most = min(self.per_row, self.children or self.per_row, log_probs.size)
        more = merge_phrase_tokens(
            beam,
            log_probs,
            phrases,
            state,
            count,
            likeliest(most, beam, log_probs, phrases, state, count),
        )
        row, token, score = (torch.cat(pair, dim=1) for pair in zip(best, more, strict=True))
        return row, token, score


@dataclass
class DBAFlags:
    dba_allocation: Literal["even", "paper"] = field(
        default="even",
        metadata={
            "help": "candidates of dba and how it divides the beam among its banks: a row for each "
            "in turn, or the paper's (default: even; the paper: also --stop ranked)",
            "applies_to": "required phrases",
        },
    )
    constraint_compete: Literal["rows", "search", "off"] = field(
        default="rows",
        metadata={
            "help": "how the output without required phrases competes: in a further row of the "
            "beam, in a search of its own, or not at all (default: rows)",
            "applies_to": "required phrases",
            "implemented_by_value": {"search": "plugin/steps.py"},
        },
    )
    constraint_rows: int = field(
        default=0,
        metadata={
            "help": "rows of the beam in addition for each required word (default: 0)",
            "range": (0, 100, "number of rows"),
            "applies_to": "required phrases",
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
def build(flags: DBAFlags, setup: Setup) -> DBA:
    even = flags.dba_allocation == "even"
    return make_select(
        DBA,
        setup,
        even=even,
        competing=COMPETING_ROWS if even and flags.constraint_compete != "off" else 0,
        more=flags.constraint_rows,
    )
