"""Tags and placeholders put back into a translation, by the words that stand for those
around which they stood.

A tag goes around the run of target words most of which stand for words of its inside, and few for
others: the sum of +1 and -1 is greatest (Kadane); where there is none, around the word nearest
to its place. A tag in a tag goes within that run; tags beside each other share no word. What has
no inside, such as a placeholder or `<br>`, goes behind the word that stands for the one before it,
else in front of the one that stands for the one behind it.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from itertools import accumulate

import regex

from fairseq_ext.core.words import UNITS
from fairseq_ext.search.phrases.places import Span
from fairseq_ext.text.segments import CLOSE, CLOSES, LETTER, WORDY, Mark, Segment, is_word

# characters of source and target words that stand for each other
Pairs = Sequence[tuple[Span, Span]]


def ended(text: str, source: str) -> str:
    """A translation without the full stop that its source, such as a heading, does not have.

    source: "" where it may have none.
    """
    return (
        text[:-1]
        if regex.search(r"(?<![.。])[.。]$", text) and (not source or WORDY.search(source[-1:]))
        else text
    )


class Projection:
    """A translation that gets the marks of its segment."""

    def __init__(self, segment: Segment, text: str, pairs: Pairs | None):
        self.segment, self.text = segment, ended(text, segment.plain)
        self.words = [match.span() for match in UNITS.finditer(self.text)]
        sources = [match.span() for match in UNITS.finditer(segment.plain)]
        if pairs is None:  # nothing is known: in step
            count = max(1, len(self.words))
            known = (
                [((sources[len(sources) * i // count]), word) for i, word in enumerate(self.words)]
                if sources
                else []
            )
        else:
            known = sorted(pairs, key=lambda pair: pair[1])
        starts = [target[0] for _, target in known]
        # of each word, the character at which its source word starts
        self.source: list[int | None] = []
        for start, end in self.words:
            place = bisect.bisect_right(starts, start) - 1
            is_known = place >= 0 and known[place][1][1] >= end and is_word(text[start])
            self.source.append(known[place][0][0] if is_known else None)

    def rendered(self) -> str:
        """The translation with the marks."""
        self.out, self.moved = list[str](), list[tuple[int, int]]()
        self.write(self.segment.marks, 0, len(self.words), 0, len(self.text))
        return "".join(self.out)

    def offset(self, character: int) -> int:
        """Where a character of the translation stands in what was rendered, in a plain text."""
        place = bisect.bisect_right(self.moved, (character, 1 << 60)) - 1
        return character - self.moved[place][0] + self.moved[place][1] if place >= 0 else character

    def copy_(self, start: int, end: int) -> None:
        """Write these characters of the translation."""
        if start < end:
            self.moved.append((start, sum(map(len, self.out))))
            self.out.append(self.segment.escape(self.text[start:end]))

    def write(self, marks: list[Mark], first: int, behind: int, start: int, end: int) -> None:
        """Write the characters [start, end) of the translation, whose words are [first,
        behind), with these marks."""
        ranges = self.ranges(marks, first, behind)
        places = [
            ranges.get(i) or (self.place(mark, marks, first, behind, ranges),) * 2
            for i, mark in enumerate(marks)
        ]
        order = sorted(range(len(marks)), key=lambda i: (places[i][0], places[i][1] > places[i][0]))
        at = start
        for (low, high), mark in ((places[i], marks[i]) for i in order):
            if low < high:
                opens, closes = self.words[low][0], self.words[high - 1][1]
                self.copy_(at, opens)
                self.out.append(mark.opening)
                self.write(mark.inside, low, high, opens, closes)
                at = closes
            else:
                offset = max(at, self.words[low - 1][1] if low > first else start)
                self.copy_(at, offset)
                before = self.out[-1][-1:] if self.out else ""
                if not mark.glued[0] and (is_word(before) or CLOSES.match(before) or before == ">"):
                    self.out.append(" ")
                self.out.append(mark.opening)
                self.write(mark.inside, low, low, offset, offset)
                if mark.glued[1]:
                    offset += self.text[offset:end][:1].isspace()
                elif is_word(self.text[offset:end][:1]):
                    self.out.append(" ")
                at = offset
            self.out += [mark.closing] if mark.closing else []
        self.copy_(at, end)

    def ranges(self, marks: list[Mark], first: int, behind: int) -> dict[int, tuple[int, int]]:
        """The words [low, high) that each mark with words inside goes around; marks that
        find none are left out."""
        taken: set[int] = set()
        found: dict[int, tuple[int, int]] = {}
        wordy = [i for i, mark in enumerate(marks) if mark.half or mark.start < mark.end]
        for i in sorted(wordy, key=lambda i: (not marks[i].half, marks[i].start - marks[i].end)):
            mark, best, total, low = marks[i], 0, 0, first
            votes = [
                -10_000 if word in taken else self.vote(word, mark) for word in range(first, behind)
            ]
            if mark.half:  # from a word to the end, or from the beginning to a word
                sums = list(accumulate(votes if mark.half == CLOSE else reversed(votes), initial=0))
                count = sums.index(max(sums))
                found[i] = (
                    (first, first + count) if mark.half == CLOSE else (behind - count, behind)
                )
                taken |= set(range(*found[i]))
                continue
            for word, vote in enumerate(votes, first):
                if total <= 0:
                    total, low = 0, word
                total += vote
                if total > best:
                    best, found[i] = total, (low, word + 1)
            if i in found:
                found[i] = self.with_punctuation(mark, *found[i], behind, taken)
                taken |= set(range(*found[i]))
        for i, mark in enumerate(marks):  # a link around nothing cannot be clicked
            if i not in found and LETTER.search(self.segment.plain[mark.start : mark.end]):
                at = self.place(mark, marks, first, behind, found)
                free = (
                    each for each in (at - 1, at) if first <= each < behind and each not in taken
                )
                for near in [each for each in free if is_word(self.text[self.words[each][0]])][:1]:
                    found[i] = near, near + 1
                    taken.add(near)
        return found

    def vote(self, word: int, mark: Mark) -> int:
        """1 for a word that stands for one inside, -1 for another, 0 where nothing
        is known of it."""
        source = self.source[word]
        return 0 if source is None else 1 if mark.start <= source < mark.end else -1

    def with_punctuation(
        self, mark: Mark, low: int, high: int, behind: int, taken: set[int]
    ) -> tuple[int, int]:
        """The range with the punctuation behind it, where the mark's inside ends with some."""
        while (
            low < high
            and not is_word(self.text[self.words[low][0]])
            and is_word(self.segment.plain[mark.start])
        ):
            low += 1
        if CLOSES.match(self.segment.plain[mark.end - 1]):
            while (
                high < behind and high not in taken and CLOSES.match(self.text[self.words[high][0]])
            ):
                high += 1
        return low, high

    def place(
        self,
        mark: Mark,
        marks: list[Mark],
        first: int,
        behind: int,
        ranges: dict[int, tuple[int, int]],
    ) -> int:
        """The word before which something without words goes."""
        plain, wordy = (
            self.segment.plain,
            [word for word in range(first, behind) if is_word(self.text[self.words[word][0]])],
        )
        known = [
            (source, word)
            for word in range(first, behind)
            if (source := self.source[word]) is not None
        ]
        before = max((each for each in known if each[0] < mark.start), default=None)
        after = min((each for each in known if each[0] >= mark.start), default=None)
        if not wordy or not any(map(is_word, plain[: mark.start])):
            place = first
        elif not any(map(is_word, plain[mark.start :])) or before is after is None:
            place = wordy[-1] + 1 if mark.start < len(plain) else behind
        else:
            place = before[1] + 1 if before is not None else after[1]  # type: ignore[index]
        # not inside of these; outside of half a tag is one side alone
        for i, (low, high) in ranges.items():
            if marks[i].half:
                place = max(place, high) if marks[i].half == CLOSE else min(place, low)
        return next(
            (high for i, (low, high) in ranges.items() if low < place < high and not marks[i].half),
            place,
        )
