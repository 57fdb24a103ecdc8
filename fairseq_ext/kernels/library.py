"""Finds, builds and loads the compiled library, and gives its structures and functions (abi.h).

It is the library of this processor's level, from a wheel or compiled here.

Without a wheel it is compiled once; `python -m fairseq_ext.kernels` does that ahead of time. It
lies in the user's cache folder under a name that depends on source, compiler and flags, so a
changed source has another name. Loading a library runs its code. So a library from that folder is
loaded only if no other user can write there; otherwise it is built again. Without a wheel's library
and without a compiler the torch operations run instead.

Environment: FAIRSEQ_EXT_KERNELS names a level (compiling.py), or is `native` to compile for this
processor only, or `off`; CXX names the compiler.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import functools
import importlib.util
import logging
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from fairseq_ext.core import command_line
from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.files import cache_folder, replace, sha256, untrusted_reason
from fairseq_ext.kernels.compiling import (
    ABI,
    FLAGS,
    HEADERS,
    LEVEL_PROBE,
    LEVELS,
    SOURCES,
    WHEEL_FOLDER,
    compile_files,
    compiler,
)

if TYPE_CHECKING:
    import numpy as np
    from cffi import FFI
    from torch import Tensor

CData: TypeAlias = "FFI.CData"  # a structure, or a pointer
Array: TypeAlias = "Tensor | np.ndarray | None"
logger = logging.getLogger("fairseq_ext")
VARIABLE = "FAIRSEQ_EXT_KERNELS"
TRY_CODE = (
    "import ctypes, sys; found = ctypes.CDLL(input()); sys.exit(0 if not hasattr(found, 'works') "
    "or found.works() else 1)"
)
OFF_HINT = f"{VARIABLE}=off switches it off"
FALLBACK_WARNING = (
    "no compiled decoder step, torch operations run instead, which take 1.8 times as long in bulk "
    "and 7 times for a single line of a small model"
)
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # as in malloc.h
OUT_OF_MEMORY = -(1 << 63)  # as in entry.hpp


def is_off() -> bool:
    """Return whether the user has switched the library off."""
    return os.environ.get(VARIABLE) == "off"


def supported(names: Iterable[str] = ()) -> Iterator[str]:
    """Yield the levels of these (default: of all) that this processor has, the fastest first; a
    later one is queried only when it is needed.

    Errors: RuntimeError if the processor cannot be queried.
    """
    probe = declarations().dlopen(str(find_or_compile("levels", [LEVEL_PROBE], FLAGS)))
    names = names or LEVELS.get(platform.machine(), {})
    return (name for name in names if probe.supports(name.encode()))


def level() -> str:
    """Return the fastest level of this processor, or the one that the user names; `native` on a
    machine without levels.

    Errors: RuntimeError if the processor has none of them; UsageError for the name of an unknown
    level or of one that the processor does not have.
    """
    levels, named = (
        LEVELS.get(platform.machine(), {}),
        "" if is_off() else os.environ.get(VARIABLE, ""),
    )
    if named not in (*levels, "native", ""):
        raise UsageError(
            f"{VARIABLE}={named} is unknown: name one of {', '.join([*levels, 'native', 'off'])}"
        )
    if named == "native" or not levels:
        return "native"
    found = next(supported([named] if named else levels), None)
    if named and found is None:
        raise UsageError(
            f"{VARIABLE}={named}: this processor lacks that, so name one of "
            f"{', '.join([*supported(), 'native', 'off'])}"
        )
    if found is None:
        raise RuntimeError(
            f"the processor has none of {', '.join(levels)}: {VARIABLE}=native compiles for it"
        )
    return found


def processor() -> str:
    """Return the processor's name and features, on which the result of -march=native depends."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "".join(
        dict.fromkeys(
            line for line in lines if line.startswith(("flags", "Features", "model name"))
        )
    )


@functools.cache
def version_of(*command: str) -> str:
    """Return a compiler's version text."""
    return subprocess.run(
        [*command, "--version"], capture_output=True, text=True, check=False
    ).stdout


def file_name(stem: str, files: Sequence[Path], flags: Sequence[str], command: list[str]) -> str:
    """Return a library's file name, with a digest of everything that its content depends on."""
    sources = (path.read_text(encoding="utf-8") for path in [*files, *HEADERS])
    machine = processor() if "-march=native" in flags else platform.machine()
    parts = (*sources, shlex.join(command), version_of(*command), *flags, machine)
    return f"{stem}-{sha256([repr(parts).encode()])[:16]}.so"


