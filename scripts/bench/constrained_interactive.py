"""fairseq-interactive --constraints as a user runs it (part `interactive` of constrained.py)."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from checkouts import BEFORE, Checkout, versions
from contenders import OURS
from counted import Row
from equality import Outputs, check
from harness import BenchError, Spread, read_hypotheses
from report import before_over_ours

HEAD = ["command", "seconds", "decoding", "times stock", "decoding, times stock"]
BEFORE_HEAD = [BEFORE[0], f"decoding, {BEFORE[0]}", BEFORE[1]]


class Taken(NamedTuple):
    """Seconds of a run, and of its decoding as it reports them; its hypotheses."""

    seconds: float
    decoding: float
    outputs: Outputs


def commands(before: Checkout | None) -> dict[str, list[str]]:
    """The commands and the flags that say whose they are."""
    stock = [str(Path(sys.executable).parent / "fairseq-interactive")]
    if before is None:
        return {"stock": stock, "ours": [*stock, *OURS]}
    ours = {
        name: [
            *checkout.command("fairseq-interactive"),
            "--user-dir",
            str(checkout.root / "fairseq_ext"),
            "--task",
            "translation_ext",
        ]
        for name, checkout in versions(before).items()
    }
    return {"stock": stock, **ours}


def rows(flags: Sequence[str], repeats: int, before: Checkout | None) -> list[Row]:
    """A row a command. With `before` the rounds are those of harness.compare: the first one warms
    up, every other one runs backwards."""
    names = commands(before)
    times: dict[str, list[Taken]] = {name: [] for name in names}
    for turn in range(repeats + bool(before)):
        for name in list(names)[:: -1 if before and turn % 2 else 1]:
            times[name].append(timed([*names[name], *flags]))
    if before:
        times = {name: taken[1:] for name, taken in times.items()}
    out = []
    for name, taken in times.items():
        medians = [Spread.of(each).median for each in columns(taken)]
        pairs = zip(columns(times["stock"]), columns(taken), strict=True)
        gains = [
            Spread.of([b / a for a, b in zip(mine, stock, strict=True)]).median
            for stock, mine in pairs
        ]
        out.append([name, *(f"{value:.2f}" for value in (*medians, *gains))])
        if before and name == "ours":
            other = times["before"]
            out[-1] += map(before_over_ours, columns(other), columns(taken))
            out[-1].append(str(check(other[-1].outputs, taken[-1].outputs)))
        elif before:
            out[-1] += [""] * len(BEFORE_HEAD)
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
    return Taken(seconds, float(said[1]), read_hypotheses(done.stdout))
