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
from dataclasses import dataclass

import regex

from fairseq_ext.search.phrases.forms import ADJECTIVE_ENDINGS, FEMININE, adjective_stem
from fairseq_ext.search.phrases.function_words import function_words
from fairseq_ext.search.phrases.german_nouns import (
    ALL,
    CASES_OF,
    CONTRACTED,
    DEFINITE,
    MIXED_ENDINGS,
    OF_DIES,
    OF_EIN,
    SAME_PLURAL,
    STRONG_ENDINGS,
    UMLAUT,
    WEAK_ENDINGS,
    Cells,
    lexicon,
    of_adjective,
    of_cases,
)
from fairseq_ext.search.phrases.letter_case import capitalised

Span = tuple[int, int]
Change = tuple[Span, str]  # characters of a text, and what replaces them
LANGUAGES = ("de",)
MAX_ADJECTIVES = 3
WORD_BEFORE = regex.compile(r"([\p{L}\p{M}-]+)(,?)\s$")
PART_BEFORE = regex.compile(r"(?:nicht|quasi|semi)\s?-\s?$")  # of an adjective
WORD_BEHIND = regex.compile(
    r"(,| und| oder| sowie|-)?\s?(?:(?:nicht|quasi|semi)\s-\s)?([\p{L}\p{M}-]+)"
)
# with the articles that they may contract with
PREPOSITIONS = {
    "in": ("im", "ins", "in der", "in die", "in den"),
    "an": ("am", "ans", "an der", "an die", "an den"),
    "zu": ("zum", "zur", "zu den"),
    "bei": ("beim", "bei der", "bei den"),
    "von": ("vom", "von der", "von den"),
}
CONTRACTIONS = {
    word: preposition
    for preposition, forms in PREPOSITIONS.items()
    for word in forms
    if " " not in word
}
POSSESSIVES = ("ein", "kein", "mein", "dein", "sein", "ihr", "unser", "euer")
STEMS_OF_DIES = ("dies", "jed", "jen", "welch", "solch", "manch", "all", "beid")
CONJUNCTIONS = ("wenn", "dass", "ob", "weil", "damit")
SUBJECT = regex.compile(r"(?<!\p{L})(?:Sie|[Ww]ir|[Ii]ch|[Mm]an) (?:\p{Ll}+ )?$")  # and its verb
COPULA = regex.compile(
    r"(?<!\p{L})(?:bin|ist|sind|war|waren|wäre|wären|sein|werden?|wird|bleib\w+|hei(?:ß|ss)\w+)"
    r"(?!\p{L})"
)
CLAUSE_END = regex.compile(r"[.,;:!?()]")
# begin a sentence as adjectives do, which take the ending of the next one
JOINTS = ("und", "oder", "sowie", "bzw", "als", "wie", "nicht")
PLURAL_CELLS = frozenset(cell for cell in ALL if cell[1] == "p")
ARTICLES = ("der", "die", "das", "den", "ein", "eine", "einen")
MAY_HAVE_GENITIVE = regex.compile("lich$|laut$|viel$|wenig$|einig$")  # bezüglich
NUMERALS = frozenset(
    "zwei drei vier fünf sechs sieben acht neun zehn elf zwölf sehr besonders".split()
)
BETWEEN = regex.compile(r"([\p{Ll}]+|\d[\d.,]*)\s$")
PARALLEL = ("weiter", "ander", "mehrer", "viel", "einig", "wenig", "verschieden", "zahlreich")


@dataclass(frozen=True)
class Beginning:
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
    functions = function_words(language)
    adjectives: list[Span] = []
    at = start - len(part.group()) if (part := PART_BEFORE.search(text[:start])) else start
    while (found := WORD_BEFORE.search(text[:at])) and len(adjectives) < MAX_ADJECTIVES:
        if not looks_like_adjective(found[1], functions):
            break
        adjectives.insert(0, found.span(1))
        at = found.start(1)
    free = [span for span in adjectives if not any(s < span[1] and span[0] < e for s, e in taken)]
    determiner = found.span(1) if found and not found[2] else (at, at)
    before = WORD_BEFORE.search(text[: determiner[0]])
    family, span = determiners(text, determiner, before.span(1) if before else None)
    if any(s < span[1] and span[0] < e for s, e in taken):
        family = []
    if not family and len(adjectives) != len(free):
        return [Beginning()]
    own = text[slice(*span)]
    # (the determiner, endings of adjectives after it)
    options = (
        [(new, endings_after(new)) for new in dict.fromkeys([own.lower(), *family])]
        if (family)
        else [(None, ADJECTIVE_ENDINGS)]
    )
    of_adjective = text[slice(*free[-1])] if free else ""
    own_endings = (of_adjective[len(adjective_stem(of_adjective)) :],) if free else options[0][1]
    out: dict[tuple[Change, ...], Beginning] = {(): Beginning(endings=own_endings)}
    for new, endings in options:
        for ending in endings if free else ("",):
            changes = [(place, adjective_stem(text[slice(*place)]) + ending) for place in free]
            if new is not None:
                changes.append((span, capitalised(new) if own[:1].isupper() else new))
            kept = tuple((place, word) for place, word in changes if text[slice(*place)] != word)
            out.setdefault(kept, Beginning(kept, (ending,) if free else endings))
    return list(out.values())


