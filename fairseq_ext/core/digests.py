"""Digests of whole contents: what tells that a file, a dictionary or a model is the one of an earlier run."""

from __future__ import annotations

import hashlib
import os
from typing import Any

BLOCK = 1 << 20  # bytes
SHOWN = 32  # hexadecimal digits


def sha256_of(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file's content, in hexadecimal. Errors: OSError."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def fingerprint(path: str | os.PathLike[str]) -> str:
    """A file's size and the digest of all of its content, as messages show them. Errors: OSError."""
    return f"{os.path.getsize(path)} bytes, {sha256_of(path)[:SHOWN]}"


def fingerprint_of_dictionary(dictionary: Any) -> str:
    """The number of words of fairseq's dictionary and the digest of the words in their order."""
    digest = hashlib.sha256("\n".join(dictionary.symbols).encode("utf-8", "surrogatepass"))
    return f"{len(dictionary)} words, {digest.hexdigest()[:SHOWN]}"
