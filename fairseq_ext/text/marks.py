"""Tags and placeholders put back into a translation, by the words that stand for those
around which they stood.

A tag goes around the run of target words most of which stand for words of its inside, and few for
others: the sum of +1 and -1 is greatest (Kadane); where there is none, around the word nearest
to its place. A tag in a tag goes within that run; tags next to each other share no word. What has
no inside, such as a placeholder or `<br>`, goes behind the word that stands for the one before it,
else in front of the one that stands for the one behind it.

Where two words of the translation stand for neighbours of the source, with the same tags between
them, what is between them is written as it was: `10&nbsp;km`, a line break, a space within a tag.
So is a word that is equal to its source. A translation that is equal to its source is the source.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from itertools import accumulate

import regex

from fairseq_ext.core.words import UNITS
from fairseq_ext.search.phrases.places import Span
from fairseq_ext.text.atoms import (
    CLOSES,
    CLOSING,
    LEADS,
    LETTER,
    OPENING,
    POINT,
    SHOWN,
    SPACE,
    WORD,
    WORDY,
    Mark,
    Segment,
    in_cdata,
    is_word,
)
from fairseq_ext.text.stopping import checked
from fairseq_ext.text.units import UNKNOWN, MatchedUnits, Pairs, Source, Written, flat, is_hollow

FIRST = regex.compile(r"\p{L}+(?![\p{L}\p{N}_-])")
QUOTES = regex.compile(r"[\"\p{Pi}\p{Pf}「」『』]")
NO_DIGITS = regex.compile(r"\D+")  # of a word such as 3rd
QUOTE_END = regex.compile(rf"[^{QUOTES.pattern[1:-1]}„‚]*+[\"“”«»‘」』]")


def ended(text: str, source: str) -> str:
    """Return a translation that ends as its source does: without a full stop if the source, such as
    a heading, has none, and with a quotation mark if the source closes one that an earlier sentence
    opened.

    source: "" to remove a full stop always.
    """
    if QUOTE_END.fullmatch(source) and QUOTES.search(text[-3:]) is None:
        text += '"'
    return (
        text[:-1]
        if regex.search(r"(?<![.。])[.。]$", text) and (not source or WORDY.search(source[-1:]))
        else text
    )


def begun(text: str, source: str) -> str:
    """Return a translation that begins with a capital if its source does, unless its first word is
    a word of the source (npm)."""
    first = FIRST.match(text)
    is_small = first is not None and first[0].islower() and source[:1].isupper()
    if not is_small or first[0] in UNITS.findall(source):  # type: ignore[index]
        return text
    return text[0].upper() + text[1:]


class Projection:
    """A translation that gets the marks of its segment."""

    def __init__(self, segment: Segment, text: str, pairs: Pairs | None):
        read = segment.plain.removeprefix(segment.lead).lstrip()
        self.segment, self.text = segment, begun(ended(text, segment.plain), read)
        if segment.escape is in_cdata:
            self.text = self.text.replace("]]>", "]] >")
        self.moved = [(0, 0)]
        # nothing is to be put back
        self.is_bare = (
            not segment.marks and segment.source == segment.plain and segment.escape is str
        ) and UNKNOWN not in text
        if self.is_bare:
            return
        self.from_source = source = Source(segment)
        matched = MatchedUnits(source, self.text, pairs)
        self.words, self.unit, self.signs = matched.words, matched.unit, matched.signs
        # numbers that stand for placeholders stand for themselves
        here = {source.text(unit): unit for unit in range(len(source.units))}
        texts = [self.text[start:end] for start, end in self.words]
        self.numbers = [i for i, t in enumerate(texts) if t in segment.stand_ins and t in here]
        for i in self.numbers:
            self.unit[i] = here[texts[i]]
        # of each unit, the character at which its source unit starts
        self.source = [None if unit is None else source.units[unit][0] for unit in self.unit]
        self.orders = dict[Span, tuple[list[Span], int]]()  # of `order`

    def rendered(self) -> str:
        """Return the translation with the marks."""
        if self.is_bare:
            return self.text
        self.moved = list[tuple[int, int]]()
        if self.text == self.segment.plain:
            self.moved = list(enumerate(self.segment.origin))
            return self.segment.source
        self.out, self.size = list[str](), 0
        self.used = set[int]()  # gaps of the source that are written, each once
        self.hidden = set(self.numbers)  # units in whose place a placeholder is written
        before: int | None = None
        edges: list[Written] = []
        for token in [*self.tokens(self.segment.marks, 0, len(self.words)), None]:
            if isinstance(token, Written):
                edges.append(token)
                continue
            self.gap(before, edges, token)
            if token is not None and token not in self.hidden:
                start, end = self.words[token]
                text, unit = self.signs.get(token, self.text[start:end]), self.unit[token]
                is_same = unit is not None and self.from_source.text(unit) == text
                self.put(
                    self.from_source.raw[unit]  # type: ignore[index]
                    if is_same
                    else self.segment.escape(text),
                    start,
                )
            before, edges = token, []
        return "".join(self.out)

    def put(self, raw: str, at: int | None = None) -> None:
        """Write this. at: the character of the translation with which it begins."""
        if raw:
            if at is not None:
                self.moved.append((at, self.size))
            self.out.append(raw)
            self.size += len(raw)

    def offset(self, character: int) -> int:
        """Return where a character of the translation is in the rendered plain text."""
        place = bisect.bisect_right(self.moved, (character, 1 << 60)) - 1
        return character - self.moved[place][0] + self.moved[place][1] if place >= 0 else character

    def gap(self, before: int | None, edges: list[Written], behind: int | None) -> None:
        """Write what is between two units, None at the beginning and at the end."""
        start = 0 if before is None else self.words[before][1]
        space = self.text[start : len(self.text) if behind is None else self.words[behind][0]]
        last = -1 if before is None else self.unit[before]
        following = len(self.from_source.units) if behind is None else self.unit[behind]
        if last is not None and following == last + 1:
            there, raw = self.from_source.gaps[following]
            is_same = there == [edge for each in edges for edge in each.edges] and (
                self.from_source.is_tight[following] == (space == "")
            )
            # the space behind a language that is named before the text (>>fra<<) is not written
            if is_same and (raw or not space) and following not in self.used:
                self.used.add(following)
                self.put(raw, start)
                return
        points = [i for i, each in enumerate(edges) if each.mark and not is_hollow(each.mark)]
        if before is None:
            self.put(self.from_source.around[0])
            if self.segment.touches[0] and points and all(e.mark for e in edges[: points[0]]):
                self.put(" ")
        at = 0
        for place in [*points, len(edges)]:  # the tags between two points, or units and points
            tags = edges[at:place]
            first = next((i for i, each in enumerate(tags) if each.kind == OPENING), len(tags))
            left = edges[at - 1].mark if at else None
            right = edges[place].mark if place < len(edges) else None
            self.put("".join(each.raw for each in tags[:first]))
            self.put(self.space(before, left, right, behind, space), start)
            self.put("".join(each.raw for each in tags[first:]))
            if place < len(edges):
                self.put(edges[place].raw)
            at = place + 1
        if behind is None:
            if self.segment.touches[1] and points and all(e.mark for e in edges[points[-1] :]):
                self.put(" ")
            self.put(self.from_source.around[1])

    def space(
        self,
        before: int | None,
        left: Mark | None,
        right: Mark | None,
        behind: int | None,
        space: str,
    ) -> str:
        """Return the white space between two neighbours: left and right where they are points, else
        the units, between which there is this space."""
        if left is None and right is None:
            return space
        if left is not None and right is not None:
            return "" if (id(left), id(right)) in self.from_source.joined else " "
        unit = before if left is None else behind
        if unit is None:
            return ""
        mark, side = (right, 0) if right is not None else (left, 1)
        kind = mark.near[side]  # type: ignore[union-attr]
        first, last = self.words[unit]
        is_wordy = is_word(self.text[last - 1] if side == 0 else self.text[first])
        if kind == SPACE:
            return " " if side == 0 or is_wordy or space else ""
        return "" if kind == WORD or not is_wordy else " "

    def tokens(self, marks: list[Mark], first: int, behind: int) -> Iterator[int | Written]:
        """Yield the units [first, behind) of the translation, and these marks between them."""
        ranges = self.ranges(marks, first, behind)
        limits = Limits(marks, ranges, first, behind)
        places = [
            ranges.get(i) or (self.place(mark, first, behind, limits),) * 2
            for i, mark in enumerate(checked(marks))
        ]
        order = sorted(range(len(marks)), key=lambda i: (places[i][0], places[i][1] > places[i][0]))
        at = first
        for (low, high), mark in ((places[i], marks[i]) for i in order):
            low = max(low, at)
            yield from range(at, low)
            if low < high:
                if mark.opening:
                    yield Written(OPENING, mark.opening, [(id(mark), OPENING)])
                yield from self.tokens(mark.inside, low, high)
                if mark.name == SHOWN:
                    self.hidden.add(low)
                    yield Written(CLOSING, "", [(id(mark), CLOSING)])
                elif mark.closing:
                    yield Written(CLOSING, mark.closing, [(id(mark), CLOSING)])
                at = high
            else:
                yield Written(POINT, *flat(mark), mark)
                at = low
        yield from range(at, behind)

    def ranges(self, marks: list[Mark], first: int, behind: int) -> dict[int, Span]:
        """Return the words [low, high) that each mark with words inside goes around; marks that
        find none are left out."""
        taken, found = set[int](), dict[int, Span]()
        known, _ = self.order(first, behind)

        def take(i: int, low: int, high: int) -> None:
            found[i] = low, high
            taken.update(range(low, high))

        wordy = [i for i, mark in enumerate(marks) if mark.half or mark.start < mark.end]
        order = sorted(wordy, key=lambda i: (not marks[i].half, marks[i].start - marks[i].end))
        for i in checked(order):
            mark = marks[i]
            if mark.name == SHOWN:
                if (word := self.number(mark, first, behind, taken)) is not None:
                    take(i, word, word + 1)
            elif mark.half:  # from a word to the end, or from the beginning to a word
                is_end = mark.half == CLOSING
                votes = self.votes(mark, range(first, behind), taken)
                sums = list(accumulate(votes if is_end else reversed(votes), initial=0))
                count = sums.index(max(sums))
                take(i, *((first, first + count) if is_end else (behind - count, behind)))
            else:  # all others count against it
                low, high = (bisect.bisect_left(known, (at, 0)) for at in (mark.start, mark.end))
                inside = [word for _, word in known[low:high]]
                words = range(min(inside), max(inside) + 1) if inside else range(0)
                if best := best_run(self.votes(mark, words, taken)):
                    low, high = (words.start + at for at in best)
                    take(i, *self.with_punctuation(mark, low, high, behind, taken))
        for i, mark in enumerate(marks):  # a link around nothing cannot be clicked
            inside_text = self.segment.plain[mark.start : mark.end]
            if i not in found and mark.name != SHOWN and LETTER.search(inside_text):
                at = self.place(mark, first, behind, Limits(marks, found, first, behind))
                if (near := self.nearest(at, first, behind, taken, found)) is None:
                    break
                take(i, *self.words_of_same_unit(near, first, behind, taken))
        return found

    def is_word(self, unit: int) -> bool:
        """Return whether a unit of the translation is a word."""
        return is_word(self.text[self.words[unit][0]])

    def words_of_same_unit(self, word: int, first: int, behind: int, taken: set[int]) -> Span:
        """Return the range of a word and its free neighbours that stand for the same source unit,
        such as the words of a glossary term."""
        low, high, unit = word, word + 1, self.unit[word]
        for step, end in ((-1, first - 1), (1, behind)):
            for i in range(word + step, end, step):
                is_inner = self.unit[i] is None and not self.is_word(i)
                if i in taken or unit is None or (self.unit[i] != unit and not is_inner):
                    break
                if not is_inner:
                    low, high = min(low, i), max(high, i + 1)
        return low, high

    def nearest(
        self, at: int, first: int, behind: int, taken: set[int], found: dict[int, Span]
    ) -> int | None:
        """Return the word nearest to a place; None where there is none.

        A word without a mark comes first. If all words have marks, the first or the last word of a
        mark's range is chosen, and the range becomes shorter; a range of one word stays.
        """
        words = list(filter(self.is_word, range(first, behind)))
        edges = dict[int, int]()  # of ranges
        for i, (low, high) in found.items():
            inside = words[bisect.bisect_left(words, low) : bisect.bisect_left(words, high)]
            edges.update({each: i for each in inside[:1] + inside[-1:] if len(inside) > 1})
        free = [each for each in words if each not in taken] or list(edges)
        near = min(free, key=lambda word: abs(2 * word + 1 - 2 * at), default=None)
        if near is not None and near in taken:
            low, high = found[edges[near]]
            is_first = not any(low <= each < near for each in words)
            found[edges[near]] = (near + 1, high) if is_first else (low, near)
        return near

    def number(self, mark: Mark, first: int, behind: int, taken: set[int]) -> int | None:
        """Return the unit that is the number of a field; None where there is none."""
        text = self.segment.plain[mark.start : mark.end]
        equal = [
            word
            for word in range(first, behind)
            if word not in taken and NO_DIGITS.sub("", self.text[slice(*self.words[word])]) == text
        ]
        return max(equal, key=lambda word: self.source[word] == mark.start, default=None)

    def votes(self, mark: Mark, words: range, taken: set[int]) -> list[int]:
        """Return 1 for each word that stands for one inside, -1 for another, 0 where nothing is
        known of it, and much less for one that is taken."""
        return [
            -10_000
            if word in taken
            else 0
            if (source := self.source[word]) is None
            else 1
            if mark.start <= source < mark.end
            else -1
            for word in words
        ]

    def with_punctuation(
        self, mark: Mark, low: int, high: int, behind: int, taken: set[int]
    ) -> Span:
        """Extend a range by punctuation, where the mark's inside ends with some."""
        plain = self.segment.plain
        if is_word(plain[mark.start]):
            while low < high and self.unit[low] is None and not self.is_word(low):
                low += 1
        if CLOSES.match(plain[mark.end - 1]):
            while (
                high < behind
                and high not in taken
                and self.unit[high] is None
                and CLOSES.match(self.text[self.words[high][0]])
            ):
                high += 1
        return low, high

    def order(self, first: int, behind: int) -> tuple[list[Span], int]:
        """Return, of the units [first, behind), those with a source, sorted: (source, unit); and
        where the last word ends."""
        if (found := self.orders.get((first, behind))) is None:
            units = range(first, behind)
            known = sorted((at, unit) for unit in units if (at := self.source[unit]) is not None)
            last = next(filter(self.is_word, reversed(units)), first - 1)
            found = self.orders[first, behind] = known, last + 1
        return found

    def place(self, mark: Mark, first: int, behind: int, limits: Limits) -> int:
        """Return the word before which something without words goes."""
        plain = self.segment.plain
        known, last = self.order(first, behind)
        if mark.name == LEADS:
            here = [word for source, word in known if source <= mark.start < source + 40]
            return max(here, key=lambda word: self.source[word] or 0, default=first)
        following = bisect.bisect_left(known, (mark.start, 0))
        if last == first or not WORDY.search(plain[: mark.start]):
            place = known[following - 1][1] + 1 if following else first
        elif mark.start >= len(plain):
            place = behind
        elif not known or not WORDY.search(plain, mark.start):
            place = self.behind_marks(last, behind, mark.start)
        elif following:
            source, word = known[following - 1]
            place = self.behind_marks(word + 1, behind, mark.start, source)
        else:
            place = known[0][1]
        return limits.nearest(place)

    def behind_marks(self, place: int, behind: int, start: int, source: int | None = None) -> int:
        """Return a place with as much punctuation before it as stands before it in the source,
        behind the last word. start: the place in the source; source: the unit before it that is
        known."""
        units = self.from_source.units
        last = bisect.bisect_left(units, (start, 0))
        count = 0
        while count < last and not is_word(self.from_source.text(last - 1 - count)[0]):
            if units[last - 1 - count][0] == source:
                break
            count += 1
        while count and place < behind and not self.is_word(place):
            if self.unit[place] is not None and units[self.unit[place]][0] >= start:  # type: ignore
                break
            place, count = place + 1, count - 1
        return place


def best_run(votes: Sequence[int]) -> Span | None:
    """Return the run whose sum is greatest; None where no sum is above 0."""
    best = total = low = 0
    found = None
    for at, vote in enumerate(votes):
        if total <= 0:
            total, low = 0, at
        total += vote
        if total > best:
            best, found = total, (low, at + 1)
    return found


class Limits:
    """Where nothing without words goes: inside of the ranges of marks, and outside of half a tag on
    its inner side."""

    def __init__(self, marks: list[Mark], ranges: dict[int, Span], first: int, behind: int):
        self.low, self.high = first, behind
        self.inner = dict[int, int]()  # places inside of a range, each with its end
        for i, (low, high) in ranges.items():
            if marks[i].half == CLOSING:
                self.low = max(self.low, high)
            elif marks[i].half:
                self.high = min(self.high, low)
            else:
                self.inner |= dict.fromkeys(range(low + 1, high), high)

    def nearest(self, place: int) -> int:
        """Return the nearest allowed place."""
        place = min(max(place, self.low), self.high)
        return self.inner.get(place, place)
