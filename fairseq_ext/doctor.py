"""`python -m fairseq_ext.doctor`: prints a line for each thing that fairseq_ext needs, with a
remedy if it is missing or broken.

With --install-fairseq it installs fairseq first.

At the end there is a line for each active change of other packages, with the reason
(plugin/compat/patches.py). The exit code is 1 if a required item fails. An item marked `note` is
information only. Packages outside the standard library are imported only by the item that needs
them, so `python fairseq_ext/doctor.py` also runs if many packages are missing.
"""

import argparse
import logging
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from importlib import import_module, metadata, util
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).resolve().parent
if __name__ == "__main__" and sys.path and Path(sys.path[0]).resolve() == PACKAGE:
    # started as a file: its folder must not be in the search path of modules
    sys.path[0] = str(PACKAGE.parent)

from fairseq_ext.core import child, command_line  # noqa: E402
from fairseq_ext.core.exit import exit_process  # noqa: E402
from fairseq_ext.plugin.compat import patches  # noqa: E402

HOOK_PROBE = "import sys; 'fairseq_ext_start' in sys.modules or sys.exit('not active')"
FAIRSEQ = "0.12.2"
# the first release whose torch.load runs no code by default (CVE-2025-32434 concerns older ones)
SAFE_TORCH = "2.6"
LONGEST = 300  # seconds that a check in its own process may take
COMPAT = PACKAGE / "plugin" / "compat"
INSTALL_FAIRSEQ = "python -m fairseq_ext.doctor --install-fairseq"
SET_UP = (
    "run scripts/setup.sh again, and start Python from the environment that it names"
    if (PACKAGE.parent / "scripts" / "setup.sh").is_file()
    # pip installs the missing requirements of the installed package
    else f"pip install fairseq_ext; {INSTALL_FAIRSEQ}"
)


class Failed(Exception):
    """An item that fails; the text is what was found."""


class Item(NamedTuple):
    name: str
    check: Callable[[], str]  # returns what it found, or raises
    required: bool = True
    remedy: str = SET_UP


def probe(code: str) -> str:
    """Run code in a new Python process, outside the working directory; it may crash. Return the
    last line that it printed."""
    done = subprocess.run(
        child.python("-c", code),
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=LONGEST,
        check=False,
    )
    if done.returncode:
        raise Failed([f"exit code {done.returncode}", *done.stderr.strip().splitlines()][-1])
    return done.stdout.strip().rpartition("\n")[2]


def installed(distribution: str, module: str = "") -> Callable[[], str]:
    """Return a check that a package is installed and can be imported; it returns the version.

    module: where its name is not the distribution's.
    """

    def check() -> str:
        version = metadata.version(distribution)
        import_module(module or distribution.replace("-", "_"))
        return version

    return check


def torch_and_devices() -> str:
    import torch

    if torch.__version__ < SAFE_TORCH:
        raise Failed(torch.__version__)
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    devices = ", ".join(names) or "no CUDA device"
    return f"{torch.__version__}, {torch.get_num_threads()} CPU threads, {devices}"


def start_up_hook() -> str:
    probe(HOOK_PROBE)
    return f"active at every start of this Python, so --user-dir {PACKAGE} is not needed"


def fairseq() -> str:
    version = metadata.version("fairseq")
    if version != FAIRSEQ:
        raise Failed(version)
    import_module("fairseq.sequence_generator")
    return version


def cupy() -> str:
    cp = import_module("cupy")  # its distribution's name depends on the CUDA release
    return f"{cp.__version__}, {cp.cuda.runtime.getDeviceCount()} CUDA devices"


def compiled_step() -> str:
    # raises UsageError for an unknown set of instructions
    import_module("fairseq_ext.kernels.library").level()
    return probe("from fairseq_ext.kernels.library import build; print(build())")


def tasks() -> str:
    import_module("fairseq_ext.plugin.tasks")
    registered = import_module("fairseq.tasks").TASK_REGISTRY
    return ", ".join(sorted(name for name in registered if name.endswith("_ext")))


