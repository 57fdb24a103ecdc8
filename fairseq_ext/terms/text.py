"""A text in the forms in which terms are looked up, and where one text occurs in another."""

from __future__ import annotations

from bisect import bisect_right
from functools import cache, cached_property
from unicodedata import normalize

from fairseq_ext.core.words import Lemmatizer, starts_of, words_of

JOINT = "\x1f"  # between two units: no word holds it
Place = tuple[int, int]  # the unit in which an occurrence starts, and the character of that unit


class Text:
    """A sentence or a term. raw: as given; words: its words and punctuation; lemma: from word to lemma, None for no lemmas."""

    def __init__(self, raw: str, lemma: Lemmatizer | None):
        self.raw, self.lemma = raw, lemma
        self.forms: dict[tuple[bool, bool], list[str]] = {}

    @cached_property
    def words(self) -> list[str]:
        return words_of(self.raw)

    @cached_property
    def starts(self) -> list[int]:
        """Where each word starts in the text's NFKC form, in characters."""
        return starts_of(normalize("NFKC", self.raw), self.words)

    @cached_property
    def lemmas(self) -> list[str]:
        return self.words if self.lemma is None else [self.lemma(word) for word in self.words]

    def units(self, cased: bool, lemmas: bool) -> list[str]:
        """Words or lemmas, with their case or in lower case."""
        if (cased, lemmas) not in self.forms:
            units = self.lemmas if lemmas else self.words
            self.forms[cased, lemmas] = units if cased else [unit.lower() for unit in units]
        return self.forms[cased, lemmas]

    @cached_property
    def joined_lemmas(self) -> str:
        """The lower-cased lemmas as one string."""
        return JOINT.join(self.units(cased=False, lemmas=True))


@cache
def text_of(raw: str, lemma: Lemmatizer | None) -> Text:
    """The `Text`, made once."""
    return Text(raw, lemma)


def found_in(term: Text, text: Text) -> bool:
    """Whether a text holds a term as the WMT25 task decides it (success.py)."""
    if term.raw.lower() in text.raw.lower():
        return True
    return text.lemma is not None and term.joined_lemmas in text.joined_lemmas


def places(term: list[str], units: list[str], whole: bool) -> list[Place]:
    """Where the units of a term occur in the units of a sentence, overlapping occurrences too, from left to right.

    whole: only as whole units; else also as parts of longer ones, as `art` in `cart`.
    """
    if not term:
        return []
    if whole:
        return [(start, 0) for start in range(len(units) - len(term) + 1) if units[start : start + len(term)] == term]
    starts = [0]  # of the units, in the joined text
    for unit in units:
        starts.append(starts[-1] + len(unit) + 1)
    sought, text = JOINT.join(term), JOINT.join(units)
    found: list[Place] = []
    at = text.find(sought)
    while at >= 0:
        number = bisect_right(starts, at) - 1
        found.append((number, at - starts[number]))
        at = text.find(sought, at + 1)
    return found


def places_of(term: Text, text: Text, cased: bool, lemmas: bool, whole: bool) -> list[Place]:
    """Where a term occurs in a sentence; lemmas: occurrences of its words, then those of its lemmas."""
    found = places(term.units(cased, False), text.units(cased, False), whole)
    if lemmas and text.lemma is not None:
        found += [place for place in places(term.units(cased, True), text.units(cased, True), whole) if place not in found]
    return found
