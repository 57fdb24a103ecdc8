"""Words of a text in any script, and the glossary terms in a text."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import regex

from fairseq_ext.core.language_codes import two_letters
from fairseq_ext.core.lemmas import lemmatizer

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


def has_own_case(word: str) -> bool:
    """Return whether a word keeps its case wherever it stands."""
    letters = [character for character in word if character.isalpha()]
    if any(character.isdigit() for character in word):
        return any(character.isupper() for character in letters)
    return len(letters) > 1 and any(character.isupper() for character in letters[1:])


def is_word(unit: str) -> bool:
    """Return whether a unit of `words_of` is a word and not punctuation."""
    return any(character.isalnum() for character in unit)


# ---- Inflected forms


Key = tuple[str, ...]  # words in the form that is compared
LISTED = 0.2  # share of terms with another form listed: the glossary names its forms itself
MIN_INFLECTED = 4  # letters of a word whose other forms are found
NO_S = re.compile(r"(?:s|men|children|people|feet|teeth|mice|geese)(?<!ss)$")  # English plurals
ADJECTIVE = "-"  # mark of a stem: "bestanden" is no form of "Bestand"
GERMAN_ADJECTIVE = re.compile(r"(?<!^ein)(?<!^[kmds]ein)e[mnrs]?$")


class Inflections:
    """What the inflected forms of a word share (`--glossary-match lemma`).

    A lemma alone joins words of several classes ("posting", "posted" and "post"; "verwendet" and
    "verwenden"), and a term is one of them. So in English a plural shares its singular; in German
    the forms of a noun share its lemma, if the noun is its own ("Daten" is no form of "Datum"), and
    those of an adjective or a participle its stem. In other languages all forms of a lemma count.
    Capitals at the start of a word stay.
    Errors: UsageError if simplemma does not support the language.
    """

    def __init__(self, language: str, flag: str):
        self.lemma = lemmatizer(language, flag)
        own = {"en": self.english, "de": self.german}
        self.of_word = own.get(two_letters(language), self.lemma)

    def __call__(self, words: Sequence[str]) -> Key:
        """Return what the forms of each word share."""
        return tuple([self.shared(word) for word in words])

    def shared(self, word: str) -> str:
        """Return what the forms of a word share."""
        if len(word) < MIN_INFLECTED or has_own_case(word):
            return word
        form = self.of_word(word).replace("ß", "ss")
        return (form[0].upper() if word[0].isupper() else form[0].lower()) + form[1:]

    def is_lemma(self, words: Sequence[str]) -> bool:
        """Return whether a term is no inflected form of another noun."""
        nouns = [word for word in words if word[0].isupper()]
        return all(self.lemma(word).casefold() == word.casefold() for word in nouns)

    def english(self, word: str) -> str:
        """Return the singular of an English plural in small letters; any other word itself, as
        one with a capital may be a name (Windows)."""
        return self.lemma(word) if NO_S.search(word) and word.islower() else word

    def german(self, word: str) -> str:
        """Return the lemma of a German noun, the stem of an adjective, marked; any other word
        itself."""
        lemma = self.lemma(word)
        if word[0].isupper() and lemma[:1].isupper():
            return lemma
        low = word.lower()
        stem, own = GERMAN_ADJECTIVE.sub("", low), self.lemma(low)
        return stem + ADJECTIVE if own in (stem, self.lemma(stem)) else word


# ---- The terms of a glossary in a sentence
#
# - Terms are found at word boundaries in any script (`words_of`): *Ader* is in "Die Ader." and in
#   "Ader-Test", not in "Adern" or "Schlagader". The amount of space between words does not matter.
# - surface: case-sensitive. Only the first word of a sentence is also looked up with a small
#   initial, if no term of that length matches there as written: "Port 80 ..." has the term *port*,
#   but "about us" never has *US*.
# - casefold: case-insensitive.
# - lemma: as surface, and words of four letters or more in other forms (`Inflections`):
#   *Gummistiefel* is in "mit Gummistiefeln". Of several terms the one with the words as written
#   wins, then the first one in the file.
# - The longest term (in words) wins, the leftmost among terms of equal length; shorter terms do not
#   match words that it covers.


MATCHES = ("surface", "casefold", "lemma")
TYPOGRAPHIC_FORMS = {"\u2019": "'", "\u02bc": "'", "\u2010": "-", "\u2011": "-"}
# signs that are part of a name: *C* is neither in C++ nor in C#
NAMED = (("+", "+"), ("#",))


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
    """Finds the terms of a glossary. inflections: of the source language, for `lemma` only."""

    def __init__(self, match: str = "surface", inflections: Inflections | None = None):
        self.match, self.inflections = match, inflections
        self.words, self.forms = TermIndex(), TermIndex()

    def key(self, words: Sequence[str]) -> Key:
        """Return the form of words that is compared; an apostrophe and a hyphen equal their
        typographic forms."""
        words = [TYPOGRAPHIC_FORMS.get(word, word) for word in words]
        return tuple([word.casefold() for word in words] if self.match == "casefold" else words)

    def add(self, words: Sequence[str], term: int) -> int:
        """Add a term with its number. Return the number of the term with these words, which may be
        an earlier one."""
        key = self.key(words)
        known = self.words.add(key, term)
        if known == term and self.inflections is not None and self.inflections.is_lemma(key):
            self.forms.add(self.inflections(key), term)
        return known

    def only_as_written_if_listed(self) -> None:
        """Find terms as they are written only, if at least one in five is listed in another form
        too (*Mann* and *Männer*): such a glossary names the forms that it is about."""
        if self.inflections is not None:
            forms = Counter(self.inflections(key) for key in self.words.terms)
            listed = sum(count for count in forms.values() if count > 1)
            if listed >= LISTED * len(self.words.terms):
                self.inflections = None

    def matches(self, words: Sequence[str]) -> list[Match]:
        """Return the terms in a sentence of these words, from left to right."""
        found = []  # (-length, place, how well the words match, term)
        keys = [(self.words, self.key(words))]
        if self.inflections is not None:
            keys.append((self.forms, self.inflections(keys[0][1])))
        for rank, (index, key) in enumerate(keys):
            for place, word in enumerate(key):
                if word in index.lengths:
                    found += [
                        (-length, place, 2 * rank, term)
                        for length, term in index.terms_at(key, place, word)
                    ]
        initial = next((i for i, word in enumerate(words) if word[0].isalpha()), -1)
        if self.match != "casefold" and initial >= 0 and words[initial][0].isupper():
            first = keys[0][1][initial]
            low = first[0].lower() + first[1:]
            for rank, (index, key) in enumerate(keys):
                word = self.inflections.shared(low) if self.inflections and rank else low
                found += [
                    (-length, initial, 2 * rank + 1, term)
                    for length, term in index.terms_at(key, initial, word)
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


def matcher(match: str, language: str | None) -> Matcher:
    """Return what finds terms in sources of a language by --glossary-match (raises UsageError for
    `lemma` and a language without lemmas)."""
    inflections = (
        Inflections(language or "", "--glossary-match lemma") if match == "lemma" else None
    )
    return Matcher(match, inflections)


def continues_name(words: Sequence[str], end: int) -> bool:
    """Return whether the word before this place is part of a name with signs, such as C++."""
    if not words[end - 1][-1:].isalnum():
        return False
    return any(tuple(words[end : end + len(signs)]) == signs for signs in NAMED)
