"""Hugging Face's numbers of words as a fairseq dictionary, which begins with <s>, <pad>, </s> and <unk>."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_ext.core.errors import UsageError

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
BLANK = re.compile(r"\s")
NEVER = -1e4  # the output bias of a word that the model does not have: finite in 16 bits, and e^-10000 is 0


@dataclass
class Vocabulary:
    """The words of one side in fairseq's order; rows: each one's row in the model's tables, None for one that they lack."""

    words: list[str]
    rows: list[int | None]

    @staticmethod
    def of(numbers: Mapping[str, int], size: int, where: str) -> Vocabulary:
        """From words and their numbers in tables of so many rows. A row without a word gets a name of its own. where: for messages."""
        words: dict[int, str] = {}
        for word, number in numbers.items():
            if type(number) is not int or not 0 <= number < size:
                raise UsageError(f"{where} gives '{word}' the number {number}, and the model has {size} words: the files are of two models")
            if number in words:
                raise UsageError(f"{where} gives '{word}' and '{words[number]}' the same number: copy it again")
            words[number] = word
        for special in ("</s>", "<unk>", "<pad>"):
            if special not in numbers:
                raise UsageError(f"{where} has no {special}: the models that can be converted have one")
        others = [number for number in range(size) if words.get(number) not in SPECIAL]
        names = [*SPECIAL, *(written(words.get(number, f"madeupword{number:04d}")) for number in others)]
        if len(set(names)) < len(names):
            raise UsageError(f"{where} has a word twice, once spaces in words are written as <U+0020>: rename one")
        return Vocabulary(names, [*(numbers.get(special) for special in SPECIAL), *others])

    def arranged(self, table: Tensor, lacking: float = 0.0) -> Tensor:
        """A model's table (rows, ...) in the dictionary's order, or itself where that is its own; lacking: of a word without a row."""
        if self.rows == list(range(table.size(0))):
            return table
        out = table[torch.tensor([row or 0 for row in self.rows])]
        out[torch.tensor([row is None for row in self.rows])] = lacking
        return out

    def text(self) -> str:
        """The file dict.xx.txt. fairseq adds the special words itself."""
        return "".join(f"{word} 1\n" for word in self.words[len(SPECIAL) :])


def written(word: str) -> str:
    """A word of a dictionary's file, in which spaces part columns."""
    return BLANK.sub(lambda blank: f"<U+{ord(blank[0]):04X}>", word)
