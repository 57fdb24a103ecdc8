"""A sentence of a test set with a system's translation, and the terms that count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from unicodedata import normalize

from fairseq_ext.core.lemmas import Lemmatizer
from fairseq_ext.core.words import starts_of, words_of


@dataclass(frozen=True)
class Term:
    """A source term and the target forms that translate it."""

    source: str
    targets: tuple[str, ...]  # any one of them
    marked: bool = False  # whether the test set says that the source sentence holds the term


@dataclass(frozen=True)
class Sentence:
    """A line of the test set. source is None where the format has none."""

    source: str | None
    reference: str
    terms: tuple[Term, ...]


JOINT = "\x1f"  # between two lemmas: no word holds it


class Text:
    """A sentence or a term in the forms in which terms are looked up.

    raw: as given; words: its words and punctuation; small: the same in lower case; lemma: from word
    to lemma, None for no lemmas.
    """

    def __init__(self, raw: str, lemma: Lemmatizer | None):
        self.raw, self.lemma = raw, lemma

    @cached_property
    def words(self) -> list[str]:
        return words_of(self.raw)

    @cached_property
    def starts(self) -> list[int]:
        """Where each word starts in the text's NFKC form, in characters."""
        return starts_of(normalize("NFKC", self.raw), self.words)

    @cached_property
    def small(self) -> list[str]:
        return [word.lower() for word in self.words]

    @cached_property
    def lemmas(self) -> list[str]:
        """The lemmas in lower case; without lemmas the words."""
        return [self.lemma(word).lower() for word in self.words] if self.lemma else self.small

    @cached_property
    def joined_lemmas(self) -> str:
        return JOINT.join(self.lemmas)


@cache
def text_of(raw: str, lemma: Lemmatizer | None) -> Text:
    """Return the `Text`, made once."""
    return Text(raw, lemma)


@dataclass(frozen=True)
class Case:
    """One line. required: a term's targets, any one of which the translation must have."""

    reference: Text
    hypothesis: Text
    required: tuple[tuple[Text, ...], ...]


def cases_of(
    sentences: Sequence[Sentence],
    hypotheses: Sequence[str],
    of_source: Lemmatizer | None,
    of_target: Lemmatizer | None,
) -> list[Case]:
    """Return a case for each line.

    A term counts where the source holds it, found as a success is (score.py), or where
    the test set marks it.
    """
    return [
        Case(
            text_of(sentence.reference, of_target),
            Text(hypothesis, of_target),
            tuple(
                tuple(text_of(target, of_target) for target in term.targets)
                for term in sentence.terms
                if term.marked
                or sentence.source is None
                or found_in(text_of(term.source, of_source), text_of(sentence.source, of_source))
            ),
        )
        for sentence, hypothesis in zip(sentences, hypotheses, strict=True)
    ]


# ---- Where a term occurs in a text


def found_in(term: Text, text: Text) -> bool:
    """Return whether a text holds a term as the WMT25 task decides it (score.py)."""
    if term.raw.lower() in text.raw.lower():
        return True
    return text.lemma is not None and term.joined_lemmas in text.joined_lemmas


def places(term: list[str], units: list[str]) -> list[int]:
    """Return the starts of the term's units in the units of a sentence, overlapping ones too."""
    starts = range(len(units) - len(term) + 1) if term else ()
    return [start for start in starts if units[start : start + len(term)] == term]


def cased_places(term: Text, text: Text) -> list[int]:
    """Return the places of a term's words in a text."""
    return places(term.words, text.words)


def lemma_places(term: Text, text: Text) -> list[int]:
    """Return the places of a term's words in a text, then those of its lemmas, without regard to
    case."""
    found = places(term.small, text.small)
    return found + [place for place in places(term.lemmas, text.lemmas) if place not in found]


def claim(
    required: Sequence[Sequence[Text]], text: Text, places_of: Callable[[Text, Text], list[int]]
) -> list[tuple[int, int]]:
    """Return (start, number of words) of each term's first occurrence in the text that no term
    before it has; terms for which none is left are left out.

    Two occurrences that start at the same place are one: of *tension* and *tension artérielle*, one
    "tension artérielle" serves one.
    """
    claims: dict[int, int] = {}
    for targets in required:
        found = ((place, target) for target in targets for place in places_of(target, text))
        for place, target in found:
            if place not in claims:
                claims[place] = len(target.words)
                break
    return list(claims.items())
