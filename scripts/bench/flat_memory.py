"""Does memory stay flat over a long stream of lines?

    python scripts/bench/flat_memory.py [--lines 100000] [--words 6] [--every 10000]
        [--buffer-size 2000] [-- FAIRSEQ-INTERACTIVE FLAGS]

Lines made of parts of the demo's sentences go through fairseq-interactive with the demo model, by
default streamed; its resident memory is read from /proc after every N translated lines.
The first --settle lines are not judged: by then every shape has been seen. The exit status is 1 if
a later reading is higher than the one at --settle by more than --allowed per cent.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO

from harness import BenchError
from report import ROOT

MODEL, TEXT = ROOT / "checkpoints" / "demo", ROOT / "data" / "demo" / "test.de"
FLAGS = ["--schedule", "stream", "--beam", "2", "--batch-size", "64"]


def generate(lines: int, seed: int, words: int | None, out: Path) -> Path:
    """Write lines, each the beginning of one of the demo's sentences with the end of another, or
    their first words; return the file."""
    draw = random.Random(seed)
    sentences = [line.split() for line in TEXT.read_text(encoding="utf-8").splitlines()]
    path = out / "lines.de"
    with path.open("w", encoding="utf-8") as file:
        for _ in range(lines):
            first, second = draw.sample(sentences, 2)
            line = first[: draw.randint(1, len(first))] + second[draw.randrange(len(second)) :]
            file.write(" ".join(line[:words]) + "\n")
    return path


def resident(pid: int) -> float:
    """MiB of physical memory that a process holds."""
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024


def feed(source: Path, into: IO[bytes]) -> None:
    with source.open("rb") as lines, into:
        try:
            for line in lines:
                into.write(line)
        except BrokenPipeError:
            pass  # the command has ended; its status says why


def run(source: Path, every: int, buffer_size: int, flags: list[str]) -> tuple[int, list[float]]:
    """Translate all lines; returns their number and the readings."""
    command = [
        str(Path(sys.executable).parent / "fairseq-interactive"),
        str(MODEL),
        "--path",
        str(MODEL / "checkpoint.pt"),
        "--cpu",
    ]
    command += [
        "-s",
        "de",
        "-t",
        "en",
        "--bpe",
        "sentencepiece",
        "--sentencepiece-model",
        str(MODEL / "spm.model"),
    ]
    command += [
        "--buffer-size",
        str(buffer_size),
        "--user-dir",
        str(ROOT / "fairseq_ext"),
        "--task",
        "translation_ext",
        *flags,
    ]
    with tempfile.TemporaryFile() as messages:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=messages
        )
        assert process.stdin is not None and process.stdout is not None
        threading.Thread(target=feed, args=(source, process.stdin), daemon=True).start()
        done, readings, start = 0, [], time.monotonic()
        for line in process.stdout:
            if line.startswith(b"D-"):
                done += 1
                if done % every == 0:
                    readings.append(resident(process.pid))
                    rate = done / (time.monotonic() - start)
                    print(
                        f"{done:>9,} lines  {readings[-1]:7.1f} MiB  {rate:6.1f} lines/s",
                        flush=True,
                    )
        if process.wait():
            messages.seek(0)
            last = messages.read().decode(errors="replace").strip().split("\n")[-1]
            raise BenchError(
                f"fairseq-interactive ended with code {process.returncode} and said: {last}"
            )
    return done, readings


def main() -> int:
    parse = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parse.add_argument("--lines", type=int, default=100_000, help="(100000)")
    parse.add_argument(
        "--every", type=int, default=10_000, help="lines from one reading to the next (10000)"
    )
    parse.add_argument(
        "--buffer-size",
        type=int,
        default=2000,
        help="lines that fairseq-interactive reads at a time (2000)",
    )
    parse.add_argument(
        "--words",
        type=int,
        help="most words of a line, the rest being cut off: a quicker run (no limit)",
    )
    parse.add_argument(
        "--settle",
        type=int,
        default=20_000,
        help="lines before the reading with which the later ones are compared (20000)",
    )
    parse.add_argument(
        "--allowed", type=float, default=3.0, help="growth over that reading, in per cent (3)"
    )
    parse.add_argument("--seed", type=int, default=2, help="of the lines (2)")
    parse.add_argument("flags", nargs="*", help=f"after --: flags instead of {' '.join(FLAGS)}")
    args = parse.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        done, readings = run(
            generate(args.lines, args.seed, args.words, Path(folder)),
            args.every,
            args.buffer_size,
            args.flags or FLAGS,
        )
    if done != args.lines:
        raise BenchError(f"{args.lines} lines went in and {done} came out")
    first = args.settle // args.every - 1
    if not 0 <= first < len(readings) - 1:
        raise BenchError(
            f"no reading at {args.settle} lines and later ones: lower --settle or --every"
        )
    growth = 100 * (max(readings[first + 1 :]) / readings[first] - 1)
    print(
        f"highest reading after {(first + 1) * args.every:,} lines: {growth:+.1f}% of the one "
        f"there (allowed: {args.allowed:g}%)"
    )
    return 0 if growth <= args.allowed else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchError as error:
        sys.exit(f"error: {error}")
