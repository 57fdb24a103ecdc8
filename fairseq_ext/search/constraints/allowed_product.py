"""Allowed outputs together with required and banned phrases, a prefix and a minimum length: one
automaton, the product of theirs, and the rule by which the search keeps to it.

Every row of the product can still end with all of them met, so the search needs no banks for these
sentences, and a beam as wide as the set finds the best output that meets all. The maximum length is
checked row by row, by the fewest tokens to an end.

Shapes: A states of the allowed outputs, M states of the other automata together (a *matcher*), K
pairs of both, V vocabulary, n rows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fairseq_ext.core.errors import SentenceError, counted
from fairseq_ext.kernels.allowed import CompiledAutomata
from fairseq_ext.search.beam import Beam
from fairseq_ext.search.constraints.banned import BannedCompiler, build_banned
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.phrases.phrase_table import build_table
from fairseq_ext.search.phrases.pieces import Boundaries
from fairseq_ext.search.phrases.sentence import Constraint, Phrase, SentenceConstraints
from fairseq_ext.search.phrases.token_automaton import (
    AutomatonTable,
    TokenAutomaton,
    trimmed,
)
from fairseq_ext.search.pool import STATE, PerPoolCache, Pool, RowRule

CACHE_SIZE = 256  # products in memory
MOST = 1 << 28  # pairs that a product has room for: 1 GiB
UNKNOWN, FORBIDDEN = -2, -1  # entries of `Matcher.next`


@dataclass(frozen=True)
class Demands:
    """The other constraints of an output that must be an allowed one."""

    required: tuple[Constraint, ...] = ()
    banned: tuple[Phrase, ...] = ()
    forced: Phrase = ()  # its first tokens
    skipped: frozenset[int] = frozenset()  # tokens among these that are no part of the output
    least: int = 1  # tokens, forced ones included
    ordered: bool = False
    in_any_case: bool = False  # banned phrases


class Matcher:
    """The automata of required and banned phrases and of the minimum length as one, whose states
    are numbered when they are reached; 0 is the start."""

    def __init__(self, demands: Demands, boundaries: Boundaries | None, vocabulary: int):
        self.least, self.vocabulary, cpu = demands.least, vocabulary, torch.device("cpu")
        self.phrases = build_table([demands.required], demands.ordered, cpu, boundaries)
        compiler = BannedCompiler(boundaries, demands.in_any_case)
        self.banned = (
            build_banned([demands.banned], vocabulary, cpu, compiler) if demands.banned else None
        )
        self.number: dict[tuple[int, ...], int] = {}
        self.states: list[tuple[int, ...]] = []
        self.next = np.zeros((0, vocabulary), np.int32)  # (M, V)
        state, count = self.phrases.begin(torch.tensor([0]))
        first = 0 if self.banned is None else int(self.banned.start[0])
        self.G = state.size(1)
        self.add([(*state[0].tolist(), *count[0].tolist(), first, 0)])

    def add(self, states: Sequence[tuple[int, ...]]) -> list[int]:
        """Return the numbers of states, of which new ones get one."""
        for state in states:
            if state not in self.number:
                self.number[state] = len(self.states)
                self.states.append(state)
        if (new := len(self.states) - len(self.next)) > 0:
            room = max(new, len(self.next))
            more = np.full((room, self.vocabulary), UNKNOWN, np.int32)
            self.next = np.concatenate([self.next, more])
        return [self.number[state] for state in states]

    def parts(self, numbers: np.ndarray) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return of states (m,) the state and count (m, G) of phrases, the state (m,) of banned
        ones, and the length (m,) up to the least one."""
        found = torch.tensor([self.states[i] for i in numbers.tolist()]).view(-1, 2 * self.G + 2)
        return found[:, : self.G], found[:, self.G : -2], found[:, -2], found[:, -1]

    def advance(self, state: np.ndarray, token: np.ndarray) -> np.ndarray:
        """Return the states (m,) after tokens (m,), FORBIDDEN where a banned phrase would be
        complete."""
        found = self.next[state, token]
        unknown = np.flatnonzero(found == UNKNOWN)
        if unknown.size:
            key = np.unique(state[unknown].astype(np.int64) * self.vocabulary + token[unknown])
            s, t = key // self.vocabulary, key % self.vocabulary
            after = self.next_states(s, t)  # first, as it may enlarge the table
            self.next[s, t] = after
            found = self.next[state, token]
        return found

    def next_states(self, state: np.ndarray, token: np.ndarray) -> list[int]:
        """Return the states after tokens, for `advance`."""
        phrase, count, banned, length = self.parts(state)
        of = torch.from_numpy(np.ascontiguousarray(token)).long()
        phrase, count = (x[0] for x in self.phrases.advance(phrase[None], count[None], of[None]))
        breaks = torch.zeros(len(of), dtype=torch.bool)
        if self.banned is not None:
            table = self.banned
            roots = table.completing_tokens[table.root[banned]]
            completing = torch.cat([table.completing_tokens[banned], roots], dim=1)
            breaks = (completing == of[:, None]).any(1)
            if table.continues_word.numel() > 1:
                breaks |= table.pending[banned] & ~table.continues_word[of]
            banned = table.advance(banned, of)
        length = (length + 1).clamp(max=self.least)
        columns = torch.cat([phrase, count, banned[:, None], length[:, None]], dim=1)
        numbers = iter(self.add([tuple(row) for row in columns[~breaks].tolist()]))
        return [FORBIDDEN if ends else next(numbers) for ends in breaks.tolist()]

    def accepts(self) -> np.ndarray:
        """Return (M,) bool: the states in which an output may end."""
        phrase, count, banned, length = self.parts(np.arange(len(self.states)))
        ends = self.phrases.bank(phrase[None], count[None])[0] >= self.phrases.total
        if self.banned is not None:
            ends &= ~self.banned.pending[banned]
        return (ends & (length >= self.least)).numpy()


