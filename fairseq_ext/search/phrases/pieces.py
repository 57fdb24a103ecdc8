"""The texts of a vocabulary's tokens, and the word boundaries between tokens.

A text has one usual segmentation and many others. An automaton over tokens that recognises them all
(automaton.py) needs, for each place in the text, the tokens that continue from there: those whose
text is a prefix of the rest of the text, and those that begin with all of the rest.
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
# scripts without spaces between words; scx: with the signs that several of them use (ー)
UNSPACED = r"\p{scx=Han}\p{scx=Hira}\p{scx=Kana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
LETTER = regex.compile(rf"(?V1)[[\w\p{{M}}]--[{UNSPACED}]]")
PRIVATE = 0xF0000  # from here on, a character for each token that is only part of a character
SPACES = regex.compile(r"\s+")
LAST = "\U0010ffff"


@cache
def is_letter(character: str) -> bool:
    """Return whether a character is part of a word: a letter, mark, digit or underscore of a script
    with spaces between words."""
    return bool(LETTER.match(character)) or ord(character) >= PRIVATE


@cache
def folded_character(character: str) -> str:
    """Return one character without its case. Those with several characters (ß and ss) are returned
    unchanged, so that places in texts do not move.
    """
    return next(
        (form for form in (character.casefold(), character.lower()) if len(form) == 1), character
    )


def folded(text: str) -> str:
    """Return a text of the same length without case."""
    if text.isascii():
        return text.lower()
    return "".join(map(folded_character, text))


def normal(text: str) -> str:
    """Return a text with one space for each stretch of white space, and none around it."""
    return " ".join(text.split())


class TokenTextIndex:
    """The tokens of a vocabulary by their texts."""

    def __init__(self, texts: Sequence[str]):
        self.texts = texts
        self.longest = max(map(len, texts), default=0)
        self.by_text: dict[str, list[int]] = {}  # by text
        # by the text after each place of a token where a word may start
        self.by_word_start: dict[str, list[int]] = {}
        whole, starts = defaultdict(list), defaultdict(list)
        for token, text in enumerate(texts):
            if text:
                whole[text].append(token)
                for place in word_starts(text):
                    starts[text[place:]].append(token)
        self.by_text, self.by_word_start = dict(whole), dict(starts)

    @cached_property
    def orders(self) -> tuple[list[str], list[str], list[str], list[str]]:
        """Return the sorted keys of `by_text` and `by_word_start`: all, and those with the end of a
        word inside (before a last space does not count)."""
        broken = [
            [key for key in keys if len(word_ends(key.rstrip(" "))) > 0]
            for keys in (self.by_text, self.by_word_start)
        ]
        whole, starts, broken_whole, broken_starts = (
            sorted(keys) for keys in (self.by_text, self.by_word_start, *broken)
        )
        return whole, starts, broken_whole, broken_starts

    def continuing(self, rest: str, at_starts: bool, whole: bool) -> set[int]:
        """Return the tokens whose text (at_starts: from one of its word starts on) is a prefix of
        `rest`, or has it as a prefix.

        whole: of the latter, only those that end a word there, if rest ends in a letter.
        """
        keys = self.by_word_start if at_starts else self.by_text
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
    """The texts of a vocabulary's tokens, each with its spaces; "" for a symbol that is not
    printed."""

    def __init__(self, texts: Iterable[str]):
        self.texts = [SPACES.sub(" ", text) for text in texts]

    @cached_property
    def exact_index(self) -> TokenTextIndex:
        """The tokens by their texts."""
        return TokenTextIndex(self.texts)

    @cached_property
    def folded_index(self) -> TokenTextIndex:
        """The tokens by their texts without case."""
        return TokenTextIndex([folded(text) for text in self.texts])

    def prefix_text(self, tokens: Iterable[int]) -> str:
        """Return the plain text of a sequence of tokens that others may follow."""
        return SPACES.sub(" ", "".join([self.texts[token] for token in tokens])).lstrip(" ")

    def text_of(self, tokens: Iterable[int]) -> str:
        """Return the plain text of a sequence of tokens."""
        return self.prefix_text(tokens).rstrip(" ")


def word_starts(text: str) -> list[int]:
    """Return the places of a token's text at which a phrase may start, its own start included."""
    return [
        i
        for i, c in enumerate(text)
        if c != " " and not (i and is_letter(text[i - 1]) and is_letter(c))
    ]


def word_ends(text: str) -> list[int]:
    """Return the places in a text after a letter and before something else."""
    return [i for i in range(1, len(text)) if is_letter(text[i - 1]) and not is_letter(text[i])]


# ---- Word boundaries between tokens (`--constraint-boundary`)
#
# Which tokens of a target dictionary continue a word, and which may be continued.
#
# There is a word boundary between two tokens unless the first one's text ends in a letter or digit,
# the second one's begins with one, and no space separates them. Scripts without spaces have a
# boundary between any two characters. EOS has a boundary on both sides; BOS, and other tokens that
# are not printed, are ignored.
#
# | segmentation | a space comes |
# | --- | --- |
# | sentencepiece | before a piece that starts with ▁ |
# | subword-nmt, fastBPE | after a piece that does not end in @@ (--bpe-separator) |
# | GPT-2 bytes | before a piece that starts with one |


