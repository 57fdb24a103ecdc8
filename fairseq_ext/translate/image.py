"""A file that is memory: arrays, and structures of the compiled library that point to them.

It is mapped copy-on-write, and the addresses in it are moved to where it lies. So nothing is read, parsed or packed, and processes share its
pages. What it points to is followed as it stands: it may come from a folder of this user alone, and its digest is compared first.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fairseq_ext.files import replacing

ALIGNED = 64  # bytes; the file begins with as many digits of its digest


def save(path: str | os.PathLike[str], about: dict[str, Any], named: Mapping[str, Any], others: Iterable[np.ndarray]) -> None:
    """Write arrays and structures in one step. about: more that is kept, as JSON; others: arrays that only structures point to.

    Errors: OSError.
    """
    blocks, places, offset = [*named.values(), *others], [], 0
    raw = [np.frombuffer(each, np.uint8) if isinstance(each, ctypes.Structure | ctypes.Array) else bytes_of(each) for each in blocks]
    for block in raw:
        places.append(offset)
        offset += -(-block.size // ALIGNED) * ALIGNED
    at = {block.ctypes.data: place for block, place in zip(raw, places, strict=True) if block.size}
    shape = {name: (place, None if isinstance(each, ctypes.Structure | ctypes.Array) else (each.dtype.str, each.shape))
             for (name, each), place in zip(named.items(), places, strict=False)}  # fmt: skip
    pointers = []
    for i, (each, place) in enumerate(zip(blocks, places, strict=True)):
        if isinstance(each, ctypes.Structure | ctypes.Array):
            words = raw[i].copy().view(np.int64)
            found = [word for word, value in enumerate(words.tolist()) if value in at]
            words[found] = [at[value] for value in words[found].tolist()]
            pointers += [place // 8 + word for word in found]
            raw[i] = words.view(np.uint8)
    head = json.dumps({**about, "blocks": shape, "pointers": pointers}).encode()
    first = -(-(ALIGNED + 8 + len(head)) // ALIGNED) * ALIGNED
    parts = [len(head).to_bytes(8, "little"), head, bytes(first - ALIGNED - 8 - len(head))]
    parts += [part for block in raw for part in (block.data, bytes(-block.size % ALIGNED))]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    with replacing(path) as out:
        for part in (digest.hexdigest().encode(), *parts):
            out.write(part)


def bytes_of(array: np.ndarray) -> np.ndarray:
    """A dense array as bytes, where it lies."""
    assert array.flags.c_contiguous
    return array.reshape(-1).view(np.uint8)


class Image:
    """The file, mapped. Errors: OSError; ValueError where its content is not what was written."""

    def __init__(self, path: str | os.PathLike[str]):
        self.data = np.memmap(path, np.uint8, "c")
        if hashlib.sha256(self.data[ALIGNED:].data).hexdigest().encode() != self.data[:ALIGNED].tobytes():
            raise ValueError("its content is not what was written")
        end = ALIGNED + 8 + int.from_bytes(self.data[ALIGNED : ALIGNED + 8].tobytes(), "little")
        self.about = json.loads(self.data[ALIGNED + 8 : end].tobytes())
        self.blocks = self.data[-(-end // ALIGNED) * ALIGNED :]
        self.blocks.view(np.int64)[self.about["pointers"]] += self.blocks.ctypes.data

    def address(self, name: str) -> int:
        """Where an array or structure lies."""
        return self.blocks.ctypes.data + self.about["blocks"][name][0]

    def array(self, name: str) -> np.ndarray:
        """An array."""
        place, (dtype, shape) = self.about["blocks"][name]
        return np.ndarray(shape, dtype, self.blocks, place)
