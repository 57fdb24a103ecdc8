"""Source tokens as drafts (`--draft copy`): those that the target dictionary has too (names, numbers, punctuation), in source order.

Behind a word that was itself copied stands the next source token; behind any other the source token at the same place.
"""

from __future__ import annotations

import numpy as np

from fairseq_ext.kernels.parallel import draft as kernel
from fairseq_ext.kernels.parallel.draft import CompiledDrafter
from fairseq_ext.parallel.drafts.drafter import Draft, Drafter, without_end
from fairseq_ext.parallel.rows import NONE, Rows
from fairseq_ext.search.pool import Pool


class Copy(Drafter):
    """Copies of source tokens."""

    def __init__(self, translate: np.ndarray, pad: int):
        """translate (source vocabulary,): target id of each source id, NONE where there is none; pad: the source's."""
        self.translate = translate
        self.pad = pad

    @staticmethod
    def between(source, target) -> Copy:
        """From two fairseq dictionaries; the special symbols, EOS excepted, are not copied."""
        ids = np.array([target.indices.get(word, NONE) for word in source.symbols])
        ids[[i for i in range(source.nspecial) if i != source.eos()]] = NONE
        return Copy(ids, source.pad())

    def start(self, pool: Pool) -> None:
        """Lay the sentences out from column 0: (N, source + 1), NONE behind."""
        tokens = pool.net_input["src_tokens"].cpu().numpy()
        length = pool.length.cpu().numpy()
        shown = np.where(tokens < len(self.translate), self.translate[np.minimum(tokens, len(self.translate) - 1)], NONE)
        column = np.arange(tokens.shape[1] + 1)
        offset = (tokens == self.pad).argmin(1)  # padding in front
        index = np.minimum(column + offset[:, None], tokens.shape[1] - 1)
        self.words = np.where(column < length[:, None], np.take_along_axis(shown, index, 1), NONE)

    def propose(self, rows: Rows, most: int, least: float) -> Draft:
        words = self.words[rows.live]
        last = rows.last(1)
        copied = (words == last) & (rows.length[:, None] > 0)
        distance = np.abs(np.arange(words.shape[1]) + 1 - rows.length[:, None]) + np.where(copied, 0, words.shape[1] * 2)
        first = np.where(copied.any(1), distance.argmin(1) + 1, rows.length)
        index = first[:, None] + np.arange(most)
        tokens = np.where(index < words.shape[1], np.take_along_axis(words, np.minimum(index, words.shape[1] - 1), 1), NONE)
        return without_end(tokens, np.where(tokens == NONE, 0.0, 0.5))

    def compiled(self, sentence: int) -> CompiledDrafter:
        return kernel.copy(np.ascontiguousarray(self.words[sentence], np.int64))
