"""What the Python API returns for a line: `Translation`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Translation:
    """One hypothesis of one line."""

    text: str  # without subword segmentation
    tokens: list[str] = field(repr=False)  # subword tokens, EOS left out
    score: float  # natural logarithm; length-normalised unless unnormalized=True
    positional_scores: list[float] = field(repr=False)  # of each token, EOS included
    alignment: list[tuple[int, int]] | None = field(default=None, repr=False)  # (source, target) positions, with print_alignment="hard"
    words: list[tuple[tuple[int, int], tuple[int, int]]] | None = field(default=None, repr=False)  # characters of source and target words
    # that stand for each other, where they were asked for
    utility: float | None = None  # expected, with mbr=...
    unmet: list[tuple[str, str]] = field(default_factory=list)  # constraints that it does not meet: text, reason
    elsewhere: list[str] = field(default_factory=list, repr=False)  # glossary terms that no word had to make place for: they may read oddly

    def __repr__(self) -> str:
        lacks = f", unmet={self.unmet!r}" if self.unmet else ""
        return f"Translation({self.text!r}, score={self.score:.4f}{lacks})"


def empty(unmet: list[tuple[str, str]]) -> Translation:
    """The translation of an empty line: no text, which is certain (score 0). unmet: the line's constraints, each with the reason."""
    return Translation("", [], 0.0, [], unmet=unmet)
