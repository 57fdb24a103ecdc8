"""What the tokens of a vocabulary read as, and which of them a text may be written in.

A text has one usual segmentation and many others. An automaton over tokens that recognises them all (automaton.py) needs, for each place
in the text, the tokens that lead on from there: those whose text is a prefix of what follows, and those that begin with all of it.
After T. Koo, F. Liu and L. He, Automata-based constraints for language model decoding, COLM 2024, https://arxiv.org/abs/2407.08103,
Section 3, where every token is an arc over its characters.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache, cached_property

import regex

START, LED, SPACE, OUT, IN = range(5)
ROOTS = 5
UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"  # scripts without spaces between words
LETTER = regex.compile(rf"(?V1)[[\w\p{{M}}]--[{UNSPACED}]]")
PRIVATE = 0xF0000  # from here on, one character for each token that is only part of a character
SPACES = regex.compile(r"\s+")
LAST = "\U0010ffff"


@cache
def is_letter(character: str) -> bool:
    """Whether a character is part of a word: a letter, mark, digit or underscore of a script that parts its words by spaces."""
    return bool(LETTER.match(character)) or ord(character) >= PRIVATE


@cache
def folded_character(character: str) -> str:
    """One character without its case. Those that become several (ß and ss) stay as they are, so that places in texts do not move."""
    return next((form for form in (character.casefold(), character.lower()) if len(form) == 1), character)


def folded(text: str) -> str:
    """A text of the same length without case."""
    return "".join(map(folded_character, text))


def capitalised(text: str) -> str:
    """A text with a capital in front, where its first character has one of one character."""
    initial = text[:1].upper()
    return (initial if len(initial) == 1 else text[:1]) + text[1:]


def normal(text: str) -> str:
    """A text with one space for each stretch of white space, and none around it."""
    return " ".join(text.split())


class Index:
    """The tokens of a vocabulary by their texts."""

    def __init__(self, texts: Sequence[str]):
        self.texts = texts
        self.longest = max(map(len, texts), default=0)
        self.whole: dict[str, list[int]] = {}  # by text
        self.starts: dict[str, list[int]] = {}  # by what stands behind each place of a token where a word may start
        whole, starts = defaultdict(list), defaultdict(list)
        for token, text in enumerate(texts):
            if text:
                whole[text].append(token)
                for place in word_starts(text):
                    starts[text[place:]].append(token)
        self.whole, self.starts = dict(whole), dict(starts)

    @cached_property
    def orders(self) -> tuple[list[str], list[str], list[str], list[str]]:
        """The keys of `whole` and `starts` in order: all, and those with the end of a word inside them (before a last space does not
        count)."""
        broken = [[key for key in keys if len(word_ends(key.rstrip(" "))) > 0] for keys in (self.whole, self.starts)]
        whole, starts, broken_whole, broken_starts = (sorted(keys) for keys in (self.whole, self.starts, *broken))
        return whole, starts, broken_whole, broken_starts

    def continuing(self, rest: str, at_starts: bool, whole: bool) -> set[int]:
        """Tokens whose text (at_starts: from one of its word starts on) is a prefix of `rest`, or has it as a prefix.

        whole: of the latter, those alone that end a word there, where rest ends in a letter.
        """
        keys = self.starts if at_starts else self.whole
        found: set[int] = set()
        for length in range(1, min(len(rest), self.longest) + 1):
            if (tokens := keys.get(rest[:length])) is not None:
                found.update(tokens)
        found.update(keys.get(rest + " ", ()))
        order = self.orders[at_starts + 2 * (whole and is_letter(rest[-1]))]
        for key in order[bisect_left(order, rest) : bisect_left(order, rest + LAST)]:
            found.update(keys[key])
        return found


class Pieces:
    """The texts of a vocabulary's tokens, each with the spaces that it brings; "" for a symbol that no reader sees."""

    def __init__(self, texts: Iterable[str]):
        self.texts = [SPACES.sub(" ", text) for text in texts]

    @cached_property
    def as_written(self) -> Index:
        """The tokens by their texts."""
        return Index(self.texts)

    @cached_property
    def without_case(self) -> Index:
        """The same where case does not count."""
        return Index([folded(text) for text in self.texts])

    def begun(self, tokens: Iterable[int]) -> str:
        """The plain text of a row of tokens that others may follow."""
        return SPACES.sub(" ", "".join([self.texts[token] for token in tokens])).lstrip(" ")

    def text_of(self, tokens: Iterable[int]) -> str:
        """The plain text of a row of tokens."""
        return self.begun(tokens).rstrip(" ")


def word_starts(text: str) -> list[int]:
    """The places of a token's text at which a phrase may start, its own first character included."""
    return [i for i, c in enumerate(text) if c != " " and not (i and is_letter(text[i - 1]) and is_letter(c))]


def word_ends(text: str) -> list[int]:
    """The places inside a text that have a letter before and none behind them."""
    return [i for i in range(1, len(text)) if is_letter(text[i - 1]) and not is_letter(text[i])]
