"""Which tokens of a target dictionary continue a word, and which may be continued (`--constraint-boundary`).

Between two neighbouring tokens lies a word boundary unless the first one's text ends in a letter or digit, the second one's begins
with one, and no space parts them. Scripts that write no spaces have a boundary between any two characters. BOS and EOS are boundaries
to both sides, but a required word needs another one behind it than BOS, which a text leaves out.

| segmentation | a space comes |
| --- | --- |
| sentencepiece | before a piece that starts with ▁ |
| subword-nmt, fastBPE | behind a piece that does not end in @@ |
| GPT-2 bytes | before a piece that starts with one |
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fairseq_ext.search.phrases.dictionary import Dictionary
from fairseq_ext.search.phrases.pieces import IN, OUT, PRIVATE, SPACE, Pieces, is_letter

logger = logging.getLogger("fairseq_ext")
KINDS = {
    "SentencepieceBPE": "sentencepiece",
    "SubwordNMTBPE": "subword-nmt",
    "fastBPE": "subword-nmt",
    "GPT2BPE": "gpt2",
    "HuggingFaceByteLevelBPE": "gpt2",
}
SHARE = 0.1  # of the symbols that bear the mark where a dictionary's segmentation is taken for known


@dataclass(frozen=True)
class Boundaries:
    """What each token of a vocabulary does to its neighbours; V tokens."""

    pieces: Pieces  # the tokens' texts
    whole: bool  # a phrase needs a boundary behind it as well, not only in front
    kind: str  # the segmentation: sentencepiece, subword-nmt, gpt2
    bos: int = 0

    @cached_property
    def glued(self) -> Tensor:
        """(V,) bool: continues the word before it, if that one is open."""
        return torch.tensor([is_letter(text[:1] or " ") for text in self.pieces.texts])

    @cached_property
    def ends_no_word(self) -> Tensor:
        """(V,) bool: behind these a required word may go on."""
        return self.glued.index_fill(0, torch.tensor([self.bos]), True)

    @cached_property
    def open(self) -> Tensor:
        """(V,) bool: may be continued."""
        return torch.tensor([is_letter(text[-1:] or " ") for text in self.pieces.texts])

    @cached_property
    def behind(self) -> Tensor:
        """(V,): what stands behind a token (automaton.py): IN a word, a SPACE, or OUT of words otherwise."""
        blank = torch.tensor([text[-1:] == " " for text in self.pieces.texts])
        return torch.where(self.open, IN, torch.where(blank, SPACE, OUT))


def find_boundaries(dictionary: Dictionary, bpe: Any, mode: str | None) -> Boundaries | None:
    """The boundaries of a dictionary's tokens; None where mode is none, or where the segmentation is not known (which the log says if a
    mode was asked for). mode: word, prefix, none, or None for word."""
    if mode == "none":
        return None
    kind = kind_of(dictionary, bpe)
    if kind is None:
        if mode is not None:
            logger.warning("--constraint-boundary %s: the target's segmentation is not known, so phrases count inside words too", mode)
        else:
            logger.info("constraints: the target's segmentation is not known, so phrases are met inside words as well")
        return None
    read, special = READERS[kind], {dictionary.bos(), dictionary.pad(), dictionary.eos()}
    texts = ("" if i in special else read(i, dictionary[i], bpe) for i in range(len(dictionary)))
    return Boundaries(Pieces(texts), mode != "prefix", kind, dictionary.bos())


def kind_of(dictionary: Dictionary, bpe: Any) -> str | None:
    """The segmentation, by the encoder; without one by the marks that the dictionary's symbols bear."""
    if bpe is not None:
        return KINDS.get(type(bpe).__name__)
    symbols = dictionary.symbols[dictionary.nspecial :]
    for kind, has_mark in MARKS.items():
        if symbols and sum(map(has_mark, symbols)) >= SHARE * len(symbols):
            return kind
    return None


MARKS: dict[str, Callable[[str], bool]] = {
    "sentencepiece": lambda symbol: symbol.startswith("▁"),
    "subword-nmt": lambda symbol: symbol.endswith("@@"),
}


def read_sentencepiece(token: int, symbol: str, bpe: Any) -> str:
    """The text of a piece, with the spaces that it brings."""
    return symbol.replace("▁", " ")


def read_subword_nmt(token: int, symbol: str, bpe: Any) -> str:
    return symbol.removesuffix("@@") if symbol.endswith("@@") else symbol + " "


def read_gpt2(token: int, symbol: str, bpe: Any) -> str:
    if not symbol.isdigit():  # <unk>, madeupword0000
        return f" {symbol} "
    text = bpe.decode(symbol)
    return text if "\ufffd" not in text else chr(PRIVATE + token)  # part of a character is taken for a letter


def plain(text: str, kind: str) -> str:
    """Pieces parted by spaces as words, where there is no encoder to ask."""
    if kind == "sentencepiece":
        return text.replace(" ", "").replace("▁", " ").strip()
    return (text + " ").replace("@@ ", "").strip()


READERS = {"sentencepiece": read_sentencepiece, "subword-nmt": read_subword_nmt, "gpt2": read_gpt2}
