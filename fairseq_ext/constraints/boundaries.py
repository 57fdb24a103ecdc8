"""Which tokens of a target dictionary continue a word, and which may be continued (`--constraint-boundary`).

Between two neighbouring tokens lies a word boundary unless the first one's text ends in a letter or digit, the second one's begins
with one, and no space parts them. Scripts that write no spaces have a boundary between any two characters. BOS and EOS are boundaries
to both sides.

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
from typing import Any

import regex
import torch
from fairseq.data import Dictionary
from torch import Tensor

logger = logging.getLogger("fairseq_ext")
UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"  # scripts without spaces between words
WORD = regex.compile(rf"(?V1)[[\w\p{{M}}]--[{UNSPACED}]]")
MODES = ("word", "prefix", "none")
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

    glued: Tensor  # (V,) bool: continues the word before it, if that one is open
    open: Tensor  # (V,) bool: may be continued
    whole: bool  # a required phrase needs a boundary behind it as well, not only in front
    kind: str  # the segmentation: sentencepiece, subword-nmt, gpt2

    def between(self, first: int, second: int) -> bool:
        """Whether a word boundary lies between two neighbouring tokens."""
        return not (bool(self.open[first]) and bool(self.glued[second]))


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
    read = READERS[kind]
    glued, open_ = zip(*(read(dictionary[i], bpe) for i in range(len(dictionary))), strict=True)
    special = [dictionary.bos(), dictionary.pad(), dictionary.eos()]
    bounds = Boundaries(torch.tensor(glued), torch.tensor(open_), mode != "prefix", kind)
    bounds.glued[special] = bounds.open[special] = False
    return bounds


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


def ends(text: str) -> tuple[bool, bool]:
    """Whether text begins, and whether it ends, with a letter or digit."""
    return bool(WORD.match(text[:1])), bool(WORD.match(text[-1:]))


def read_sentencepiece(symbol: str, bpe: Any) -> tuple[bool, bool]:
    """glued and open of a piece; ▁ alone is a space."""
    begins, goes_on = ends(symbol)
    return begins and symbol[:1] != "▁", goes_on and symbol[-1:] != "▁"


def read_subword_nmt(symbol: str, bpe: Any) -> tuple[bool, bool]:
    text = symbol.removesuffix("@@")
    begins, goes_on = ends(text)
    return begins, goes_on and text != symbol


def read_gpt2(symbol: str, bpe: Any) -> tuple[bool, bool]:
    if not symbol.isdigit():  # <unk>, madeupword0000
        return False, False
    text = bpe.decode(symbol)
    return ends(text.replace("\ufffd", "x"))  # part of a character is taken for a letter


def plain(text: str, kind: str) -> str:
    """Pieces parted by spaces as words, where there is no encoder to ask."""
    if kind == "sentencepiece":
        return text.replace(" ", "").replace("▁", " ").strip()
    return (text + " ").replace("@@ ", "").strip()


READERS = {"sentencepiece": read_sentencepiece, "subword-nmt": read_subword_nmt, "gpt2": read_gpt2}
