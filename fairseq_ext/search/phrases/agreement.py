"""The words before a noun that agree with it: determiners, contractions and adjectives.

A term in the place of a noun may have another gender, number or case than it: "mit der Vereinigung"
becomes "mit dem Verband". Which words go together is decided by a model; here are those that may
stand there: the determiners of the draft's own family (der, die, das, ...; ein, eine, ...; zum,
zur, zu den), each with the endings that an adjective behind it may have (strong and weak
declension). Known for German.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import NamedTuple

import regex

from fairseq_ext.search.phrases.forms import ADJECTIVE_ENDINGS, PARTICIPLES, split_adjective
from fairseq_ext.search.phrases.function_words import function_words
from fairseq_ext.search.phrases.german_nouns import (
    ALL,
    CASES_OF,
    DEFINITE,
    DETERMINERS,
    MIXED_ENDINGS,
    NO_DETERMINER,
    PLURAL_CELLS,
    PREPOSITIONS,
    STRONG_ENDINGS,
    WEAK_ENDINGS,
    Cells,
    lexicon,
    of_adjective,
    of_cases,
)
from fairseq_ext.search.phrases.letter_case import capitalised
from fairseq_ext.search.phrases.places import Span, overlap

Change = tuple[Span, str]  # characters of a text, and what replaces them
LANGUAGES = ("de",)
FUNCTIONS = function_words("de")
WORD_BEFORE = regex.compile(r"([\p{L}\p{M}-]+)(,?)\s$")
PART_BEFORE = regex.compile(r"(?:nicht|quasi|semi)\s?-\s?$")  # of an adjective
WORD_BEHIND = regex.compile(
    r"(,| und| oder| sowie|-)?\s?(?:(?:nicht|quasi|semi)\s-\s)?([\p{L}\p{M}-]+)"
)
CONJUNCTIONS = ("wenn", "dass", "ob", "weil", "damit")
SUBJECT = regex.compile(r"(?<!\p{L})(?:Sie|[Ww]ir|[Ii]ch|[Mm]an) (?:\p{Ll}+ )?$")  # and its verb
COPULA = regex.compile(
    r"(?<!\p{L})(?:bin|ist|sind|war|waren|wäre|wären|sein|werden?|wird|bleib\w+|hei(?:ß|ss)\w+)"
    r"(?!\p{L})"
)
CLAUSE_END = regex.compile(r"[.,;:!?()]")
# begin a sentence as adjectives do, which take the ending of the next one
JOINTS = ("und", "oder", "sowie", "bzw", "als", "wie", "nicht")
ARTICLES = ("der", "die", "das", "den", "ein", "eine", "einen")
MAY_HAVE_GENITIVE = regex.compile("lich$|laut$|viel$|wenig$|einig$")  # bezüglich
NUMERALS = frozenset(
    "zwei drei vier fünf sechs sieben acht neun zehn elf zwölf sehr besonders".split()
)
BETWEEN = regex.compile(r"([\p{Ll}]+|\d[\d.,]*)\s$")
PARALLEL = ("weiter", "ander", "mehrer", "viel", "einig", "wenig", "verschieden", "zahlreich")


class Beginning(NamedTuple):
    """Changes of the words before a noun; endings: those that an adjective after them may have."""

    changes: tuple[Change, ...] = ()
    endings: tuple[str, ...] = ADJECTIVE_ENDINGS


def beginnings(
    text: str, start: int, language: str, taken: Collection[Span] = ()
) -> list[Beginning]:
    """Return how the words before a place of a text may change with the noun that stands there, the
    unchanged text first. taken: spans of other terms, which stay."""
    if language not in LANGUAGES:
        return [Beginning()]

    def is_free(span: Span) -> bool:
        return not any(overlap(span, other) for other in taken)

    adjectives, before = adjectives_before(text[:start])
    free = list(filter(is_free, adjectives))
    found = WORD_BEFORE.search(before)
    place = found.span(1) if found and not found[2] else (len(before), len(before))
    own = before[slice(*place)].lower()
    family = DETERMINERS.get(own, NO_DETERMINER).family
    first = WORD_BEFORE.search(before[: place[0]])
    if own in DEFINITE and first and first[1].lower() in PREPOSITIONS:  # they may contract
        place, family = (first.start(1), place[1]), PREPOSITIONS[first[1].lower()]
    family = family if is_free(place) else ()
    if not family and adjectives != free:
        return [Beginning()]
    own = before[slice(*place)]
    # (the determiner, endings of adjectives after it)
    options: list[tuple[str, tuple[str, ...]]] = [(own, ADJECTIVE_ENDINGS)]
    if family:
        options = [(new, endings_after(new)) for new in dict.fromkeys([own.lower(), *family])]
    own_endings = (split_adjective(text[slice(*free[0])])[1],) if free else options[0][1]
    out: dict[tuple[Change, ...], Beginning] = {(): Beginning(endings=own_endings)}
    for new, endings in options:
        new = capitalised(new) if own[:1].isupper() else new
        for ending in endings if free else ("",):
            changes = [(at, split_adjective(text[slice(*at)])[0] + ending) for at in free]
            changes.append((place, new))
            kept = tuple((at, word) for at, word in changes if text[slice(*at)] != word)
            out.setdefault(kept, Beginning(kept, (ending,) if free else endings))
    return list(out.values())


def endings_after(determiner: str) -> tuple[str, ...]:
    """Return the endings that an adjective may have after a German determiner."""
    cells, tables, _ = DETERMINERS[determiner.split()[-1]]
    return tuple(each for each in ADJECTIVE_ENDINGS if cells & of_adjective(each, *tables))


def adjectives_before(text: str) -> tuple[list[Span], str]:
    """Return the adjectives that end a German text, from the last one on, and the text before."""
    found: list[Span] = []
    while True:
        text = PART_BEFORE.sub("", text)
        word = WORD_BEFORE.search(text)
        if word is None or not looks_like_adjective(word[1]):
            return found, text
        found.append(word.span(1))
        text = text[: word.start(1)]


def looks_like_adjective(word: str) -> bool:
    """Return whether a German word looks like an inflected adjective."""
    stem, ending = split_adjective(word)
    if not ending or word in FUNCTIONS:
        return False
    return stem.lower() in PARALLEL or (word.islower() and lexicon().is_adjective(word))


def is_possible(before: str, noun: str, behind: str = "", cells: Cells = ALL) -> bool:
    """Return whether a German noun may stand between two texts: whether in one of these cells its
    number and gender, its adjectives, its determiner and the word before it (a preposition, or a
    pronoun that is the subject) go together."""
    known = lexicon()
    adjectives, rest = adjectives_before(before)
    endings = [split_adjective(before[slice(*span)])[1] for span in adjectives]
    cells, before = cells & known.cells(noun), rest
    if endings:  # "eine statistisch bedeutsame", "die zwei neuen"
        while (found := BETWEEN.search(before)) and (
            not found[1].isalpha() or found[1] in NUMERALS or known.is_stem(found[1])
        ):
            before = before[: found.start()]
    word, joint = last_word(before)
    own = word.lower()
    of_word, tables, _ = NO_DETERMINER if joint else DETERMINERS.get(own, NO_DETERMINER)
    if of_word != ALL:
        before = before[: before.rindex(word)]
        word, joint = last_word(before)
        if joint and own in DEFINITE:  # a relative pronoun
            of_word = ALL
        elif own == "der" and not joint:
            of_word &= after_der(before, word)
    if joint or own in JOINTS:
        tables = (STRONG_ENDINGS, WEAK_ENDINGS, MIXED_ENDINGS)
    elif endings and of_word == ALL and own not in CASES_OF:
        # no dative without a word that needs it, and a genitive only behind a noun
        is_noun = word[:1].isupper() and own not in FUNCTIONS
        cells &= of_cases("nag" if is_noun else "na")
    clause = CLAUSE_END.split(before)[-1] + CLAUSE_END.split(behind)[0]
    if SUBJECT.search(before) and not COPULA.search(clause):
        cells &= of_cases("adg")
    if word.lower() in CONJUNCTIONS:  # "wenn der Differenz"
        cells -= {"df", "gf"}
    if not joint and word.lower() in CASES_OF:
        cells &= of_cases(CASES_OF[word.lower()])
    cells &= of_word
    for ending in endings:
        cells &= of_adjective(ending, *tables)
    return bool(cells)


def is_in_noun_phrase(text: str, span: Span) -> bool:
    """Return whether a German word stands between an article or an adjective and their noun."""
    word, _ = last_word(text[: span[0]])
    begins = word.lower() in DETERMINERS or looks_like_adjective(word)
    return begins and noun_after(text, span[1], "de") is not None


def last_word(text: str) -> tuple[str, bool]:
    """Return the last word of a text, "" for none, and whether a comma follows it."""
    found = WORD_BEFORE.search(text)
    return ("", False) if found is None else (found[1], bool(found[2]))


def after_der(before: str, word: str) -> Cells:
    """Return the cells that a noun behind "der" may have. before: the text before it; word: its
    last word. "automatisch der" begins no genitive, "die Inhalte der" no nominative."""
    if word.lower() in FUNCTIONS:
        return ALL
    if lexicon().is_stem(word) and not MAY_HAVE_GENITIVE.search(word):
        return ALL - of_cases("g")
    of_noun = last_word(before.rstrip().removesuffix(word))[0].lower()
    return ALL - {"nm"} if word[:1].isupper() and of_noun in ARTICLES else ALL


def noun_after(text: str, end: int, language: str, taken: Collection[Span] = ()) -> Span | None:
    """Return the noun to which an adjective that ends at a place belongs, None for none: behind it,
    with adjectives between, which commas or conjunctions may separate, or other terms (taken)."""
    while language in LANGUAGES and (found := WORD_BEHIND.match(text, end)):
        joint, word = found.groups()
        end = found.end()
        is_term = any(start < end <= behind for start, behind in taken)
        if word[:1].isupper() and not joint:
            return found.span(2)
        if not is_term and not looks_like_adjective(word):
            return None
    return None


def fits(form: str, endings: Sequence[str]) -> bool:
    """Return whether a term may follow a beginning: if an adjective is its first word, with one of
    the endings."""
    first, *others = form.split()
    ending = split_adjective(first)[1]
    return not others or not first[:1].islower() or not ending or ending in endings


def has_noun(form: str) -> bool:
    """Return whether a German term has a noun, with which other words agree."""
    return any(word[:1].isupper() for word in form.split())


def noun_of(form: str) -> Span | None:
    """Return the noun of a German term with which other words agree: the last one before one of
    its function words; None for a term without one."""
    words, known = list(regex.finditer(r"\S+", form)), lexicon()
    heads = list(
        itertools.takewhile(lambda w: w[0].lower() not in FUNCTIONS or not w.start(), words)
    )
    while len(heads) > 1 and known.is_stem(heads[-1][0].lower()):
        heads.pop()  # "Registerkarte Allgemein"
    head = heads[-1]
    is_noun = head[0][:1].isupper() and head[0].lower() not in FUNCTIONS
    return head.span() if is_noun else None


def numbers_of(form: str, entry: Collection[str] = ()) -> set[str]:
    """Return the numbers, singular or plural, that a form of a German noun may have; none for other
    words. entry: the glossary's forms, singulars of nouns of which nothing else is known."""
    head = next((word for word in reversed(form.split()) if word[:1].isupper()), "")
    cells = lexicon().cells(head) if head else ()
    stem = split_adjective(head.lower())[0]  # of a label: Fakturierbar
    if entry and cells == ALL and not (lexicon().has(stem) or stem.endswith(PARTICIPLES)):
        return {"singular" if form in entry else "plural"}
    return {"plural" if cell in PLURAL_CELLS else "singular" for cell in cells}
