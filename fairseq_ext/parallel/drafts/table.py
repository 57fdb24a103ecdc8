"""The file that scripts/build_drafts.py writes: next-word probabilities and word translations (see ngram.py).

It holds the dictionary's fingerprint and nothing that runs.

Shapes: K listed words, V target vocabulary.
"""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from fairseq_ext.errors import UsageError


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

    def save(self, path: str) -> None:
        with open(path, "wb") as out:
            np.savez_compressed(out, **{f.name: getattr(self, f.name) for f in fields(self)})

    @staticmethod
    def load(path: str) -> Table:
        """Raises UsageError for what scripts/build_drafts.py has not written."""
        try:
            with np.load(path, allow_pickle=False) as file:
                parts = {f.name: file[f.name] for f in fields(Table)}
        except OSError as error:
            said = error.strerror or error
            raise UsageError(f"--draft-table {path} cannot be read ({said}): build it with scripts/build_drafts.py") from error
        except (KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise UsageError(f"--draft-table {path} is no draft table: build it with scripts/build_drafts.py") from error
        parts |= {name: str(parts[name]) for name in ("target", "source")}
        return Table(**parts)

    def check(self, path: str, target: Any, source: Any) -> None:
        """The dictionaries must be those it was built with (raises UsageError)."""
        if self.target != fingerprint(target) or (self.lexical_start.size and self.source != fingerprint(source)):
            raise UsageError(
                f"--draft-table {path} was built with another dictionary than this model's: build it again with scripts/build_drafts.py"
            )
