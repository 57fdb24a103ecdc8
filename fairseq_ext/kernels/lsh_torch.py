"""The functions of LSH softmax in torch: the definition of the compiled functions for the CPU
(lsh.py) and of the CUDA kernels (lsh_cuda.py).

    X. Shi, S. Xu and K. Knight. Fast Locality Sensitive Hashing for Beam Search on GPU. 2018,
    https://arxiv.org/abs/1806.00588

Shapes: n rows, V words, D dimensions, P = u x W hash functions of K dimensions each, W bands, B =
2 ** (u x bits of K) codes a band.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MAX_ROUNDS = 128  # rounds of parallel insertion before a band's table counts as cyclic
MAX_HASHES = 64  # pairs of hash functions to try before giving up
SLOTS_PER_KEY = 2  # at least
PRIME = 2147483647
CHUNK = 1 << 18  # elements that hashing processes at once


def bits_of(K: int) -> int:
    """Return the number of bits that hold 0 .. K - 1."""
    return max(1, (K - 1).bit_length())


def draw_dimensions(D: int, K: int, u: int, W: int, seed: int) -> Tensor:
    """Return the first K elements (P, K) of P = u x W random permutations of D dimensions; Eq. 5
    uses only these."""
    if not 2 <= K <= D:
        raise ValueError(f"K = {K} of {D} dimensions: use 2 to {D}")
    if u < 1 or u * bits_of(K) > 30:
        raise ValueError(f"u = {u} codes of {bits_of(K)} bits do not fit into 30 bits")
    generator = torch.Generator().manual_seed(seed)
    places = torch.rand(u * W, D, generator=generator).argsort(dim=1, stable=True)[:, :K]
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


# ---- Tables: word ids sorted by code, and the start of each code's span


@dataclass
class Spans:
    """The word ids of every band, sorted by code."""

    words: Tensor  # (W, V) int32, ascending within a code
    codes: Tensor  # (W, V) int32, ascending: the code of each of `words`


def sort_words(codes: Tensor) -> Spans:
    """Return the words by band and code, from codes (V, W)."""
    sorted_codes, words = codes.t().contiguous().sort(dim=1, stable=True)
    return Spans(words.int(), sorted_codes)


def build_direct(spans: Spans, size: int) -> Tensor:
    """Return the offsets (W, size + 1) int32 of each code's span: code c of band w has
    words.flatten()[offsets[w, c] : offsets[w, c + 1]]."""
    code = torch.arange(size + 1, dtype=torch.int32, device=spans.codes.device).expand(
        spans.codes.size(0), -1
    )
    W, V = spans.codes.shape
    band = torch.arange(W, dtype=torch.int32, device=spans.codes.device)[:, None]
    return torch.searchsorted(spans.codes, code.contiguous(), out_int32=True) + band * V


def lookup_direct(codes: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Return start and length (n, W) of the span of each code (n, W); starts count from the
    beginning of the flat (W x V) words."""
    W, size = offsets.shape
    place = codes + torch.arange(0, W * size, size, device=codes.device)
    flat = offsets.view(-1)
    start = flat[place]
    return start, flat[place + 1] - start


@dataclass
class Cuckoo:
    """A cuckoo hash table for each band: a key lies in one of two slots, so a lookup compares at
    most twice."""

    key: Tensor  # (W, size) int32, -1 where empty
    start: Tensor  # (W, size) int32, from the beginning of the band
    length: Tensor  # (W, size) int32
    hashes: Tensor  # (W, 4) int64: multiplier and offset of both hash functions

    @property
    def size(self) -> int:
        return self.key.size(1)


def draw_hashes(W: int, generator: torch.Generator) -> Tensor:
    return torch.randint(1, PRIME, (W, 4), generator=generator)


def slot_of(key: Tensor, hashes: Tensor, which: Tensor | int, size: int) -> Tensor:
    """Return the slots of keys (W, m) by hash function `which` (0 or 1) of their band: ((a x key +
    b) mod p) mod size."""
    if isinstance(which, int):
        a, b = hashes[:, 2 * which, None], hashes[:, 2 * which + 1, None]
    else:
        a, b = hashes.gather(1, 2 * which), hashes.gather(1, 2 * which + 1)
    return (a * key.long() + b) % PRIME % size


def build_cuckoo(spans: Spans, seed: int = 0) -> Cuckoo:
    """Insert every distinct code of every band in parallel, round by round. If several keys claim a
    slot, the smallest gets it, and the key that was there moves to its other slot. A band that does
    not settle (its keys evict each other in a cycle) draws new hash functions.

    Errors: RuntimeError if none of 64 pairs of functions settles a band.
    """
    keys, start, length, counts = distinct_codes(spans)
    W, m = keys.shape
    size = 1 << (SLOTS_PER_KEY * m - 1).bit_length()
    generator = torch.Generator().manual_seed(seed)
    hashes = draw_hashes(W, generator).to(keys.device)
    # index in `keys` of the key in each slot
    place = torch.full((W, size), -1, dtype=torch.long, device=keys.device)
    bands = torch.arange(W, device=keys.device)
    is_key = torch.arange(m, device=keys.device) < counts[:, None]
    for _ in range(MAX_HASHES):
        place[bands], settled = insert(keys[bands], is_key[bands], hashes[bands], size)
        bands = bands[~settled]
        if not bands.numel():
            return build_tables(place, keys, start, length, hashes)
        hashes[bands] = draw_hashes(bands.numel(), generator).to(keys.device)
    raise RuntimeError(
        f"{bands.numel()} bands have no cuckoo table after {MAX_HASHES} pairs of hash functions"
    )


