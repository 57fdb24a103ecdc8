"""Target tokens as text: as the command prints them, and as words."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from fairseq_ext.search.phrases.boundaries import Boundaries, find_boundaries, plain
from fairseq_ext.search.phrases.segmenter import Segmenter


class TargetText:
    """What a reader sees of a generator's tokens.

    segmenter: gives the target side's, which fairseq's commands complete only after they have built a generator; left_out: symbols that no
    reader sees; mode: of --constraint-boundary.
    """

    def __init__(self, segmenter: Callable[[], Segmenter], left_out: Any, mode: str | None = None):
        self.segmenter, self.left_out, self.mode = segmenter, left_out, mode
        self.own_texts: dict[int, str] = {}  # of tokens, as token_spans keeps them

    def pieces(self, tokens: Tensor | Sequence[int]) -> str:
        """Tokens (L,) as the dictionary's symbols, parted by spaces."""
        numbers = tokens.tolist() if isinstance(tokens, Tensor) else tokens
        dictionary = self.segmenter().dictionary
        left_out = {*self.left_out, dictionary.bos(), dictionary.eos()}  # as by the dictionary's `string`, which is slower
        return " ".join(dictionary[i] for i in numbers if i not in left_out)

    def text(self, tokens: Tensor | Sequence[int]) -> str:
        """Tokens (L,) as text, without segmentation where the command undoes it by --bpe and --tokenizer."""
        return self.segmenter().decode(self.pieces(tokens))

    @functools.cached_property
    def boundaries(self) -> Boundaries | None:
        """Where words begin and end, if phrases count as words; None where they do not, or where that is not known."""
        return find_boundaries(self.segmenter().dictionary, self.segmenter().bpe, self.mode)

    def words(self, tokens: Sequence[int]) -> str:
        """Tokens (L,) as plain text, also where the command does not undo their segmentation."""
        if self.segmenter().bpe is not None:
            return self.text(tokens)
        out = self.pieces(tokens)
        return plain(out, self.boundaries.kind) if self.boundaries is not None else out
