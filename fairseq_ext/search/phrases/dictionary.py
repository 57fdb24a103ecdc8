"""What is asked of a dictionary: the numbers of a vocabulary's symbols, as fairseq's `Dictionary` has them."""

from __future__ import annotations

from typing import Protocol


class Dictionary(Protocol):
    """Symbols by number: `nspecial` special ones first."""

    symbols: list[str]
    indices: dict[str, int]
    nspecial: int
    bos_word: str
    eos_word: str
    pad_word: str

    def __len__(self) -> int: ...

    def __getitem__(self, idx: int) -> str:
        """A symbol; the unknown one's for a number that there is none of."""

    def index(self, sym: str) -> int:
        """The number of a symbol; the unknown one's for a symbol that there is none of."""

    def bos(self) -> int: ...

    def eos(self) -> int: ...

    def pad(self) -> int: ...

    def unk(self) -> int: ...
