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


def has_own_case(word: str) -> bool:
    """Return whether a word keeps its case wherever it stands."""
    letters = [character for character in word if character.isalpha()]
    if any(character.isdigit() for character in word):
        return any(character.isupper() for character in letters)
    return len(letters) > 1 and any(character.isupper() for character in letters[1:])


def is_word(unit: str) -> bool:
    """Return whether a unit of `words_of` is a word and not punctuation."""
    return any(character.isalnum() for character in unit)


# ---- Lemmas
#
# They come from `simplemma` (offline, 54 languages).


Lemmatizer = Callable[[str], str]
Key = tuple[str, ...]  # words in the form that is compared
LEMMA_CACHE_SIZE = 1 << 17  # words


def lemmatizer(language: str, flag: str) -> Lemmatizer:
    """Return a function from a word to its lemma.

    language: ISO 639 code; a region after it is dropped (`de`, `de-AT`). flag: for messages.
    Errors: UsageError if simplemma does not support the language.
    """
    from simplemma.strategies import DefaultStrategy, ToLowercaseFallbackStrategy

    code = simplemma_code(language)
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


def simplemma_code(language: str) -> str:
    """Return the code of a language without its region, as simplemma has it."""
    return language.lower().replace("_", "-").split("-")[0]


def has_lemmas(language: str | None) -> bool:
    """Return whether simplemma has lemmas for a language."""
    from simplemma.strategies.dictionaries.dictionary_factory import SUPPORTED_LANGUAGES

    return simplemma_code(language or "") in SUPPORTED_LANGUAGES


MIN_INFLECTED = 4  # letters of a word whose other forms are found
NO_S = re.compile(r"(?:s|men|children|people|feet|teeth|mice|geese)(?<!ss)$")  # English plurals
ADJECTIVE = "-"  # mark of a stem: "bestanden" is no form of "Bestand"
GERMAN_ADJECTIVE = re.compile(r"(?<!^ein)(?<!^[kmds]ein)e[mnrs]?$")


class Inflections:
    """What the inflected forms of a word share (`--glossary-match lemma`).

    A lemma alone joins words of several classes ("posting", "posted" and "post"; "verwendet" and
    "verwenden"), and a term is one of them. So in English a plural shares its singular, and a word
    with a capital in running text, which may be a name (Windows), nothing; in German the forms of
    a noun share its lemma, and those of an adjective or a participle its stem. In other languages
    all forms of a lemma count.
    Errors: UsageError if simplemma does not support the language.
    """

    def __init__(self, language: str, flag: str):
        self.lemma = lemmatizer(language, flag)
        code = simplemma_code(language)
        self.is_english = code == "en"
        self.of_word = {"en": self.english, "de": self.german}.get(code, self.lemma)

    def of_term(self, words: Sequence[str]) -> Key:
        """Return what the forms of a term share."""
        return self.of_words([word.lower() for word in words] if self.is_english else words)

    def of_text(self, words: Sequence[str]) -> Key:
        """Return the words of a text in the form of `of_term`."""
        if not self.is_english:
            return self.of_words(words)
        is_title = not any(len(word) >= MIN_INFLECTED and word.islower() for word in words)
        first = next((i for i, word in enumerate(words) if is_word(word)), -1)
        return self.of_words(
            [w.lower() if is_title or i == first else w for i, w in enumerate(words)]
        )

    def of_words(self, words: Sequence[str]) -> Key:
        """Return what the forms of each word share."""
        return tuple(
            [
                (self.of_word(word) if len(word) >= MIN_INFLECTED else word).casefold()
                for word in words
            ]
        )

    def english(self, word: str) -> str:
        """Return the singular of an English plural; any other word itself."""
        return self.lemma(word) if NO_S.search(word) and word.islower() else word

    def german(self, word: str) -> str:
        """Return the lemma of a German noun, the stem of an adjective, marked; any other word
        itself."""
        lemma = self.lemma(word)
        if word[0].isupper() and lemma[:1].isupper():
            return lemma
        word = word.lower()
        stem, own = GERMAN_ADJECTIVE.sub("", word), self.lemma(word)
        return stem + ADJECTIVE if own in (stem, self.lemma(stem)) else word


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
# - lemma: as surface; terms of four letters or more also in another case, except for words with a
#   case of their own (FastTab), and in other forms (`Inflections`): *Gummistiefel* is in "mit
#   Gummistiefeln". Of several terms the one with the words as written wins, then one with the same
#   letters, then the first one in the file.
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
        # by the words as written, by their letters, by what their forms share
        self.indexes = [TermIndex(), TermIndex(), TermIndex()]

    def keys(self, words: Sequence[str]) -> list[tuple[int, Key]]:
        """Return the forms of a text's words that are compared, each with the number of its index,
        the best one first."""
        written = as_written(words)
        folded = tuple([word.casefold() for word in written])
        if self.inflections is None:
            return [(0, written if self.match == "surface" else folded)]
        shared = self.inflections.of_text(written)
        found = [(0, written), (1, folded), (2, shared)]
        if any(map(has_own_case, written)):
            found += [(1, with_own_case(written, folded)), (2, with_own_case(written, shared))]
        return sorted(found, key=lambda each: each[0])

    def add(self, words: Sequence[str], term: int) -> int:
        """Add a term with its number. Return the number of the term with these words, which may be
        an earlier one."""
        written = as_written(words)
        folded = tuple([word.casefold() for word in written])
        known = self.indexes[0].add(folded if self.match == "casefold" else written, term)
        is_short = len(words) == 1 and len(words[0]) < MIN_INFLECTED  # a label such as "Use", "No"
        if known == term and self.inflections is not None and not is_short:
            self.indexes[1].add(with_own_case(written, folded), term)
            shared = self.inflections.of_term(written)
            self.indexes[2].add(with_own_case(written, shared), term)
        return known

    def matches(self, words: Sequence[str]) -> list[Match]:
        """Return the terms in a sentence of these words, from left to right."""
        found = []  # (-length, place, how well the words match, term)
        for rank, (number, key) in enumerate(self.keys(words)):
            index = self.indexes[number]
            for place, word in enumerate(key):
                if word in index.lengths:
                    found += [
                        (-length, place, rank, term)
                        for length, term in index.terms_at(key, place, word)
                    ]
        if self.match != "casefold":
            initial = next((i for i, word in enumerate(words) if word[0].isalpha()), -1)
            if initial >= 0 and (word := words[initial])[0].isupper():
                found += [
                    (-length, initial, 1, term)
                    for length, term in self.indexes[0].terms_at(
                        as_written(words), initial, word[0].lower() + word[1:]
                    )
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


def as_written(words: Sequence[str]) -> Key:
    """Return words with plain apostrophes and hyphens."""
    return tuple([TYPOGRAPHIC_FORMS.get(word, word) for word in words])


def with_own_case(written: Key, words: Key) -> Key:
    """Return words in another form, but those with a case of their own as written."""
    return tuple(
        [own if has_own_case(own) else word for own, word in zip(written, words, strict=True)]
    )


def continues_name(words: Sequence[str], end: int) -> bool:
    """Return whether the word before this place is part of a name with signs, such as C++."""
    if not words[end - 1][-1:].isalnum():
        return False
    return any(tuple(words[end : end + len(signs)]) == signs for signs in NAMED)
