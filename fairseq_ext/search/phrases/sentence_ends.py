"""Sentence ends: the tokens that end a sentence, those that close it, and the number of ends in a
source (`--constraint-end`, constraints/sentence_end.py).

A sentence end is a token of . ! ? … 。 ！ ？, with or without closing quotes and brackets. A period
that is attached to a digit or to a single letter ("3.5", "J. Smith") is none. Other abbreviations
("Mr.") count as an end.

Shapes: N sentences in the pool, V vocabulary. The state of a row is 2 x sentence ends so far, plus
1 if its last token ends a sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import regex
import torch
from torch import Tensor

from fairseq_ext.search.phrases.pieces import kind_of, visible
from fairseq_ext.search.phrases.sentence import Dictionary

CLOSING = r"""[\p{Pe}\p{Pf}"'“‘«]"""  # the last three are closing in German, among others
FINAL = regex.compile(rf"[.!?…。！？]+{CLOSING}*")
CLOSER = regex.compile(rf"{CLOSING}+")


@dataclass(frozen=True)
class EndTokens:
    """The roles of a vocabulary's tokens at the end of a sentence."""

    final: Tensor  # (V,) bool: final punctuation
    closer: Tensor  # (V,) bool: closing quotes and brackets
    period: Tensor  # (V,) bool: a period without a space before it
    abbreviates: Tensor  # (V,) bool: a period attached to it ends no sentence

    def next_state(
        self, state: Tensor, last: Tensor, token: Tensor, own: Tensor | bool = False
    ) -> Tensor:
        """Return the state of rows (any shape) after a token, from the state before it and the last
        token; own: the token belongs to a required phrase there."""
        behind = state % 2 == 1
        ends = self.final[token] & ~(self.period[token] & self.abbreviates[last])
        ends = ends & ~own if isinstance(own, Tensor) else ends
        return (
            state
            + 2 * (ends & ~behind).long()
            + (ends | (behind & self.closer[token])).long()
            - behind.long()
        )

    def count(self, tokens: Sequence[int]) -> int:
        """Return the number of sentence ends of a sequence."""
        state = last = torch.zeros((), dtype=torch.long)
        for token in torch.tensor(tokens, dtype=torch.long):
            state, last = self.next_state(state, last, token), token
        return int(state) // 2

    def to(self, device: torch.device) -> EndTokens:
        """Return a copy on a device."""
        return EndTokens(
            *(part.to(device) for part in (self.final, self.closer, self.period, self.abbreviates))
        )


def end_tokens(dictionary: Dictionary, bpe: object) -> EndTokens:
    """Return the roles of a dictionary's symbols at the end of a sentence; bpe: the command's
    encoder, None if there is none."""
    kind = kind_of(dictionary, bpe)
    rows = [(False,) * 4] * dictionary.nspecial
    rows += [
        read(*parts_of(symbol, kind, bpe)) for symbol in dictionary.symbols[dictionary.nspecial :]
    ]
    return EndTokens(*(torch.tensor(column) for column in zip(*rows, strict=True)))


def parts_of(symbol: str, kind: str | None, bpe: object) -> tuple[str, bool, bool]:
    """Return a symbol's text, whether a space is before it, and whether the next one is attached to
    it."""
    if kind == "gpt2" and not symbol.isdigit():
        return symbol, False, False
    text = visible(0, symbol, kind, bpe)
    return text.strip(), text.startswith(" "), not text.endswith(" ")


def read(text: str, spaced: bool, attached: bool) -> tuple[bool, bool, bool, bool]:
    """Return final, closer, period and abbreviates of a symbol."""
    initial = len(text) == 1 and text.isalpha() and spaced
    closer = CLOSER.fullmatch(text) is not None and not spaced
    return (
        FINAL.fullmatch(text) is not None,
        closer,
        text == "." and not spaced,
        attached and (text[-1:].isdigit() or initial),
    )


@dataclass(frozen=True)
class SentenceEnds:
    """The sentence ends that a pool's rows may have."""

    tokens: EndTokens  # of the target
    allowed: Tensor  # (N,) number of sentence ends that a translation may have


class EndsOfSources:
    """The sentence ends that translations may have, by their sources.

    source: the sources' dictionary, None if it is not known.
    """

    def __init__(self, target: Dictionary, source: Dictionary | None, bpe: object):
        self.target = end_tokens(target, bpe)
        self.source = None if source is None else end_tokens(source, bpe)

    def __call__(self, sources: Sequence[Sequence[int]]) -> SentenceEnds:
        """Return the ends for these sources (tokens)."""
        ends = [1 if self.source is None else max(1, self.source.count(each)) for each in sources]
        return SentenceEnds(self.target, torch.tensor(ends))
