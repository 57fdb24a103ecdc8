"""Words of a text in any script, their lemmas, and the terms of a glossary that a text holds."""

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
    """Text as words and single other characters, in NFKC; segmented: as what spaces part.

    A word is a run of letters, marks, digits and underscores. Han, Hiragana, Thai, Lao, Khmer and
    Myanmar leave no space between words, so there each letter is a word.
    """
    text = unicodedata.normalize("NFKC", text)
    return text.split() if segmented else UNITS.findall(text)


def starts_of(text: str, words: Sequence[str]) -> list[int]:
    """Where each of the words of a text in NFKC starts, in characters."""
    found: list[int] = []
    at = 0
    for word in words:
        found.append(text.index(word, at))
        at = found[-1] + len(word)
    return found


def is_word(unit: str) -> bool:
    """Whether a unit of `words_of` is a word rather than punctuation."""
    return any(character.isalnum() for character in unit)


# ---- Lemmas
#
# By `simplemma` (offline, 54 languages; the extra `terms` installs it).


Lemmatizer = Callable[[str], str]
KEPT = 1 << 17  # words whose lemmas are kept


def lemmatizer(language: str, flag: str) -> Lemmatizer:
    """A function from a word to its lemma.

    language: ISO 639 code, a region behind it is dropped (`de`, `de-AT`); flag: named in messages.
    Errors: UsageError where simplemma is not installed or does not know the language.
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
        strategy.get_lemma("a", code)  # loads the dictionary, so that no sentence waits for it
    except ValueError:
        raise UsageError(
            f"{flag}: simplemma has no lemmas for the language '{language}': use another language, "
            "or leave lemmas out"
        ) from None

    @lru_cache(maxsize=KEPT)
    def lemma(word: str) -> str:
        # what simplemma.lemmatize does, without its own cache
        return strategy.get_lemma(word, code) or fallback.get_lemma(word, code)

    return lemma


def version() -> str:
    """The tool and its version, for signatures."""
    from importlib.metadata import version as installed

    return f"simplemma-{installed('simplemma')}"


# ---- The terms of a glossary that a sentence holds
#
# - Terms are found on word boundaries in any script (`words_of`): *Ader* is in "Die Ader." and in
#   "Ader-Test", not in "Adern" or "Schlagader". How much space lies between words does not matter.
# - surface: case counts. Only the first word of a sentence is looked up with a small initial too,
#   when the line as written has no term there of that length: "Port 80 ..." has the term *port*,
#   but "about us" never has *US*.
# - casefold: case does not count.
# - lemma: case does not count, and a term is also found where its words' lemmas stand:
#   *Gummistiefel* is in "mit Gummistiefeln". Where several terms have these lemmas, the one with
#   the words themselves wins, else the first of the file.
# - The longest term (in words) wins, the leftmost of equally long ones; what it covers is not
#   matched again by shorter ones.


MATCHES = ("surface", "casefold", "lemma")
SAME = {"\u2019": "'", "\u02bc": "'", "\u2010": "-", "\u2011": "-"}
# signs that are a part of a name: C is neither in C++ nor in C#
NAMED = (("+", "+"), ("#",))
Key = tuple[str, ...]


@dataclass(frozen=True, order=True)
class Match:
    """An occurrence of a term: the words [start, end) of the sentence, and the number that
    the term was added under."""

    start: int
    end: int
    term: int


class Index:
    """Terms by their words, so that a sentence costs the same with 50 terms and with 100,000."""

    def __init__(self) -> None:
        self.terms: dict[Key, int] = {}
        # first word -> lengths of the terms that start with it
        self.lengths: dict[str, list[int]] = {}

    def add(self, words: Key, term: int) -> int:
        """The term that has these words: this one, or the one that had them before."""
        known = self.terms.setdefault(words, term)
        if known == term:
            lengths = self.lengths.setdefault(words[0], [])
            if len(words) not in lengths:
                lengths.append(len(words))
        return known

    def at(self, words: Sequence[str], place: int, first: str) -> list[tuple[int, int]]:
        """(length, term) of all terms that start at a place, its word read as `first`."""
        found = []
        for length in self.lengths.get(first, ()):
            term = self.terms.get((first, *words[place + 1 : place + length]))
            if term is not None and place + length <= len(words):
                found.append((length, term))
        return found


class Matcher:
    """The terms of a glossary. lemma: the source language's lemmatizer, for match `lemma` alone."""

    def __init__(self, match: str = "surface", lemma: Lemmatizer | None = None):
        self.match, self.lemma = match, lemma
        self.words, self.lemmas = Index(), Index()

    def key(self, words: Sequence[str]) -> Key:
        """The words as they are compared; an apostrophe and a hyphen are equal to their typographic
        forms."""
        words = [SAME.get(word, word) for word in words]
        return (
            tuple(words) if self.match == "surface" else tuple([word.casefold() for word in words])
        )

    def add(self, words: Sequence[str], term: int) -> int:
        """Add a term under a number; returns the number of the term that has these words,
        which may be an earlier one."""
        known = self.words.add(self.key(words), term)
        if known == term and self.lemma is not None:
            self.lemmas.add(self.lemmas_of(words), term)
        return known

    def lemmas_of(self, words: Sequence[str]) -> Key:
        """The words' lemmas as they are compared."""
        assert self.lemma is not None
        return tuple([self.lemma(word).casefold() for word in words])

    def matches(self, words: Sequence[str]) -> list[Match]:
        """The terms in a sentence of these words, from left to right."""
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
                    (-length, place, 0, term) for length, term in self.words.at(key, place, word)
                ]
            if place == initial and word[0].isupper():
                found += [
                    (-length, place, 1, term)
                    for length, term in self.words.at(key, place, word[0].lower() + word[1:])
                ]
        if self.lemma is not None:
            lemmas, index = self.lemmas_of(words), self.lemmas
            for place, word in enumerate(lemmas):
                if word in index.lengths:
                    found += [
                        (-length, place, 1, term) for length, term in index.at(lemmas, place, word)
                    ]
        found = [each for each in found if not goes_on(words, each[1] - each[0])]
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


def goes_on(words: Sequence[str], end: int) -> bool:
    """Whether the word in front of this place is a part of a name with signs, such as C++."""
    if not words[end - 1][-1:].isalnum():
        return False
    return any(tuple(words[end : end + len(signs)]) == signs for signs in NAMED)
