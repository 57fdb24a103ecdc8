"""Which constraints a finished hypothesis meets, read off its detokenised text: what a reader finds, in whatever pieces it was written.

A phrase's text is found where it neither starts nor ends inside a word (`--constraint-boundary prefix`: does not start inside one), in its
own case, with a capital at the start of the text, or in any case (sentence.py, Cased).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from fairseq_ext.search.phrases.boundaries import Boundaries
from fairseq_ext.search.phrases.phrase import Phrase
from fairseq_ext.search.phrases.pieces import capitalised, folded, is_letter, normal
from fairseq_ext.search.phrases.sentence import Cased, SentenceConstraints, met_in_turn

KEPT = 1 << 14  # phrases whose texts are kept


class InText:
    """Reads hypotheses as text. text: target tokens to plain text; whole: a phrase must not end inside a word either."""

    def __init__(self, text: Callable[[Sequence[int]], str], whole: bool):
        self.text, self.whole = text, whole
        self.of_phrase = lru_cache(maxsize=KEPT)(lambda phrase: normal(text(phrase)))

    def __call__(self, tokens: Sequence[int], constraints: SentenceConstraints, ordered: bool) -> list[bool]:
        """Whether each constraint is met, counted by `sentence.met_in_turn`."""
        text = normal(self.text(tokens))

        def ends(alternatives: Sequence[Phrase], cased: Cased, start: int) -> list[int]:
            return [end_of(self.of_phrase(phrase), text, start, self.whole, cased.mode)[1] for phrase in alternatives]

        return met_in_turn(constraints, ordered, ends)


def end_of(phrase: str, text: str, start: int, whole: bool, case: str = "exact") -> tuple[int, int]:
    """Where the first occurrence of a phrase at or behind start begins and ends, (-1, -1) when there is none; both texts in normal form
    (pieces.py). case: as --constraint-case."""
    if case == "any":
        phrase, text = folded(phrase), folded(text)
    elif case == "initial" and start == 0:
        begun = first_end(capitalised(phrase), text[: len(phrase) + 1], 0, whole)
        if begun == (0, len(phrase)):
            return begun
    return first_end(phrase, text, start, whole)


def first_end(phrase: str, text: str, start: int, whole: bool) -> tuple[int, int]:
    """The same in the case as written."""
    at = text.find(phrase, start)
    while at >= 0:
        end = at + len(phrase)
        begins_inside = at > 0 and joined(text[at - 1], phrase[0])
        ends_inside = whole and end < len(text) and joined(phrase[-1], text[end])
        if not begins_inside and not ends_inside:
            return at, end
        at = text.find(phrase, at + 1)
    return -1, -1


def joined(first: str, second: str) -> bool:
    """Whether two neighbouring characters stand in one word."""
    return is_letter(first) and is_letter(second)


def banned_in_texts(boundaries: Boundaries, case: str) -> Callable[[SentenceConstraints], Callable[[Phrase], str | None]]:
    """For a sentence's constraints, a function from a phrase to the text of a banned phrase that its text contains, None for none.

    case: of banned phrases, exact or any.
    """
    text_of = lru_cache(maxsize=KEPT)(boundaries.pieces.text_of)

    def look(constraints: SentenceConstraints) -> Callable[[Phrase], str | None]:
        def banned_in(phrase: Phrase) -> str | None:
            text = text_of(phrase)
            texts = zip(constraints.banned, constraints.banned_text, strict=True)
            return next((said for other, said in texts if end_of(text_of(other), text, 0, boundaries.whole, case)[1] >= 0), None)

        return banned_in

    return look
