"""What the tokens of a vocabulary read as, and where words begin between them.

A text has one usual segmentation and many others. An automaton over tokens that recognises them all
(automaton.py) needs, for each place in the text, the tokens that lead on from there: those whose
text is a prefix of what follows, and those that begin with all of it.
After T. Koo, F. Liu and L. He, Automata-based constraints for language model decoding, COLM 2024,
https://arxiv.org/abs/2407.08103, Section 3, where every token is an arc over its characters.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import regex
import torch
from torch import Tensor

from fairseq_ext.search.phrases.sentence import Dictionary

START, LED, SPACE, OUT, IN = range(5)
ROOTS = 5
# scripts without spaces between words; scx: with the signs that several of them share (ー)
UNSPACED = r"\p{scx=Han}\p{scx=Hira}\p{scx=Kana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
LETTER = regex.compile(rf"(?V1)[[\w\p{{M}}]--[{UNSPACED}]]")
PRIVATE = 0xF0000  # from here on, one character for each token that is only part of a character
SPACES = regex.compile(r"\s+")
LAST = "\U0010ffff"


@cache
def is_letter(character: str) -> bool:
    """Whether a character is part of a word: a letter, mark, digit or underscore of a script that
    parts its words by spaces."""
    return bool(LETTER.match(character)) or ord(character) >= PRIVATE


@cache
def folded_character(character: str) -> str:
    """One character without its case.

    Those that become several (ß and ss) stay as they are, so that places in texts do not move.
    """
    return next(
        (form for form in (character.casefold(), character.lower()) if len(form) == 1), character
    )


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
        # by what stands behind each place of a token where a word may start
        self.starts: dict[str, list[int]] = {}
        whole, starts = defaultdict(list), defaultdict(list)
        for token, text in enumerate(texts):
            if text:
                whole[text].append(token)
                for place in word_starts(text):
                    starts[text[place:]].append(token)
        self.whole, self.starts = dict(whole), dict(starts)

    @cached_property
    def orders(self) -> tuple[list[str], list[str], list[str], list[str]]:
        """The keys of `whole` and `starts` in order: all, and those with the end of a word inside
        them (before a last space does not count)."""
        broken = [
            [key for key in keys if len(word_ends(key.rstrip(" "))) > 0]
            for keys in (self.whole, self.starts)
        ]
        whole, starts, broken_whole, broken_starts = (
            sorted(keys) for keys in (self.whole, self.starts, *broken)
        )
        return whole, starts, broken_whole, broken_starts

    def continuing(self, rest: str, at_starts: bool, whole: bool) -> set[int]:
        """Tokens whose text (at_starts: from one of its word starts on) is a prefix of `rest`,
        or has it as a prefix.

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
    """The texts of a vocabulary's tokens, each with the spaces that it brings; "" for a
    symbol that no reader sees."""

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
    """The places of a token's text at which a phrase may start, its own first
    character included."""
    return [
        i
        for i, c in enumerate(text)
        if c != " " and not (i and is_letter(text[i - 1]) and is_letter(c))
    ]


def word_ends(text: str) -> list[int]:
    """The places inside a text that have a letter before and none behind them."""
    return [i for i in range(1, len(text)) if is_letter(text[i - 1]) and not is_letter(text[i])]


# ---- Word boundaries between tokens (`--constraint-boundary`)
#
# Which tokens of a target dictionary continue a word, and which may be continued.
#
# Between two neighbouring tokens lies a word boundary unless the first one's text ends in a letter
# or digit, the second one's begins with one, and no space parts them. Scripts that write no spaces
# have a boundary between any two characters. EOS is a boundary to both sides; BOS, and other tokens
# that are not printed, change nothing: what is on their two sides stands side by side.
#
# | segmentation | a space comes |
# | --- | --- |
# | sentencepiece | before a piece that starts with ▁ |
# | subword-nmt, fastBPE | behind a piece that does not end in @@ (--bpe-separator) |
# | GPT-2 bytes | before a piece that starts with one |


logger = logging.getLogger("fairseq_ext")
SEPARATOR = "@@"  # ends a piece of subword-nmt that the next one continues, unless the encoder says
# as Moses's tokenizer writes them
ENTITIES = {
    "&amp;": "&",
    "&#124;": "|",
    "&lt;": "<",
    "&gt;": ">",
    "&apos;": "'",
    "&quot;": '"',
    "&#91;": "[",
    "&#93;": "]",
}
ENTITY = regex.compile("|".join(map(regex.escape, ENTITIES)))
KINDS = {
    "SentencepieceBPE": "sentencepiece",
    "SubwordNMTBPE": "subword-nmt",
    "fastBPE": "subword-nmt",
    "GPT2BPE": "gpt2",
    "HuggingFaceByteLevelBPE": "gpt2",
}
# of the symbols that bear the mark where a dictionary's segmentation is taken for known
SHARE = 0.1


