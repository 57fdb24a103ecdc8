"""Words of a text in any script, their lemmas, and the glossary terms in a text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import regex

from fairseq_ext.core.errors import UsageError

LANGUAGE = re.compile(r">>.*?<<", re.DOTALL)
LETTER_IS_WORD = r"\p{Han}\p{Hiragana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
UNITS = regex.compile(rf"(?V1)[{LETTER_IS_WORD}]\p{{M}}*|[[\w\p{{M}}]--[{LETTER_IS_WORD}]]+|\S")


def words_of(text: str, segmented: bool = False) -> list[str]:
    """Return a text, in NFKC, as words and other single characters; segmented: split at spaces.

    A word is a run of letters, marks, digits and underscores. Han, Hiragana, Thai, Lao, Khmer and
    Myanmar have no spaces between words; there each letter is a word.
    """
    return list(units_of(text, segmented))


@lru_cache(maxsize=1024)  # a sentence is read several times, and the terms in many sentences
def units_of(text: str, segmented: bool) -> tuple[str, ...]:
    """Return `words_of` as a tuple, which is kept for the next call."""
    text = unicodedata.normalize("NFKC", text)
    return tuple(text.split() if segmented else UNITS.findall(text))


def starts_of(text: str, words: Sequence[str]) -> list[int]:
    """Return the start of each of the words in a text in NFKC, in characters."""
    found: list[int] = []
    at = 0
    for word in words:
        found.append(text.index(word, at))
        at = found[-1] + len(word)
    return found


def is_word(unit: str) -> bool:
    """Return whether a unit of `words_of` is a word and not punctuation."""
    return any(character.isalnum() for character in unit)


# ---- Lemmas
#
# They come from `simplemma` (offline, 54 languages; the extra `terms` installs it).


Lemmatizer = Callable[[str], str]
LEMMA_CACHE_SIZE = 1 << 17  # words


def lemmatizer(language: str, flag: str) -> Lemmatizer:
    """Return a function from a word to its lemma.

    language: ISO 639 code; a region after it is dropped (`de`, `de-AT`). flag: for messages.
    Errors: UsageError if simplemma is not installed or does not support the language.
    """
    try:
        from simplemma.strategies import DefaultStrategy, ToLowercaseFallbackStrategy
    except ImportError:
        raise UsageError(
            f"{flag} needs the package simplemma for lemmas: pip install simplemma"
        ) from None
    code = language.lower().replace("_", "-").split("-")[0]
    strategy, fallback = DefaultStrategy(), ToLowercaseFallbackStrategy()
    try:
        strategy.get_lemma("a", code)  # loads the dictionary before the first sentence
    except ValueError:
        raise UsageError(
            f"{flag}: simplemma has no lemmas for the language '{language}': use another language, "
            "or leave lemmas out"
        ) from None

    @lru_cache(maxsize=LEMMA_CACHE_SIZE)
    def lemma(word: str) -> str:
        # the same as simplemma.lemmatize, without its cache
        return strategy.get_lemma(word, code) or fallback.get_lemma(word, code)

    return lemma


def version() -> str:
    """Return the tool and its version, for signatures."""
    from importlib.metadata import version as installed

    return f"simplemma-{installed('simplemma')}"


# ---- The terms of a glossary in a sentence
#
# - Terms are found at word boundaries in any script (`words_of`): *Ader* is in "Die Ader." and in
#   "Ader-Test", not in "Adern" or "Schlagader". The amount of space between words does not matter.
# - surface: case-sensitive. Only the first word of a sentence is also looked up with a small
#   initial, if no term of that length matches there as written: "Port 80 ..." has the term *port*,
#   but "about us" never has *US*.
# - casefold: case-insensitive.
# - lemma: case-insensitive, and the lemmas of a term's words match too: *Gummistiefel* is in "mit
#   Gummistiefeln". If several terms have these lemmas, a term with the same words wins, else the
#   first one in the file.
# - The longest term (in words) wins, the leftmost among terms of equal length; shorter terms do not
#   match words that it covers.


MATCHES = ("surface", "casefold", "lemma")
TYPOGRAPHIC_FORMS = {"\u2019": "'", "\u02bc": "'", "\u2010": "-", "\u2011": "-"}
# signs that are part of a name: *C* is neither in C++ nor in C#
NAMED = (("+", "+"), ("#",))
Key = tuple[str, ...]


@dataclass(frozen=True, order=True)
class Match:
    """An occurrence of a term: the words [start, end) of the sentence, and the term's number."""

    start: int
    end: int
    term: int


