"""fairseq-interactive --constraints as a user runs it (part `interactive` of constrained.py)."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from contenders import OURS
from counted import Row
from harness import BenchError, Spread

HEAD = ["command", "seconds", "decoding", "times stock", "decoding, times stock"]


class Taken(NamedTuple):
    """Seconds of a run, and of its decoding as it reports them."""

    seconds: float
    decoding: float


def rows(flags: Sequence[str], repeats: int) -> list[Row]:
    """A row a command."""
    stock = [str(Path(sys.executable).parent / "fairseq-interactive")]
    commands = {"stock": stock, "ours": [*stock, *OURS]}
    times: dict[str, list[Taken]] = {name: [] for name in commands}
    for _ in range(repeats):
        for name, command in commands.items():
            times[name].append(timed([*command, *flags]))
    out = []
    for name, taken in times.items():
        medians = [Spread.of(each).median for each in columns(taken)]
        pairs = zip(columns(times["stock"]), columns(taken), strict=True)
        gains = [
            Spread.of([b / a for a, b in zip(mine, stock, strict=True)]).median
            for stock, mine in pairs
        ]
        out.append([name, *(f"{value:.2f}" for value in (*medians, *gains))])
    return out


def columns(taken: Sequence[Taken]) -> tuple[list[float], list[float]]:
    """The seconds of runs, and those of their decoding."""
    return [run.seconds for run in taken], [run.decoding for run in taken]


def timed(command: Sequence[str]) -> Taken:
    """Run fairseq-interactive."""
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    seconds = time.perf_counter() - start
    said = re.search(r"translation time: ([\d.]+)", done.stdout + done.stderr)
    if done.returncode or not said:
        last = (done.stderr.strip() or "nothing").splitlines()[-1]
        name = next(
            Path(part).name for part in command if "fairseq" in Path(part).name and "=" not in part
        )
        raise BenchError(f"{name} ended with code {done.returncode} and said: {last}")
    return Taken(seconds, float(said[1]))
