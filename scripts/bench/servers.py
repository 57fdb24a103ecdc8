"""The servers that the benchmarks start, one for each way in which requests may share a model.

| server | |
| --- | --- |
| refill | `python -m fairseq_ext.serve`: waiting sentences join the running search |
| batch | the same with `--schedule batch`: a micro-batch starts when the one before it has ended |
| one | the same with `--stream-width 1`: one request at a time in each worker |
| ct2 | CTranslate2 behind FastAPI with micro-batches (serve_ct2.py), `pip install ctranslate2` |
"""

import argparse
import logging
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
from harness import BenchError
from programs import Checkout

HERE = Path(__file__).parent
SERVERS: dict[str, list[str] | None] = {
    "refill": [],
    "batch": ["--schedule", "batch"],
    "one": ["--stream-width", "1"],
    "ct2": None,
}
START = 300  # seconds that a server has to load
logging.getLogger("httpx").setLevel(logging.WARNING)  # else a line for each request
LIMITS = "--cpu --max-queue 100000 --deadline 600 --grace 0".split()


class Running(NamedTuple):
    """A server that is ready."""

    url: str
    pid: int


SERVER_FLAGS = """
    --workers N    of one thread each (2)
    --batch N      largest micro-batch of ct2 (32)
    --out OUT      write OUT.md
"""  # that `command` takes, and where the figures go


def command(
    args: argparse.Namespace, name: str, port: int, folder: Path, checkout: Checkout
) -> list[str]:
    """The command of a server; args: model, src, tgt, beam, workers, batch, flags."""
    model, own = args.model.absolute(), SERVERS[name]
    checkpoint, spm = str(model / "checkpoint.pt"), str(model / "spm.model")
    numbers = ["--port", str(port), "--beam", str(args.beam)]
    if own is None:
        given = [checkpoint, str(model), args.src, args.tgt, spm, str(folder / "ctranslate2")]
        numbers += ["--workers", str(args.workers), "--batch", str(args.batch)]
        return [sys.executable, str(HERE / "serve_ct2.py"), *given, *numbers]
    given = ["--path", checkpoint, "--data", str(model), "-s", args.src, "-t", args.tgt]
    given += ["--bpe", "sentencepiece", "--sentencepiece-model", spm]
    given += ["--cpu-workers", str(args.workers), "--glossary-folder", str(folder / "glossaries")]
    serve = [checkout.python, "-m", "fairseq_ext.serve"]
    return [*serve, *given, *numbers, *LIMITS, *args.flags, *own]


@contextmanager
def running(
    args: argparse.Namespace, name: str, folder: Path, checkout: Checkout | None = None
) -> Iterator[Running]:
    """A server of a checkout (this one) that is ready, for as long as the context lasts.

    Errors: BenchError where it does not start.
    """
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    checkout, file = checkout or Checkout(), folder / f"{port}.log"
    with file.open("w") as log:
        process = subprocess.Popen(
            command(args, name, port, folder, checkout),
            stdout=log,
            stderr=log,
            env=checkout.environment(),
            cwd=folder,  # Python looks for modules in the working directory first
        )
    url = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + START
        while not is_ready(url):
            if process.poll() is not None or time.monotonic() > end:
                last = file.read_text().strip().splitlines()[-1:] or ["it says nothing"]
                raise BenchError(f"the server '{name}' does not start: {last[0]}")
            time.sleep(0.2)
        yield Running(url, process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def processes(pid: int) -> Iterator[int]:
    """A process and all that it has started."""
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from processes(int(child))


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process and all that it has started, those that have ended included; not a
    number where one of them ends meanwhile."""
    ticks = 0
    try:
        for each in processes(pid):
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))  # its own, and those of children that have ended
    except OSError:
        return math.nan
    return ticks / os.sysconf("SC_CLK_TCK")


def is_ready(url: str) -> bool:
    """Whether a server takes requests."""
    try:
        return httpx.get(f"{url}/ready", timeout=5).status_code == 200
    except httpx.TransportError:
        return False
