"""Compiles the C++ files beside it for this processor, once: `python -m fairseq_ext.kernels` does it ahead of time.

The library lies in the user's cache folder under a name that holds source, compiler, flags and processor, so a changed source or
another machine with the same home folder gets its own. Without a compiler nothing breaks: the torch operations run instead.

Environment: CXX names the compiler; FAIRSEQ_EXT_KERNELS=off switches the compiled library off.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

logger = logging.getLogger("fairseq_ext")
FOLDER = Path(__file__).parent
SOURCES, HEADERS = sorted(FOLDER.glob("*.cpp")), sorted(FOLDER.glob("*.hpp"))
FLAGS = ("-O3", "-march=native", "-std=c++17", "-fPIC", "-shared", "-fopenmp", "-fno-math-errno", "-fno-trapping-math")

TRY = "import ctypes, sys; sys.exit(0 if ctypes.CDLL(sys.argv[1]).works() else 1)"
OFF = "FAIRSEQ_EXT_KERNELS=off switches it off"
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of malloc.h


def compiler() -> list[str] | None:
    """The C++ compiler's path, and what CXX gives it along (`ccache g++`); None if there is none."""
    named = os.environ.get("CXX", "").strip()
    for name, *others in [[named], named.split()] if named else [["g++"], ["c++"], ["clang++"]]:
        path = shutil.which(name)
        if path is not None:
            return [path, *others]
    return None


def processor() -> str:
    """What -march=native looks at."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "".join(dict.fromkeys(line for line in lines if line.startswith(("flags", "Features", "model name"))))


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fairseq_ext"


def is_off() -> bool:
    """Whether the user has switched the library off."""
    return os.environ.get("FAIRSEQ_EXT_KERNELS") == "off"


def build() -> Path:
    """The compiled library, made if it is not there. Errors: RuntimeError in one sentence."""
    command = compiler()
    if command is None:
        raise RuntimeError("there is no C++ compiler (g++, c++, clang++ or the one that CXX names)")
    names, called = ", ".join(path.name for path in SOURCES), shlex.join(command)
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False).stdout
    parts = (*(path.read_text(encoding="utf-8") for path in SOURCES + HEADERS), called, version, *FLAGS, platform.machine(), processor())
    target = cache_folder() / f"step-{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}.so"
    if target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            made = Path(folder) / target.name
            done = subprocess.run([*command, *FLAGS, "-o", str(made), *map(str, SOURCES)], capture_output=True, text=True, check=False)
            if done.returncode:
                said = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[-200:])
                raise RuntimeError(f"{called} could not compile {names} ({said.strip()})")
            tried = subprocess.run([sys.executable, "-c", TRY, str(made)], capture_output=True, check=False)
            if tried.returncode:
                raise RuntimeError(f"what {called} made of {names} does not work on this processor (status {tried.returncode})")
            os.replace(made, target)  # in one move: another process may be doing the same
    except OSError as error:
        raise RuntimeError(f"{target.parent} cannot be written ({error.strerror})") from error
    return target


def keep_freed_memory() -> None:
    """Let glibc keep the memory that is freed instead of giving it back: a step's (rows, V) results are tens of MiB, and to be given
    zeroed pages for them again and again costs up to a quarter of the time. Other C libraries are left alone."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, 1 << 30)
        mallopt(M_MMAP_MAX, 0)


def give_back_memory() -> None:
    """Let glibc give back the pages that hold nothing. What is kept (see keep_freed_memory) falls to pieces over many sentences: blocks
    of all sizes lie between results that live on, and glibc before 2.38 hardly uses again what its aligned blocks leave over
    (https://sourceware.org/bugzilla/show_bug.cgi?id=14581), so that the process would grow with every batch of large blocks."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@functools.cache
def library() -> ctypes.CDLL | None:
    """The library, loaded; None where it is switched off or cannot be had, which is logged once."""
    if is_off():
        logger.info("no compiled decoder step, torch operations run instead, which take longer: %s", OFF)
        return None
    try:
        found = ctypes.CDLL(str(build()))
    except (RuntimeError, OSError) as error:
        logger.info("no compiled decoder step, torch operations run instead, which take longer: %s", error)
        return None
    keep_freed_memory()
    return found
