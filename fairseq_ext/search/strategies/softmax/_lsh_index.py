"""The index of LSH softmax: the vocabulary's band codes in tables, in a file of the user's cache
folder.

The file's name contains K, u, W, the seed and the table; its key is a digest of the weights and of
these. An index with another key, or a damaged one, is built again and replaced: every number that a
lookup uses as an index is checked when the file is read.
"""

from __future__ import annotations

import hashlib
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_ext.core import array_file
from fairseq_ext.core.array_file import DamagedFile
from fairseq_ext.core.files import cache_folder
from fairseq_ext.kernels import lsh_torch
from fairseq_ext.kernels.lsh_torch import PRIME, Cuckoo, bits_of

logger = logging.getLogger("fairseq_ext")
FORMAT, VERSION = "fairseq_ext LSH index", 2
LONG, INT = (("<i8",), 2), ("<i4",)
LAYOUTS = {  # the dimensions are transposed, (K, P), as hashing reads them
    "direct": {"dimensions": LONG, "words": (INT, 1), "offsets": (INT, 2)},
    "cuckoo": {
        "dimensions": LONG,
        "words": (INT, 1),
        "key": (INT, 2),
        "start": (INT, 2),
        "length": (INT, 2),
        "hashes": LONG,
    },
}
# codes of up to this number of bits are looked up by address; beyond, a cuckoo table is smaller
DIRECT_BITS = 16


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
    """The tables of a lookup. Words of equal code are next to each other in each band."""

    dimensions: Tensor  # (P, K) of the padded vector that each hash function compares
    words: Tensor  # (W x V,) int32
    V: int
    u: int
    offsets: Tensor | None = None  # (W, codes + 1) int32, with a direct-address table
    cuckoo: Cuckoo | None = None

    def to(self, device: torch.device) -> Index:
        cuckoo = self.cuckoo and Cuckoo(
            *(
                getattr(self.cuckoo, name).to(device)
                for name in ("key", "start", "length", "hashes")
            )
        )
        offsets = None if self.offsets is None else self.offsets.to(device)
        return Index(
            self.dimensions.to(device), self.words.to(device), self.V, self.u, offsets, cuckoo
        )


