"""Compiles the C++ files of this folder for a level: a set of instructions that a kind of
processors has (levels.cpp tells which).

A wheel brings a library of every level (setup.py, which loads this file by its path: it imports the
standard library only). In a clone library.py compiles the one that the processor needs.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FOLDER = Path(__file__).parent
SOURCES, HEADERS = sorted(FOLDER.rglob("*.cpp")), sorted(FOLDER.rglob("*.hpp"))
ASKING = FOLDER / "levels.cpp"  # it asks the processor, so it is compiled for the oldest one
BROUGHT = FOLDER / "built"  # what a wheel brings
# Of each kind of machine, the fastest first: what the compiler is told. levels.cpp
# knows the names too
LEVELS: dict[str, dict[str, tuple[str, ...]]] = {
    "x86_64": {
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
# of an entry point (entry.hpp): the type of its result, its name, its parameters
ENTRY = re.compile(r"^ENTRY (\w+) (\w+)\(([^)]*)\)\s*\{", re.M)


def compiler() -> list[str] | None:
    """The C++ compiler's path, and what CXX gives it along (`ccache g++`); None
    if there is none."""
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
    """A library of these files, compiled side by side, that exports their entry points and nothing
    else (the templates of the standard library are not hidden by a flag).

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
        names = [name for file in files for _, name, _ in ENTRY.findall(file.read_text("utf-8"))]
        exports = Path(folder) / "exports"
        exports.write_text(f"{{ global: {'; '.join(names)}; local: *; }};\n")
        run("-shared", *linking, f"-Wl,--version-script={exports}", *objects, "-o", target)


def compile_levels(command: list[str], folder: Path, machine: str = platform.machine()) -> None:
    """What a wheel brings: a library of each level, and the one that asks the processor.

    OpenMP's functions are torch's (library.py).
    """
    folder.mkdir(parents=True, exist_ok=True)
    compile_files(command, FLAGS, [ASKING], folder / "levels.so")
    for level, flags in LEVELS[machine].items():
        compile_files(command, (*FLAGS, *flags), SOURCES, folder / f"{level}.so")