def determiners(text: str, word: Span, before: Span | None) -> tuple[list[str], Span]:
    """Return the determiners that may stand in the place of a word, and the place: with the
    preposition before it, where the two may contract."""
    own = text[slice(*word)].lower()
    first = "" if before is None else text[slice(*before)].lower()
    if own in CONTRACTIONS:
        return list(PREPOSITIONS[CONTRACTIONS[own]]), word
    if own in DEFINITE:
        if before is not None and first in PREPOSITIONS:
            return list(PREPOSITIONS[first]), (before[0], word[1])
        return list(DEFINITE), word
    for stem in POSSESSIVES:
        short = "eur" if stem == "euer" else stem
        forms = [stem, *(short + ending for ending in ADJECTIVE_ENDINGS)]
        if own in forms:
            return forms, word
    for stem in STEMS_OF_DIES:
        forms = [stem + ending for ending in ADJECTIVE_ENDINGS]
        if own in forms:
            return forms, word
    return [], word


def endings_after(determiner: str) -> tuple[str, ...]:
    """Return the endings that an adjective may have after a German determiner."""
    word = determiner.split()[-1]
    if word in POSSESSIVES:
        return ("er", "es")
    if word in ("das", "ins", "ans"):
        return ("e",)
    if word in ("alle", "beide", "keine"):
        return ("en",)
    if word in ("im", "am", "zum", "zur", "beim", "vom", "den", "dem", "des"):
        return ("en",)
    is_dies = word.endswith(("e", "er", "es")) and word.startswith(STEMS_OF_DIES)
    if word in ("der", "die") or is_dies:
        return ("e", "en")
    if word.endswith("e"):
        return ("e", "en")
    return ("en",)


def looks_like_adjective(word: str, functions: Collection[str]) -> bool:
    """Return whether a German word looks like an inflected adjective. functions: words that it is
    not one of."""
    stem, known = adjective_stem(word), lexicon()
    if stem == word or not (word.islower() or stem.lower() in PARALLEL) or word in functions:
        return False
    return stem.lower() in PARALLEL or known is None or known.is_adjective(word)


def is_possible(before: str, noun: str, behind: str = "", cells: Cells = ALL) -> bool:
    """Return whether a German noun may stand between two texts: whether in one of these cells its
    number and gender, its adjectives, its determiner and the word before it (a preposition, or a
    pronoun that is the subject) go together."""
    known = lexicon()
    if known is None:
        return True
    cells, endings, functions = cells & known.cells(noun), list[str](), function_words("de")
    while (found := WORD_BEFORE.search(before)) and looks_like_adjective(found[1], functions):
        endings.append(found[1][len(adjective_stem(found[1])) :])
        before = before[: found.start(1)]
        before = before.removesuffix(part.group() if (part := PART_BEFORE.search(before)) else "")
    if endings:  # "eine statistisch bedeutsame", "die zwei neuen"
        while (found := BETWEEN.search(before)) and (
            not found[1].isalpha() or found[1] in NUMERALS or known.is_stem(found[1])
        ):
            before = before[: found.start()]
    word, joint = last_word(before)
    own = word.lower()
    of_word, tables = (ALL, (STRONG_ENDINGS,)) if joint else cells_of_determiner(own)
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
        is_noun = word[:1].isupper() and own not in functions
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
    begins = cells_of_determiner(word.lower())[0] != ALL
    begins = begins or looks_like_adjective(word, function_words("de"))
    return begins and noun_after(text, span[1], "de") is not None


def last_word(text: str) -> tuple[str, bool]:
    """Return the last word of a text, "" for none, and whether a comma follows it."""
    found = WORD_BEFORE.search(text)
    return ("", False) if found is None else (found[1], bool(found[2]))


