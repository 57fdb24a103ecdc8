"""Another checkout of this project, measured next to this one: the option --before CHECKOUT PYTHON.

The other checkout runs with the Python of its own environment, in processes of its own: what is
installed there names files of the package, which move between versions. So that both are measured
alike, this checkout then runs in such processes too.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from harness import BenchError
from report import ROOT

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
    """A checkout of this project, and the Python of its environment."""

    root: Path
    python: str

    @property
    def commit(self) -> str:
        """Of its last commit, seven digits; "none" outside git."""
        command = ["git", "-C", str(self.root), "rev-parse", "--short=7", "--verify", "HEAD"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError:
            return "none"
        return done.stdout.strip() or "none"

    def environment(self, **more: str) -> dict[str, str]:
        """The variables of a process that takes its modules from this checkout."""
        return {**os.environ, "PYTHONPATH": self.search_path(), **more}

    def command(self, name: str, *arguments: str) -> list[str]:
        """A command installed next to its Python, with this checkout's modules."""
        program = str(Path(self.python).with_name(name))
        return ["env", f"PYTHONPATH={self.search_path()}", program, *arguments]

    def script(self, path: str, *arguments: str) -> list[str]:
        """A script run by its Python, with this checkout's modules."""
        return ["env", f"PYTHONPATH={self.search_path()}", self.python, path, *arguments]

    def search_path(self) -> str:
        """PYTHONPATH: this checkout, and what is there already."""
        return os.pathsep.join([str(self.root), *filter(None, [os.environ.get("PYTHONPATH")])])


def this_checkout() -> Checkout:
    """The one that this file lies in, with the Python that runs it."""
    return Checkout(ROOT, sys.executable)


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
    run = partial(subprocess.run, command, capture_output=True, text=True, check=False)
    try:
        with tempfile.TemporaryDirectory() as place:  # Python looks for modules there first
            done = run(env=found.environment(), cwd=place)
    except OSError as error:
        raise BenchError(f"--before: {python} cannot be started: {error.strerror}") from error
    said = (done.stdout.strip() if done.returncode == 0 else done.stderr.strip()) or "nothing"
    last = said.splitlines()[-1]
    if done.returncode or Path(last).resolve().parent != folder / "fairseq_ext":
        raise BenchError(
            f"--before: {python} does not load the fairseq_ext of {root} and said: {last}"
        )
    return found


class Before(argparse.Action):
    """Makes a Checkout of the two values of --before."""

    def __call__(
        self,
        parser: Any,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, checked(*values))


def before_argument(parse: argparse.ArgumentParser) -> None:
    """--before CHECKOUT PYTHON; `args.before` is a Checkout."""
    reported = "another checkout of this project and the Python of its environment, to compare with"
    parse.add_argument(
        "--before",
        nargs=2,
        action=Before,
        metavar=("CHECKOUT", "PYTHON"),
        required=True,
        help=reported,
    )
