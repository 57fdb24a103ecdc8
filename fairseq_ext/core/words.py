"""The words of a text, in any script."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

import regex

LANGUAGE = re.compile(r">>.*?<<", re.DOTALL)
LETTER_IS_WORD = r"\p{Han}\p{Hiragana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
UNITS = regex.compile(rf"(?V1)[{LETTER_IS_WORD}]\p{{M}}*|[[\w\p{{M}}]--[{LETTER_IS_WORD}]]+|\S")


def words_of(text: str, segmented: bool = False) -> list[str]:
    """Text as words and single other characters, in NFKC; segmented: as what spaces part.

    A word is a run of letters, marks, digits and underscores. Han, Hiragana, Thai, Lao, Khmer and Myanmar leave no space between
    words, so there each letter is a word.
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
