"""The compiled library with the address and undefined behaviour sanitizers of the compiler."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from fairseq_ext.kernels import library as building

FLAGS = (
    "-O1",
    "-g",
    "-std=c++17",
    "-fPIC",
    "-fopenmp",
    "-fsanitize=address,undefined,float-cast-overflow",
    "-fno-sanitize-recover=undefined,float-cast-overflow",
)


def sanitized() -> str | None:
    """The sanitizer's library, None where the compiler has none."""
    command = building.compiler()
    if command is None:
        return None
    found = subprocess.run(
        [*command, "-print-file-name=libasan.so"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return found if os.path.isabs(found) else None


def environment(runtime: str) -> dict[str, str]:
    """For a Python that loads the sanitizer's library first."""
    options = {"LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **options}


def load_sanitized(files: Sequence[Path]) -> None:
    """Make the library that the kernels use a sanitized one of these files."""
    os.environ[building.VARIABLE] = "native"
    building.FLAGS, building.SOURCES = FLAGS, files
    building.TRY_CODE = "pass"  # a process of its own would lack the sanitizer's library
    assert building.library() is not None, "the sanitized library could not be built"
