"""A sentence of a test set with a system's translation, with the terms that count;
what a test set holds."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any
from unicodedata import normalize

from fairseq_ext.core.errors import UsageError, counted
from fairseq_ext.core.files import Lines
from fairseq_ext.core.words import Lemmatizer, starts_of, words_of

Span = tuple[int, int]  # [start, end) in words


@dataclass(frozen=True)
class ExpectedTerm:
    """A term that the translation must have."""

    term: Term
    targets: tuple[Text, ...]  # any one of them


@dataclass(frozen=True)
class Case:
    """One line."""

    sentence: Sentence
    reference: Text
    hypothesis: Text
    required: tuple[ExpectedTerm, ...]


def cases_of(
    sentences: Sequence[Sentence],
    hypotheses: Sequence[str],
    of_source: Lemmatizer | None,
    of_target: Lemmatizer | None,
) -> list[Case]:
    """Return a case for each line.

    A term counts where the source holds it, found as a success is (metrics.py), or where
    the test set marks it.
    """
    return [
        Case(
            sentence,
            text_of(sentence.reference, of_target),
            Text(hypothesis, of_target),
            tuple(
                ExpectedTerm(term, tuple(text_of(target, of_target) for target in term.targets))
                for term in sentence.terms
                if term.marked
                or sentence.source is None
                or found_in(text_of(term.source, of_source), text_of(sentence.source, of_source))
            ),
        )
        for sentence, hypothesis in zip(sentences, hypotheses, strict=True)
    ]


def claim(
    required: Sequence[ExpectedTerm], text: Text, cased: bool, lemmas: bool, whole: bool
) -> list[tuple[Text, Place] | None]:
    """Return for each term, in order, the target and place of its first occurrence in the text that
    no term before it has; None if none is left.

    Two occurrences that start at the same place are one: of *tension* and *tension artérielle*, one
    "tension artérielle" serves one.
    """
    taken: set[Place] = set()
    claims: list[tuple[Text, Place] | None] = []
    for each in required:
        found = (
            (target, place)
            for target in each.targets
            for place in places_of(target, text, cased, lemmas, whole)
        )
        first = next((pair for pair in found if pair[1] not in taken), None)
        claims.append(first)
        if first is not None:
            taken.add(first[1])
    return claims


def reference_spans(case: Case) -> list[Span]:
    """Return the places of terms in the line's reference: as the test set marks them, else the
    first occurrence of their words, case-sensitive; terms that it does not have are left out.

    Each place serves one term.
    """
    marked = [each.term.place for each in case.required if each.term.place is not None]
    others = [each for each in case.required if each.term.place is None]
    found = claim(others, case.reference, cased=True, lemmas=False, whole=True)
    return marked + [
        (place, place + len(target.words)) for target, (place, _) in filter(None, found)
    ]


# ---- What a test set holds, whatever its format: sentences with their terms


@dataclass(frozen=True)
class Term:
    """A source term and the target forms that translate it."""

    source: str
    targets: tuple[str, ...]  # any one of them
    # where the reference has it, [start, end) in words; None: not marked
    place: tuple[int, int] | None = None
    marked: bool = False  # whether the test set says that the source sentence holds the term


@dataclass(frozen=True)
class Sentence:
    """A line of the test set. source is None where the format has none."""

    source: str | None
    reference: str
    terms: tuple[Term, ...]
    document: str = ""


def targets_of(value: object, where: str) -> tuple[str, ...]:
    """Return target forms from JSON: a string, `a|b` for alternatives, or a list of strings (raises
    UsageError for another value)."""
    given = value.split("|") if isinstance(value, str) else value
    if (
        not isinstance(given, list)
        or not given
        or not all(isinstance(each, str) and each.strip() for each in given)
    ):
        raise UsageError(
            f"{where} has a term without a target: write a string or a list of strings"
        )
    return tuple(dict.fromkeys(each.strip() for each in given))


def terms_of(pairs: Iterable[tuple[object, object]], where: str) -> tuple[Term, ...]:
    """Return the terms of (source, targets) pairs of JSON (raises UsageError for a source that is
    not text)."""
    found = []
    for source, targets in pairs:
        if not isinstance(source, str) or not source.strip():
            raise UsageError(
                f"{where} has a term without a source: write the source term as a string"
            )
        found.append(Term(source.strip(), targets_of(targets, where)))
    return tuple(found)


# ---- A text in the forms in which terms are looked up
#
# Also: where one text occurs in another.


JOINT = "\x1f"  # between two units: no word holds it
Place = tuple[int, int]  # the unit in which an occurrence starts, and the character of that unit


class Text:
    """A sentence or a term.

    raw: as given; words: its words and punctuation; lemma: from word to lemma, None for no lemmas.
    """

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
        """Return the words or the lemmas, with their case or in lower case."""
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
    """Return the `Text`, made once."""
    return Text(raw, lemma)


def found_in(term: Text, text: Text) -> bool:
    """Return whether a text holds a term as the WMT25 task decides it (metrics.py)."""
    if term.raw.lower() in text.raw.lower():
        return True
    return text.lemma is not None and term.joined_lemmas in text.joined_lemmas


def places(term: list[str], units: list[str], whole: bool) -> list[Place]:
    """Return the places where the units of a term occur in the units of a sentence, overlapping
    ones too, from left to right.

    whole: only as whole units; else also as parts of longer ones, as `art` in `cart`.
    """
    if not term:
        return []
    if whole:
        return [
            (start, 0)
            for start in range(len(units) - len(term) + 1)
            if units[start : start + len(term)] == term
        ]
    starts = [0]  # of the units, in the joined text
    for unit in units:
        starts.append(starts[-1] + len(unit) + 1)
    needle, text = JOINT.join(term), JOINT.join(units)
    found: list[Place] = []
    at = text.find(needle)
    while at >= 0:
        number = bisect_right(starts, at) - 1
        found.append((number, at - starts[number]))
        at = text.find(needle, at + 1)
    return found


def places_of(term: Text, text: Text, cased: bool, lemmas: bool, whole: bool) -> list[Place]:
    """Return the places of a term in a sentence; lemmas: occurrences of its words, then those of
    its lemmas."""
    found = places(term.units(cased, False), text.units(cased, False), whole)
    if lemmas and text.lemma is not None:
        found += [
            place
            for place in places(term.units(cased, True), text.units(cased, True), whole)
            if place not in found
        ]
    return found


@dataclass(frozen=True)
class Files:
    """The files of the test set, as the command names them."""

    references: str  # --references
    target_lang: str  # --target-lang
    source_lang: str | None = None  # --source-lang
    sources: str | None = None  # --sources
    terms_file: str | None = None  # --terms-file
    terms: str | None = None  # --terms
    glossary_match: str = "surface"  # --glossary-match


def objects(path: str, flag: str) -> Iterator[tuple[Any, str]]:
    """Yield each line of a JSONL file as its value and its name in messages (raises UsageError for
    a line that is not JSON)."""
    lines = Lines(path, flag)
    for number in range(len(lines)):
        where = lines.where(number)
        try:
            value = json.loads(lines[number])
            if "\\u" in lines[number]:
                json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate is no text
            yield value, where
        except (ValueError, RecursionError):
            raise UsageError(f"{where} is not JSON: write one JSON value a line") from None


def text_lines(path: str, flag: str) -> list[str]:
    """Return the lines of a text file, without space around them."""
    lines = Lines(path, flag)
    return [lines[number].strip() for number in range(len(lines))]


def text_field(record: dict[str, Any], name: str, where: str) -> str:
    """Return a text field of a record (raises UsageError if it is missing or not text)."""
    if not isinstance(record.get(name), str):
        raise UsageError(
            f"{where} has no text under '{name}': it has "
            f"{', '.join(map(repr, record)) or 'nothing'}"
        )
    return record[name].strip()


def same_length(given: dict[str, int]) -> None:
    """Raise UsageError unless all files (what -> its lines) have as many lines as the first."""
    (first, lines), *others = given.items()
    for what, number in others:
        if number != lines:
            raise UsageError(
                f"{what} has {counted(number, 'line')} and {first} has {lines}: name files "
                "of the same test set"
            )
