"""The draft table, a file that scripts/build_drafts.py writes: next-word probabilities and word translations (see ngram.py).

The file holds digests of the dictionaries and of the text that it was made from. Every number that a compiled function indexes by is
checked when the file is read.

Shapes: m histories, K listed words, V target vocabulary.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairseq_ext.core import array_file
from fairseq_ext.core.array_file import Damaged
from fairseq_ext.core.errors import UsageError

FORMAT, VERSION = "fairseq_ext draft table", 2
WHOLE, WORDS = ("<i8",), ("<u2", "<i4", "<i8")
LAYOUT = {
    "key": (WHOLE, 1),
    "token": (WORDS, 2),
    "prob": (("<f2",), 2),
    "unigram": (("<f4",), 1),
    "any_token": (WHOLE, 1),
    "lexical_start": (WHOLE, 1),
    "lexical_token": (WORDS, 1),
    "lexical_prob": (("<f2",), 1),
}
REBUILD = "build it with scripts/build_drafts.py"


def fingerprint(dictionary: Any) -> str:
    """Of a fairseq dictionary: symbols and their order, not their counts."""
    return hashlib.sha256("\n".join(dictionary.symbols).encode("utf-8", "surrogatepass")).hexdigest()[:16]


@dataclass
class Table:
    """The file's arrays."""

    key: np.ndarray  # (m,) int64, ascending: V x (token before last) + last token; the last token alone as V x V + token
    token: np.ndarray  # (m, K) next tokens
    prob: np.ndarray  # (m, K) float16: p(e | h)
    unigram: np.ndarray  # (V,) float32: p(e)
    any_token: np.ndarray  # (K,) the likeliest tokens, for a history that the text does not hold
    lexical_start: np.ndarray  # (source vocabulary + 1,) where each source token's entries begin; empty without parallel text
    lexical_token: np.ndarray  # (entries,)
    lexical_prob: np.ndarray  # (entries,) float16: t(e | f)
    target: str  # fingerprints of the dictionaries
    source: str
    text: str = ""  # a digest of the text

    def save(self, path: str) -> None:
        """Write the file in one step. Errors: OSError."""
        made_from = {"target": self.target, "source": self.source, "text": self.text}
        array_file.save(path, FORMAT, VERSION, made_from, {name: getattr(self, name) for name in LAYOUT}, compress=True)

    @staticmethod
    def load(path: str) -> Table:
        """The table of a file, its numbers checked. Errors: UsageError for what scripts/build_drafts.py has not written."""
        try:
            made_from, arrays = array_file.load(path, FORMAT, VERSION, LAYOUT)
            parts: dict[str, Any] = {**arrays, **{name: made_from.get(name, "") for name in ("target", "source", "text")}}
            table = Table(**parts)
            table.check_numbers()
        except OSError as error:
            raise UsageError(f"--draft-table {path} cannot be read ({error.strerror or error}): {REBUILD}") from error
        except Damaged as error:
            raise UsageError(f"--draft-table {path} is not a draft table, because {error}: {REBUILD}") from error
        return table

    def check_numbers(self) -> None:
        """Raise Damaged unless every token and place lies where it must."""
        m, V, K = len(self.key), len(self.unigram), len(self.any_token)
        if not (m and V and K) or self.token.shape != (m, K) or self.prob.shape != (m, K):
            raise Damaged("its arrays do not fit each other")
        if not 0 <= self.key[0] <= self.key[-1] < V * (V + 1) or not (self.key[1:] > self.key[:-1]).all():
            raise Damaged("its histories are not in order")
        start, entries = self.lexical_start, len(self.lexical_token)
        if len(self.lexical_prob) != entries or not len(start) > 1 and (len(start) or entries):
            raise Damaged("its arrays do not fit each other")
        if len(start) and (start[0] != 0 or start[-1] != entries or not (start[1:] >= start[:-1]).all()):
            raise Damaged("its translations are not in order")
        for words in (self.token, self.any_token, self.lexical_token):
            if words.size and not 0 <= int(words.min()) <= int(words.max()) < V:
                raise Damaged("it holds a token that is not in its vocabulary")
        for numbers in (self.prob, self.unigram, self.lexical_prob):
            if not ((numbers >= 0) & (numbers <= 1)).all():
                raise Damaged("it holds a probability outside 0 to 1")

    def check(self, path: str, target: Any, source: Any) -> None:
        """The dictionaries must be those it was built with. Errors: UsageError."""
        sizes = [len(self.unigram), len(self.lexical_start) - 1 if self.lexical_start.size else len(source)]
        if sizes != [len(target), len(source)] or self.target != fingerprint(target) or (
            self.lexical_start.size and self.source != fingerprint(source)
        ):  # fmt: skip
            raise UsageError(
                f"--draft-table {path} was built with another dictionary than this model's: build it again with scripts/build_drafts.py"
            )