OPTIONAL = {  # package -> its extra (docs/install.md)
    "interegular": "allowed",
    "matplotlib": "plots",
    "safetensors": "hf",
    "sentencex": "text",
    "fastapi": "serve",
    "uvicorn": "serve",
    "CuPy": "gpu",
    "ray": "cluster",
    "pyarrow": "cluster",
}
ITEMS = [
    Item("Python", lambda: f"{sys.version.split()[0]} at {sys.executable}"),
    Item("torch", torch_and_devices, remedy=f"install torch {SAFE_TORCH} or newer, or {SET_UP}"),
    Item("hydra", installed("hydra-core", "hydra")),
    Item("omegaconf", installed("omegaconf")),
    Item(
        "start-up hook",
        start_up_hook,
        remedy=f"add --user-dir {PACKAGE} to each command, or put the hook in place: "
        f"cp {COMPAT}/fairseq_ext.pth {COMPAT}/fairseq_ext_start.py "
        f"{sysconfig.get_path('purelib')}",
    ),
    Item("fairseq", fairseq, remedy=f"{INSTALL_FAIRSEQ}, or {SET_UP}"),
    *(
        Item(name, installed(name))
        for name in ("sentencepiece", "subword-nmt", "sacrebleu", "simplemma")
    ),
    *(
        Item(
            name,
            cupy if name == "CuPy" else installed(name),
            False,
            f"optional: pip install 'fairseq_ext[{extra}]' (--force-reinstall if broken)",
        )
        for name, extra in OPTIONAL.items()
    ),
    Item(
        "compiled step",
        compiled_step,
        False,
        "the fast decoder runs as torch operations, which take longer: install a C++ compiler "
        "(g++)",
    ),
    Item(
        "tasks",
        tasks,
        remedy="this is an error of fairseq_ext: please report it with this page",
    ),
]


def examine(item: Item) -> bool:
    """Run one check and print its line; return False if a required item fails."""
    mark, remedy = "FAIL" if item.required else "note", f"\n      -> {item.remedy}"
    try:
        print(f"ok    {item.name}: {item.check()}", flush=True)
        return True
    except Failed as failed:
        found = str(failed)
    except metadata.PackageNotFoundError:
        found = "not installed"
    except (Exception, SystemExit) as error:
        # a broken installation may raise any error
        found = f"{type(error).__name__}: {error}".splitlines()[0]
        if type(error).__name__ == "UsageError":  # about a setting; it names a remedy
            mark, found, remedy = "FAIL", str(error), ""
    print(f"{mark}  {item.name}: {found}{remedy}", flush=True)
    return mark == "note"


def install_fairseq() -> None:
    """Install fairseq without its dependencies, whose versions do not support current Python, and
    without its compiled parts, which plugin/compat/uncompiled.py replaces: fairseq's setup.py
    leaves them out when documentation is built. Exit with a sentence where that fails."""
    pip = [sys.executable, "-m", "pip", "install", "--no-cache-dir"]
    if util.find_spec("pip") is None:
        pip = ["uv", "pip", "install", "--python", sys.executable, "--no-cache"]
        if shutil.which("uv") is None:
            sys.exit(
                f"error: the environment of {sys.executable} has no pip, and uv is not on the "
                f"PATH: install one of them ({sys.executable} -m ensurepip), and run this again"
            )
    command = [*pip, "--no-deps", "--no-binary", "fairseq", f"fairseq=={FAIRSEQ}"]
    print(*command, flush=True)
    if subprocess.run(command, env={**os.environ, "READTHEDOCS": "1"}, check=False).returncode:
        sys.exit(
            "error: fairseq could not be installed (the message is above): mend that and run this "
            "again"
        )


def main(given: Sequence[str] = ()) -> int:
    """Examine all items; return the exit code."""
    parser = argparse.ArgumentParser(
        "python -m fairseq_ext.doctor", description="Says what is missing, with a remedy for each."
    )
    parser.add_argument("--install-fairseq", action="store_true", help="install fairseq first")
    if parser.parse_args(given).install_fairseq:
        install_fairseq()
    logging.disable(logging.INFO)  # fairseq's notes on packages that are not used here
    failed = [examine(item) for item in ITEMS].count(False)
    for patch in patches.in_force:
        where = " (in commands alone)" * patch.is_of_command
        print(f"patch {patch.what}: {patch.why}{where}")
    items = "1 required item" if failed == 1 else f"{failed} required items"
    print(f"{items} failed; mend the first one first" if failed else "all that is required works")
    return 1 if failed else 0


if __name__ == "__main__":
    # without the interpreter's clean-up, which takes half a second
    exit_process(main(command_line.arguments()))