def after_der(before: str, word: str) -> Cells:
    """Return the cells that a noun behind "der" may have. before: the text before it; word: its
    last word. "automatisch der" begins no genitive, "die Inhalte der" no nominative."""
    known, functions = lexicon(), function_words("de")
    if known is None or word.lower() in functions:
        return ALL
    if known.is_stem(word) and not MAY_HAVE_GENITIVE.search(word):
        return ALL - of_cases("g")
    of_noun = last_word(before.rstrip().removesuffix(word))[0].lower()
    return ALL - {"nm"} if word[:1].isupper() and of_noun in ARTICLES else ALL


def cells_of_determiner(word: str) -> tuple[Cells, tuple[dict[str, Cells], ...]]:
    """Return the cells of a German determiner, all for another word, and the tables of the endings
    that adjectives have behind it."""
    if word in CONTRACTED:
        return CONTRACTED[word], (WEAK_ENDINGS,)
    if word in DEFINITE:
        return DEFINITE[word], (WEAK_ENDINGS,)
    for stem in POSSESSIVES:
        short = "eur" if stem == "euer" else stem
        ending = "" if word == stem else word.removeprefix(short)
        if (word == stem or word.startswith(short)) and ending in OF_EIN:
            plural = of_cases("nadg") if stem != "ein" else frozenset(ALL - PLURAL_CELLS)
            return OF_EIN[ending] & plural, (MIXED_ENDINGS,)
    for stem in STEMS_OF_DIES:
        if word.startswith(stem) and (ending := word[len(stem) :]) in OF_DIES:
            either = (
                (WEAK_ENDINGS, STRONG_ENDINGS) if stem in ("manch", "solch") else (WEAK_ENDINGS,)
            )
            return OF_DIES[ending], either
    return ALL, (STRONG_ENDINGS,)


def noun_after(text: str, end: int, language: str, taken: Collection[Span] = ()) -> Span | None:
    """Return the noun to which an adjective that ends at a place belongs, None for none: behind it,
    with adjectives between, which commas or conjunctions may separate, or other terms (taken)."""
    if language not in LANGUAGES:
        return None
    functions = function_words(language)
    while found := WORD_BEHIND.match(text, end):
        joint, word = found.groups()
        end = found.end()
        is_term = any(start < end <= behind for start, behind in taken)
        if word[:1].isupper() and not joint:
            return found.span(2)
        if not is_term and not looks_like_adjective(word, functions):
            return None
    return None


def fits(form: str, endings: Sequence[str]) -> bool:
    """Return whether a term may follow a beginning: if an adjective is its first word, with one of
    the endings."""
    first, *others = form.split()
    if not others or not first[:1].islower():
        return True
    stem = adjective_stem(first)
    return stem == first or first[len(stem) :] in endings


def has_noun(form: str) -> bool:
    """Return whether a German term has a noun, with which other words agree."""
    return any(word[:1].isupper() for word in form.split())


def noun_of(form: str) -> Span | None:
    """Return the noun of a German term with which other words agree: the last one before one of
    its function words; None for a term without one."""
    words, functions = list(regex.finditer(r"\S+", form)), function_words("de")
    known = lexicon()
    heads = list(
        itertools.takewhile(lambda w: w[0].lower() not in functions or not w.start(), words)
    )
    while len(heads) > 1 and known is not None and known.is_stem(heads[-1][0].lower()):
        heads.pop()  # "Registerkarte Allgemein"
    head = heads[-1]
    is_noun = head[0][:1].isupper() and head[0].lower() not in functions
    return head.span() if is_noun else None


def numbers_of(form: str, forms: Sequence[str]) -> tuple[str, ...]:
    """Return the numbers, singular or plural, that a form of a German noun may have; none for other
    words. forms: all forms, the dictionary's first."""
    heads = [next((w for w in reversed(f.split()) if w[:1].isupper()), "") for f in (form, *forms)]
    head, base, *others = heads
    if not head or not base:
        return ()
    known = lexicon()
    if known is not None and known.cells(base) <= PLURAL_CELLS:  # Diuretika
        numbers = {"plural" if cell[1] == "p" else "singular" for cell in known.cells(head)}
        return tuple(sorted(numbers))
    shorter = [other for other in others if other and base != other and base.startswith(other)]
    base = min(shorter, key=len, default=base)
    singular = (base, base + "s", base + "es")
    is_both = base.endswith(SAME_PLURAL) and not any(UMLAUT.search(o[1:]) for o in others)
    if head == base and is_both:
        return ("singular", "plural")
    if head in singular:
        has_other = any(other not in ("", *singular) for other in others)
        is_plural = head == base + "s" and not has_other  # Trials
        return ("singular", "plural") if is_plural else ("singular",)
    is_weak = head in (base + "n", base + "en") and not FEMININE.search(base)
    return ("plural", "singular") if is_weak else ("plural",)
