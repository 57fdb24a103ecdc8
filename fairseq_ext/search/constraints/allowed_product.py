"""Allowed outputs together with required and banned phrases, a prefix and a minimum length: one
automaton, the product of theirs, and the rule by which the search keeps to it.

Every row of the product can still end with all of them met, so the search needs no banks for these
sentences, and a beam as wide as the set finds the best output that meets all. The maximum length is
checked row by row, by the fewest tokens to an end.

Shapes: A states of the allowed outputs, M states of the other automata together (a *matcher*), K
pairs of both, V vocabulary, n rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np
import torch
from torch import Tensor

from fairseq_ext.core.errors import SentenceError, counted
from fairseq_ext.search.beam import Beam
from fairseq_ext.search.constraints.banned import build_banned
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.phrases.phrase_table import Compiler, build_table
from fairseq_ext.search.phrases.pieces import Boundaries
from fairseq_ext.search.phrases.sentence import Constraint, Phrase, SentenceConstraints
from fairseq_ext.search.phrases.token_automaton import AllowedTable, TokenAutomaton, trimmed
from fairseq_ext.search.pool import STATE, PerPoolCache, Pool, RowRule

CACHE_SIZE = 256  # products in memory
MOST = 1 << 28  # pairs that a product has room for: 1 GiB
FORBIDDEN = -1  # for the state after a banned phrase
NEW = -(1 << 62)  # state of a row without tokens


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
    are numbered when they are reached; 0 is the start.

    Tokens without arcs that have the same effect on words are one kind of token.
    """

    def __init__(self, demands: Demands, compiler: Compiler, vocabulary: int):
        self.least, cpu = demands.least, torch.device("cpu")
        self.phrases = build_table([demands.required], demands.ordered, cpu, compiler)
        self.banned = build_banned([demands.banned], cpu, compiler)
        tables = self.phrases.automata, self.banned.automata
        effect = tables[0].root_after_token * 2 + tables[0].continues_word
        kind = effect.expand(vocabulary) - 16  # those of tokens with arcs are at least 0
        for table in tables:
            kind = kind.scatter(0, table.token.long(), table.token.long())
        _, example, self.kind = np.unique(kind.numpy(), return_index=True, return_inverse=True)
        self.example = torch.from_numpy(example)  # a token of each kind
        self.number: dict[tuple[int, ...], int] = {}
        self.next_of_key: dict[int, int] = {}  # the next state, by state x kinds + kind
        state, count = self.phrases.begin(torch.tensor([0]))
        self.G = state.size(1)
        self.add([(*state[0].tolist(), *count[0].tolist(), int(self.banned.start[0]), 0)])

    def add(self, states: Iterable[tuple[int, ...]]) -> list[int]:
        """Return the numbers of states, of which new ones get one."""
        return [self.number.setdefault(state, len(self.number)) for state in states]

    def parts(self, numbers: np.ndarray) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return of states (m,) the state and count (m, G) of phrases, the state (m,) of banned
        ones, and the length (m,) up to the least one."""
        states = list(self.number)
        found = torch.tensor([states[i] for i in numbers.tolist()]).view(-1, 2 * self.G + 2)
        return found[:, : self.G], found[:, self.G : -2], found[:, -2], found[:, -1]

    def advance(self, state: np.ndarray, token: np.ndarray) -> np.ndarray:
        """Return the states (m,) after tokens (m,), FORBIDDEN where a banned phrase would be
        complete."""
        kinds = len(self.example)
        key = state * kinds + self.kind[token]
        out = np.bincount(key)  # by key
        keys = np.flatnonzero(out)
        if new := [each for each in keys.tolist() if each not in self.next_of_key]:
            self.next_of_key.update(zip(new, self.next_states(*np.divmod(new, kinds)), strict=True))
        out[keys] = [self.next_of_key[each] for each in keys.tolist()]
        return out[key]

    def next_states(self, state: np.ndarray, kind: np.ndarray) -> list[int]:
        """Return the states after tokens of these kinds, for `advance`."""
        phrase, count, before, length = self.parts(state)
        token, words = self.example[kind], self.banned.automata
        phrase, count = (x[0] for x in self.phrases.advance(phrase[None], count[None], token[None]))
        banned, hits, _ = words.advance(before, token)
        breaks = hits > 0
        if words.is_bounded:
            breaks |= words.pending[before] & ~words.continues_word[token]
        length = (length + 1).clamp(max=self.least)
        columns = torch.cat([phrase, count, banned[:, None], length[:, None]], dim=1)
        numbers = iter(self.add([tuple(row) for row in columns[~breaks].tolist()]))
        return [FORBIDDEN if ends else next(numbers) for ends in breaks.tolist()]

    def accepts(self) -> np.ndarray:
        """Return (M,) bool: the states in which an output may end."""
        phrase, count, banned, length = self.parts(np.arange(len(self.number)))
        ends = self.phrases.bank(phrase[None], count[None])[0] >= self.phrases.total
        ends &= ~self.banned.automata.pending[banned] & (length >= self.least)
        return ends.numpy()


def product(
    automaton: TokenAutomaton, demands: Demands, boundaries: Boundaries | None, vocabulary: int
) -> TokenAutomaton | None:
    """Return the automaton of the allowed outputs that meet the demands, None if there is none.

    Tokens of the prefix that are no part of the output come before it, and are in the result.
    Errors: SentenceError for a product that memory may not hold.
    """
    matcher = Matcher(demands, Compiler(boundaries, demands.in_any_case), vocabulary)
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
    # pairs, matcher's state x A + state, are numbered when they are reached, after the P states of
    # the prefix
    A, count = len(automaton), P
    number = np.zeros(0, np.int32)  # one more than that of each pair, 0 for none
    pairs: list[np.ndarray] = []

    def numbers_of(reached: np.ndarray) -> np.ndarray:
        nonlocal count
        room = (int(reached.max(initial=0)) // A + 1) * A
        if room > MOST:
            raise SentenceError(
                "the allowed outputs with these required and banned phrases take too much "
                "memory: require fewer phrases, or allow fewer outputs"
            )
        if room > len(number):
            number.resize(room, refcheck=False)  # with zeros
        new = np.unique(reached[number[reached] == 0])
        number[new] = np.arange(count + 1, count + 1 + len(new))
        count += len(new)
        pairs.append(new)
        return number[reached] - 1

    numbers_of(m * A + a)
    arcs = [(np.arange(P), np.array(demands.forced, np.int64), np.arange(1, P + 1))]
    while len(pairs[-1]):
        of_matcher, of_state = np.divmod(pairs[-1], A)
        degree = automaton.first[of_state + 1] - automaton.first[of_state]
        row = np.repeat(np.arange(len(of_state)), degree)
        place = np.arange(len(row)) + np.repeat(
            automaton.first[of_state] - np.cumsum(degree) + degree, degree
        )
        token = automaton.token[place]
        matched = matcher.advance(of_matcher[row], token)
        free = matched >= 0
        source, token = row[free] + count - len(of_state), token[free]
        target = matched[free] * A + automaton.target[place[free]]
        arcs.append((source, token, numbers_of(target)))
    of_matcher, of_state = np.divmod(np.concatenate(pairs), A)
    final = np.concatenate(
        [np.zeros(P, bool), matcher.accepts()[of_matcher] & automaton.final[of_state]]
    )
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
        self.least, self.soft, self.unseen = least, soft, frozenset(unseen)
        self.rule = AllowedRule(eos)
        self.product = lru_cache(CACHE_SIZE)(partial(product, vocabulary=vocabulary))

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
            tuple(given.banned),
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

        text = given.prefix[0].text if given.prefix else ""
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
    strategy needs to know the states of its candidates. It is a number of its own automaton, so
    that it stays when other automata come and go; below 0 after a token that is not allowed.
    """

    def __init__(self, eos: int):
        self.eos = eos
        self.last: AllowedTable | None = None  # in a stream, most pools have the same automata
        self.tables = PerPoolCache(self.of_pool)

    def of_pool(self, pool: Pool) -> tuple[AllowedTable, Tensor]:
        """Return the automata of a pool, and the start of each of its N sentences, -1 without
        one."""
        automata = [each.allowed for each in pool.constraints or ()]
        own, device = [each for each in automata if each is not None], pool.length.device
        last = self.last
        if not (last and last.device == device and all(id(each) in last.start_of for each in own)):
            last = self.last = AllowedTable(own, device)
        return last, last.starts_of(automata)

    def required_ids(self, pool: Pool) -> list[Collection[int]]:
        return [() if c.allowed is None else c.allowed.tokens for c in pool.constraints or ()]

    def compiled(
        self, pool: Pool, sentence: int, bounded: bool
    ) -> tuple[object, int, object] | None:
        table, starts = self.tables(pool)
        start = int(starts[sentence])
        return None if start < 0 else (table.struct(bounded), start, table)

    def most_left(self, row: Tensor, token: Tensor, beam: Beam, pool: Pool) -> Tensor:
        table, starts = self.tables(pool)
        start = starts[beam.live_index()][:, None]
        after = table.advance(self.state(start, beam.aux[STATE][row]), token)
        return table.longest[after.clamp(min=0)].double().masked_fill(after < 0, torch.inf)

    def state(self, start: Tensor, own: Tensor) -> Tensor:
        """Return the state in the table of rows whose automata start there; -1 without one, or if
        it has none."""
        return torch.where(own < 0, -1, start + own)

    def start(self, beam: Beam, pool: Pool) -> None:
        beam.aux[STATE] = torch.full((beam.rows,), NEW, dtype=torch.long, device=beam.device)

    def __call__(self, log_probs: LogProbs, beam: Beam, pool: Pool) -> None:
        (table, starts), of = self.tables(pool), beam.sentence_of_row()
        sentence, own = beam.live_index()[of], beam.aux[STATE]
        start = starts[sentence]
        after = table.advance(self.state(start, own), beam.tokens[:, -1])
        state = torch.where(own == NEW, start, after)
        beam.aux[STATE] = state - start
        done = beam.longest if beam.lags is None else (beam.longest - beam.lag())[of]
        row, token = table.allowed(state, pool.limit()[sentence] - done, self.eos)
        log_probs.only_each_(row, token, start >= 0)
