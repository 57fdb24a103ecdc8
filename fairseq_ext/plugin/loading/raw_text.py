"""A warning where text comes as people write it to a dictionary of subwords, and no flag says how to segment it.

The dictionary bears the marks of a segmentation (▁ or @@), and the lines bear none. Lines that are segmented already, as fairseq's
recipes pipe them in, are left in peace.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence

from fairseq.data import Dictionary

from fairseq_ext.plugin.loading.segmentation import flag_of, kind_of_codes, segmentation_files
from fairseq_ext.search.phrases.pieces import MARKS, SHARE, kind_of

logger = logging.getLogger("fairseq_ext")
MARK = {"sentencepiece": "▁", "subword-nmt": "@@"}
FLAG = {"sentencepiece": "sentencepiece_model", "subword-nmt": "bpe_codes"}


class RawText:
    """Watches the lines of a run that has no --bpe, until it is known whether they are segmented.

    kind: the segmentation of the dictionary, None for none. folder: where its model may lie. has_word: where --remove-bpe undoes the
    segmentation of the output, whether the dictionary has a word; a line of such words is as good segmented as not.
    """

    def __init__(self, kind: str | None, folder: str, has_word: Callable[[str], bool] | None = None):
        self.kind, self.folder, self.has_word = kind, folder, has_word

    def look(self, lines: Sequence[str]) -> None:
        """Warn if these are the first lines that tell, and are not segmented."""
        text = [line for line in lines if line.strip()]
        if self.kind is None or not text:
            return
        kind, segmented = self.kind, any(MARK[self.kind] in line for line in text)
        words = (word for line in text for word in line.split())
        if not segmented and kind == "subword-nmt" and self.has_word is not None and all(map(self.has_word, words)):
            return
        self.kind = None
        if not segmented:
            mark, flags = MARK[kind], advice(kind, self.folder)
            logger.warning("the words of the dictionary are pieces (%s), and the input is not segmented: add %s", mark, flags)


def advice(kind: str, folder: str) -> str:
    """The flags that segment text as a dictionary was; with the folder's file, where it has one."""
    files = [os.path.join(folder, name) for name in segmentation_files(folder) if flag_of(name) == FLAG[kind]]
    file = files[0] if len(files) == 1 else "FILE"
    bpe = "sentencepiece" if kind == "sentencepiece" else kind_of_codes(files[0]) if files else "subword_nmt"
    return f"--bpe {bpe} --{FLAG[kind].replace('_', '-')} {file}"


def kind_of_files(paths: Sequence[str]) -> str | None:
    """The segmentation of dictionary files by the marks of their words, without loading them; None for none."""
    for path in paths:
        with open(path, encoding="utf-8", errors="replace") as lines:
            words = [line.rpartition(" ")[0] for line in lines]
        for kind, has_mark in MARKS.items():
            if words and sum(map(has_mark, words)) >= SHARE * len(words):
                return kind
    return None


def tell_segmented_output(dictionary: Dictionary, folder: str) -> None:
    """Warn where translations of a binarised data set stay in pieces."""
    kind = kind_of(dictionary, None)
    if kind is not None:
        way = "--remove-bpe sentencepiece" if kind == "sentencepiece" else "--remove-bpe"
        mark, flags = MARK[kind], advice(kind, folder)
        logger.warning("the words of the dictionary are pieces (%s), and translations stay segmented: add %s, or %s", mark, way, flags)
