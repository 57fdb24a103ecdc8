"""Every kernel of lsh_cuda.cu, run thread by thread on a CPU, gives what lsh_torch.py gives.

The threads run in any order (cuda_executor.py).

The functions are lsh_cuda.py's own; only `launch` is replaced. `--all` runs 1,000 random cases of
each kernel instead of a few."""

from __future__ import annotations

import math
import mmap
import os
import random
import sys
from pathlib import Path

import pytest
import torch
from conftest import ran
from cuda_executor import SOURCE, Executor, KernelError
from sizes import drawn

from fairseq_ext.kernels import lsh_cuda, lsh_torch

SANITIZED = "FAIRSEQ_EXT_TEST_SANITIZED"  # set where the address sanitizer was loaded before Python
# of lanes, warps and blocks
EDGES = [1, 2, 31, 32, 33, 63, 64, 65, 255, 256, 257, 511, 512, 513, 1025]
ORDERS = 3  # of threads and blocks, for every case


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cuda")


@pytest.fixture(scope="module")
def executor(folder) -> Executor:
    return Executor(SOURCE.read_text(), folder, SANITIZED in os.environ)


@pytest.fixture(autouse=True)
def launches(executor, monkeypatch) -> list[str]:
    """Kernels launched so far; what torch.empty gives is no plausible number."""
    executor.launched.clear()
    monkeypatch.setattr(lsh_cuda, "launch", executor.launch)
    torch.use_deterministic_algorithms(True)
    yield executor.launched
    torch.use_deterministic_algorithms(False)


def near(chance: random.Random, most: int) -> int:
    """A size at or next to a limit of warps and blocks, or any up to `most`."""
    return chance.choice([*(edge for edge in EDGES if edge <= most), chance.randint(1, most)])


def index(chance: random.Random):
    """An index of random words, and the codes of some rows."""
    V, n = near(chance, 600), chance.choice([0, 1, 1, 2, 5, 31, 32, 33])
    W = near(chance, 257 if n == 1 else 33)
    K, u = chance.choice([(2, 1), (4, 1), (5, 3)])  # 1, 2 and 9 bits
    built = lsh_torch.build_index(torch.randn(V, 6), K, u, W, chance.randrange(99))
    there = lsh_torch.wta_hash(torch.randn(n, 6), built.dimensions, u)
    others = torch.randint(1 << (u * lsh_torch.bits_of(K)), (n, W), dtype=torch.int32)
    return built, torch.where(torch.rand(n, W) < 0.7, there, others)