def product(
    automaton: TokenAutomaton, demands: Demands, boundaries: Boundaries | None, vocabulary: int
) -> TokenAutomaton | None:
    """Return the automaton of the allowed outputs that meet the demands, None if there is none.

    Tokens of the prefix that are no part of the output come before it, and are in the result.
    Errors: SentenceError for a product that memory may not hold.
    """
    matcher = Matcher(demands, boundaries, vocabulary)
    a, m, P = 0, np.array([0]), len(demands.forced)
    for token in demands.forced:
        a = a if token in demands.skipped else automaton.next_state(a, token)
        if a < 0:
            return None
        m = matcher.advance(m, np.array([token]))
        if m[0] < 0:
            return None
    if P == 0 and matcher.accepts().all() and not demands.banned and demands.least <= 1:
        return automaton  # nothing is required
    # pairs are numbered when they are reached, after the P states of the prefix
    number: dict[int, np.ndarray] = {}  # (A,) of each state of the matcher
    pairs: list[tuple[np.ndarray, np.ndarray]] = []
    count = P

    def numbers_of(states: np.ndarray, matched: np.ndarray) -> np.ndarray:
        nonlocal count
        out = np.empty(len(states), np.int64)
        for each in np.unique(matched).tolist():
            if each not in number:
                if (len(number) + 1) * len(automaton) > MOST:
                    raise SentenceError(
                        "the allowed outputs with these required and banned phrases take too much "
                        "memory: require fewer phrases, or allow fewer outputs"
                    )
                number[each] = np.full(len(automaton), -1, np.int32)
            table, here = number[each], matched == each
            new = np.unique(states[here][table[states[here]] < 0])
            table[new] = np.arange(count, count + len(new))
            count += len(new)
            if len(new):
                pairs.append((new, np.full(len(new), each)))
            out[here] = table[states[here]]
        return out

    numbers_of(np.array([a]), m)
    arcs = [(np.arange(P), np.array(demands.forced, np.int64), np.arange(1, P + 1))]
    done = 0
    while done < len(pairs):
        level, done = pairs[done:], len(pairs)
        of_state, of_matcher = (np.concatenate(each) for each in zip(*level, strict=True))
        degree = automaton.first[of_state + 1] - automaton.first[of_state]
        row = np.repeat(np.arange(len(of_state)), degree)
        place = np.arange(len(row)) + np.repeat(
            automaton.first[of_state] - np.cumsum(degree) + degree, degree
        )
        token = automaton.token[place]
        matched = matcher.advance(of_matcher[row], token)
        free = matched >= 0
        row, token, matched, place = row[free], token[free], matched[free], place[free]
        source = numbers_of(of_state, of_matcher)[row]
        arcs.append((source, token, numbers_of(automaton.target[place], matched)))
    accepts, final = matcher.accepts(), np.zeros(count, bool)
    for each, table in number.items():
        if accepts[each]:
            final[table[(table >= 0) & automaton.final]] = True
    columns = [np.concatenate(each) for each in zip(*arcs, strict=True)]
    return trimmed(columns[0], columns[1], columns[2], final)