def private_folder() -> Path:
    """Return the cache folder, writable by this user only; if others could write to it or to a
    folder above it, return a temporary folder of this process."""
    folder = cache_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) != 0o700:
        planted = untrusted_reason(folder) is not None
        folder.chmod(0o700)
        for file in (
            [*folder.glob("*.so"), *folder.glob("abi-*"), *folder.glob("model-*")]
            if planted
            else ()
        ):
            logger.info("%s is removed and built again: others could have written it", file)
            file.unlink()
    why = untrusted_reason(folder)
    if why is None:
        return folder
    logger.info(
        "the compiled decoder step is built for this process only, because %s: name a folder of "
        "your own by XDG_CACHE_HOME",
        why,
    )
    folder = Path(tempfile.mkdtemp(prefix="fairseq_ext-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def is_trusted(file: Path) -> bool:
    """Return whether the file is there and only this user could write it."""
    with contextlib.suppress(OSError):
        return untrusted_reason(file) is None
    return False


@contextlib.contextmanager
def build_lock(folder: Path) -> Iterator[None]:
    """Wait until no other process builds in this folder, and keep others from it meanwhile."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        fcntl.flock(handle, fcntl.LOCK_UN)  # a process that was forked meanwhile has it open
        os.close(handle)


def compile_library(
    command: list[str], flags: Sequence[str], files: Sequence[Path], target: Path
) -> None:
    """Compile a library, test it in a separate process, and write it.

    Errors: RuntimeError in one sentence; OSError.
    """
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / target.name
        compile_files(command, flags, files, made, linking=flags)
        tried = subprocess.run(
            [sys.executable, "-I", "-c", TRY_CODE],
            input=os.fsencode(made),
            capture_output=True,
            check=False,
        )
        if tried.returncode:
            names = ", ".join(path.name for path in files)
            raise RuntimeError(
                f"the library that {shlex.join(command)} made of {names} does not work on this "
                f"processor (status {tried.returncode})"
            )
        replace(target, [made.read_bytes()])
        target.chmod(0o700)


def report_progress(line: str) -> None:
    """Report a slow operation: on standard error in our commands, in the log of other programs."""
    if command_line.own_command and sys.stderr is not None:
        print(line, file=sys.stderr, flush=True)
    else:
        logger.info(line)


def find_or_compile(stem: str, files: Sequence[Path], flags: Sequence[str]) -> Path:
    """Return the path of the library: of the wheel's, else of a verified one in the cache folder,
    which is compiled if needed.

    Errors: RuntimeError in one sentence.
    """
    brought, command = WHEEL_FOLDER / f"{stem}.so", compiler()
    if brought.is_file():
        return brought
    if command is None:
        raise RuntimeError("there is no C++ compiler (g++, c++, clang++ or the one that CXX names)")
    try:
        target = private_folder() / file_name(stem, files, flags, command)
        if is_trusted(target):
            return target
        with build_lock(target.parent):
            if not is_trusted(target):  # another process may have built it in the meantime
                if target.exists():
                    logger.info("others could have written %s: it is built again", target)
                if stem != "levels":
                    report_progress("compiling the decoder step, once on this machine: about 15 s")
                compile_library(command, flags, files, target)
    except OSError as error:
        raise RuntimeError(f"{cache_folder()} cannot be written ({error.strerror})") from error
    return target


def build() -> Path:
    """Return the path of the compiled library for this processor.

    Errors: RuntimeError in one sentence; UsageError (level).
    """
    name = level()
    chosen = ("-march=native",) if name == "native" else LEVELS[platform.machine()][name]
    return find_or_compile(name, SOURCES, (*FLAGS, *chosen))


def share_openmp() -> None:
    """Load the OpenMP functions that a wheel's library needs: those of torch, so that there is only
    one set of threads, or those of the system."""
    torch = importlib.util.find_spec("torch")
    folders = [Path(folder) for folder in (torch and torch.submodule_search_locations) or ()]
    names = [
        str(path)
        for folder in folders
        for path in [*folder.glob("lib/libgomp*"), *folder.parent.glob("torch.libs/libgomp*")]
    ]
    for name in [*names, "libgomp.so.1"]:
        with contextlib.suppress(OSError):
            ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
            return


@functools.cache
def c_library() -> ctypes.CDLL:
    """Return the C library of this process.

    It is cached: each ctypes object for it creates types that only the garbage collector frees.
    """
    return ctypes.CDLL(None)


def keep_freed_memory() -> None:
    """Make glibc keep freed memory. A step's (rows, V) results are tens of MiB, and requesting
    zeroed pages for them again and again costs up to a quarter of the time. Other C libraries are
    not changed."""
    mallopt = getattr(c_library(), "mallopt", None)
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, 1 << 30)
        mallopt(M_MMAP_MAX, 0)


def give_back_memory() -> None:
    """Return unused pages to the system (glibc).

    The memory that keep_freed_memory retains becomes fragmented over many sentences: blocks of all
    sizes lie between live results, and glibc before 2.38 hardly reuses the remainders of aligned
    blocks (https://sourceware.org/bugzilla/show_bug.cgi?id=14581). So the process would grow with
    every batch of large blocks.
    """
    trim = getattr(c_library(), "malloc_trim", None)
    if trim is not None:
        trim(0)


@functools.cache
def declarations() -> FFI:
    """Return cffi's form of abi.h.

    It is made once and kept in the cache folder: parsing takes 80 ms, a third of a command's start.
    """
    import _cffi_backend

    text = ABI.read_text("utf-8")
    found: dict[str, FFI] = {}
    key = sha256([f"{_cffi_backend.__version__} {text}".encode()])[:16]
    try:
        file = private_folder() / f"abi-{key}.py"
        if not is_trusted(file):
            from cffi.recompiler import make_py_source

            with tempfile.TemporaryDirectory(dir=file.parent) as folder:
                made = Path(folder) / "abi.py"
                make_py_source(parse(text), "abi", str(made))
                replace(file, [made.read_bytes()])
        exec(file.read_text("utf-8"), found)
        return found["ffi"]
    except OSError:  # the cache cannot be written
        return parse(text)


def parse(text: str) -> FFI:
    """Return cffi's form of declarations in C."""
    import cffi

    parsed = cffi.FFI()
    parsed.cdef(text)
    return parsed


def new(kind: str, /, *values: object, **fields: object) -> CData:
    """Return a pointer to a new structure of abi.h; what its fields point to must live as long.
    They are given in their order or by name."""
    return declarations().new(f"{kind} *", fields or values)


class Library:
    """The functions of abi.h in a compiled library (`functions`); those that run out of memory
    raise MemoryError. file: where it lies."""

    def __init__(self, file: Path):
        self.file = file
        self.functions = declarations().dlopen(str(file))

    def __getattr__(self, name: str) -> Callable:
        function = getattr(self.functions, name)

        def call(*arguments: object) -> int:
            result = function(*arguments)
            if result == OUT_OF_MEMORY:
                raise MemoryError(f"{name} of the compiled library needs more memory")
            return result

        setattr(self, name, call)
        return call


@functools.cache
def library() -> Library | None:
    """Return the loaded library; None if it is switched off or not available, which is logged
    once."""
    if is_off():
        logger.info("%s: %s", FALLBACK_WARNING, OFF_HINT)
        return None
    try:
        file = build()
        if file.parent == WHEEL_FOLDER:
            share_openmp()
        found = Library(file)
    except (RuntimeError, OSError) as error:
        logger.info("%s: %s", FALLBACK_WARNING, error)
        return None
    keep_freed_memory()
    return found


@functools.cache
def loaded() -> Library:
    """Return the library; call this only where the library is known to be available."""
    found = library()
    assert found is not None, "the compiled library is not there"
    return found


def pointer(array: Array) -> CData:
    """Return a pointer to the elements of an array (a tensor on a CPU, or a NumPy array), the null
    pointer for None. The array must live as long as the pointer is used."""
    if array is None:
        return declarations().NULL
    at = array.data_ptr() if hasattr(array, "data_ptr") else array.ctypes.data
    return declarations().cast("void *", at)


def address(array: Any, dtype: object, *shape: int | None) -> CData:
    """Return the `pointer` to a dense array on a CPU. shape: None stands for any size; without it,
    any shape is allowed.

    Errors: TypeError for elements of another type, not on a CPU, or not dense and in order;
    ValueError for another shape.
    """
    if array is None:
        return pointer(None)
    is_tensor = hasattr(array, "data_ptr")
    is_dense = array.is_contiguous() and array.is_cpu if is_tensor else array.flags.c_contiguous
    if array.dtype != dtype or not is_dense:
        raise TypeError(f"compiled code takes dense {dtype} on a CPU, not {array.dtype}")
    sizes = array.shape
    if shape and sizes != shape:  # the quick way first
        filled = tuple(b if a is None else a for a, b in zip(shape, sizes, strict=False))
        if len(shape) != len(sizes) or sizes != filled:
            raise ValueError(f"compiled code takes the shape {shape}, not {tuple(sizes)}")
    return pointer(array)
