"""Which constraints a finished hypothesis meets, read off its detokenised text: what a reader finds, in whatever pieces it was written.

A phrase's text is found where it neither starts nor ends inside a word (`--constraint-boundary prefix`: does not start inside one).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fairseq_ext.constraints.boundaries import WORD
from fairseq_ext.constraints.phrase import Phrase
from fairseq_ext.constraints.sentence import SentenceConstraints


class InText:
    """Reads hypotheses as text. text: target tokens to plain text; whole: a phrase must not end inside a word either."""

    def __init__(self, text: Callable[[Sequence[int]], str], whole: bool):
        self.text, self.whole = text, whole

    def __call__(self, tokens: Sequence[int], constraints: SentenceConstraints, ordered: bool) -> list[bool]:
        """Whether each constraint is met, counted as `sentence.met` counts in tokens: equal constraints need disjoint occurrences."""
        text = self.text(tokens)
        reached: dict[frozenset[Phrase] | None, int] = {}  # where the last occurrence ended; -1: none is left
        out = []
        for alternatives in constraints.any_of:
            kind = None if ordered else frozenset(alternatives)
            start = reached.get(kind, 0)
            ends = [self.end_of(self.text(phrase).strip(), text, start) for phrase in alternatives] if start >= 0 else []
            reached[kind] = min((end for end in ends if end >= 0), default=-1)
            out.append(reached[kind] >= 0)
        return out

    def end_of(self, phrase: str, text: str, start: int) -> int:
        """Where the first occurrence of a phrase at or behind start ends, -1 when there is none."""
        at = text.find(phrase, start)
        while at >= 0:
            end = at + len(phrase)
            begins_inside = at > 0 and joined(text[at - 1], phrase[0])
            ends_inside = self.whole and end < len(text) and joined(phrase[-1], text[end])
            if not begins_inside and not ends_inside:
                return end
            at = text.find(phrase, at + 1)
        return -1


def joined(first: str, second: str) -> bool:
    """Whether two neighbouring characters stand in one word."""
    return bool(WORD.match(first) and WORD.match(second))
