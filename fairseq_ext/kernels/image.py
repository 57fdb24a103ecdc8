"""Files that are mapped as memory: arrays, and structures of the compiled library that point to
them.

A file is mapped copy-on-write, and the addresses in it are relocated. So nothing is parsed, packed
or copied, and processes share its pages. The pointers are not checked one by one: the file lies in
a folder that only this user can write, and its digest is verified first."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from fairseq_ext.core.files import replace, sha256
from fairseq_ext.kernels.library import CData, declarations

LINE = 64  # alignment of blocks in bytes; the file begins with LINE digits of its digest


def up(size: int) -> int:
    """Return the size rounded up to a multiple of LINE."""
    return -(-size // LINE) * LINE


def save(
    path: Path,
    about: Mapping[str, object],
    structures: Mapping[str, CData],
    arrays: Mapping[str, np.ndarray],
    others: Iterable[np.ndarray],
) -> None:
    """Write structures and arrays atomically. about: further data, as JSON; others: arrays that
    only structures point to.

    Errors: OSError.
    """
    bytes_of = declarations().buffer
    raw = {name: np.frombuffer(bytes_of(each), np.uint8) for name, each in structures.items()}
    named = {**arrays, **raw}
    # each once
    blocks = {
        each.ctypes.data: each.reshape(-1).view(np.uint8) for each in (*named.values(), *others)
    }
    ends = np.cumsum([0, *(up(block.size) for block in blocks.values())]).tolist()
    at, pointers = dict(zip(blocks, ends, strict=False)), []
    for address in [each.ctypes.data for each in raw.values()]:
        words = blocks[address].copy().view(np.int64)
        found = [i for i, word in enumerate(words.tolist()) if word in at]
        words[found] = [at[word] for word in words[found].tolist()]
        pointers += [at[address] // 8 + i for i in found]
        blocks[address] = words.view(np.uint8)
    places = {
        name: (at[each.ctypes.data], each.dtype.str, each.shape) for name, each in named.items()
    }
    head = json.dumps({**about, "places": places, "pointers": pointers}).encode()
    parts: list = [
        len(head).to_bytes(LINE, "little"),
        head.ljust(up(len(head))),
    ]
    parts += [
        part
        for block in blocks.values()
        for part in (block.data, bytes(up(block.size) - block.size))
    ]
    replace(path, [sha256(parts).encode(), *parts])


class Image:
    """A mapped file. Errors: OSError; ValueError if its content was changed."""

    def __init__(self, path: Path):
        data = np.memmap(path, np.uint8, "c")
        if sha256([data[LINE:]]).encode() != data[:LINE].tobytes():
            raise ValueError("its content is not what was written")
        end = 2 * LINE + int.from_bytes(data[LINE : 2 * LINE].tobytes(), "little")
        self.about = json.loads(data[2 * LINE : end].tobytes())
        self.blocks = data[up(end) :]
        self.start = self.blocks.ctypes.data
        self.blocks.view(np.int64)[self.about["pointers"]] += self.start

    def structure(self, name: str, kind: str = "void") -> CData:
        """Return a pointer to a structure of this kind."""
        return declarations().cast(f"{kind} *", self.start + self.about["places"][name][0])

    def array(self, name: str) -> np.ndarray:
        """Return an array."""
        place, dtype, shape = self.about["places"][name]
        return np.ndarray(shape, dtype, self.blocks, place)
