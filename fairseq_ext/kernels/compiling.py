"""Compiles the C++ files of this folder for a level: a set of instructions of a kind of processor
(levels.cpp checks which levels a processor has).

A wheel contains a library of every level (setup.py, which loads this file by its path: it imports
the standard library only). In a clone library.py compiles the library that the processor needs.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FOLDER = Path(__file__).parent
SOURCES, HEADERS = sorted(FOLDER.rglob("*.cpp")), sorted(FOLDER.rglob("*.h*"))
ABI = FOLDER / "abi.h"  # what Python and the library share
LEVEL_PROBE = FOLDER / "levels.cpp"  # queries the processor: compiled for the oldest one
WHEEL_FOLDER = FOLDER / "built"  # libraries in a wheel
# Compiler flags of each level, by machine, the fastest level first. levels.cpp has the same names
LEVELS: dict[str, dict[str, tuple[str, ...]]] = {
    "x86_64": {
        "amx": (
            "-march=x86-64-v4",
            *("-mavx512vnni", "-mamx-tile", "-mamx-int8"),
            "-DTILES=Tiles",
        ),
        "avx512vnni": ("-march=x86-64-v4", "-mavx512vnni"),
        "avx512": ("-march=x86-64-v4",),
        "avxvnni": ("-march=x86-64-v3", "-mavxvnni"),
        "avx2": ("-march=x86-64-v3",),
    },
    "aarch64": {
        "i8mm": ("-march=armv8.2-a+dotprod+i8mm",),
        "dotprod": ("-march=armv8.2-a+dotprod",),
        "neon": ("-march=armv8-a",),
    },
}
FLAGS: tuple[str, ...] = ("-O3", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-fopenmp")
FLAGS += ("-fno-math-errno", "-fno-trapping-math")
EXPORTS = "{ global: *; local: _Z*; };\n"  # the entry points are the only names in C


def compiler() -> list[str] | None:
    """Return the C++ compiler's path with the further words of CXX (`ccache g++`); None if there is
    no compiler."""
    named = os.environ.get("CXX", "").strip()
    for name, *others in [[named], named.split()] if named else [["g++"], ["c++"], ["clang++"]]:
        path = shutil.which(name)
        if path is not None:
            return [path, *others]
    return None


def compile_files(
    command: list[str],
    flags: Sequence[str],
    files: Sequence[Path],
    target: Path,
    linking: Sequence[str] = (),
) -> None:
    """Compile these files in parallel into a library that exports only their entry points (a flag
    does not hide the templates of the standard library).

    Errors: RuntimeError in one sentence; OSError.
    """

    def run(*words: str | Path) -> None:
        done = subprocess.run(
            [*command, *map(str, words)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            said = next(
                (line for line in done.stderr.splitlines() if "error" in line),
                done.stderr.strip()[-200:],
            )
            raise RuntimeError(
                f"{shlex.join(command)} could not compile {', '.join(path.name for path in files)} "
                f"({said.strip()})"
            )

    with (
        tempfile.TemporaryDirectory(dir=target.parent) as folder,
        ThreadPoolExecutor(os.cpu_count()) as several,
    ):
        objects = [Path(folder) / f"{i}.o" for i in range(len(files))]
        list(
            several.map(
                lambda made, file: run(*flags, f"-I{FOLDER}", "-c", file, "-o", made),
                objects,
                files,
            )
        )
        exports = Path(folder) / "exports"
        exports.write_text(EXPORTS)
        run("-shared", *linking, f"-Wl,--version-script={exports}", *objects, "-o", target)


def compile_levels(command: list[str], folder: Path, machine: str = platform.machine()) -> None:
    """Compile the libraries of a wheel: one for each level, and one that queries the processor.

    They use the OpenMP functions of torch (library.py).
    """
    folder.mkdir(parents=True, exist_ok=True)
    compile_files(command, FLAGS, [LEVEL_PROBE], folder / "levels.so")
    for level, flags in LEVELS[machine].items():
        compile_files(command, (*FLAGS, *flags), SOURCES, folder / f"{level}.so")
