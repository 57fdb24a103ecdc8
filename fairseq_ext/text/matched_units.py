"""The units of a translation, each with its unit of the source: by the words of the search's
alignment, else by equal words and the order."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

from fairseq_ext.search.phrases.places import Span
from fairseq_ext.text.atoms import is_word
from fairseq_ext.text.units import WITH_NEGATIONS, Source, unknown_signs

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
        for i in [i for i, sign in self.signs.items() if sign and is_word(sign[0])]:
            is_behind = i > 0 and self.words[i - 1][1] == self.words[i][0]  # a part of the word
            self.unit[i] = self.unit[i - 1 if is_behind else i + 3]

    def by_pairs(self, spans: Sequence[Span], pairs: Pairs) -> Iterator[int | None]:
        """Return the number of the source word of each target word, by pairs."""
        known = sorted(pairs, key=lambda pair: pair[1])
        starts = [target[0] for _, target in known]
        for start, end in spans:
            place = bisect.bisect_right(starts, start) - 1
            is_known = place >= 0 and known[place][1][1] >= end and is_word(self.text[start])
            yield self.source.word_at(known[place][0][0]) if is_known else None

    def by_order(self, texts: Sequence[str]) -> list[int | None]:
        """Return the number of the source word of each target word, None for none, without pairs:
        equal words belong together, and the others are spread evenly."""
        sources = [self.source.plain[slice(*span)] for span in self.source.words]
        found: list[int | None] = [
            len(sources) * i // len(texts) if sources and is_word(text[0]) else None
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
