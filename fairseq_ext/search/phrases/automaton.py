"""Automata over tokens that recognise phrases: in any segmentation of their text, or as sequences
of tokens.

A text is read character by character. A state has the position in each pattern, and the context
before the next character: the start of the text (START), or only blanks so far (LED), a blank
(SPACE), another sign (OUT), or a letter (IN), after which no pattern that begins with a letter may
start. A complete pattern whose last character is a letter is *pending* (with `whole_words`): it is
met if the next token does not continue the word, or at the end of the text, and lost otherwise.
When one of the patterns is met, all start again, so that occurrences are disjoint.

The automaton over characters is never stored. A token is an arc from the state before its text to
the state after it. Arcs are stored if they differ from those of the root, and the root's if they
differ from the default, which leads to a root.

Compiled twin: kernels/phrases.hpp.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairseq_ext.search.phrases.pieces import (
    IN,
    LED,
    OUT,
    ROOTS,
    SPACE,
    START,
    Boundaries,
    TokenTextIndex,
    is_letter,
    word_tensors,
)
from fairseq_ext.search.phrases.sentence import Phrase
from fairseq_ext.search.phrases.token_automaton import Automaton, AutomatonTable

# the roots of the pattern tree: for patterns that may occur anywhere, and at the start only
ANYWHERE, AT_START = range(2)
Items = frozenset[int]  # nodes of the tree: what was read of patterns
NO_ITEMS: Items = frozenset()
Arc = tuple[int, int]  # how often the patterns are met, and the next state


@dataclass(frozen=True)
class Pattern:
    """A sequence of characters or tokens to be recognised."""

    units: Sequence[object]
    at_start: bool = False  # only at the start of a translation
    forms: tuple[Phrase, ...] = ()  # the segmentations that a search proposes


@dataclass(eq=False)
class PhraseAutomaton(Automaton):
    """An automaton of phrases. Its first five states are the roots START to IN."""

    hits: np.ndarray  # (E,) how often each arc meets the patterns
    # (M,) context before the next token: the root whose arcs count where a state has none
    context: np.ndarray
    pending: np.ndarray  # (M,) bool: the next token decides whether a pattern is met


def flat(
    arcs: Sequence[dict[int, Arc]], context: Sequence[int], pending: Sequence[bool]
) -> PhraseAutomaton:
    """Return the automaton of each state's arcs by token, context and whether it is pending."""
    first = np.cumsum([0, *map(len, arcs)])
    rows = [(token, *arc) for of_state in arcs for token, arc in sorted(of_state.items())]
    token, hits, target = np.array(rows, np.int32).reshape(-1, 3).T.copy()
    return PhraseAutomaton(first, token, target, hits, np.array(context), np.array(pending, bool))


# stands for no phrases; no row takes its arc, without which a table may have none
NO_PHRASES = flat([{0: (0, START)}, {}, {}, {}, {}], range(ROOTS), [False] * ROOTS)


