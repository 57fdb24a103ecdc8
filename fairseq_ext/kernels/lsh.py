"""The functions of LSH softmax by the compiled library (`lsh.cpp`), for a CPU: twins of
lsh_torch.py, which defines them.

Shapes: n rows, V words, D dimensions, P = u x W hash functions of K dimensions each, W bands.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_ext.kernels.library import address, declarations, loaded, new, pointer
from fairseq_ext.kernels.lsh_torch import Index, bits_of


def wta_hash(x: Tensor, dimensions: Tensor, u: int) -> Tensor:
    # (K, P), as `draw_dimensions` laid them out
    x, turned = x.contiguous(), dimensions.t().contiguous()
    (n, D), (K, P) = x.shape, turned.shape
    codes = torch.empty(n, P // u, dtype=torch.int32)
    at, hashes = address(x, torch.float32), address(turned, torch.long)
    loaded().wta_hash(at, n, D, hashes, K, P, u, bits_of(K), pointer(codes))
    return codes


class CompiledLookup:
    """Hashing, counting and listing in one call: finds the words that share t bands with any row.

    One call is faster than one per stage, because the other work of a step evicts Python's memory
    from the caches.
    """

    def __init__(self, index: Index, never: Tensor, ones: int):
        """never (V,): mask of words to leave out; ones: number of the index's dimensions at which
        rows are 1 (those of a bias)."""
        dimensions = index.dimensions.t().contiguous()
        (K, P), V = dimensions.shape, index.V
        W = P // index.u
        B = (index.offsets.numel() - 1) // W
        self.struct = new(
            "Index",
            address(dimensions, torch.long),
            address(index.words, torch.int32, W * V),
            address(index.offsets, torch.int32, W * B + 1),
            K,
            P,
            index.u,
            bits_of(K),
            V,
            B,
            ones,
        )
        self.keepalive = (dimensions, index)
        self.V, self.excluded = V, never.contiguous()
        self.ids = torch.empty(V, dtype=torch.long)
        self.seconds = declarations().new("double[]", 3)

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
            self.struct,
            address(x, torch.float32),
            *x.shape,
            t,
            address(always, torch.bool, self.V),
            address(self.excluded, torch.bool, self.V),
            pointer(self.ids),
            clock,
            self.seconds,
        )
        return self.ids[:many]
