"""The functions of LSH softmax by the compiled library (`lsh.cpp`), for a CPU: twins of
lsh_torch.py, which defines them.

Shapes: n rows, V words, D dimensions, P = u x W hash functions of K dimensions each, W bands.
"""

from __future__ import annotations

import ctypes
from ctypes import c_double, c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor

from fairseq_ext.kernels import lsh_torch
from fairseq_ext.kernels.library import address, loaded
from fairseq_ext.kernels.lsh_torch import Cuckoo, bits_of, build_cuckoo, compact, gather

__all__ = [
    "build_cuckoo",
    "compact",
    "count_hits",
    "gather",
    "lookup_cuckoo",
    "lookup_direct",
    "wta_hash",
]


def wta_hash(x: Tensor, dimensions: Tensor, u: int) -> Tensor:
    if x.dtype != torch.float32:
        return lsh_torch.wta_hash(x, dimensions, u)
    # (K, P), as `draw_dimensions` laid them out
    x, turned = x.contiguous(), dimensions.t().contiguous()
    (n, D), (K, P) = x.shape, turned.shape
    codes = torch.empty(n, P // u, dtype=torch.int32)
    at, hashes = address(x, torch.float32), address(turned, torch.long)
    loaded().wta_hash(at, n, D, hashes, K, P, u, bits_of(K), codes.data_ptr())
    return codes


def lookup_direct(codes: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    codes, offsets = codes.contiguous(), offsets.contiguous()
    start, length = torch.empty_like(codes), torch.empty_like(codes)
    loaded().lookup_direct(
        address(codes, torch.int32),
        *codes.shape,
        address(offsets, torch.int32, codes.size(1), None),
        offsets.size(1),
        start.data_ptr(),
        length.data_ptr(),
    )
    return start, length


def lookup_cuckoo(codes: Tensor, table: Cuckoo, V: int) -> tuple[Tensor, Tensor]:
    codes = codes.contiguous()
    columns = [x.contiguous() for x in (table.key, table.start, table.length, table.hashes)]
    dtypes = [torch.int32] * 3 + [torch.long]
    start, length = torch.empty_like(codes), torch.empty_like(codes)
    loaded().lookup_cuckoo(
        address(codes, torch.int32),
        *codes.shape,
        *(address(x, dtype) for x, dtype in zip(columns, dtypes, strict=True)),
        table.size,
        V,
        start.data_ptr(),
        length.data_ptr(),
    )
    return start, length


def count_hits(start: Tensor, length: Tensor, words: Tensor, V: int) -> Tensor:
    start, length, words = start.contiguous(), length.contiguous(), words.contiguous()
    n, W = start.shape
    spans = address(start, torch.int32), address(length, torch.int32, n, W)
    listed = address(words.view(-1), torch.int32, W * V)
    hits = torch.zeros(n, V, dtype=torch.int16)
    loaded().count_hits(*spans, n, W, listed, V, hits.data_ptr())
    return hits


class IndexStruct(ctypes.Structure):
    __slots__ = ()
    _fields_ = [
        (name, c_void_p)
        for name in ("dimensions", "words", "offsets", "key", "first", "length", "hashes")
    ]
    _fields_ += [(name, c_int64) for name in ("K", "P", "u", "bits", "V", "size", "ones")]


class CompiledLookup:
    """Hashing, counting and listing in one call: finds the words that share t bands with any row.

    One call is faster than one per stage, because the other work of a step evicts Python's memory
    from the caches.
    """

    def __init__(self, index: Any, never: Tensor, ones: int):
        """index: of search/strategies/softmax/_lsh_index.py; never (V,): mask of words to leave
        out; ones: number of the index's dimensions at which rows are 1 (those of a bias)."""
        table = index.cuckoo
        turned = index.dimensions.t().contiguous()
        columns = [turned, index.words, index.offsets]
        columns += (
            [None] * 4 if table is None else [table.key, table.start, table.length, table.hashes]
        )
        self.keepalive = [None if x is None else x.contiguous() for x in columns]
        dtypes = [torch.long, *[torch.int32] * 5, torch.long]
        if index.dimensions.size(0) // index.u > torch.iinfo(torch.int16).max:
            raise ValueError("the index has more bands than 16 bits can count")
        size = index.offsets.size(1) if table is None else table.size
        (K, P), bits = turned.shape, bits_of(turned.size(0))
        pointers = [
            None if x is None else address(x, dtype)
            for x, dtype in zip(self.keepalive, dtypes, strict=True)
        ]
        self.struct = IndexStruct(*pointers, K, P, index.u, bits, index.V, size, ones)
        self.address = ctypes.addressof(self.struct)
        self.V, self.excluded = index.V, never.contiguous()
        self.ids = torch.empty(index.V, dtype=torch.long)
        self.seconds = (c_double * 3)()

    def __call__(self, x: Tensor, t: int, always: Tensor | None, clock: int) -> Tensor:
        """Return the ascending ids (m,) of words with t hits in any row of x (n, d), and of words
        in the mask always (V,). The result is valid until the next call.

        `seconds` are those of hashing, counting and listing, by the system's clock with the number
        `clock`.
        """
        x, always = x.contiguous(), None if always is None else always.contiguous()
        if t < 1:
            raise ValueError(f"the number of hits must be 1 or more, not {t}")
        many = loaded().find_words(
            self.address,
            address(x, torch.float32),
            *x.shape,
            t,
            None if always is None else address(always, torch.bool, self.V),
            address(self.excluded, torch.bool, self.V),
            self.ids.data_ptr(),
            clock,
            self.seconds,
        )
        return self.ids[:many]
