"""Automata over tokens that recognise phrases: in any segmentation of their text (`of_texts`), or as rows of tokens (`of_tokens`).

A text is read character by character. A state knows which patterns have been read how far, and what stands in front: nothing (START),
blanks only (LED), a blank (SPACE), another sign (OUT), or a letter (IN), behind which no pattern that begins with a letter may start.
A pattern whose last character is a letter is *pending* when all of it has come (`whole`: it must end a word): it is met by whatever
does not continue the word, the end of the text included, and lost otherwise. When one of the patterns is met, all of them start over,
so that occurrences are disjoint.
The automaton over characters is never written down. A token is an arc from the state before its text to the state behind it; an arc is
kept where it differs from the one that leaves the root, and the root's where it differs from the default, which leads to a root.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairseq_ext.constraints.phrase import Phrase
from fairseq_ext.constraints.pieces import Index, is_letter

START, LED, SPACE, OUT, IN = range(5)
ROOTS = 5
Items = frozenset[tuple[int, int]]  # pattern, units of it that have come
NOTHING: Items = frozenset()
Arc = tuple[int, int]  # how often the patterns are met, and the state behind


@dataclass(frozen=True)
class Pattern:
    """What is recognised: characters, or tokens."""

    units: Sequence[Any]
    at_start: bool = False  # only as the first thing in a translation
    forms: tuple[Phrase, ...] = ()  # the segmentations that a search proposes


@dataclass
class Automaton:
    """States are numbered; the first five are the roots START to IN."""

    patterns: Sequence[Pattern]
    context: list[int] = field(default_factory=list)  # of each state: what stands in front of what comes next
    items: list[Items] = field(default_factory=list)
    pending: list[bool] = field(default_factory=list)
    arcs: list[dict[int, Arc]] = field(default_factory=list)  # by token


@dataclass(frozen=True)
class Reading:
    """How tokens are read. letter and continuing: of characters; for tokens that are units themselves nothing continues a word."""

    units: Callable[[int], Sequence[Any]]
    continuing: Callable[[Sequence[Any], bool], Iterable[int]]  # (rest of a pattern, at the start of a word) -> tokens
    blanks: Iterable[int]  # tokens of which a reader sees no more than a space
    is_letter: Callable[[Any], bool]
    whole: bool


def of_texts(patterns: Sequence[Pattern], index: Index, whole: bool, reader: type[Reader] | None = None) -> Automaton:
    """The automaton of patterns of characters, as `index` reads tokens. reader: the class that reads them (default: Reader)."""

    def continuing(rest: Sequence[Any], at_start: bool) -> Iterable[int]:
        return index.continuing(str(rest), at_start, whole)

    reading = Reading(index.texts.__getitem__, continuing, index.whole.get(" ", ()), is_letter, whole)
    return compiled(patterns, reading, reader or Reader)


def of_tokens(patterns: Sequence[Pattern], reader: type[Reader] | None = None) -> Automaton:
    """The automaton of patterns of tokens."""
    reading = Reading(lambda token: (token,), lambda rest, at_start: rest[:1], (), lambda unit: False, False)
    return compiled(patterns, reading, reader or Reader)


def compiled(patterns: Sequence[Pattern], reading: Reading, reader: type[Reader]) -> Automaton:
    """All states that can be reached, and their arcs."""
    found = Automaton(patterns)
    number: dict[tuple[Items, int], int] = {}
    read = reader(patterns, reading)

    def state(items: Items, context: int) -> int:
        if (items, context) not in number:
            number[items, context] = len(found.context)
            found.context.append(context)
            found.items.append(items)
            found.pending.append(read.is_pending(items))
            found.arcs.append({})
        return number[items, context]

    for context in range(ROOTS):
        state(NOTHING, context)
    starting = {token for pattern in patterns for token in reading.continuing(pattern.units, True)}

    def from_root(context: int, tokens: Iterable[int]) -> dict[int, Arc]:
        arcs = {}
        for token in tokens:
            hits, items, behind = read.token(NOTHING, context, token)
            if hits or items or behind != read.context_behind(token):
                arcs[token] = hits, state(items, behind)
        return arcs

    anywhere = from_root(OUT, starting)
    inside = from_root(IN, [token for token in starting if reading.is_letter(reading.units(token)[0])])
    found.arcs[OUT] = found.arcs[SPACE] = anywhere
    found.arcs[IN] = {token: arc for token, arc in anywhere.items() if not reading.is_letter(reading.units(token)[0])} | inside
    only_there = {token for pattern in patterns if pattern.at_start for token in reading.continuing(pattern.units, True)}
    found.arcs[START] = found.arcs[LED] = anywhere | from_root(LED, only_there.union(reading.blanks))
    at = ROOTS
    while at < len(found.context):
        items, context = found.items[at], found.context[at]
        root, pending = found.arcs[context], found.pending[at]
        for token in read.continuing(items):
            if pending and not reading.is_letter(reading.units(token)[0]):
                continue  # what is pending is met before the token is read
            hits, after, behind = read.token(items, context, token)
            arc = hits, state(after, behind)
            if arc != root.get(token, (0, read.context_behind(token))):
                found.arcs[at][token] = arc
        at += 1
    return found


class Reader:
    """Reads tokens unit by unit."""

    def __init__(self, patterns: Sequence[Pattern], reading: Reading):
        self.patterns, self.reading = patterns, reading
        self.lengths = [len(pattern.units) for pattern in patterns]
        self.pends = [reading.whole and reading.is_letter(pattern.units[-1]) for pattern in patterns]
        self.starting: dict[Any, list[int]] = {}
        for p, pattern in enumerate(patterns):
            self.starting.setdefault(pattern.units[0], []).append(p)
        self.firsts = set(self.starting)

    def context_behind(self, token: int) -> int:
        """The context behind a token with which nothing has begun."""
        last = self.reading.units(token)[-1]
        return SPACE if last == " " else IN if self.reading.is_letter(last) else OUT

    def is_pending(self, items: Items) -> bool:
        """Whether all of a pattern has come."""
        return any([at == self.lengths[p] for p, at in items])

    def continuing(self, items: Items) -> set[int]:
        """Tokens that may lead on with one of the items."""
        found: set[int] = set()
        for p, at in items:
            units = self.patterns[p].units
            if at < len(units):
                found.update(self.reading.continuing(units[at:], False))
                if units[at - 1] == " ":  # several spaces are one
                    found.update(self.reading.continuing(" " + str(units[at:]), False))
        return found

    def token(self, items: Items, context: int, token: int) -> tuple[int, Items, int]:
        """How often the patterns are met inside a token, and the items and context behind it."""
        units = self.reading.units(token)
        if (found := self.at_once(items, units, token)) is not None:
            return found
        hits = 0
        for unit in units:
            met, items, context = self.unit(items, context, unit)
            hits += met
        return hits, items, context

    def at_once(self, items: Items, units: Sequence[Any], token: int) -> tuple[int, Items, int] | None:
        """The same in the usual case: one pattern goes on, or starts as a token's first sign behind a space, and nothing else may start."""
        if len(items) == 1:
            ((p, at),) = items
            end = at + len(units)
            if end <= self.lengths[p] and self.patterns[p].units[at:end] == units and self.firsts.isdisjoint(units):
                return self.come(p, end, token)
        elif not items and len(units) > 1 and units[0] == " " and self.firsts.isdisjoint(units[2:]):
            begun = self.starting.get(units[1], ())
            n = len(units) - 1
            if len(begun) == 1 and not self.patterns[begun[0]].at_start and self.patterns[begun[0]].units[:n] == units[1:]:
                return self.come(begun[0], n, token)
        return None

    def come(self, p: int, at: int, token: int) -> tuple[int, Items, int]:
        """The same where no more than so many units of one pattern have come."""
        hit = at == self.lengths[p] and not self.pends[p]
        return int(hit), NOTHING if hit else frozenset([(p, at)]), self.context_behind(token)

    def unit(self, items: Items, context: int, unit: Any) -> tuple[int, Items, int]:
        """The same of one unit."""
        blank = unit == " "
        if blank and context in (START, LED):
            return 0, items, LED
        letter = self.reading.is_letter(unit)
        hits = 0
        after = set()
        for p, at in items:
            units = self.patterns[p].units
            if at == len(units):
                hits |= not letter
            elif units[at] == unit:
                after.add((p, at + 1))
            elif blank and units[at - 1] == " ":
                after.add((p, at))
        if hits:
            after.clear()
        if not (letter and context == IN):
            for p in self.starting.get(unit, ()):
                if not self.patterns[p].at_start or context in (START, LED):
                    after.add((p, 1))
        if any(at == self.lengths[p] and not self.pends[p] for p, at in after):
            hits += 1
            after.clear()
        return int(hits), frozenset(after) if after else NOTHING, SPACE if blank else IN if letter else OUT
