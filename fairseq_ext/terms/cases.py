"""A sentence of the test set beside a system's translation, with the terms that count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fairseq_ext.core.words import Lemmatizer
from fairseq_ext.terms.test_set import Sentence, Term
from fairseq_ext.terms.text import Place, Text, found_in, places_of, text_of

Span = tuple[int, int]  # [start, end) in words


@dataclass(frozen=True)
class Asked:
    """A term that the translation was asked for."""

    term: Term
    targets: tuple[Text, ...]  # any one of them


@dataclass(frozen=True)
class Case:
    """One line."""

    sentence: Sentence
    reference: Text
    hypothesis: Text
    asked: tuple[Asked, ...]


def cases_of(
    sentences: Sequence[Sentence], hypotheses: Sequence[str], of_source: Lemmatizer | None, of_target: Lemmatizer | None
) -> list[Case]:
    """A case for each line. A term counts where the source holds it, found as a success is (success.py), or where the test set marks it."""
    return [
        Case(
            sentence,
            text_of(sentence.reference, of_target),
            Text(hypothesis, of_target),
            tuple(
                Asked(term, tuple(text_of(target, of_target) for target in term.targets))
                for term in sentence.terms
                if term.marked
                or sentence.source is None
                or found_in(text_of(term.source, of_source), text_of(sentence.source, of_source))
            ),
        )
        for sentence, hypothesis in zip(sentences, hypotheses, strict=True)
    ]


def claim(asked: Sequence[Asked], text: Text, cased: bool, lemmas: bool, whole: bool) -> list[tuple[Text, Place] | None]:
    """For each term, in order, the target and place of the first occurrence in the text that no term before it has; None if none is left.

    Two occurrences that start at the same place are one: of *tension* and *tension artérielle*, one "tension artérielle" serves one.
    """
    taken: set[Place] = set()
    claims: list[tuple[Text, Place] | None] = []
    for each in asked:
        found = ((target, place) for target in each.targets for place in places_of(target, text, cased, lemmas, whole))
        first = next((pair for pair in found if pair[1] not in taken), None)
        claims.append(first)
        if first is not None:
            taken.add(first[1])
    return claims


def reference_spans(case: Case) -> list[Span]:
    """Where the line's reference has its terms: as the test set marks them, else where their words first occur, case-sensitive; terms
    that it does not have are left out.

    Each place serves one term.
    """
    marked = [asked.term.place for asked in case.asked if asked.term.place is not None]
    others = [asked for asked in case.asked if asked.term.place is None]
    found = claim(others, case.reference, cased=True, lemmas=False, whole=True)
    return marked + [(place, place + len(target.words)) for target, (place, _) in filter(None, found)]