class PhraseAutomata(AutomatonTable):
    """Automata of phrases as one table.

    hits (E,) int32; pending (M,) bool; base (M,): the first root of each state's automaton; root
    (M,): the root whose arcs are used if a state has none for a token; root_after_token (V,): the
    root after each token, -1: unchanged; continues_word (V,) bool: tokens that continue a word;
    both (1,) if the target's words are not known (`is_bounded`).
    """

    def __init__(
        self,
        automata: Sequence[PhraseAutomaton],
        boundaries: Boundaries | None,
        device: torch.device,
    ):
        super().__init__(automata, device)
        self.hits = self.joined([each.hits for each in automata])
        self.pending = self.joined([each.pending for each in automata], bool)
        base = np.repeat(self.starts, [len(each) for each in automata])
        self.base = self.joined([base], np.int64)
        self.root = self.joined(
            [base + np.concatenate([each.context for each in automata])], np.int64
        )
        self.root_after_token, self.continues_word = word_tensors(boundaries, device)
        self.is_bounded = boundaries is not None

    def advance(self, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the states after tokens (their shapes can be broadcast), how often these meet the
        phrases, and the roots after them."""
        behind = self.root_after_token[token] if self.is_bounded else self.root_after_token
        root = self.root[state]
        behind = torch.where(behind < 0, root, self.base[state] + behind)
        # an arc of the state, else one of the root, else none
        (own, at_root), (is_own, is_known) = self.arc(torch.stack([state, root]), token)
        place, is_known = torch.where(is_own, own, at_root), is_own | is_known
        after = torch.where(is_known, self.target[place], behind)
        return after, self.hits[place] * is_known, behind


class Reading(NamedTuple):
    """An automaton of patterns, and what is needed to say which of them each state has begun."""

    automaton: PhraseAutomaton
    items: Sequence[Items]  # of each state
    paths: list[list[int]]  # the nodes of each pattern, by the number of its units


def compile_automaton(
    patterns: Sequence[Pattern], boundaries: Boundaries | None, any_case: bool
) -> Reading:
    """Return the automaton of patterns of characters, with the tokens of `boundaries`, or without
    these of patterns of tokens. any_case: the patterns are without case, and so are tokens read."""
    read = PatternReader(patterns, boundaries, any_case)
    number: dict[tuple[Items, int], int] = {}
    states: list[tuple[Items, int]] = []  # items and context of each
    all_arcs: list[dict[int, Arc]] = []  # of each state, by token

    def state(*key: Any) -> int:
        if key not in number:
            number[key] = len(states)
            states.append(key)
            all_arcs.append({})
        return number[key]

    for context in range(ROOTS):
        state(NO_ITEMS, context)
    starting = {token for pattern in patterns for token in read.next_tokens(pattern.units, True)}

    def from_root(context: int, tokens: Iterable[int]) -> dict[int, Arc]:
        arcs = {}
        for token in tokens:
            hits, items, behind = read.advance_token(NO_ITEMS, context, token)
            if hits or items or behind != read.context_after(token):
                arcs[token] = hits, state(items, behind)
        return arcs

    all_arcs[OUT] = all_arcs[SPACE] = from_root(OUT, starting)
    all_arcs[IN] = from_root(IN, starting)
    all_arcs[START] = all_arcs[LED] = from_root(LED, starting.union(read.blanks))
    at = ROOTS
    while at < len(states):
        items, context = states[at]
        root, pending = all_arcs[context], read.is_pending(items)
        for token in read.continuing(items):
            if pending and not read.is_letter(read.units(token)[0]):
                continue  # pending patterns are met before the token is read
            hits, *after = read.advance_token(items, context, token)
            arc = hits, state(*after)
            if arc != root.get(token, (0, read.context_after(token))):
                all_arcs[at][token] = arc
        at += 1
    for at in range(ROOTS, len(states)):
        all_arcs[at].update((token, (0, at)) for token in read.unseen)
    items_of, contexts = zip(*states, strict=True)
    pending_of = list(map(read.is_pending, items_of))
    return Reading(flat(all_arcs, contexts, pending_of), items_of, read.paths)


class PatternReader:
    """Reads tokens unit by unit, for many patterns at once: patterns with a common beginning share
    the nodes of a tree, so that the cost of a token does not grow with their number."""

    def __init__(self, patterns: Sequence[Pattern], boundaries: Boundaries | None, any_case: bool):
        self.index: TokenTextIndex | None = None  # None: the units are tokens
        # tokens that are printed as a space only; tokens that are not printed
        self.blanks: Iterable[int] = ()
        self.unseen: Iterable[int] = ()
        self.whole_words = False
        if boundaries is not None:
            pieces, self.whole_words = boundaries.pieces, boundaries.whole_words
            self.index = pieces.folded_index if any_case else pieces.exact_index
            self.blanks, self.unseen = self.index.by_text.get(" ", ()), boundaries.unseen
        # of each node: the next ones by unit, its own unit, and what patterns have after it
        self.children: list[dict[object, int]] = [{}, {}]
        self.last: list[object] = [None, None]
        self.rests: list[set[Any]] = [set(), set()]
        # nodes at which a pattern is met, and those at which the next token decides on it
        self.met: set[int] = set()
        self.pending: set[int] = set()
        self.paths: list[list[int]] = []
        for pattern in patterns:
            path = [AT_START if pattern.at_start else ANYWHERE]
            for n, unit in enumerate(pattern.units, 1):
                node = self.children[path[-1]].setdefault(unit, len(self.children))
                if node == len(self.children):
                    self.children.append({})
                    self.last.append(unit)
                    self.rests.append(set())
                self.rests[node].add(pattern.units[n:])
                path.append(node)
            self.paths.append(path)
            waits = self.whole_words and self.is_letter(pattern.units[-1])
            (self.pending if waits else self.met).add(path[-1])
        self.tokens_after_node = cache(self.find_tokens_after_node)

    def units(self, token: int) -> Sequence[object]:
        """Return a token as units."""
        return (token,) if self.index is None else self.index.texts[token]

    def is_letter(self, unit: object) -> bool:
        """Return whether a unit is part of a word; where tokens are the units, none is."""
        return self.index is not None and is_letter(unit)

    def next_tokens(self, rest: Sequence[Any], at_start: bool) -> Iterable[int]:
        """Return the tokens that may continue with the rest of a pattern, inside one or where a
        word may start."""
        if self.index is None:
            return rest[:1]
        return self.index.continuing(str(rest), at_start, self.whole_words)

    def context_after(self, token: int) -> int:
        """Return the context after a token if no pattern has begun."""
        last = self.units(token)[-1]
        return SPACE if last == " " else IN if self.is_letter(last) else OUT

    def is_pending(self, items: Items) -> bool:
        """Return whether a pattern is complete but pending."""
        return not items.isdisjoint(self.pending)

    def continuing(self, items: Items) -> set[int]:
        """Return the tokens that may continue one of the items."""
        return set().union(*map(self.tokens_after_node, items))

    def find_tokens_after_node(self, node: int) -> set[int]:
        """Return the tokens that may continue from a node."""
        rests = list(filter(None, self.rests[node]))
        if self.last[node] == " ":  # several spaces are one
            rests += [f" {rest}" for rest in rests]
        return set().union(*(self.next_tokens(rest, False) for rest in rests))

    def advance_token(self, items: Items, context: int, token: int) -> tuple[int, Items, int]:
        """Return how often the patterns are met inside a token, and the items and context after
        it."""
        hits = 0
        for unit in self.units(token):
            met, items, context = self.advance_unit(items, context, unit)
            hits += met
        return hits, items, context

    def advance_unit(self, items: Items, context: int, unit: object) -> tuple[int, Items, int]:
        """Do the same for one unit."""
        blank = unit == " "
        if blank and context in (START, LED):
            return 0, items, LED
        letter = self.is_letter(unit)
        hit = not letter and self.is_pending(items)
        after: set[int] = set()
        for node in () if hit else items:
            child = self.children[node].get(unit)
            if child is not None:
                after.add(child)
            elif blank and self.last[node] == " ":
                after.add(node)
        if not (letter and context == IN):
            for root in (ANYWHERE, AT_START) if context in (START, LED) else (ANYWHERE,):
                if (child := self.children[root].get(unit)) is not None:
                    after.add(child)
        if not after.isdisjoint(self.met):
            hit = True
            after.clear()
        return int(hit), frozenset(after), SPACE if blank else IN if letter else OUT
