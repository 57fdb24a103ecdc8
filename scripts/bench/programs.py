"""Programs that a checkout of this project starts: commands that are timed as a whole, and commands
that get lines.

A checkout runs with the Python of its own environment, in processes of its own: what is installed
there names files of the package, which move between versions.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import BenchError, Child, run_command
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
    folder = Path(root).resolve()
    if not (folder / "fairseq_ext" / "__init__.py").is_file():
        raise BenchError(f"--before: {root} has no fairseq_ext: name a checkout of this project")
    program = shutil.which(python)
    if program is None:
        raise BenchError(
            f"--before: {python} cannot be started: name the Python of the environment of {root}"
        )
    found = Checkout(folder, os.path.abspath(program))  # a link in an environment is not followed
    command = [found.python, "-c", PROBE]
    with tempfile.TemporaryDirectory() as place:  # Python looks for modules there first
        how: dict[str, Any] = dict(env=found.environment(), cwd=place, check=False)
        done = subprocess.run(command, capture_output=True, text=True, **how)
    said = (done.stderr if done.returncode else done.stdout).strip() or "nothing"
    last = said.splitlines()[-1]
    if done.returncode or Path(last).resolve().parent != folder / "fairseq_ext":
        raise BenchError(
            f"--before: {python} does not load the fairseq_ext of {root} and said: {last}"
        )
    return found


def interactive(text: Text, *more: str) -> list[str]:
    """The arguments of fairseq-interactive on a text's model."""
    model = text.flags[: text.flags.index("--dataset-impl")]
    return [*model, *text.bpe, "--cpu", *more]


def used() -> float:
    """Processor seconds, user's and system's, of all children so far."""
    times = resource.getrusage(resource.RUSAGE_CHILDREN)
    return times.ru_utime + times.ru_stime


@dataclass
class Command:
    """A command that reads lines; called, it runs and notes its seconds.

    place: its working directory, where Python looks for modules first; parts: the file in which
    it leaves the seconds of its parts and its peak MiB.
    """

    name: str
    words: list[str]
    place: Path
    checkout: Checkout = field(default_factory=Checkout)
    parts: Path | None = None
    cpu: list[float] = field(default_factory=list)
    clock: list[float] = field(default_factory=list)
    in_parts: list[dict[str, float]] = field(default_factory=list)

    def __call__(self, lines: list[str]) -> list[str]:
        """The translations: the D- lines, or all lines where there are none."""
        before, start, how = used(), time.perf_counter(), self.checkout.environment()
        said = run_command(self.words, input="".join(lines), env=how, cwd=self.place).splitlines()
        self.cpu.append(used() - before)
        self.clock.append(time.perf_counter() - start)
        if self.parts:
            self.in_parts.append(json.loads(self.parts.read_text()))
        return [line.split("\t")[2] for line in said if line.startswith("D-")] or said


class Talk(Child):
    """A command that is given lines, one at a time; seconds: of each line."""

    def __init__(
        self, name: str, command: list[str], place: Path, checkout: Checkout | None = None
    ):
        environment = (checkout or Checkout()).environment(PYTHONUNBUFFERED="1")
        self.seconds: list[float] = []
        self.answers: list[str] = []
        self.start = time.perf_counter()
        super().__init__(name, command, env=environment, cwd=place)

    def translate(self, line: str) -> None:
        """Give a line and wait for its answer."""
        before = time.perf_counter()
        answer = self.query(line, "P-")
        now = time.perf_counter()
        self.answers += [x.rpartition("\t")[2].strip() for x in answer if x.startswith("D-")]
        if not self.seconds:
            self.first, self.cpu_at_start = now - self.start, self.cpu()
        self.seconds.append(now - before)

    def end(self) -> None:
        """Let the command end; the CPU milliseconds of a line are known then."""
        self.cpu_ms = 1e3 * (self.cpu() - self.cpu_at_start) / max(1, len(self.seconds) - 1)
        self.process.communicate()
