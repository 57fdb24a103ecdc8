"""Damages draft tables and LSH indexes, and runs the compiled functions on all that their loaders
let through, under sanitizers.

    python scripts/fuzz_kernels.py [--seconds 30] [--seed N]

The C++ files that follow numbers of a file, parallel.cpp and lsh.cpp, are compiled with
-fsanitize=address,undefined; Python then runs again with the sanitizer's library loaded first. Each
round changes numbers of a good file, writes it with the right digest, and reads it. The process
dies at the first access out of bounds. The seed is printed.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from build_drafts import estimate
from fairseq.data import Dictionary

import fairseq_ext  # noqa: F401  lets fairseq be imported
from fairseq_ext.core import array_file
from fairseq_ext.core.errors import UsageError
from fairseq_ext.kernels import library as building
from fairseq_ext.kernels.compiling import FOLDER
from fairseq_ext.kernels.parallel import RowStruct
from fairseq_ext.search.parallel import ngram as tables
from fairseq_ext.search.parallel.ngram import Ngram

PRELOADED = "FAIRSEQ_EXT_SANITIZED"
FILES = ("parallel.cpp", "transformer.cpp")
FLAGS = (
    "-O1",
    "-g",
    "-std=c++17",
    "-fPIC",
    "-fopenmp",
    "-fsanitize=address,undefined,float-cast-overflow",
    "-fno-sanitize-recover=undefined,float-cast-overflow",
)
STRANGE = [
    -(1 << 63),
    -(1 << 31),
    -2,
    -1,
    0,
    1,
    2,
    31,
    255,
    1 << 15,
    1 << 16,
    (1 << 31) - 1,
    1 << 31,
    (1 << 63) - 1,
]
WORDS, SOURCE_PAD = 60, 1


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
    options = {
        PRELOADED: "1",
        "LD_PRELOAD": runtime,
        "ASAN_OPTIONS": "detect_leaks=0",
        "OMP_NUM_THREADS": "1",
    }
    return {**os.environ, **options}


def load_sanitized(files: Sequence[Path]) -> None:
    """Make the library that the kernels use a sanitized one of these files."""
    os.environ[building.VARIABLE] = "native"
    building.FLAGS, building.SOURCES = FLAGS, files
    building.TRY_CODE = "pass"  # a process of its own would lack the sanitizer's library
    assert building.library() is not None, "the sanitized library could not be built"


def changed(array: np.ndarray, chance: random.Random) -> np.ndarray:
    """A copy with a few numbers replaced, moved or cut."""
    out = array.copy()
    if not out.size:
        return out
    flat = out.reshape(-1)
    for _ in range(chance.choice([1, 1, 1, 2, 10])):
        place = chance.randrange(flat.size)
        with np.errstate(all="ignore"):
            if out.dtype.kind == "f":
                flat[place] = chance.choice([float("nan"), float("inf"), -1.0, 0.0, 1.0, 6e4])
            elif chance.random() < 0.5:
                flat[place] += np.array(chance.choice([-1, 1])).astype(out.dtype)
            else:
                flat[place] = np.array(chance.choice(STRANGE)).astype(out.dtype)
    if chance.random() < 0.1:
        out = out[: chance.randrange(len(out) + 1)]
    return out


class Tables:
    """Draft tables."""

    def __init__(self, folder: Path, chance: random.Random):
        self.file, self.chance = folder / "table.npz", chance
        self.words = Dictionary()
        for i in range(WORDS):
            self.words.add_symbol(f"w{i}")
        lines = [
            [chance.randrange(4, len(self.words)) for _ in range(chance.randrange(1, 9))] + [2]
            for _ in range(40)
        ]
        self.arrays = [
            {name: getattr(table, name) for name in tables.LAYOUT}
            for table in (
                estimate(lines, None, self.words, self.words),
                estimate(lines, lines[::-1], self.words, self.words),
            )
        ]

    def round(self) -> bool:
        """One damaged table; whether the loader took it."""
        arrays = dict(self.chance.choice(self.arrays))
        for name in self.chance.sample(list(arrays), self.chance.choice([0, 1, 1, 2])):
            arrays[name] = changed(arrays[name], self.chance)
        array_file.save(self.file, tables.FORMAT, tables.VERSION, {}, arrays, compress=False)
        try:
            table = tables.Table.load(str(self.file))
        except UsageError:
            return False
        self.draft(table)
        return True

    def draft(self, table: tables.Table) -> None:
        """Draft behind random text, for sentences of any tokens."""
        V, chance = len(table.unigram), self.chance
        compiled = Ngram(table, 1, SOURCE_PAD).compiled_table
        assert compiled is not None
        source = np.array([chance.choice([*STRANGE, *range(V)]) for _ in range(9)], np.int64)
        drafts = compiled.drafter(
            compiled.factors(source, len(source)) if table.lexical_start.size else None, 1
        )
        for _ in range(5):
            text = np.array(
                [2, *(chance.choice([-1, V, *range(V)]) for _ in range(chance.randrange(40)))],
                np.int64,
            )
            length, most = np.array([len(text) - 1]), chance.randrange(40)
            token, sure, row = np.empty(most, np.int64), np.empty(most), RowStruct()
            row.tokens, row.length = text.ctypes.data, length.ctypes.data
            building.loaded().propose_ngram(
                drafts.struct.state,
                ctypes.addressof(row),
                most,
                0.0,
                token.ctypes.data,
                sure.ctypes.data,
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="how long the rounds go on (default: 30)"
    )
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    args = parser.parse_args()
    if PRELOADED not in os.environ:
        runtime = sanitized()
        if runtime is None:
            print("no compiler with -fsanitize=address: nothing was fuzzed")
            return
        words = [sys.executable, *sys.argv, "--seed", str(args.seed)]
        os.execve(sys.executable, words, environment(runtime))
    load_sanitized([FOLDER / name for name in FILES])
    chance, counts = random.Random(args.seed), collections.Counter[str]()
    print(f"seed {args.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        target = Tables(Path(folder), chance)
        end = time.monotonic() + args.seconds
        while time.monotonic() < end:
            counts[f"tables {'taken' if target.round() else 'refused'}"] += 1
    print(", ".join(f"{count} {what}" for what, count in sorted(counts.items())))
    if len(counts) < 2:
        sys.exit("error: not every loader has both taken and refused a file")


if __name__ == "__main__":
    main()
