"""Reads many patterns at once: those that begin alike are one node of a tree, so that what a token costs does not grow with their number.

An item is (node, units that have come) in place of the (pattern, units) of automaton.py; the states tell as much as theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairseq_ext.constraints.automaton import IN, LED, NOTHING, OUT, SPACE, START, Items, Pattern, Reader, Reading

ANYWHERE, AT_START = range(2)  # the roots of the trees: of patterns that may stand anywhere, and of those that are a translation's first


class SharedReader(Reader):
    """The reader of phrases whose number is large, such as those of --avoid-file."""

    def __init__(self, patterns: Sequence[Pattern], reading: Reading):
        super().__init__(patterns, reading)
        self.children: list[dict[Any, int]] = [{}, {}]  # of each node, by the unit that comes next
        self.through: list[list[int]] = [[], []]  # the patterns that begin as the node says
        self.last: list[Any] = [None, None]
        self.known: dict[int, set[int]] = {}  # what `behind` has found
        self.ends: dict[int, bool] = {}  # the nodes at which a pattern is whole, and whether what comes next decides if it counts
        for p, pattern in enumerate(patterns):
            node = AT_START if pattern.at_start else ANYWHERE
            for unit in pattern.units:
                if unit not in self.children[node]:
                    self.children[node][unit] = len(self.children)
                    self.children.append({})
                    self.through.append([])
                    self.last.append(unit)
                node = self.children[node][unit]
                self.through[node].append(p)
            self.ends[node] = self.pends[p]

    def is_pending(self, items: Items) -> bool:
        return any([node in self.ends for node, _ in items])

    def continuing(self, items: Items) -> set[int]:
        return set().union(*(self.behind(node, at) for node, at in items))

    def behind(self, node: int, at: int) -> set[int]:
        """Tokens that may lead on from a node."""
        if node not in self.known:
            found = self.known[node] = set()
            for rest in {self.patterns[p].units[at:] for p in self.through[node] if at < self.lengths[p]}:
                found.update(self.reading.continuing(rest, False))
                if self.last[node] == " ":  # several spaces are one
                    found.update(self.reading.continuing(" " + str(rest), False))
        return self.known[node]

    def at_once(self, items: Items, units: Sequence[Any], token: int) -> tuple[int, Items, int] | None:
        if len(items) == 1:
            ((node, at),) = items
            if self.firsts.isdisjoint(units):
                return self.walk(node, at, units, token)
        elif not items and len(units) > 1 and units[0] == " " and self.firsts.isdisjoint(units[2:]):
            begun = self.children[ANYWHERE].get(units[1])
            if begun is not None and units[1] not in self.children[AT_START]:
                return self.walk(begun, 1, units[2:], token)
        return None

    def walk(self, node: int, at: int, units: Sequence[Any], token: int) -> tuple[int, Items, int] | None:
        """What is behind a token whose last units these are, where they lead on from a node and end no pattern before the last."""
        for unit in units:
            child = None if node in self.ends else self.children[node].get(unit)
            if child is None:
                return None
            node = child
        hit = self.ends.get(node) is False
        return int(hit), NOTHING if hit else frozenset([(node, at + len(units))]), self.context_behind(token)

    def unit(self, items: Items, context: int, unit: Any) -> tuple[int, Items, int]:
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
        return int(hit), frozenset(after) if after else NOTHING, SPACE if blank else IN if letter else OUT
