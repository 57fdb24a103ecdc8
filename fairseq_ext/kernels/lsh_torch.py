"""The functions of LSH softmax in torch: the definition of the compiled functions for the CPU
(lsh.py) and of the CUDA kernels (lsh_cuda.py).

    X. Shi, S. Xu and K. Knight. Fast Locality Sensitive Hashing for Beam Search on GPU. 2018,
    https://arxiv.org/abs/1806.00588

Shapes: n rows, V words, D dimensions, P = u x W hash functions of K dimensions each, W bands, B =
2 ** (u x bits of K) codes a band.

Compiled twins: kernels/lsh.cpp, kernels/lsh_cuda.cu.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 1 << 18  # elements that hashing processes at once


def bits_of(K: int) -> int:
    """Return the number of bits that hold 0 .. K - 1."""
    return max(1, (K - 1).bit_length())


def draw_dimensions(D: int, K: int, u: int, W: int, seed: int) -> Tensor:
    """Return the first K elements (P, K) of P = u x W random permutations of D dimensions; Eq. 5
    uses only these."""
    generator = torch.Generator().manual_seed(seed)
    places = torch.rand(u * W, D, generator=generator, dtype=torch.float32)
    places = places.argsort(dim=1, stable=True)[:, :K]
    return places.t().contiguous().t()  # the memory layout that wta_hash reads


def wta_hash(x: Tensor, dimensions: Tensor, u: int) -> Tensor:
    """Return the band codes (n, W) int32 of x (n, D): Eq. 5, the index of the largest of K
    dimensions, of equals the first; u indices a band, the first in the highest bits (Eq. 7).
    dimensions (P, K)."""
    n, (P, K) = x.size(0), dimensions.shape
    # (K x P,): a maximum over the middle dimension is the fast one
    turned = dimensions.t().flatten()
    step = max(1, CHUNK // (P * K))
    winner = torch.cat(
        [
            part.index_select(1, turned).view(len(part), K, P).max(1).indices
            for part in x.split(step)
        ]
    )
    codes = winner.view(n, P // u, u)
    out = codes[:, :, 0]
    for i in range(1, u):
        out = (out << bits_of(K)) | codes[:, :, i]
    return out.int()


# ---- The index: the words of each band, sorted by code, and the place of each code's span


@dataclass
class Index:
    """The words of equal code next to each other in each band, and where each code's span begins.

    Codes are addresses: the paper looks them up in a cuckoo hash table, which gives the same spans
    in up to two probes instead of one, and for its codes of 9 and 12 bits is larger.
    """

    dimensions: Tensor  # (P, K) of the padded vector that each hash function compares
    words: Tensor  # (W x V,) int32, ascending within a code
    offsets: Tensor  # (W x B + 1,) int32: code c of band w begins at words[offsets[w x B + c]]
    V: int
    u: int


def build_index(
    x: Tensor, K: int, u: int, W: int, seed: int, wta_hash: Callable[..., Tensor] = wta_hash
) -> Index:
    """Return the index of output vectors x (V, D). wta_hash: the twin that hashes them."""
    dimensions = draw_dimensions(x.size(1), K, u, W, seed).to(x.device)
    codes = wta_hash(x, dimensions, u).t()  # (W, V)
    if codes.device.type == "cpu" and u * bits_of(K) <= 16:  # NumPy sorts 16 bits by radix
        words = torch.from_numpy(codes.numpy().astype("uint16").argsort(1, kind="stable"))
    else:
        words = codes.argsort(dim=1, stable=True)
    B = 1 << (u * bits_of(K))
    place = codes + torch.arange(0, W * B, B, device=x.device)[:, None]
    many = torch.bincount(place.flatten(), minlength=W * B)
    offsets = torch.cat([many.new_zeros(1), many.cumsum(0)])
    return Index(dimensions, words.int().flatten(), offsets.int(), x.size(0), u)


def lookup(codes: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Return start and length (n, W) of the span of each code (n, W) in the flat words."""
    W = codes.size(1)
    B = (offsets.numel() - 1) // W
    place = codes + torch.arange(0, W * B, B, device=codes.device)
    start = offsets[place]
    return start, offsets[place + 1] - start


# ---- From spans to the shortlist


def count_hits(start: Tensor, length: Tensor, words: Tensor, V: int) -> Tensor:
    """Return L (n, V) of Eq. 9, the number of bands in which a word's code equals the row's; int16
    needs less memory traffic. start, length (n, W), words flat (W x V,)."""
    n, device = start.size(0), words.device
    many, first = length.flatten().long(), start.flatten().long()
    total = int(many.sum())
    before = many.cumsum(0) - many
    place = torch.repeat_interleave(first - before, many, output_size=total).add_(
        torch.arange(total, device=device)
    )
    found = words.index_select(0, place)
    if n > 1:
        row = torch.arange(0, n * V, V, dtype=torch.int32, device=device)
        found += torch.repeat_interleave(row, length.sum(1), output_size=total)
    one = torch.ones(1, dtype=torch.int16, device=device)
    return (
        torch.zeros(n * V, dtype=torch.int16, device=device)
        .index_add_(0, found, one.expand(total))
        .view(n, V)
    )


def compact(hits: Tensor, t: int, always: Tensor) -> Tensor:
    """Return the ascending ids of words with t hits in any row (Eq. 10), and of words in the mask
    always (V,). hits (n, V)."""
    hits = hits if len(hits) else hits.new_full((1, hits.size(1)), -1)  # no rows: no hits
    return nonzero((hits.amax(0) >= t) | always)


def nonzero(mask: Tensor) -> Tensor:
    """Return the indices of a flat mask. On a CPU NumPy is several times faster than torch."""
    if mask.device.type == "cpu":
        return torch.from_numpy(mask.numpy().nonzero()[0])
    return mask.nonzero()[:, 0]


def gather(weight: Tensor, ids: Tensor) -> Tensor:
    """Return the rows (C, d) of weight (V, d) for the words."""
    return weight.index_select(0, ids)
