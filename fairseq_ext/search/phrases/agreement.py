"""The words before a noun that agree with it: determiners, contractions and adjectives.

A term in the place of a noun may have another gender, number or case than it: "mit der Vereinigung"
becomes "mit dem Verband". Which words go together is decided by a model; here are those that may
stand there: the determiners of the draft's own family (der, die, das, ...; ein, eine, ...; zum,
zur, zu den), each with the endings that an adjective behind it may have (strong and weak
declension). Known for German.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import regex

from fairseq_ext.search.phrases.forms import ADJECTIVE_ENDINGS, FEMININE, adjective_stem
from fairseq_ext.search.phrases.function_words import function_words
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
SAME_PLURAL = ("el", "er", "en", "chen", "lein")  # nouns without an ending in the plural
UMLAUT = regex.compile("[äöü]")
DATIVE = regex.compile(r"(?i)(?<!\p{L})(?:mit|von|zu|bei|aus|nach|seit) (?:\p{Ll}+en )*$")
LAST_WORDS = regex.compile(r"(?:[\p{L}\p{M}-]+ )*$")
DEFINITE = ("der", "die", "das", "den", "dem", "des")
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
NOT_FEMININE = frozenset(
    [*"das dem den des am ans beim im ins vom zum".split(), *POSSESSIVES]
    + [stem + ending for stem in POSSESSIVES for ending in ("en", "em", "es")]
)
STRONG = ("dies", "jed", "jen", "welch", "solch", "manch", "all", "beid")
# begin a sentence as adjectives do, which take the ending of the next one
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
    for stem in STRONG:
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
    if word in ("der", "die") or (word.endswith(("e", "er", "es")) and word.startswith(STRONG)):
        return ("e", "en")
    if word.endswith("e"):
        return ("e", "en")
    return ("en",)


def looks_like_adjective(word: str, functions: Collection[str]) -> bool:
    """Return whether a German word looks like an inflected adjective. functions: words that it is
    not one of."""
    stem = adjective_stem(word)
    is_small = word.islower() and word not in functions
    return stem != word and (is_small or stem.lower() in PARALLEL)


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


def endings_before(
    text: str, start: int, language: str, taken: Collection[Span] = ()
) -> tuple[str, ...]:
    """Return the endings that an adjective at a place may have by the words before it."""
    return beginnings(text, start, language, taken)[0].endings


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


def is_feminine_with_other_article(form: str, before: str) -> bool:
    """Return whether a German noun that is feminine by its ending, in the singular, stands behind a
    determiner that no feminine noun has: "einen Differenz". before: the text before it."""
    if not FEMININE.search(form):
        return False
    found = LAST_WORDS.search(before)
    words = found.group().lower().split() if found else []
    while words and looks_like_adjective(words[-1], function_words("de")):
        words.pop()
    return bool(words) and words[-1] in NOT_FEMININE


def is_nominal(forms: Sequence[str]) -> bool:
    """Return whether a German term with these forms is a noun: none begins with a small letter."""
    return all(form[:1].isupper() for form in forms)


def numbers_of(form: str, forms: Sequence[str]) -> tuple[str, ...]:
    """Return the numbers, singular or plural, that a form of a German noun may have; none for other
    words. forms: all forms, the dictionary's first."""
    heads = [next((w for w in reversed(f.split()) if w[:1].isupper()), "") for f in (form, *forms)]
    head, base, *others = heads
    if not head or not base:
        return ()
    shorter = [other for other in others if other and base != other and base.startswith(other)]
    base = min(shorter, key=len, default=base)
    singular = (base, base + "s", base + "es")
    is_both = base.endswith(SAME_PLURAL) and not any(UMLAUT.search(o[1:]) for o in others)
    if head == base and is_both:
        return ("singular", "plural")
    if head in singular:
        return ("singular",)
    is_weak = head in (base + "n", base + "en") and not FEMININE.search(base)
    return ("plural", "singular") if is_weak else ("plural",)


def dative_plurals(forms: Sequence[str], before: str) -> tuple[str, ...]:
    """Return those forms of a German noun in the plural that may follow a preposition with the
    dative, perhaps with adjectives; none if no such preposition is before them."""
    found = DATIVE.search(before)
    if found is None:
        return ()
    return tuple(f for f in forms if f.endswith(("n", "s")) and "plural" in numbers_of(f, forms))