def padded(weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the output layer (V, d) with its bias as one more dimension, which is 1 in the padded
    hidden vector."""
    return weight if bias is None else torch.cat([weight, bias[:, None]], dim=1)


def padded_shape(weight: Tensor, bias: Tensor | None) -> tuple[int, int]:
    """Return V and D of `append_bias`."""
    return weight.size(0), weight.size(1) + (bias is not None)


def key_of(weight: Tensor, bias: Tensor | None, parameters: Parameters) -> str:
    """Return a digest of the weights and of the parameters."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in (weight, bias):
        if tensor is not None:
            digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    digest.update(f"{parameters} {VERSION}".encode())
    return digest.hexdigest()


def build(
    weight: Tensor, bias: Tensor | None, parameters: Parameters, kernels: Any = lsh_torch
) -> Index:
    """Hash every word and fill the tables.

    kernels: the twin that does it, on the weights' device.
    """
    x = padded(weight, bias)
    V, D = x.shape
    dimensions = lsh_torch.draw_dimensions(
        D, parameters.K, parameters.u, parameters.W, parameters.seed
    ).to(x.device)
    spans = lsh_torch.sort_words(kernels.wta_hash(x, dimensions, parameters.u))
    index = Index(dimensions, spans.words.view(-1), V, parameters.u)
    if parameters.table == "cuckoo":
        index.cuckoo = kernels.build_cuckoo(spans, parameters.seed)
    else:
        index.offsets = lsh_torch.build_direct(spans, codes_of(parameters))
    return index


def codes_of(parameters: Parameters) -> int:
    """Return the number of codes of a band."""
    return 1 << (parameters.u * bits_of(parameters.K))


def place_of(checkpoint: str, parameters: Parameters) -> Path:
    """Return the path of a checkpoint's index; files of other folders may have the same name."""
    path = Path(checkpoint).resolve()
    return (
        cache_folder()
        / f"{hashlib.sha256(bytes(path.parent)).hexdigest()[:16]}.{path.name}.{parameters.name}.npz"
    )


def load_or_build(
    weight: Tensor,
    bias: Tensor | None,
    parameters: Parameters,
    checkpoint: str | None,
    kernels: Any = lsh_torch,
    dictionary: str = "",
) -> Index:
    """Return the index of these weights, from its file if that has it; dictionary: fingerprint of
    the words, stored in the file."""
    key = key_of(weight, bias, parameters)
    file = None if checkpoint is None else place_of(checkpoint, parameters)
    if (
        file is not None
        and (index := read(file, key, parameters, *padded_shape(weight, bias), dictionary))
        is not None
    ):
        return index.to(weight.device)
    start = time.perf_counter()
    index = build(weight, bias, parameters, kernels)
    seconds = time.perf_counter() - start
    kept = file is not None and write(index, key, file, dictionary)
    logger.info(
        "LSH index of %d words built in %.1f s, %s",
        index.V,
        seconds,
        f"kept in {file}" if kept else "not kept",
    )
    return index


def read(
    file: Path, key: str, parameters: Parameters, V: int, D: int, dictionary: str = ""
) -> Index | None:
    """Return the index of a file, for V words and D dimensions; None if it has another key.

    An index that was made with another dictionary is used, since it depends on the weights alone,
    but one of the two dictionaries must be wrong.
    """
    try:
        made_from, arrays = array_file.load(file, FORMAT, VERSION, LAYOUTS[parameters.table])
        if made_from.get("weights") != key:
            return None
        check_numbers(arrays, parameters, V, D)
        there = made_from.get("dictionary", "")
        if there and dictionary and there != dictionary:
            logger.warning(
                "the LSH index %s was made for this model with another target dictionary (%s "
                "there, %s here), and one of the two is wrong: use that of the training, and "
                "remove the index if it was made with the wrong one",
                file,
                there,
                dictionary,
            )
    except FileNotFoundError:
        return None
    except (OSError, DamagedFile) as error:  # a damaged file is replaced
        logger.warning("the LSH index %s is built again, because %s", file, error)
        return None
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    index = Index(tensors.pop("dimensions").t(), tensors.pop("words"), V, parameters.u)
    if parameters.table == "cuckoo":
        index.cuckoo = Cuckoo(**tensors)
    else:
        index.offsets = tensors["offsets"]
    return index


def check_numbers(arrays: dict[str, Any], parameters: Parameters, V: int, D: int) -> None:
    """Raise DamagedFile unless every dimension, word and span is valid for a lookup."""
    K, P, W = parameters.K, parameters.u * parameters.W, parameters.W
    dimensions, words = arrays["dimensions"], arrays["words"]
    if dimensions.shape != (K, P) or words.shape != (W * V,):
        raise DamagedFile("its arrays are of another size")
    if not 0 <= int(dimensions.min()) <= int(dimensions.max()) < D:
        raise DamagedFile("it compares a dimension that there is not")
    if not 0 <= int(words.min()) <= int(words.max()) < V:
        raise DamagedFile("it holds a word that is not in the vocabulary")
    if parameters.table == "direct":
        offsets = arrays["offsets"].astype("int64")
        if offsets.shape != (W, codes_of(parameters) + 1):
            raise DamagedFile("its arrays are of another size")
        first = [band * V for band in range(W)]
        if (
            (offsets[:, 0] != first).any()
            or (offsets[:, -1] - V != first).any()
            or (offsets[:, 1:] < offsets[:, :-1]).any()
        ):
            raise DamagedFile("its spans are not in order")
        return
    key, start, length, hashes = (arrays[name] for name in ("key", "start", "length", "hashes"))
    if (
        not key.shape == start.shape == length.shape == (W, key.shape[1])
        or key.shape[1] < 1
        or hashes.shape != (W, 4)
    ):
        raise DamagedFile("its arrays are of another size")
    if not 1 <= int(hashes.min()) <= int(hashes.max()) < PRIME:
        raise DamagedFile("its hash functions are not valid")
    if (
        int(start.min()) < 0
        or int(length.min()) < 0
        or int((start.astype("int64") + length).max()) > V
    ):
        raise DamagedFile("its spans leave their band")


def write(index: Index, key: str, file: Path, dictionary: str = "") -> bool:
    """Write the index in one step; return false if the file cannot be written."""
    cuckoo = index.cuckoo
    tensors = {"dimensions": index.dimensions.t(), "words": index.words}
    if cuckoo is not None:
        tensors |= {name: getattr(cuckoo, name) for name in ("key", "start", "length", "hashes")}
    elif index.offsets is not None:
        tensors["offsets"] = index.offsets
    arrays = {name: tensor.cpu().contiguous().numpy() for name, tensor in tensors.items()}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        array_file.save(
            file,
            FORMAT,
            VERSION,
            {"weights": key, "dictionary": dictionary},
            arrays,
            compress=False,
        )
        return True
    except OSError:
        return False
