"""The answer of a text, joined from the answers of its segments. A segment is dropped as soon as
it is joined."""

from __future__ import annotations

import copy
import math
import sys
from dataclasses import dataclass, field, replace

from fairseq_ext.engine.jobs import Partial
from fairseq_ext.search.report import ConstraintReport, Ending, Report, Span, Translation
from fairseq_ext.text import in_lines
from fairseq_ext.text.marks import Projection
from fairseq_ext.text.segments import Item, Segment


@dataclass(eq=False)
class Slot:
    """An item of the text and its result so far."""

    item: Item
    answer: Report | BaseException | None = None
    partial: Partial | None = None

    @property
    def is_open(self) -> bool:
        """Whether its answer is missing."""
        return isinstance(self.item, Segment) and self.answer is None


@dataclass
class Rank:
    """The hypotheses of one rank, in the order of the text.

    total: sum of their scores times their lengths.
    """

    texts: list[str] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    total: float = 0.0
    length: int = 0

    def hypothesis(self) -> Translation:
        """Return the hypothesis of the text, without the outcomes of its segments."""
        score = self.total / max(1, self.length)
        return Translation("".join(self.texts), self.tokens, score, self.scores)


class Joined:
    """The answer of a text so far: the i-th hypotheses of all segments are the i-th of the text,
    and places are of the whole text.

    keeps: False if the caller writes the text in parts: `add` only returns the translation of each
    item, and the answer has no text and no constraints.
    """

    def __init__(self, keeps: bool = True):
        self.keeps = keeps
        self.ranks = [Rank()]
        self.constraints: list[ConstraintReport] = []
        self.words: list[tuple[Span, Span]] | None = []
        self.gap: float | None = -math.inf
        self.queued = self.decoded = 0.0
        # characters of both, items, and segments with an answer
        self.source = self.target = self.items = self.answers = 0
        self.untranslated: list[tuple[str, str]] = []
        self.error: BaseException | None = None  # the first
        self.last: Report | None = None

    def add(self, slot: Slot) -> str:
        """Add the next item; return its translation."""
        text, projection = rendered(slot, 0)
        self.items += 1
        if isinstance(slot.item, Segment) and isinstance(slot.answer, BaseException):
            self.error = self.error or slot.answer
            self.untranslated.append((slot.item.source, str(slot.answer)))
        if isinstance(slot.answer, Report):
            self.answers += 1
            self.last = slot.answer
        if self.keeps:
            if projection is not None and isinstance(slot.answer, Report):
                self.places(slot, projection, slot.answer)
            self.hypotheses(slot, text)
        self.source += len(slot.item if isinstance(slot.item, str) else slot.item.source)
        self.target += len(text)
        return text

    def hypotheses(self, slot: Slot, text: str) -> None:
        """Append the hypotheses of an item to those of the text."""
        found = slot.answer.hypotheses if isinstance(slot.answer, Report) else []
        for _ in range(len(self.ranks), len(found)):
            # earlier items, which have fewer hypotheses, repeat their last one
            self.ranks.append(copy.deepcopy(self.ranks[-1]))
        for rank, each in enumerate(self.ranks):
            each.texts.append(rendered(slot, rank)[0] if rank else text)
            if found:
                best = found[min(rank, len(found) - 1)]
                each.tokens.extend(map(sys.intern, best.tokens))
                each.scores.extend(best.positional_scores)
                each.total += best.score * (1 + len(best.tokens))
                each.length += 1 + len(best.tokens)

    def places(self, slot: Slot, projection: Projection, answer: Report) -> None:
        """Add the constraints and word pairs of a segment, with their places in the whole text."""
        assert isinstance(slot.item, Segment)
        origin, moved, at, start = slot.item.origin, projection.offset, self.target, self.source

        def there(span: tuple[int, int]) -> tuple[int, int]:
            return at + moved(span[0]), at + moved(span[1] - 1) + 1

        def here(span: tuple[int, int]) -> tuple[int, int]:
            return start + origin[span[0]], start + origin[span[1] - 1] + 1

        for each in answer.constraints:
            self.constraints.append(
                replace(
                    each,
                    spans=tuple(map(there, each.spans)),
                    source_spans=tuple(map(here, each.source_spans)),
                )
            )
        words = answer.hypotheses[0].words
        if words is None or self.words is None:
            self.words = None
        else:
            self.words += [(here(a), there(b)) for a, b in words]
        self.gap = None if answer.gap is None or self.gap is None else max(self.gap, answer.gap)
        self.queued, self.decoded = (
            max(self.queued, answer.queued),
            max(self.decoded, answer.decoded),
        )

    def text(self) -> str:
        """Return the translation so far."""
        return "".join(self.ranks[0].texts)

    def answer(self, untranslated: list[tuple[str, str]]) -> Report:
        """Return the answer, when all items are added. untranslated: the segments of
        all passes that stay as they are."""
        if self.items == 1 and self.last is not None and self.text() == self.last.text:
            return self.last
        hypotheses = [rank.hypothesis() for rank in self.ranks]
        hypotheses[0].words = self.words
        hypotheses[0].ending = None if self.gap is None else Ending(self.gap, 0, 0)
        return Report(hypotheses, self.constraints, self.queued, self.decoded, untranslated)


def rendered(slot: Slot, rank: int) -> tuple[str, Projection | None]:
    """Return the translation of an item by the hypothesis of this rank, and how its characters
    have moved."""
    found = slot.answer.hypotheses if isinstance(slot.answer, Report) else [None]
    return in_lines.rendered(slot.item, found[min(rank, len(found) - 1)])
