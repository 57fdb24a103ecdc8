"""The functions of lsh_torch.py as CUDA kernels (lsh_cuda.cu).

CuPy launches them on torch's own memory and current stream.

They have the same names, arguments and results. `warp=False` and `optimised=False` choose the naive
forms that the paper compares with. CuPy is optional: see `unavailable_reason`.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairseq_ext.kernels import lsh_torch
from fairseq_ext.kernels.lsh_torch import bits_of

BLOCK = 256
SHARED_FLOATS = 12_288  # 48 KiB, a block's shared memory by default on every GPU
MAX_ROWS = 65_535  # blocks of a grid's second dimension


@functools.lru_cache(maxsize=1)
def unavailable_reason() -> str | None:
    """Return the reason why the kernels cannot run; None if they can."""
    if not torch.cuda.is_available():
        return "there is no CUDA device"
    if torch.cuda.get_device_capability()[0] < 7:
        return "the GPU is older than Volta"
    try:
        module()
    except ImportError:
        return "CuPy is not installed (pip install cupy-cuda12x, or the one of your CUDA)"
    except Exception as error:  # an incompatible driver or compiler
        return f"the kernels do not compile here ({str(error).splitlines()[0]})"
    return None


@functools.lru_cache(maxsize=1)
def module() -> Any:
    """Return the compiled kernels."""
    import cupy

    source = Path(__file__).with_name("lsh_cuda.cu").read_text(encoding="utf-8")
    compiled = cupy.RawModule(code=source, options=("--std=c++14",))
    compiled.compile()
    return compiled


def launch(
    name: str, grid: tuple[int, ...], *arguments: Tensor | int, shared: int = 0, block: int = BLOCK
) -> None:
    """Run a kernel on torch's stream.

    Tensors are passed as addresses, numbers as 32-bit integers.
    """
    import cupy

    first = next(a for a in arguments if isinstance(a, Tensor))
    values = [a.data_ptr() if isinstance(a, Tensor) else np.int32(a) for a in arguments]
    if not all(
        a.is_contiguous() and a.device == first.device for a in arguments if isinstance(a, Tensor)
    ):
        raise TypeError(f"the kernel {name} takes dense tensors of one GPU")
    with (
        cupy.cuda.Device(first.device.index),
        cupy.cuda.ExternalStream(torch.cuda.current_stream(first.device).cuda_stream),
    ):
        module().get_function(name)(grid, (block,), tuple(values), shared_mem=shared)


def blocks(items: int) -> int:
    return max(1, -(-items // BLOCK))


@functools.lru_cache(maxsize=8)
def as_int32(dimensions: Tensor) -> Tensor:
    return dimensions.int().contiguous()


def wta_hash(x: Tensor, dimensions: Tensor, u: int) -> Tensor:
    n, (P, K) = x.size(0), dimensions.shape
    if x.size(1) > SHARED_FLOATS:
        return lsh_torch.wta_hash(x, dimensions, u)
    codes = torch.empty(n, P // u, dtype=torch.int32, device=x.device)
    x = x.float().contiguous()
    for first in range(0, n, MAX_ROWS):
        part, out = x[first : first + MAX_ROWS], codes[first : first + MAX_ROWS]
        grid = (blocks(P // u), part.size(0))
        launch(
            "wta_hash",
            grid,
            part,
            as_int32(dimensions),
            out,
            x.size(1),
            K,
            u,
            bits_of(K),
            P // u,
            shared=4 * x.size(1),
        )
    return codes


def lookup(codes: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    n, W = codes.shape
    start, length = torch.empty_like(codes), torch.empty_like(codes)
    B = (offsets.numel() - 1) // W
    launch("lookup", (blocks(n * W),), codes, offsets, start, length, n, W, B)
    return start, length


def count_hits(start: Tensor, length: Tensor, words: Tensor, V: int, warp: bool = True) -> Tensor:
    """Do the same as `count_hits` of lsh_torch.py, on a GPU. warp: use the paper's re-arrangement
    of the warp; else each thread reads its own span."""
    n, W = start.shape
    hits = torch.zeros(n, V, dtype=torch.int32, device=start.device)
    launch(
        "count_hits" if warp else "count_hits_naive",
        (blocks(n * W),),
        start,
        length,
        words,
        hits,
        n,
        W,
        V,
    )
    return hits


def compact(hits: Tensor, t: int, always: Tensor, optimised: bool = True) -> Tensor:
    """Do the same as `compact` of lsh_torch.py, on a GPU. optimised: in order, by shared memory;
    else by one counter and a sort."""
    n, V = hits.shape
    always = always.byte()
    ids = torch.empty(V, dtype=torch.long, device=hits.device)
    if not optimised:
        counter = torch.zeros(1, dtype=torch.int32, device=hits.device)
        launch("compact_naive", (blocks(V),), hits, always, counter, ids, n, V, t)
        return ids[: int(counter)].sort().values
    counts = torch.empty(blocks(V), dtype=torch.int32, device=hits.device)
    launch("compact_count", (blocks(V),), hits, always, counts, n, V, t)
    before = counts.cumsum(0)
    launch("compact_write", (blocks(V),), hits, always, before, ids, n, V, t, shared=4 * BLOCK)
    return ids[: int(before[-1])]


def gather(weight: Tensor, ids: Tensor) -> Tensor:
    width = weight.size(1) * weight.element_size()
    if width % 4:
        return lsh_torch.gather(weight, ids)
    out = torch.empty(ids.numel(), weight.size(1), dtype=weight.dtype, device=weight.device)
    if ids.numel():
        launch("gather_rows", (ids.numel(),), weight, ids, out, width // 4)
    return out