# ---- The products of a pool


class Products:
    """The products of the sentences of pools, the last ones in memory.

    vocabulary: V; eos: ends an output; least: target tokens before EOS; unseen: tokens that are not
    printed, which are no part of an output where they are forced before it; soft: required phrases
    are preferred.
    """

    def __init__(self, vocabulary: int, eos: int, least: int, unseen: Collection[int], soft: bool):
        self.vocabulary, self.least, self.soft = vocabulary, least, soft
        self.unseen = frozenset(unseen)
        self.rule = AllowedRule(vocabulary, eos)
        self.cache: OrderedDict[tuple, tuple[TokenAutomaton, TokenAutomaton | None]] = OrderedDict()

    def use_(self, pool: Pool) -> None:
        """Put the products of a pool's sentences in the place of their constraints, which stay in
        `pool.original_constraints`, and set its rule.

        Errors: SentenceError for a sentence without an output that meets all, and says why.
        """
        assert pool.constraints is not None
        pool.original_constraints, pool.rule = pool.constraints, self.rule
        pool.constraints = [
            each if each.allowed is None else self.of_sentence(pool, i, each)
            for i, each in enumerate(pool.original_constraints)
        ]

    def of_sentence(self, pool: Pool, i: int, given: SentenceConstraints) -> SentenceConstraints:
        """Return a sentence's product, as its only constraint."""
        assert given.allowed is not None
        demands = Demands(
            () if self.soft else given.required,
            given.banned,
            pool.forced(i),
            self.unseen,
            0 if self.least <= 1 else self.least,
            pool.ordered,
            pool.banned_in_any_case,
        )
        found = self.product(given.allowed, demands, pool.boundaries)
        limit = pool.max_len[i]
        if found is None or found.shortest[0] > limit:
            raise SentenceError(
                self.reason(given, given.allowed, demands, pool.boundaries, limit, found)
            )
        return SentenceConstraints(given.required if self.soft else (), allowed=found)

    def product(
        self, automaton: TokenAutomaton, demands: Demands, boundaries: Boundaries | None
    ) -> TokenAutomaton | None:
        """Return `product`, from memory if it is there."""
        key = id(automaton), id(boundaries), demands
        if key not in self.cache:  # it keeps the automaton alive, so that no other has its id
            found = product(automaton, demands, boundaries, self.vocabulary)
            self.cache[key] = automaton, found
            if len(self.cache) > CACHE_SIZE:
                self.cache.popitem(last=False)
        self.cache.move_to_end(key)
        return self.cache[key][1]

    def reason(
        self,
        given: SentenceConstraints,
        allowed: TokenAutomaton,
        demands: Demands,
        boundaries: Boundaries | None,
        limit: int,
        found: TokenAutomaton | None,
    ) -> str:
        """Return why no allowed output meets a sentence's demands, as one sentence."""
        if found is not None:
            return (
                f"the shortest allowed output takes {counted(int(found.shortest[0]), 'token')} and "
                f"the sentence may have {limit}: raise --max-len-b, or allow a shorter one"
            )
        bare = replace(demands, required=(), banned=(), forced=(), least=0)

        def fails(**named) -> bool:
            return self.product(allowed, replace(bare, **named), boundaries) is None

        text = given.prefix_text
        if fails(forced=demands.forced):
            return (
                f"no allowed output starts with the prefix{f' {text!r}' * bool(text)}: allow one, "
                "or leave the prefix out"
            )
        for each in given.required:
            if fails(required=(each,)):
                return (
                    f"no allowed output has the required phrase {each.text!r}: allow one, or leave "
                    "the phrase out"
                )
        if fails(banned=demands.banned):
            return "every allowed output has a banned phrase: allow another, or ban fewer phrases"
        if fails(least=demands.least):
            return f"no allowed output has --min-len {demands.least} tokens: lower it"
        return (
            "no allowed output meets the required and banned phrases, the prefix and the minimum "
            "length together: leave some of them out"
        )