class TermIndex:
    """Terms by their words; the time for a sentence does not depend on the number of terms."""

    def __init__(self) -> None:
        self.terms: dict[Key, int] = {}
        # first word -> lengths of the terms that start with it
        self.lengths: dict[str, list[int]] = {}

    def add(self, words: Key, term: int) -> int:
        """Add a term. Return the term with these words: this one, or an earlier one."""
        known = self.terms.setdefault(words, term)
        if known == term:
            lengths = self.lengths.setdefault(words[0], [])
            if len(words) not in lengths:
                lengths.append(len(words))
        return known

    def terms_at(self, words: Sequence[str], place: int, first: str) -> list[tuple[int, int]]:
        """Return (length, term) of all terms that start at a place, with `first` instead of the
        word there."""
        found = []
        for length in self.lengths.get(first, ()):
            term = self.terms.get((first, *words[place + 1 : place + length]))
            if term is not None and place + length <= len(words):
                found.append((length, term))
        return found


class Matcher:
    """Finds the terms of a glossary. lemma: the source language's lemmatizer, for `lemma` only."""

    def __init__(self, match: str = "surface", lemma: Lemmatizer | None = None):
        self.match, self.lemma = match, lemma
        self.words, self.lemmas = TermIndex(), TermIndex()

    def key(self, words: Sequence[str]) -> Key:
        """Return the form of words that is compared; an apostrophe and a hyphen equal their
        typographic forms."""
        words = [TYPOGRAPHIC_FORMS.get(word, word) for word in words]
        return (
            tuple(words) if self.match == "surface" else tuple([word.casefold() for word in words])
        )

    def add(self, words: Sequence[str], term: int) -> int:
        """Add a term with its number. Return the number of the term with these words, which may be
        an earlier one."""
        known = self.words.add(self.key(words), term)
        if known == term and self.lemma is not None:
            self.lemmas.add(self.lemmas_of(words), term)
        return known

    def lemmas_of(self, words: Sequence[str]) -> Key:
        """Return the words' lemmas in the form that is compared."""
        assert self.lemma is not None
        return tuple([self.lemma(word).casefold() for word in words])

    def matches(self, words: Sequence[str]) -> list[Match]:
        """Return the terms in a sentence of these words, from left to right."""
        key = self.key(words)
        found = []  # (-length, place, by lemma, term)
        initial = (
            next((i for i, word in enumerate(words) if word[0].isalpha()), -1)
            if self.match == "surface"
            else -1
        )
        lengths = self.words.lengths
        for place, word in enumerate(key):
            if word in lengths:
                found += [
                    (-length, place, 0, term)
                    for length, term in self.words.terms_at(key, place, word)
                ]
            if place == initial and word[0].isupper():
                found += [
                    (-length, place, 1, term)
                    for length, term in self.words.terms_at(key, place, word[0].lower() + word[1:])
                ]
        if self.lemma is not None:
            lemmas, index = self.lemmas_of(words), self.lemmas
            for place, word in enumerate(lemmas):
                if word in index.lengths:
                    found += [
                        (-length, place, 1, term)
                        for length, term in index.terms_at(lemmas, place, word)
                    ]
        found = [each for each in found if not continues_name(words, each[1] - each[0])]
        if len(found) == 1:
            return [Match(found[0][1], found[0][1] - found[0][0], found[0][3])]
        taken: set[int] = set()
        kept = []
        for length, place, _, term in sorted(found):
            stretch = range(place, place - length)
            if taken.isdisjoint(stretch):
                taken.update(stretch)
                kept.append(Match(place, place - length, term))
        return sorted(kept)


def continues_name(words: Sequence[str], end: int) -> bool:
    """Return whether the word before this place is part of a name with signs, such as C++."""
    if not words[end - 1][-1:].isalnum():
        return False
    return any(tuple(words[end : end + len(signs)]) == signs for signs in NAMED)
