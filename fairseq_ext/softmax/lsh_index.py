"""The index of LSH softmax: the vocabulary's band codes in tables, kept in a file beside the checkpoint.

The file's name tells K, u, W, the seed and the table; its key is a digest of the weights and of those. An index whose key differs
is built anew and replaces the file. Where the checkpoint's folder cannot be written, the user's cache folder is used.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_ext.kernels import lsh_torch
from fairseq_ext.kernels.lsh_torch import Cuckoo

logger = logging.getLogger("fairseq_ext")
FORMAT = 1
DIRECT_BITS = 16  # codes of so many bits are looked up by address; beyond, a cuckoo table is smaller


@dataclass(frozen=True)
class Parameters:
    """{K, u, W} of the paper, the seed of the permutations, and the kind of table."""

    K: int
    u: int
    W: int
    seed: int
    table: str  # direct or cuckoo

    @property
    def name(self) -> str:
        return f"lsh-{self.K}-{self.u}-{self.W}-{self.seed}-{self.table}"


@dataclass
class Index:
    """What a lookup needs. Words of equal code lie side by side in each band."""

    dimensions: Tensor  # (P, K) of the padded vector that each hash function compares
    words: Tensor  # (W x V,) int32
    V: int
    u: int
    offsets: Tensor | None = None  # (W, codes + 1) int32, with a direct-address table
    cuckoo: Cuckoo | None = None

    def to(self, device: torch.device) -> Index:
        cuckoo = self.cuckoo and Cuckoo(*(getattr(self.cuckoo, name).to(device) for name in ("key", "start", "length", "hashes")))
        offsets = None if self.offsets is None else self.offsets.to(device)
        return Index(self.dimensions.to(device), self.words.to(device), self.V, self.u, offsets, cuckoo)


def padded(weight: Tensor, bias: Tensor | None) -> Tensor:
    """The output layer (V, d) with its bias as one more dimension, which is 1 in the padded hidden vector."""
    return weight if bias is None else torch.cat([weight, bias[:, None]], dim=1)


def key_of(weight: Tensor, bias: Tensor | None, parameters: Parameters) -> str:
    """A digest of the weights and of the parameters."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in (weight, bias):
        if tensor is not None:
            digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    digest.update(f"{parameters} {FORMAT}".encode())
    return digest.hexdigest()


def build(weight: Tensor, bias: Tensor | None, parameters: Parameters, kernels: Any = lsh_torch) -> Index:
    """Hash every word and fill the tables. kernels: the twin that does it, on the weights' device."""
    x = padded(weight, bias)
    V, D = x.shape
    dimensions = lsh_torch.draw_dimensions(D, parameters.K, parameters.u, parameters.W, parameters.seed).to(x.device)
    spans = lsh_torch.sort_words(kernels.wta_hash(x, dimensions, parameters.u))
    index = Index(dimensions, spans.words.view(-1), V, parameters.u)
    if parameters.table == "cuckoo":
        index.cuckoo = kernels.build_cuckoo(spans, parameters.seed)
    else:
        index.offsets = lsh_torch.build_direct(spans, 1 << (parameters.u * lsh_torch.bits_of(parameters.K)))
    return index


def folders(checkpoint: str | None) -> list[Path]:
    """Where an index may be kept, best first; none without a checkpoint."""
    if checkpoint is None:
        return []
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fairseq_ext"
    return [Path(checkpoint).resolve().parent, cache]


def load_or_build(weight: Tensor, bias: Tensor | None, parameters: Parameters, checkpoint: str | None, kernels: Any = lsh_torch) -> Index:
    """The index of these weights, from its file if that holds it."""
    key = key_of(weight, bias, parameters)
    files = [folder / f"{Path(checkpoint or '').name}.{parameters.name}.pt" for folder in folders(checkpoint)]
    files[1:] = [file.with_name(f"{key}.{file.name}") for file in files[1:]]  # other checkpoints may have the same name there
    for file in files:
        index = read(file, key)
        if index is not None:
            return index.to(weight.device)
    start = time.perf_counter()
    index = build(weight, bias, parameters, kernels)
    seconds = time.perf_counter() - start
    place = next((file for file in files if write(index, key, file)), None)
    logger.info("LSH index of %d words built in %.1f s, %s", index.V, seconds, f"kept in {place}" if place else "not kept")
    return index


def read(file: Path, key: str) -> Index | None:
    """The index in a file, None where there is none of this key."""
    try:
        saved = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        if saved["key"] != key:
            return None
        cuckoo = Cuckoo(**saved["cuckoo"]) if saved["cuckoo"] else None
        return Index(saved["dimensions"], saved["words"], saved["V"], saved["u"], saved["offsets"], cuckoo)
    except FileNotFoundError:
        return None
    except Exception as error:  # a damaged file is replaced
        logger.warning("the LSH index %s cannot be read (%s) and is built anew", file, error)
        return None


def write(index: Index, key: str, file: Path) -> bool:
    """Keep the index, in one move; false where the place cannot be written."""
    cuckoo = index.cuckoo and {name: getattr(index.cuckoo, name).cpu() for name in ("key", "start", "length", "hashes")}
    saved = {"key": key, "dimensions": index.dimensions.cpu(), "words": index.words.cpu(), "V": index.V, "u": index.u}
    saved |= {"offsets": None if index.offsets is None else index.offsets.cpu(), "cuckoo": cuckoo}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=file.parent, prefix=file.name, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as out:
                torch.save(saved, out)
            os.chmod(part, 0o644)
            os.replace(part, file)
        except BaseException:
            os.unlink(part)
            raise
        return True
    except (OSError, RuntimeError):  # torch makes the latter of a full disk
        return False
