"""Finds, builds and loads the compiled library, and reads the declarations in its C++ files.

It is the library of this processor's level, from a wheel or compiled here.

Without a wheel it is compiled once; `python -m fairseq_ext.kernels` does that ahead of time. It
lies in the user's cache folder under a name that depends on source, compiler and flags, so a
changed source has another name. Loading a library runs its code. So a library from that folder is
loaded only if no other user can write there, and if its content has the digest that was stored when
it was built; otherwise it is built again. Without a wheel's library and without a compiler the
torch operations run instead.

Environment: FAIRSEQ_EXT_KERNELS names a level (compiling.py), or is `native` to compile for this
processor only, or `off`; CXX names the compiler.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import functools
import hashlib
import importlib.util
import logging
import os
import platform
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from ctypes import c_double, c_float, c_int64, c_void_p
from pathlib import Path
from typing import Any

from fairseq_ext.core import command_line
from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.files import cache_folder, replace, untrusted_reason
from fairseq_ext.kernels.compiling import (
    ENTRY,
    FLAGS,
    HEADERS,
    LEVEL_PROBE,
    LEVELS,
    SOURCES,
    WHEEL_FOLDER,
    compile_files,
    compiler,
)

logger = logging.getLogger("fairseq_ext")
VARIABLE = "FAIRSEQ_EXT_KERNELS"
DIGEST = ".sha256"  # suffix of the file with the library's digest
TRY_CODE = (
    "import ctypes, sys; found = ctypes.CDLL(input()); sys.exit(0 if not hasattr(found, 'works') "
    "or found.works() else 1)"
)
OFF_HINT = f"{VARIABLE}=off switches it off"
FALLBACK_WARNING = (
    "no compiled decoder step, torch operations run instead, which take 1.5 times as long in bulk "
    "and 3.3 times for a single line"
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
    supports = ctypes.CDLL(str(find_or_compile("levels", [LEVEL_PROBE], FLAGS))).supports
    names = names or LEVELS.get(platform.machine(), {})
    return (name for name in names if supports(name.encode()))


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
    return f"{stem}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}.so"


def private_folder() -> Path:
    """Return the cache folder, writable by this user only; if others could write to it or to a
    folder above it, return a temporary folder of this process."""
    folder = cache_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) != 0o700:
        planted = untrusted_reason(folder) is not None
        folder.chmod(0o700)
        for file in [*folder.glob("*.so"), *folder.glob("model-*")] if planted else ():
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


def is_verified(file: Path) -> bool:
    """Return whether only this user could write the library file and its content has the recorded
    digest."""
    try:
        recorded = file.with_suffix(DIGEST).read_bytes()[:64]
        return (
            untrusted_reason(file) is None
            and hashlib.sha256(file.read_bytes()).hexdigest().encode() == recorded
        )
    except OSError:
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
    """Compile a library, test it in a separate process, and write it and its digest.

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
        content = made.read_bytes()
        replace(target, [content])
        target.chmod(0o700)
        replace(target.with_suffix(DIGEST), [hashlib.sha256(content).hexdigest().encode(), b"\n"])


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
        if is_verified(target):
            return target
        with build_lock(target.parent):
            if not is_verified(target):  # another process may have built it in the meantime
                if target.exists():
                    logger.info("%s was changed after it was built: it is built again", target)
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
def library() -> ctypes.CDLL | None:
    """Return the loaded library with its signatures; None if it is switched off or not available,
    which is logged once."""
    if is_off():
        logger.info("%s: %s", FALLBACK_WARNING, OFF_HINT)
        return None
    try:
        file = build()
        if file.parent == WHEEL_FOLDER:
            share_openmp()
        found = ctypes.CDLL(str(file))
    except (RuntimeError, OSError) as error:
        logger.info("%s: %s", FALLBACK_WARNING, error)
        return None
    for name, (result, arguments) in signatures(SOURCES).items():
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
        if result is c_int64:
            function.errcheck = check_memory
    keep_freed_memory()
    return found