def distinct_codes(spans: Spans) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the distinct codes of each band (W, m), padded with -1, their starts and lengths (W,
    m), and their number (W,)."""
    W, V = spans.codes.shape
    first = torch.ones_like(spans.codes, dtype=torch.bool)
    first[:, 1:] = spans.codes[:, 1:] != spans.codes[:, :-1]
    counts = first.sum(1)
    order = (~first).byte().argsort(dim=1, stable=True)[:, : int(counts.max())]
    is_key = first.gather(1, order)
    keys = spans.codes.gather(1, order).masked_fill(~is_key, -1)
    start = order.masked_fill(~is_key, V)
    length = (torch.cat([start[:, 1:], start.new_full((W, 1), V)], dim=1) - start).masked_fill(
        ~is_key, 0
    )
    return keys, start, length, counts


def build_tables(
    place: Tensor, keys: Tensor, start: Tensor, length: Tensor, hashes: Tensor
) -> Cuckoo:
    """Return the table with keys[place] in its slots; place (W, size): -1 for an empty slot."""
    used, index = place >= 0, place.clamp(min=0)
    columns = [
        x.gather(1, index).masked_fill(~used, empty).int()
        for x, empty in ((keys, -1), (start, 0), (length, 0))
    ]
    return Cuckoo(columns[0], columns[1], columns[2], hashes)


def insert(keys: Tensor, is_key: Tensor, hashes: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return for each slot (W, size) the number of its key or -1, and for each band (W,) whether
    all keys (W, m) were placed."""
    W, m = keys.shape
    no_key = m
    place = torch.full((W, size), no_key, dtype=torch.long, device=keys.device)
    number = torch.arange(m, device=keys.device).expand(W, m)
    # the hash function that each key uses now
    which = torch.zeros(W, m, dtype=torch.long, device=keys.device)
    waiting = is_key.clone()
    for _ in range(MAX_ROUNDS):
        # keys that do not wait write after the end of the table
        slot = slot_of(keys, hashes, which, size).masked_fill(~waiting, size)
        claimed = torch.full((W, size + 1), no_key, device=keys.device).scatter_reduce_(
            1, slot, number, "amin"
        )[:, :size]
        taken = claimed < no_key
        evicted = torch.where(taken, place, no_key)  # keys that were in the claimed slots
        place = torch.where(taken, claimed, place)
        won = torch.zeros(W, m + 1, dtype=torch.bool, device=keys.device).scatter_(
            1, claimed, True
        )[:, :m]
        lost = torch.zeros(W, m + 1, dtype=torch.bool, device=keys.device).scatter_(
            1, evicted, True
        )[:, :m]
        # a key that did not get its slot, or was evicted, tries its other slot next
        which = torch.where((waiting & ~won) | lost, 1 - which, which)
        waiting = (waiting & ~won) | lost
        if not waiting.any():
            break
    return torch.where(place < no_key, place, -1), ~waiting.any(1)


def lookup_cuckoo(codes: Tensor, table: Cuckoo, V: int) -> tuple[Tensor, Tensor]:
    """Return start and length (n, W) of each code's span, as in `lookup_direct`; length 0 if no
    word has the code."""
    queries = codes.t()  # (W, n)
    start = torch.zeros_like(queries)
    length = torch.zeros_like(queries)
    for which in (0, 1):
        slot = slot_of(queries, table.hashes, which, table.size)
        hit = table.key.gather(1, slot) == queries
        start = torch.where(hit, table.start.gather(1, slot), start)
        length = torch.where(hit, table.length.gather(1, slot), length)
    band = torch.arange(queries.size(0), device=codes.device, dtype=start.dtype)
    return (start + band[:, None] * V).masked_fill(
        length == 0, 0
    ).t().contiguous(), length.t().contiguous()


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


def compact(hits: Tensor, t: int, always: Tensor | None, never: Tensor | None = None) -> Tensor:
    """Return the ascending ids of words with t hits in any row (Eq. 10), and of words in the mask
    always (V,), without words in never (V,). hits (n, V)."""
    hits = hits if len(hits) else hits.new_full((1, hits.size(1)), -1)  # no rows: no hits
    mask = (hits[0] if hits.size(0) == 1 else hits.amax(0)) >= t
    mask = mask if always is None else mask | always
    return nonzero(mask if never is None else mask & ~never)


def nonzero(mask: Tensor) -> Tensor:
    """Return the indices of a flat mask. On a CPU NumPy is several times faster than torch."""
    if mask.device.type == "cpu":
        return torch.from_numpy(mask.numpy().nonzero()[0])
    return mask.nonzero()[:, 0]


def gather(weight: Tensor, ids: Tensor) -> Tensor:
    """Return the rows (C, d) of weight (V, d) for the words."""
    return weight.index_select(0, ids)
