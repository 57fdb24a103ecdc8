"""CUDA sources run on a CPU: cuda_threads.cpp says how, and what it reports. `launch` stands in for the one of lsh_cuda.py."""

from __future__ import annotations

import ctypes
import itertools
import re
import subprocess
from pathlib import Path

import torch
from torch import Tensor

from fairseq_ext.kernels.softmax import lsh_cuda

HERE = Path(__file__).parent
SOURCE = Path(lsh_cuda.__file__).with_name("lsh.cu")
WATCHED = ["-fsanitize=thread,signed-integer-overflow,integer-divide-by-zero,shift,bounds"]  # the handlers are cuda_threads.cpp's own
SANITIZED = ["-fsanitize=address,undefined", "-fno-sanitize=vptr", "-fno-sanitize-recover=all"]
LETTERS = {torch.float32: "F", torch.int32: "I", torch.uint8: "B", torch.int64: "L", torch.float16: "H", torch.float64: "D"}


class KernelError(RuntimeError):
    """A kernel does something that is wrong on a GPU."""


def compiled(source: str, folder: Path, sanitized: bool = False) -> Path:
    """Build a source as a library. folder: for the library and what it is made of; may hold the executor from an earlier call."""
    folder.mkdir(exist_ok=True)
    names = re.findall(r"__global__ void (\w+)", source)
    table = ", ".join(f"KERNEL({name})" for name in names)
    kernels = folder / f"kernels{len(list(folder.glob('*.so')))}.cpp"
    kernels.write_text(
        f'#include "cuda_threads.hpp"\n#line 1\n{source}\nextern const executor::Kernel kernels[];\n'
        f'const executor::Kernel kernels[] = {{{table}, {{"", "", nullptr}}}};\n'
    )
    dynamic = sorted(set(re.findall(r"extern __shared__ \w+ (\w+)\[\]", source)))
    flags = ["g++", "-std=c++17", "-g", "-fPIC", f"-I{HERE}", "-Wno-unknown-pragmas"]
    executor = folder / "executor.o"
    if not executor.exists():
        listed = f"-DDYNAMIC_NAMES={' '.join(f'DYNAMIC({name})' for name in dynamic)}"
        subprocess.run([*flags, "-O1", *["-DSANITIZED"] * sanitized, listed, "-c", HERE / "cuda_threads.cpp", "-o", executor], check=True)
    watched = SANITIZED if sanitized else WATCHED
    subprocess.run([*flags, "-O1", "-fno-extern-tls-init", *watched, "-c", kernels, "-o", kernels.with_suffix(".o")], check=True)
    out = kernels.with_suffix(".so")
    subprocess.run(["g++", "-shared", *(SANITIZED if sanitized else []), kernels.with_suffix(".o"), executor, "-o", out], check=True)
    return out


class Executor:
    """The kernels of a library. Every launch takes another order of threads and blocks."""

    def __init__(self, library: Path, seed: int = 0):
        self.run = ctypes.CDLL(str(library)).launch
        self.run.restype = ctypes.c_char_p
        self.seeds = itertools.count(1000 * seed)
        self.launched: list[str] = []

    def launch(self, name: str, grid: tuple[int, ...], *arguments: Tensor | int, shared: int = 0, block: int = 256) -> None:
        """As lsh_cuda.launch. Raises KernelError with what the kernel does wrong."""
        self.launched.append(name)
        assert all(a.is_contiguous() for a in arguments if isinstance(a, Tensor))
        values = [a.data_ptr() if isinstance(a, Tensor) else torch.tensor(a, dtype=torch.int32).item() for a in arguments]
        letters = "".join(LETTERS[a.dtype] if isinstance(a, Tensor) else "i" for a in arguments)
        many = ctypes.c_long * len(values)
        size = many(*(a.nbytes if isinstance(a, Tensor) else 0 for a in arguments))
        grid_of = (ctypes.c_uint * 2)(*grid, *[1] * (2 - len(grid)))
        wrong = self.run(name.encode(), grid_of, block, shared, many(*values), size, letters.encode(), next(self.seeds) % 2**32)
        if wrong:
            raise KernelError(wrong.decode())
