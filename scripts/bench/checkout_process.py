"""A search of fairseq_ext in a process of its own, which takes the package from a checkout.

    PYTHONPATH=CHECKOUT PYTHON scripts/bench/checkout_process.py < REQUESTS

`Apart` starts this; it decodes once for each line that it is given. Both sides may be of different
versions, so the process uses only what does not move: the task's name and fairseq's own functions.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equality import Outputs
from harness import BenchError, Contender, fix_threads, query_process, report_peak
from text import Text

if TYPE_CHECKING:
    from checkouts import Checkout
    from counted import Counted


class Apart:
    """The process. Called, it decodes all batches; what its results take to travel is not in the
    time that the call returns."""

    def __init__(self, checkout: Checkout, requested: dict[str, Any], clock: str):
        self.name, self.clock = requested["name"], clock
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [checkout.python, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            encoding="utf-8",
            env=checkout.environment(),
        )
        self.signature = self.query(json.dumps(requested))["signature"]

    def query(self, line: str) -> dict[str, Any]:
        found = query_process(self.name, self.process, self.errors, line)
        if "error" in found:
            raise BenchError(found["error"])
        return found

    def __call__(self) -> float:
        """Decode; returns seconds."""
        return self.query("decode")[self.clock]

    def results(self) -> tuple[Outputs, dict[str, Any]]:
        """Hypotheses of the last run, and what it has counted."""
        found = self.query("results")
        outputs = [[(tokens, score) for tokens, score in each] for each in found["outputs"]]
        return outputs, found["stats"]

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.communicate()

    def __del__(self) -> None:
        if hasattr(self, "process") and self.process.returncode is None:
            self.close()


def apart(
    checkout: Checkout,
    text: Text,
    flags: Sequence[str],
    name: str,
    threads: int,
    exact: bool,
    clock: str,
) -> Contender:
    """As contenders.ours, with the fairseq_ext of a checkout. clock: wall or cpu."""
    process = Apart(checkout, request("ours", text, flags, name, threads), clock)
    return Contender(
        name,
        process,
        lambda _: process.results()[0],
        exact,
        process.signature,
        taken=lambda seconds: seconds,
        close=process.close,
    )


def searching_apart(
    checkout: Checkout, text: Text, flags: Sequence[str], name: str, threads: int
) -> Counted:
    """As counted.searching, with the fairseq_ext of a checkout."""
    from counted import Counted

    process = Apart(checkout, request("searching", text, flags, name, threads), "wall")

    def keep(_: float) -> Outputs:
        counted.outputs, counted.stats = process.results()
        return counted.outputs

    counted = Counted(
        Contender(
            name,
            process,
            keep,
            exact=False,
            signature=process.signature,
            taken=lambda seconds: seconds,
            close=process.close,
        )
    )
    return counted


def memory_command(
    checkout: Checkout, text: Text, flags: Sequence[str], name: str, threads: int
) -> list[str]:
    """A command that decodes once and ends with its peak memory."""
    requested = json.dumps(request("ours", text, flags, name, threads))
    return checkout.script(__file__, "--peak", requested)


def request(kind: str, text: Text, flags: Sequence[str], name: str, threads: int) -> dict[str, Any]:
    """The first message to the process."""
    return {
        "kind": kind,
        "text": text.flags,
        "flags": list(flags),
        "name": name,
        "threads": threads,
    }


def made(requested: dict[str, Any]) -> tuple[Contender, Callable[[], dict[str, Any]]]:
    """In the process: the contender that is requested, and what its last run has counted."""
    fix_threads(requested["threads"])
    import fairseq_ext  # noqa: F401  before fairseq, which it prepares

    text = Text(Path(), requested["text"], Path(), "", "", [])
    if requested["kind"] == "ours":
        from contenders import ours

        return ours(text, requested["flags"], requested["name"]), dict
    from counted import searching

    counted = searching(text, requested["flags"], requested["name"])
    return counted.contender, lambda: counted.stats


def answers(requested: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> None:
    """Answer each line of standard input with one line."""
    import gc
    import time

    contender, stats = made(requested)
    say({"signature": contender.signature})
    found: Any = None
    for line in sys.stdin:
        if line.strip() == "results":
            say({"outputs": contender.read(found), "stats": stats()})
            continue
        gc.collect()
        wall, cpu = time.perf_counter(), time.process_time()
        found = contender.run()
        say({"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu})


def main() -> None:
    if sys.argv[1:2] == ["--peak"]:
        report_peak(made(json.loads(sys.argv[2]))[0].run)
        return
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what others print is no answer

    def say(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=channel, flush=True)

    try:
        answers(json.loads(sys.stdin.readline()), say)
    except BenchError as error:
        say({"error": str(error)})


if __name__ == "__main__":
    main()