class AllowedRule(RowRule):
    """Allows the tokens after which an allowed output can still end within the sentence's limit.

    A row's state in `beam.aux` is that before its last token: the next step reads both, so that no
    strategy needs to know the states of its candidates.
    """

    def __init__(self, vocabulary: int, eos: int):
        self.vocabulary, self.eos = vocabulary, eos
        self.last: AutomatonTable | None = None  # in a stream, most pools have the same automata
        self.tables = PerPoolCache(self.of_pool)

    def of_pool(self, pool: Pool) -> tuple[AutomatonTable, Tensor]:
        """Return the automata of a pool, and the base of each of its N sentences."""
        automata = [each.allowed for each in pool.constraints or ()]
        own, device = [each for each in automata if each is not None], pool.length.device
        if self.last is None or self.last.device != device or not self.last.has(own):
            self.last = AutomatonTable(own, self.vocabulary, device)
        return self.last, self.last.base(automata)

    def required_ids(self, pool: Pool) -> list[Collection[int]]:
        return [() if c.allowed is None else c.allowed.tokens for c in pool.constraints or ()]

    def compiled(
        self, pool: Pool, sentence: int, bounded: bool
    ) -> tuple[CompiledAutomata, int] | None:
        table, bases = self.tables(pool)
        base = int(bases[sentence])
        if bounded and base >= 0 and table.compiled.longest is None:
            table.compiled.set_longest_(table.longest)
        return None if base < 0 else (table.compiled, base)

    def most_left(self, row: Tensor, token: Tensor, beam: Beam, pool: Pool) -> Tensor:
        table, bases = self.tables(pool)
        base = bases[beam.live_index()][:, None].expand_as(row)
        after = table.advance(base.flatten(), beam.aux[STATE][row].flatten(), token.flatten())
        after = after.view_as(row)
        left = table.longest[(base + after).clamp(min=0)].double()
        return left.masked_fill((base < 0) | (after < 0), torch.inf)

    def start(self, beam: Beam, pool: Pool) -> None:
        beam.aux[STATE] = torch.full((beam.rows,), UNKNOWN, dtype=torch.long, device=beam.device)

    def __call__(self, log_probs: LogProbs, beam: Beam, pool: Pool) -> None:
        (table, bases), of = self.tables(pool), beam.sentence_of_row()
        sentence, state = beam.live_index()[of], beam.aux[STATE]
        base = bases[sentence]
        after = table.advance(base, state, beam.tokens[:, -1])
        beam.aux[STATE] = state = torch.where(state == UNKNOWN, 0, after)
        done = beam.longest if beam.lags is None else (beam.longest - beam.lag())[of]
        row, token, limited = table.allowed(base, state, pool.limit()[sentence] - done, self.eos)
        log_probs.only_each_(row, token, limited)
