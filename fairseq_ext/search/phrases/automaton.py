"""Automata over tokens that recognise phrases: in any segmentation of their text
(`text_automaton`), or as sequences of tokens (`token_automaton`).

A text is read character by character. A state has the position in each pattern, and the context
before the next character: the start of the text (START), or only blanks so far (LED), a blank
(SPACE), another sign (OUT), or a letter (IN), after which no pattern that begins with a letter may
start. A complete pattern whose last character is a letter is *pending* (with `whole_words`): it is
met if the next token does not continue the word, or at the end of the text, and lost otherwise.
When one of the patterns is met, all start again, so that occurrences are disjoint.

The automaton over characters is never stored. A token is an arc from the state before its text to
the state after it. Arcs are stored if they differ from those of the root, and the root's if they
differ from the default, which leads to a root.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairseq_ext.search.phrases.pieces import (
    IN,
    LED,
    OUT,
    ROOTS,
    SPACE,
    START,
    TokenTextIndex,
    is_letter,
)
from fairseq_ext.search.phrases.sentence import Phrase

# the roots of the pattern tree: for patterns that may occur anywhere, and at the start only
ANYWHERE, AT_START = range(2)
Items = frozenset[tuple[int, int]]  # node of the tree, units that were read
NO_ITEMS: Items = frozenset()
Arc = tuple[int, int]  # how often the patterns are met, and the next state


@dataclass(frozen=True)
class Pattern:
    """A sequence of characters or tokens to be recognised."""

    units: Sequence[Any]
    at_start: bool = False  # only at the start of a translation
    forms: tuple[Phrase, ...] = ()  # the segmentations that a search proposes


@dataclass
class Automaton:
    """States are numbered; the first five are the roots START to IN."""

    patterns: Sequence[Pattern]
    patterns_of_node: Sequence[Sequence[int]]  # the patterns of each node
    # context of each state, before the next token
    context: list[int] = field(default_factory=list)
    items: list[Items] = field(default_factory=list)
    pending: list[bool] = field(default_factory=list)
    arcs: list[dict[int, Arc]] = field(default_factory=list)  # by token


@dataclass(frozen=True)
class TokenReading:
    """The reading of tokens as units.

    letter and continuing: of characters; if tokens are the units, no unit continues a word.
    """

    units: Callable[[int], Sequence[Any]]
    # (rest of a pattern, whether at the start of a word) -> tokens
    continuing: Callable[[Sequence[Any], bool], Iterable[int]]
    blanks: Iterable[int]  # tokens that are printed as a space only
    unseen: Iterable[int]  # tokens that are not printed
    is_letter: Callable[[Any], bool]
    whole_words: bool


def text_automaton(
    patterns: Sequence[Pattern], index: TokenTextIndex, whole: bool, unseen: Iterable[int] = ()
) -> Automaton:
    """Return the automaton of patterns of characters, with the tokens of `index`.

    whole: whether a pattern that ends in a letter must end a word; unseen: tokens that do not
    change the state.
    """

    def continuing(rest: Sequence[Any], at_start: bool) -> Iterable[int]:
        return index.continuing(str(rest), at_start, whole)

    reading = TokenReading(
        index.texts.__getitem__,
        continuing,
        index.by_text.get(" ", ()),
        unseen,
        is_letter,
        whole,
    )
    return compile_automaton(patterns, reading)


def token_automaton(patterns: Sequence[Pattern]) -> Automaton:
    """Return the automaton of patterns of tokens."""
    reading = TokenReading(
        lambda token: (token,), lambda rest, at_start: rest[:1], (), (), lambda unit: False, False
    )
    return compile_automaton(patterns, reading)


def compile_automaton(patterns: Sequence[Pattern], reading: TokenReading) -> Automaton:
    """Return all states that can be reached, and their arcs."""
    number: dict[tuple[Items, int], int] = {}
    read = PatternReader(patterns, reading)
    found = Automaton(patterns, read.patterns_of_node)

    def state(items: Items, context: int) -> int:
        if (items, context) not in number:
            number[items, context] = len(found.context)
            found.context.append(context)
            found.items.append(items)
            found.pending.append(read.is_pending(items))
            found.arcs.append({})
        return number[items, context]

    for context in range(ROOTS):
        state(NO_ITEMS, context)
    starting = {token for pattern in patterns for token in reading.continuing(pattern.units, True)}

    def from_root(context: int, tokens: Iterable[int]) -> dict[int, Arc]:
        arcs = {}
        for token in tokens:
            hits, items, behind = read.advance_token(NO_ITEMS, context, token)
            if hits or items or behind != read.context_after(token):
                arcs[token] = hits, state(items, behind)
        return arcs

    anywhere = from_root(OUT, starting)
    inside = from_root(
        IN, [token for token in starting if reading.is_letter(reading.units(token)[0])]
    )
    found.arcs[OUT] = found.arcs[SPACE] = anywhere
    found.arcs[IN] = {
        token: arc
        for token, arc in anywhere.items()
        if not reading.is_letter(reading.units(token)[0])
    } | inside
    only_there = {
        token
        for pattern in patterns
        if pattern.at_start
        for token in reading.continuing(pattern.units, True)
    }
    found.arcs[START] = found.arcs[LED] = anywhere | from_root(
        LED, only_there.union(reading.blanks)
    )
    at = ROOTS
    while at < len(found.context):
        items, context = found.items[at], found.context[at]
        root, pending = found.arcs[context], found.pending[at]
        for token in read.continuing(items):
            if pending and not reading.is_letter(reading.units(token)[0]):
                continue  # pending patterns are met before the token is read
            hits, after, behind = read.advance_token(items, context, token)
            arc = hits, state(after, behind)
            if arc != root.get(token, (0, read.context_after(token))):
                found.arcs[at][token] = arc
        at += 1
    for token in reading.unseen:
        for at in range(ROOTS, len(found.arcs)):
            found.arcs[at][token] = 0, at
    return found


class PatternReader:
    """Reads tokens unit by unit, for many patterns at once: patterns with a common beginning share
    the nodes of a tree, so that the cost of a token does not grow with their number."""

    def __init__(self, patterns: Sequence[Pattern], reading: TokenReading):
        self.patterns, self.reading = patterns, reading
        self.first_units = {pattern.units[0] for pattern in patterns}
        self.children: list[dict[Any, int]] = [{}, {}]  # of each node, by the next unit
        self.patterns_of_node: list[list[int]] = [[], []]  # patterns that pass each node
        self.last: list[Any] = [None, None]
        self.continuations_cache: dict[int, set[int]] = {}  # cache of `tokens_after_node`
        # nodes at which a pattern is complete; whether the next token decides if it counts
        self.ends: dict[int, bool] = {}
        for p, pattern in enumerate(patterns):
            node = AT_START if pattern.at_start else ANYWHERE
            for unit in pattern.units:
                if unit not in self.children[node]:
                    self.children[node][unit] = len(self.children)
                    self.children.append({})
                    self.patterns_of_node.append([])
                    self.last.append(unit)
                node = self.children[node][unit]
                self.patterns_of_node[node].append(p)
            self.ends[node] = reading.whole_words and reading.is_letter(pattern.units[-1])

    def context_after(self, token: int) -> int:
        """Return the context after a token if no pattern has begun."""
        last = self.reading.units(token)[-1]
        return SPACE if last == " " else IN if self.reading.is_letter(last) else OUT

    def is_pending(self, items: Items) -> bool:
        """Return whether a pattern is complete but pending."""
        return any([node in self.ends for node, _ in items])

    def continuing(self, items: Items) -> set[int]:
        """Return the tokens that may continue one of the items."""
        return set().union(*(self.tokens_after_node(node, at) for node, at in items))

    def tokens_after_node(self, node: int, at: int) -> set[int]:
        """Return the tokens that may continue from a node."""
        if node not in self.continuations_cache:
            found = self.continuations_cache[node] = set()
            for rest in {
                self.patterns[p].units[at:]
                for p in self.patterns_of_node[node]
                if at < len(self.patterns[p].units)
            }:
                found.update(self.reading.continuing(rest, False))
                if self.last[node] == " ":  # several spaces are one
                    found.update(self.reading.continuing(" " + str(rest), False))
        return self.continuations_cache[node]

    def advance_token(self, items: Items, context: int, token: int) -> tuple[int, Items, int]:
        """Return how often the patterns are met inside a token, and the items and context after
        it."""
        units = self.reading.units(token)
        if (found := self.advance_single_pattern(items, units, token)) is not None:
            return found
        hits = 0
        for unit in units:
            met, items, context = self.advance_unit(items, context, unit)
            hits += met
        return hits, items, context

    def advance_single_pattern(
        self, items: Items, units: Sequence[Any], token: int
    ) -> tuple[int, Items, int] | None:
        """Do the same in the usual case: one pattern continues, or starts after the space of a
        token, and no other may start; else return None."""
        if len(items) == 1:
            ((node, at),) = items
            if self.first_units.isdisjoint(units):
                return self.advance_to_end(node, at, units, token)
        elif (
            not items
            and len(units) > 1
            and units[0] == " "
            and self.first_units.isdisjoint(units[2:])
        ):
            begun = self.children[ANYWHERE].get(units[1])
            if begun is not None and units[1] not in self.children[AT_START]:
                return self.advance_to_end(begun, 1, units[2:], token)
        return None

    def advance_to_end(
        self, node: int, at: int, units: Sequence[Any], token: int
    ) -> tuple[int, Items, int] | None:
        """Return the result for a token whose last units these are, if they continue from a node
        and complete no pattern before the last; else None."""
        for unit in units:
            child = None if node in self.ends else self.children[node].get(unit)
            if child is None:
                return None
            node = child
        hit = self.ends.get(node) is False
        return (
            int(hit),
            NO_ITEMS if hit else frozenset([(node, at + len(units))]),
            self.context_after(token),
        )

    def advance_unit(self, items: Items, context: int, unit: Any) -> tuple[int, Items, int]:
        """Do the same for one unit."""
        blank = unit == " "
        if blank and context in (START, LED):
            return 0, items, LED
        letter = self.reading.is_letter(unit)
        hit = not letter and self.is_pending(items)
        after: set[tuple[int, int]] = set()
        for node, at in () if hit else items:
            child = self.children[node].get(unit)
            if child is not None:
                after.add((child, at + 1))
            elif blank and self.last[node] == " ":
                after.add((node, at))
        if not (letter and context == IN):
            for root in (ANYWHERE, AT_START) if context in (START, LED) else (ANYWHERE,):
                if (child := self.children[root].get(unit)) is not None:
                    after.add((child, 1))
        if any(self.ends.get(node) is False for node, _ in after):
            hit = True
            after.clear()
        return (
            int(hit),
            frozenset(after) if after else NO_ITEMS,
            SPACE if blank else IN if letter else OUT,
        )