logger = logging.getLogger("fairseq_ext")
SEPARATOR = "@@"  # ends a piece of subword-nmt that the next one continues, by default
# as Moses' tokenizer writes them
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
# share of marked symbols from which a dictionary's segmentation counts as known
SHARE = 0.1


@dataclass(frozen=True)
class Boundaries:
    """The effect of each of V tokens on word boundaries."""

    pieces: Pieces  # the tokens' texts
    whole_words: bool  # a phrase needs a boundary after it as well, not only before it
    kind: str  # the segmentation: sentencepiece, subword-nmt, gpt2
    # tokens that are not printed and that a translation may have: the tokens on their two sides are
    # neighbours
    unseen: tuple[int, ...] = ()

    @cached_property
    def continues_word(self) -> Tensor:
        """(V,) bool: tokens that continue the word before them, if it may be continued; also unseen
        tokens."""
        found = torch.tensor([is_letter(text[:1] or " ") for text in self.pieces.texts])
        return found.index_fill(0, torch.tensor(self.unseen, dtype=torch.long), True)

    @cached_property
    def context_after(self) -> Tensor:
        """(V,) the context after a token (automaton.py): IN a word, a SPACE, or OUT of words
        otherwise; -1 for an unseen one, which does not change the context."""
        last = [text[-1:] for text in self.pieces.texts]
        found = [IN if is_letter(sign or " ") else SPACE if sign == " " else OUT for sign in last]
        return torch.tensor(found).index_fill(0, torch.tensor(self.unseen, dtype=torch.long), -1)


def word_tensors(boundaries: Boundaries | None, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return `context_after` (V,) and `continues_word` (V,) of boundaries; without them OUT (1,)
    and False (1,), for all tokens."""
    if boundaries is None:
        return torch.tensor([OUT], device=device), torch.tensor([False], device=device)
    return boundaries.context_after.to(device), boundaries.continues_word.to(device)


def find_boundaries(
    dictionary: Dictionary, bpe: object, mode: str | None, left_out: Collection[int] = ()
) -> Boundaries | None:
    """Return the boundaries of a dictionary's tokens; None if mode is none, or if the segmentation
    is not known (which the log says if a mode was given). mode: word, prefix, none, or None for
    word; left_out: tokens that the command does not print."""
    if mode == "none":
        return None
    kind = kind_of(dictionary, bpe)
    if kind is None:
        logger.log(
            logging.INFO if mode is None else logging.WARNING,
            "%s: the target's segmentation is not known, so phrases count inside words too",
            "constraints" if mode is None else f"--constraint-boundary {mode}",
        )
        return None
    ends = {dictionary.pad(), dictionary.eos()}  # no translation continues after them
    unseen = {dictionary.bos(), *left_out} - ends
    texts = (
        "" if i in ends or i in unseen else visible(i, dictionary[i], kind, bpe)
        for i in range(len(dictionary))
    )
    return Boundaries(Pieces(texts), mode != "prefix", kind, tuple(sorted(unseen)))


def kind_of(dictionary: Dictionary, bpe: object) -> str | None:
    """Return the segmentation, by the encoder; without one by the marks of the dictionary's
    symbols."""
    if bpe is not None:
        return KINDS.get(type(bpe).__name__)
    return kind_of_words(dictionary.symbols[dictionary.nspecial :])


def kind_of_words(words: Sequence[str]) -> str | None:
    """Return the segmentation of words, by their marks; None for none."""
    kinds = (
        kind
        for kind, has_mark in MARKS.items()
        if words and sum(map(has_mark, words)) >= SHARE * len(words)
    )
    return next(kinds, None)


MARKS: dict[str, Callable[[str], bool]] = {
    "sentencepiece": lambda symbol: symbol.startswith("▁"),
    "subword-nmt": lambda symbol: symbol.endswith(SEPARATOR),
}


def separator_of(bpe: object) -> str:
    """Return the end of a piece of subword-nmt that the next one continues (`--bpe-separator`)."""
    return getattr(bpe, "bpe_symbol", SEPARATOR).strip() or SEPARATOR


def visible(token: int, symbol: str, kind: str | None, bpe: Any) -> str:
    """Return a symbol as it is printed, with its spaces.

    Every definition of "met" reads tokens through this function. kind: from `segmentation_of`; bpe:
    the encoder, None if there is none.
    """
    if kind == "sentencepiece":
        return symbol.replace("▁", " ")
    if kind == "gpt2":
        if not symbol.isdigit():  # <unk>, madeupword0000
            return f" {symbol} "
        text = bpe.decode(symbol)
        # a part of a character counts as a letter
        return text if "\ufffd" not in text else chr(PRIVATE + token)
    separator = separator_of(bpe)
    if kind == "subword-nmt" and symbol.endswith(separator):
        return without_entities(symbol.removesuffix(separator))
    return without_entities(symbol) + " "


def without_entities(text: str) -> str:
    """Return a text with characters in place of the entities of Moses' tokenizer, if a whole entity
    is in it (subword-nmt rarely splits one)."""
    return ENTITY.sub(lambda found: ENTITIES[found[0]], text) if "&" in text else text


def join_pieces(text: str, kind: str) -> str:
    """Return the words of pieces, separated by spaces, if there is no encoder."""
    if kind == "sentencepiece":
        return text.replace(" ", "").replace("▁", " ").strip()
    return without_entities((text + " ").replace(f"{SEPARATOR} ", "").strip())
