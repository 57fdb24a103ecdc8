"""A segment as units, words and punctuation, and what is between them; signs that a model does not
know; tags between the units of a translation."""

from __future__ import annotations

import bisect
import html
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import pairwise

import regex

from fairseq_ext.core.words import UNITS, is_word
from fairseq_ext.search.phrases.places import Span
from fairseq_ext.text.atoms import CLOSING, OPENING, POINT, SOFT, Edge, Mark, Segment, Track
from fairseq_ext.text.atoms import is_word as is_of_word

# of a text: as UNITS has them, but no tag is to stand inside "don't"
WITH_NEGATIONS = regex.compile(rf"(?V1)\w+n['’]t\b|{UNITS.pattern.removeprefix('(?V1)')}")


class Source:
    """A segment as units (words and punctuation) and what is between them.

    A word with a tag inside is several units. gaps: of each unit, and behind the last, the edges
    of marks in front of it, and what stands there.
    """

    def __init__(self, segment: Segment):
        self.plain, track = segment.plain, segment.track
        entries, edges, at = dict[int, int](), set[int](), 0
        for number, (_, ref) in enumerate(track):
            if isinstance(ref, int):  # a character: where its entry is
                entries[ref], at = number, ref + 1
            elif ref is not None:
                edges.add(at)
        self.words = [match.span() for match in UNITS.finditer(self.plain)]
        self.parts = list[list[int]]()  # of each word, its units
        self.units = list[Span]()
        inner = sorted(edges)
        for start, end in self.words:
            cuts = inner[bisect.bisect_right(inner, start) : bisect.bisect_left(inner, end)]
            units = list(pairwise([start, *cuts, end]))
            self.parts.append(list(range(len(self.units), len(self.units) + len(units))))
            self.units += units
        firsts = [entries[start] for start, _ in self.units]
        behinds = [entries[end - 1] + 1 for _, end in self.units]
        self.raw = [raw_of(track[a:b]) for a, b in zip(firsts, behinds, strict=True)]
        between = [track[a:b] for a, b in zip([0, *behinds], [*firsts, len(track)], strict=True)]
        self.gaps = [
            ([ref for _, ref in each if isinstance(ref, tuple)], raw_of(each)) for each in between
        ]
        # white space at the beginning and the end, within tags
        self.around = [
            raw_of(
                [(raw, ref) for raw, ref in side if ref is None and html.unescape(raw) not in SOFT]
            )
            for side in ((between[0], between[-1]) if self.units else ([], []))
        ]
        # marks, by id(), between which nothing stands, not even white space
        self.joined = {
            (ref[0], following[0])
            for (_, ref), (_, following) in pairwise(track)
            if isinstance(ref, tuple) and isinstance(following, tuple)
        }
        ends, starts = [0, *(b for _, b in self.units)], [*(a for a, _ in self.units)]
        self.is_tight = [a == b for a, b in zip(ends, [*starts, len(self.plain)], strict=True)]

    def text(self, unit: int) -> str:
        """Return the text of a unit."""
        return self.plain[slice(*self.units[unit])]

    def word_at(self, character: int) -> int:
        """Return the number of the word that a character belongs to."""
        return max(0, bisect.bisect_right(self.words, (character, 1 << 60)) - 1)


def raw_of(track: Track) -> str:
    """Return a part of a track as it stands in the text."""
    return "".join(raw for raw, _ in track)


UNKNOWN = "<unk>"  # what a model writes for what its dictionary lacks
WITH_UNKNOWN = regex.compile(rf"\w*(?:{UNKNOWN}\w*)+")
MOST_UNKNOWN = 4  # parts of a word around letters that a model does not know
COMMON = frozenset(".,;:!?()-–\"'")  # signs that each model knows


def unknown_signs(source: str, text: str, units: Sequence[Span]) -> dict[int, str]:
    """Return what stands for the units of `<unk>` in a translation, in place of the first of each
    three: the letters of the source's word that is equal else (Paweł), and the signs of the source
    that the translation lacks (Tom & Jerry), in their order."""
    if UNKNOWN not in text or UNKNOWN in source:
        return {}
    there = Counter(UNITS.findall(text.replace(UNKNOWN, " ")))
    lacking = list[str]()
    for unit in UNITS.findall(source):
        if not is_word(unit) and unit not in COMMON:
            there[unit] -= 1
            lacking += [unit] if there[unit] < 0 else []
    letters = dict(unknown_letters(source, text))
    found = dict[int, str]()
    for i, (start, _) in enumerate(units):
        if text.startswith(UNKNOWN, start) and (lacking or start in letters):
            sign = letters[start] if start in letters else lacking.pop(0)
            found |= {i: sign, i + 1: "", i + 2: ""}
    return found