@functools.cache
def loaded() -> ctypes.CDLL:
    """Return the library; call this only where the library is known to be available."""
    found = library()
    assert found is not None, "the compiled library is not there"
    return found


def check_memory(result: int, function: Any, _: tuple) -> int:
    """Return the result of a function of the library. Errors: MemoryError."""
    if result == OUT_OF_MEMORY:
        raise MemoryError(f"{function.__name__} of the compiled library needs more memory")
    return result


def address(array: Any, dtype: Any, *shape: int | None) -> int:
    """Return the address of the elements of an array (a tensor on a CPU, or a NumPy array), which
    must live as long as the address is used. shape: None stands for any size; without it, any
    shape is allowed.

    Errors: TypeError for elements of another type, not on a CPU, or not dense and in order;
    ValueError for another shape.
    """
    is_tensor = hasattr(array, "data_ptr")
    is_dense = array.is_contiguous() and array.is_cpu if is_tensor else array.flags.c_contiguous
    if array.dtype != dtype or not is_dense:
        raise TypeError(f"compiled code takes dense {dtype} on a CPU, not {array.dtype}")
    sizes = array.shape
    if shape and sizes != shape:  # the quick way first
        filled = tuple(b if a is None else a for a, b in zip(shape, sizes, strict=False))
        if len(shape) != len(sizes) or sizes != filled:
            raise ValueError(f"compiled code takes the shape {shape}, not {tuple(sizes)}")
    return array.data_ptr() if is_tensor else array.ctypes.data


# ---- Declarations in the C++ files of this folder
#
# The fields of structures and the signatures of functions, for ctypes.
#
# Both are read from the source text of the library, so that a layout and a signature are written
# only once.


FOLDER = Path(__file__).parent
NUMBERS: dict[str, Any] = {"int64_t": c_int64, "double": c_double, "float": c_float, "void": None}
# fields come before the first blank line, functions after it
STRUCT = r"^struct {} \{{\n(.*?)^(?:\}};|\n)"
COMMENT = re.compile(r"//[^\n]*")


def ctypes_type(declared: str, name: str) -> Any:
    """Return the ctypes type: a pointer, a number or another structure that a header declares."""
    if "*" in declared:
        return c_void_p
    if name in NUMBERS:
        return NUMBERS[name]
    declaring = next(
        path
        for path in sorted(FOLDER.rglob("*.hpp"))
        if f"\nstruct {name} {{" in path.read_text("utf-8")
    )
    return struct(str(declaring.relative_to(FOLDER)), name)


@functools.cache
def struct(file: str, name: str) -> type[ctypes.Structure]:
    """Return the structure of this name that a C++ file declares.

    Each field is a pointer, a number or another structure.
    """
    found = re.search(STRUCT.format(name), (FOLDER / file).read_text("utf-8"), re.M | re.S)
    assert found is not None, f"{file} has no struct {name}"
    fields: list[tuple[str, Any]] = []
    for line in COMMENT.sub("", found[1]).split(";")[:-1]:
        if pointer := re.search(r"\(\*(\w+)\)\(", line):  # to a function
            fields.append((pointer[1], c_void_p))
            continue
        kind, _, names = line.strip().removeprefix("const ").partition(" ")
        fields += [
            (part.split()[-1].lstrip("*"), ctypes_type(kind + part, kind))
            for part in names.split(",")
        ]
    # without slots ctypes would accept any other name, and the field would stay 0
    return type(f"{name}Struct", (ctypes.Structure,), {"__slots__": (), "_fields_": fields})


def signatures(files: Iterable[Path]) -> dict[str, tuple[Any, list[Any]]]:
    """Return the type of the result and those of the parameters of each entry point."""
    found = {}
    for path in files:
        text = COMMENT.sub("", path.read_text("utf-8"))
        for result, name, given in ENTRY.findall(text):
            kinds = [
                each.strip().removeprefix("const ") for each in given.split(",") if each.strip()
            ]
            found[name] = NUMBERS[result], [ctypes_type(kind, kind.split()[0]) for kind in kinds]
    return found