@dataclass(frozen=True)
class Boundaries:
    """What each token of a vocabulary does to its neighbours; V tokens."""

    pieces: Pieces  # the tokens' texts
    whole: bool  # a phrase needs a boundary behind it as well, not only in front
    kind: str  # the segmentation: sentencepiece, subword-nmt, gpt2
    # tokens that no reader sees, and that a translation may hold: what is on their two sides
    # stands side by side
    unseen: tuple[int, ...] = ()

    @cached_property
    def glued(self) -> Tensor:
        """(V,) bool: continues the word before it, if that one is open; so do unseen tokens."""
        found = torch.tensor([is_letter(text[:1] or " ") for text in self.pieces.texts])
        return found.index_fill(0, torch.tensor(self.unseen, dtype=torch.long), True)

    @cached_property
    def open(self) -> Tensor:
        """(V,) bool: may be continued."""
        return torch.tensor([is_letter(text[-1:] or " ") for text in self.pieces.texts])

    @cached_property
    def behind(self) -> Tensor:
        """(V,): what stands behind a token (automaton.py): IN a word, a SPACE, or OUT of words
        otherwise; -1 for an unseen one, behind which nothing has changed."""
        blank = torch.tensor([text[-1:] == " " for text in self.pieces.texts])
        found = torch.where(self.open, IN, torch.where(blank, SPACE, OUT))
        return found.index_fill(0, torch.tensor(self.unseen, dtype=torch.long), -1)


def find_boundaries(
    dictionary: Dictionary, bpe: Any, mode: str | None, left_out: Collection[int] = ()
) -> Boundaries | None:
    """The boundaries of a dictionary's tokens; None where mode is none, or where the
    segmentation is not known (which the log says if a mode was asked for). mode: word, prefix,
    none, or None for word; left_out: tokens that the command does not print."""
    if mode == "none":
        return None
    kind = kind_of(dictionary, bpe)
    if kind is None:
        if mode is not None:
            logger.warning(
                "--constraint-boundary %s: the target's segmentation is not known, so phrases "
                "count inside words too",
                mode,
            )
        else:
            logger.info(
                "constraints: the target's segmentation is not known, so phrases are met "
                "inside words as well"
            )
        return None
    ends = {dictionary.pad(), dictionary.eos()}  # which no translation goes on behind
    unseen = {dictionary.bos(), *left_out} - ends
    texts = (
        "" if i in ends or i in unseen else visible(i, dictionary[i], kind, bpe)
        for i in range(len(dictionary))
    )
    return Boundaries(Pieces(texts), mode != "prefix", kind, tuple(sorted(unseen)))


def kind_of(dictionary: Dictionary, bpe: Any) -> str | None:
    """The segmentation, by the encoder; without one by the marks that the
    dictionary's symbols bear."""
    if bpe is not None:
        return KINDS.get(type(bpe).__name__)
    symbols = dictionary.symbols[dictionary.nspecial :]
    for kind, has_mark in MARKS.items():
        if symbols and sum(map(has_mark, symbols)) >= SHARE * len(symbols):
            return kind
    return None


MARKS: dict[str, Callable[[str], bool]] = {
    "sentencepiece": lambda symbol: symbol.startswith("▁"),
    "subword-nmt": lambda symbol: symbol.endswith(SEPARATOR),
}


def separator_of(bpe: Any) -> str:
    """What ends a piece of subword-nmt that the next one continues (`--bpe-separator`)."""
    return getattr(bpe, "bpe_symbol", SEPARATOR).strip() or SEPARATOR


def visible(token: int, symbol: str, kind: str | None, bpe: Any) -> str:
    """What a reader sees of a symbol, with the spaces that it brings.

    Every definition of "met" reads tokens through this function. kind: as of `kind_of`; bpe: the
    encoder, None where there is none.
    """
    if kind == "sentencepiece":
        return symbol.replace("▁", " ")
    if kind == "gpt2":
        if not symbol.isdigit():  # <unk>, madeupword0000
            return f" {symbol} "
        text = bpe.decode(symbol)
        # part of a character is taken for a letter
        return text if "\ufffd" not in text else chr(PRIVATE + token)
    separator = separator_of(bpe)
    if kind == "subword-nmt" and symbol.endswith(separator):
        return without_entities(symbol.removesuffix(separator))
    return without_entities(symbol) + " "


def without_entities(text: str) -> str:
    """A text with the characters that Moses's tokenizer has written as entities, where all of an
    entity is in it (subword-nmt seldom cuts one)."""
    return ENTITY.sub(lambda found: ENTITIES[found[0]], text) if "&" in text else text


def plain(text: str, kind: str) -> str:
    """Pieces parted by spaces as words, where there is no encoder to ask."""
    if kind == "sentencepiece":
        return text.replace(" ", "").replace("▁", " ").strip()
    return without_entities((text + " ").replace(f"{SEPARATOR} ", "").strip())