def unknown_letters(source: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield where `<unk>` stands in words of a translation, and the source's letters for it."""
    words = list(dict.fromkeys(UNITS.findall(source)))
    for token in WITH_UNKNOWN.finditer(text):
        parts = token[0].split(UNKNOWN)
        if len(parts) > MOST_UNKNOWN or not any(parts):
            continue
        pattern = regex.compile(r"(\w+?)".join(map(regex.escape, parts)))
        match = next(filter(None, map(pattern.fullmatch, words)), None)
        at = token.start()
        for part, letters in zip(parts, match.groups() if match else (), strict=False):
            yield at + len(part), letters
            at += len(part) + len(UNKNOWN)


class Written:
    """A tag, or all of a mark without words (mark), between two words of a translation."""

    def __init__(self, kind: str, raw: str, edges: list[Edge], mark: Mark | None = None):
        self.kind, self.raw, self.edges, self.mark = kind, raw, edges, mark


def flat(mark: Mark) -> tuple[str, list[Edge]]:
    """Return a mark without words: what it is, and its edges in their order."""
    raw, edges = mark.opening, list[Edge]()
    if mark.opening:
        edges.append((id(mark), OPENING if mark.closing or mark.half == OPENING else POINT))
    for other in mark.inside:
        text, more = flat(other)
        raw, edges = raw + text, edges + more
    if mark.closing:
        edges.append((id(mark), CLOSING))
    raw += mark.closing
    is_emphasis = bool(mark.opening and mark.closing) and not raw.strip(
        "*_~"
    )  # which is text around nothing
    return "" if is_emphasis else raw, edges


def is_hollow(mark: Mark) -> bool:
    """Return whether a mark without words shows nothing: a tag around nothing, or around such."""
    return bool(mark.opening and mark.closing) and all(map(is_hollow, mark.inside))


# ---- The units of a translation, each with its unit of the source
#
# By the words of the search's alignment, else by equal words and the order.


# characters of source and target words that stand for each other
Pairs = Sequence[tuple[Span, Span]]


class MatchedUnits:
    """The units of a translation, each with the unit of the source that it stands for.

    pairs: None where none are known.
    """

    def __init__(self, source: Source, text: str, pairs: Pairs | None):
        self.source, self.text = source, text
        spans = [match.span() for match in WITH_NEGATIONS.finditer(self.text)]
        texts = [self.text[slice(*span)] for span in spans]
        known = self.by_order(texts) if pairs is None else self.by_pairs(spans, pairs)
        self.words = list[Span]()  # units of the translation
        self.unit = list[int | None]()  # of each, the unit of the source that it stands for
        for span, text, word in zip(spans, texts, known, strict=True):
            parts = [] if word is None else source.parts[word]
            same = len(parts) > 1 and text.casefold() == (
                source.plain[slice(*source.words[word])].casefold()  # type: ignore[index]
            )
            if same and len(text) == sum(b - a for a, b in (source.units[i] for i in parts)):
                first = source.units[parts[0]][0]
                for part in parts:
                    a, b = source.units[part]
                    self.words.append((span[0] + a - first, span[0] + b - first))
                    self.unit.append(part)
            else:
                self.words.append(span)
                self.unit.append(
                    max(parts, key=lambda i: source.units[i][1] - source.units[i][0], default=None)
                )
        self.spread()
        self.signs = unknown_signs(source.plain, self.text, self.words)
        for i in [i for i, sign in self.signs.items() if sign and is_of_word(sign[0])]:
            is_behind = i > 0 and self.words[i - 1][1] == self.words[i][0]  # a part of the word
            self.unit[i] = self.unit[i - 1 if is_behind else i + 3]

    def by_pairs(self, spans: Sequence[Span], pairs: Pairs) -> Iterator[int | None]:
        """Return the number of the source word of each target word, by pairs."""
        known = sorted(pairs, key=lambda pair: pair[1])
        starts = [target[0] for _, target in known]
        for start, end in spans:
            place = bisect.bisect_right(starts, start) - 1
            is_known = place >= 0 and known[place][1][1] >= end and is_of_word(self.text[start])
            yield self.source.word_at(known[place][0][0]) if is_known else None

    def by_order(self, texts: Sequence[str]) -> list[int | None]:
        """Return the number of the source word of each target word, None for none, without pairs:
        equal words belong together, and the others are spread evenly."""
        sources = [self.source.plain[slice(*span)] for span in self.source.words]
        found: list[int | None] = [
            len(sources) * i // len(texts) if sources and is_of_word(text[0]) else None
            for i, text in enumerate(texts)
        ]
        same = SequenceMatcher(None, sources, texts, autojunk=False).get_matching_blocks()
        for there, here, size in same:
            found[here : here + size] = range(there, there + size)
        return found

    def spread(self) -> None:
        """Match units next to matched ones that are equal to the source there."""
        source, unit, count = self.source, self.unit, len(self.unit)
        for order, step in ((range(count), 1), (range(count - 1, -1, -1), -1)):
            before: int | None = -1 if step == 1 else len(source.units)
            for i in order:
                if unit[i] is None and before is not None:
                    there = before + step
                    is_there = 0 <= there < len(source.units)
                    if is_there and source.text(there) == self.text[slice(*self.words[i])]:
                        unit[i] = there
                before = unit[i]
