"""Programs that a checkout of this project starts: commands that are timed as a whole, commands
that get lines, and servers, one for each way in which requests may share a model.

A checkout runs with the Python of its own environment, in processes of its own: what is installed
there names files of the package, which move between versions.

| server | |
| --- | --- |
| refill | `python -m fairseq_ext.serve`: waiting sentences join the running search |
| batch | the same with `--schedule batch`: a micro-batch starts when the one before it has ended |
| one | the same with `--stream-width 1`: one request at a time in each worker |
| ct2 | CTranslate2 behind FastAPI with micro-batches (engines.py), `pip install ctranslate2` |
"""

import contextlib
import json
import logging
import math
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import httpx
from harness import BenchError, Child, Contender, Outputs, run_command
from report import ROOT, git
from text import Text

# As pip does, it compiles the modules. To look for fairseq runs the installed start-up file.
PROBE = """
import compileall, importlib.util, sys
package = importlib.util.find_spec("fairseq_ext")
compileall.compile_dir(package.submodule_search_locations[0], quiet=2)
if importlib.util.find_spec("fairseq") is None:
    sys.exit("fairseq is not installed")
print(package.origin)
"""


@dataclass(frozen=True)
class Checkout:
    """A checkout of this project, and the Python of its environment; without arguments this one."""

    root: Path = ROOT
    python: str = sys.executable

    @property
    def commit(self) -> str:
        """Of its last commit, seven digits; "none" outside git."""
        return git("rev-parse", "--short=7", "--verify", "HEAD", root=self.root) or "none"

    def environment(self, **more: str) -> dict[str, str]:
        """The variables of a process that takes its modules from this checkout."""
        path = os.pathsep.join([str(self.root), *filter(None, [os.environ.get("PYTHONPATH")])])
        return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **more}


def checked(root: str, python: str) -> Checkout:
    """A checkout whose Python finds its package. Errors: BenchError."""
    folder, program = Path(root).resolve(), shutil.which(python)
    if program is None:
        raise BenchError(
            f"--before: {python} cannot be started: name the Python of the environment of {root}"
        )
    found = Checkout(folder, os.path.abspath(program))  # a link in an environment is not followed
    with tempfile.TemporaryDirectory() as place:  # Python looks for modules there first
        how = dict(env=found.environment(), cwd=place)
        last = run_command([found.python, "-c", PROBE], **how).strip().splitlines()[-1]
    if Path(last).resolve().parent != folder / "fairseq_ext":
        raise BenchError(f"--before: {python} does not load the fairseq_ext of {root}, but {last}")
    return found


def interactive(text: Text, *more: str) -> list[str]:
    """The arguments of fairseq-interactive on a text's model."""
    model = text.flags[: text.flags.index("--dataset-impl")]
    return [*model, *text.bpe, "--cpu", *more]


def as_outputs(texts: Sequence[str]) -> Outputs:
    """Translations without scores."""
    return [[(text.split(), 0.0)] for text in texts]


class Timed(NamedTuple):
    """What a program took, and its translations."""

    seconds: float
    texts: Sequence[str]


def timed(
    name: str, run: Callable[[], Timed], close: Callable[[], None] = lambda: None
) -> Contender:
    """A contender that says itself what it took."""
    read = lambda found: as_outputs(found.texts)  # noqa: E731
    taken = lambda found: found.seconds  # noqa: E731
    return Contender(name, run, read, exact=False, taken=taken, close=close)


def whole(
    name: str, words: Sequence[str], lines: Sequence[str], place: Path, of: Checkout | None = None
) -> Contender:
    """A command that reads lines, from its start to its end, in CPU seconds; its translations are
    the D- lines, or all lines where there are none. place: its working directory, where Python
    looks for modules first."""
    how = dict(input="".join(f"{line}\n" for line in lines), cwd=place)
    how["env"] = (of or Checkout()).environment()

    def used() -> float:
        times = resource.getrusage(resource.RUSAGE_CHILDREN)
        return times.ru_utime + times.ru_stime

    def run() -> Timed:
        before = used()
        said = run_command(words, **how).splitlines()
        texts = [line.split("\t")[2] for line in said if line.startswith("D-")]
        return Timed(used() - before, texts or said)

    return timed(name, run)


def typed(
    name: str, words: Sequence[str], lines: Sequence[str], place: Path, of: Checkout | None = None
) -> Contender:
    """A command that is running and gets the lines one at a time, in CPU seconds; `stats` has the
    milliseconds of each line by the clock, and the seconds from the start to the first answer."""
    start = time.perf_counter()
    environment = (of or Checkout()).environment(PYTHONUNBUFFERED="1")
    child = Child(name, words, env=environment, cwd=place)

    def answer(line: str) -> str:
        said = child.query(line, "P-")
        return next(x for x in said if x.startswith("D-")).rpartition("\t")[2].strip()

    answer(lines[0])
    first = time.perf_counter() - start

    def run() -> Timed:
        before, texts, ms = child.cpu(), [], []
        for line in lines:
            begin = time.perf_counter()
            texts.append(answer(line))
            ms.append(1e3 * (time.perf_counter() - begin))
        made.stats = {"first": first, "ms": ms}
        return Timed(child.cpu() - before, texts)

    made = timed(name, run, child.close)
    return made


# ---- servers

SERVERS: dict[str, list[str] | None] = {
    "refill": [],
    "batch": ["--schedule", "batch"],
    "one": ["--stream-width", "1"],
    "ct2": None,
}
START = 300  # seconds that a server has to load
logging.getLogger("httpx").setLevel(logging.WARNING)  # else a line for each request
LIMITS = "--cpu --max-queue 100000 --deadline 600 --grace 0".split()
SERVER_FLAGS = """
    --workers N    of one thread each (2)
    --batch N      largest micro-batch of ct2 (32)
    --out OUT      write OUT.md
"""  # that `running` takes, and where the figures go


class Running(NamedTuple):
    """A server that is ready."""

    url: str
    pid: int


def server_command(args: Namespace, name: str, port: int, folder: Path, of: Checkout) -> list[str]:
    """args: model, src, tgt, beam, workers, batch, flags."""
    model, own = args.model.absolute(), SERVERS[name]
    checkpoint, spm = str(model / "checkpoint.pt"), str(model / "spm.model")
    if own is None:
        how = dict(model=str(model), folder=str(folder), src=args.src, tgt=args.tgt)
        how |= dict(port=port, beam=args.beam, workers=args.workers, batch=args.batch)
        return [sys.executable, str(Path(__file__).with_name("engines.py")), json.dumps(how)]
    flags = ["--path", checkpoint, "--data", str(model), "-s", args.src, "-t", args.tgt]
    flags += ["--bpe", "sentencepiece", "--sentencepiece-model", spm, "--beam", str(args.beam)]
    flags += ["--cpu-workers", str(args.workers), "--glossary-folder", str(folder / "glossaries")]
    serve = [of.python, "-m", "fairseq_ext.serve", "--port", str(port)]
    return [*serve, *flags, *LIMITS, *args.flags, *own]


@contextlib.contextmanager
def running(
    args: Namespace, name: str, folder: Path, checkout: Checkout | None = None
) -> Iterator[Running]:
    """A server of a checkout (this one) that is ready, for as long as the context lasts.

    Errors: BenchError where it does not start.
    """
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    checkout, file = checkout or Checkout(), folder / f"{port}.log"
    with file.open("w") as log:
        process = subprocess.Popen(
            server_command(args, name, port, folder, checkout),
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
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            for child in task.read_text().split():
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