def wta_hash(chance: random.Random) -> None:
    D, u, W = near(chance, 700) + 1, chance.randint(1, 3), near(chance, 300)
    n = chance.choice([0, 1, 2, 7])
    K = chance.choice([2, min(D, 1 << 30 // u), chance.randint(2, min(D, 16))])
    x = torch.randn(n, D)
    x[::2].round_()  # equal numbers, of which the first wins; 0 and -0
    dimensions = lsh_torch.draw_dimensions(D, K, u, W, chance.randrange(99))
    assert torch.equal(lsh_cuda.wta_hash(x, dimensions, u), lsh_torch.wta_hash(x, dimensions, u))


def lookup(chance: random.Random) -> None:
    built, requested = index(chance)
    same(lsh_cuda.lookup(requested, built.offsets), lsh_torch.lookup(requested, built.offsets))


def count_hits(chance: random.Random, warp: bool = True) -> None:
    built, requested = index(chance)
    found = lsh_torch.lookup(requested, built.offsets)
    same(
        [lsh_cuda.count_hits(*found, built.words, built.V, warp)],
        [lsh_torch.count_hits(*found, built.words, built.V).int()],
    )


def count_hits_naive(chance: random.Random) -> None:
    count_hits(chance, warp=False)


def compact_write(chance: random.Random, optimised: bool = True) -> None:
    n, V = (
        chance.choice([0, 1, 2, 5]),
        chance.choice([near(chance, 1100), chance.randint(513, 800)]),
    )
    hits = torch.randint(4, (n, V), dtype=torch.int32)
    always = torch.rand(V) < chance.choice([0.0, 0.1, 1.0])
    for t in (0, chance.randint(1, 3), 4):  # all words, some, none
        assert torch.equal(
            lsh_cuda.compact(hits, t, always, optimised=optimised),
            lsh_torch.compact(hits, t, always),
        )


def compact_naive(chance: random.Random) -> None:
    compact_write(chance, optimised=False)


def gather_rows(chance: random.Random) -> None:
    V, width = near(chance, 300), near(chance, 1100)
    dtype = chance.choice([torch.float32, torch.float16])
    weight, ids = torch.randn(V, width).to(dtype), torch.randint(V, (chance.choice([0, 1, 2, 40]),))
    assert torch.equal(lsh_cuda.gather(weight, ids), lsh_torch.gather(weight, ids))


def same(ours, theirs) -> None:
    for got, expected in zip(ours, theirs, strict=True):
        assert got.dtype == expected.dtype and torch.equal(got, expected)


KERNELS = [
    wta_hash,
    lookup,
    count_hits,
    count_hits_naive,
    compact_write,
    compact_naive,
    gather_rows,
]


def run(kernel, seed: int) -> None:
    for _ in range(ORDERS):  # the executor's order differs each time, the case does not
        torch.manual_seed(seed)
        kernel(random.Random(seed))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_a_kernel_gives_what_torch_gives_in_any_order_of_its_threads(kernel, launches, request):
    for seed in range(1000 if request.config.getoption("--all") else 4):
        run(kernel, seed)
    assert kernel.__name__ in launches and (
        kernel is not compact_write or "compact_count" in launches
    )


# ---- the largest shapes


def test_a_row_as_long_as_shared_memory_is_hashed(launches):
    for D, runs in ((lsh_cuda.SHARED_FLOATS, True), (lsh_cuda.SHARED_FLOATS + 1, False)):
        x, dimensions = torch.randn(1, D), lsh_torch.draw_dimensions(D, D, 2, 3, 1)
        assert torch.equal(
            lsh_cuda.wta_hash(x, dimensions, 2), lsh_torch.wta_hash(x, dimensions, 2)
        )
        assert bool(launches) == runs
        launches.clear()


def test_more_rows_than_a_grid_has_are_hashed_in_parts(launches, request, monkeypatch):
    n = 65_537 if request.config.getoption("--all") else 66
    monkeypatch.setattr(lsh_cuda, "MAX_ROWS", n - 2)
    x, dimensions = torch.randn(n, 2), lsh_torch.draw_dimensions(2, 2, 1, 1, 1)
    assert (
        torch.equal(lsh_cuda.wta_hash(x, dimensions, 1), lsh_torch.wta_hash(x, dimensions, 1))
        and len(launches) == 2
    )


def count_beyond_32_bits(chance: random.Random | None = None) -> None:
    """Hits in a table of more than 2^31 numbers, of which no more pages are in memory
    than are written."""
    n, V = 2050, 1 << 20
    words = torch.arange(V, dtype=torch.int32).flip(0).contiguous()
    row = torch.arange(n)
    start = row.int()[:, None] * 3
    length = torch.full_like(start, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "zeros", unwritten)
        for warp in (True, False):
            hits = lsh_cuda.count_hits(start, length, words, V, warp)
            assert all(
                (hits[row, words.long()[start[:, 0] + i]] == int(i < 2)).all() for i in range(3)
            )


def unwritten(*shape: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def test_indices_beyond_32_bits_are_counted():
    count_beyond_32_bits()


# ---- errors that are planted are caught


ROW = "row[i] = x[(long long)blockIdx.y * D + i];\n    __syncthreads();"
BAND = "    int band = blockIdx.x * blockDim.x + threadIdx.x;\n    if (band >= W) return;"
PLANTED = {  # what is replaced by what, in which kernel, and what is reported
    "a missing barrier": (
        ROW,
        ROW.split("\n")[0],
        wta_hash,
        "shared memory that its block has not written",
    ),
    "a missing barrier before shared memory is read": (
        "__popc(listed));\n    __syncthreads();\n    if",
        "__popc(listed));\n    if",
        compact_write,
        "no barrier between",
    ),
    "a divergent barrier": (
        f"__syncthreads();\n{BAND}",
        f"{BAND}\n    __syncthreads();",
        wta_hash,
        "which has ended",
    ),
    "a divergent warp": (
        "bool in = i < n * W;",
        "if (i >= n * W) return; bool in = true;",
        count_hits,
        "which has ended",
    ),
    "a wrong mask": ("0xffffffffu", "0x0000ffffu", count_hits, "is not in its own mask"),
    "an overflow of an index": (
        "(long long)(i / W) * V",
        "(i / W) * V",
        count_beyond_32_bits,
        "mul_overflow",
    ),
    "uninitialised shared memory": (
        "if (threadIdx.x == 0) total = 0;",
        "",
        compact_write,
        "that its block has not written",
    ),
    "a lost atomic": (
        "atomicAdd(row + words[p], 1)",
        "row[words[p]] += 1",
        count_hits_naive,
        "no barrier between",
    ),
    "a wrong lane": ("my_length, turn)", "my_length, turn + 1)", count_hits, None),
    "a lane outside the mask": (
        "__shfl_sync(FULL, my_row, turn)",
        "lane < 31 ? __shfl_sync(FULL >> 1, my_row, turn) : my_row",
        count_hits,
        "asks for lane 31",
    ),
    "a read out of bounds": (
        "n * W) return;\n    long long at",
        "n * W + 1) return;\n    long long at",
        lookup,
        "out of bounds",
    ),
    "a grid too small": ("", "", wta_hash, None),
}


@drawn(2)
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_error_is_caught(name, folder, monkeypatch):
    right, wrong, kernel, reported = PLANTED[name]
    source = SOURCE.read_text()
    assert right in source
    broken = Executor(source.replace(right, wrong), folder, SANITIZED in os.environ)
    monkeypatch.setattr(lsh_cuda, "launch", broken.launch)
    if not right:
        monkeypatch.setattr(lsh_cuda, "blocks", lambda items: max(1, items // lsh_cuda.BLOCK))
    with pytest.raises(KernelError if reported else (KernelError, AssertionError), match=reported):
        for seed in range(40):
            run(kernel, seed)


def test_arguments_that_a_kernel_does_not_take_are_refused(launches):
    codes = torch.zeros(1, 4, dtype=torch.int32)
    with pytest.raises(KernelError, match="offsets is no int\\*"):
        lsh_cuda.lookup(codes, torch.zeros(4, 9, dtype=torch.int64))
    with pytest.raises(KernelError, match="no GPU launches this"):
        lsh_cuda.launch("gather_rows", (0,), codes, codes.long(), codes, 1)


@drawn(0)  # long
def test_kernels_pass_the_address_and_undefined_behaviour_sanitizers(request):
    """Which end the process at the planted error, the last of these tests."""
    asan = ran("g++", "-print-file-name=libasan.so").stdout.strip()
    words = [sys.executable, "-um", "pytest", "-sk", "gives or long or bounds", __file__]
    words += ["--all"] * request.config.getoption("--all")
    more = {SANITIZED: "1", "LD_PRELOAD": asan, "ASAN_OPTIONS": "detect_leaks=0"}
    done = ran(*words, check=False, timeout=3000, **more)
    assert done.stdout.endswith("." * (len(KERNELS) + 1)), done.stdout + done.stderr
    assert done.returncode and "heap-buffer-overflow" in done.stderr and "lookup" in done.stderr
