"""CUDA sources run on a CPU: cuda_threads.cpp says how, and what it reports.

`launch` stands in for the one of lsh_cuda.py.
"""

from __future__ import annotations

import ctypes
import itertools
import re
import subprocess
from pathlib import Path

import torch
from torch import Tensor

from fairseq_ext.kernels import lsh_cuda

HERE = Path(__file__).parent
SOURCE = Path(lsh_cuda.__file__).with_name("lsh_cuda.cu")
WATCHED = [
    "-fsanitize=thread,signed-integer-overflow,integer-divide-by-zero,shift,bounds",
    "--param=tsan-instrument-func-entry-exit=0",
]
SANITIZED = ["-fsanitize=address,undefined", "-fno-sanitize=vptr", "-fno-sanitize-recover=all"]
TYPES = {
    "float*": torch.float32,
    "int*": torch.int32,
    "unsigned char*": torch.uint8,
    "long long*": torch.int64,
}


class KernelError(RuntimeError):
    """A kernel does something that is wrong on a GPU."""


class Executor:
    """The kernels of a CUDA source. Every launch takes another order of threads and blocks."""

    def __init__(self, source: str, folder: Path, sanitized: bool = False):
        """folder: for the library and what it is made of; may hold the executor from
        an earlier source."""
        folder.mkdir(exist_ok=True)
        kernels, executor = (
            folder / f"kernels{len(list(folder.glob('*.so')))}.o",
            folder / "executor.o",
        )
        found = re.findall(r"__global__ void (\w+)\((.*?)\)", source, re.DOTALL)
        self.parameters = {
            name: re.findall(r"(?:const )?(\w[\w ]+\*?) (\w+)(?:,|$)", listed)
            for name, listed in found
        }
        code = re.sub(
            r"extern __shared__ (\w+) (\w+)\[\];",
            r"\1* \2 = (\1*)executor::dynamic_shared();",
            source,
        )
        flags = ["-std=c++17", "-g", "-O1", "-fPIC", f"-I{HERE}", "-Wno-unknown-pragmas"]
        if not executor.exists():
            subprocess.run(
                ["g++", *flags, "-c", HERE / "cuda_threads.cpp", "-o", executor], check=True
            )
        flags += SANITIZED if sanitized else WATCHED
        words = ["g++", *flags, "-include", "cuda_threads.hpp", "-c", "-xc++", "-", "-o", kernels]
        subprocess.run(words, input=code.encode(), check=True)
        library = kernels.with_suffix(".so")
        subprocess.run(
            ["g++", "-shared", *(SANITIZED if sanitized else []), kernels, executor, "-o", library],
            check=True,
        )
        self.library = ctypes.CDLL(str(library))
        self.library.launch.restype = ctypes.c_char_p
        self.seeds = itertools.count()
        self.launched: list[str] = []

    def launch(
        self,
        name: str,
        grid: tuple[int, ...],
        *arguments: Tensor | int,
        shared: int = 0,
        block: int = 256,
    ) -> None:
        """As lsh_cuda.launch. Raises KernelError with what the kernel does wrong."""
        self.launched.append(name)
        for value, (kind, parameter) in zip(arguments, self.parameters[name], strict=True):
            if (
                isinstance(value, int) != (kind == "int")
                or isinstance(value, Tensor)
                and value.dtype is not TYPES.get(kind, value.dtype)
            ):
                raise KernelError(f"{name}: {parameter} is no {kind}")
        x, y = (*grid, 1)[:2]
        if not (
            0 < x < 1 << 31
            and 0 < y < 1 << 16
            and 0 < block <= 1024
            and shared <= 4 * lsh_cuda.SHARED_FLOATS
        ):
            raise KernelError(f"{name}: no GPU launches this")
        assert all(a.is_contiguous() for a in arguments if isinstance(a, Tensor))
        sixteen = ctypes.c_long * 16
        values = [
            a.data_ptr() if isinstance(a, Tensor) else torch.tensor(a, dtype=torch.int32).item()
            for a in arguments
        ]
        sizes = [a.nbytes if isinstance(a, Tensor) else 0 for a in arguments]
        shape = (ctypes.c_uint * 2)(x, y), block, shared
        if wrong := self.library.launch(
            self.library[name], *shape, sixteen(*values), sixteen(*sizes), next(self.seeds)
        ):
            raise KernelError(f"{name}: {wrong.decode()}")
