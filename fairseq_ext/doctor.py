"""`python -m fairseq_ext.doctor`: prints a line for each thing that fairseq_ext needs, with a
remedy if it is missing or broken.

With --install-fairseq it installs fairseq first.

At the end there is a line for each active change of other packages, with the reason
(plugin/compat/patches.py). The exit code is 1 if a required item fails. An item marked `note` is
information only. Packages outside the standard library are imported only by the item that needs
them, so `python fairseq_ext/doctor.py` also runs if many packages are missing.
"""

import argparse
import importlib
import importlib.metadata
import importlib.util
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).resolve().parent
if __name__ == "__main__" and sys.path and Path(sys.path[0]).resolve() == PACKAGE:
    # started as a file: its folder must not be in the search path of modules
    sys.path[0] = str(PACKAGE.parent)

from fairseq_ext.core import child, command_line  # noqa: E402
from fairseq_ext.core.exit import exit_process  # noqa: E402
from fairseq_ext.plugin.compat import repairs, startup  # noqa: E402

HOOK_PROBE = (
    "import sys; any(type(f).__name__ in ('FairseqExtStart', 'Hook') for f in sys.meta_path) "
    "or sys.exit('not active')"
)
CLUSTER_PROBE = "import gc; gc.disable(); import pyarrow, ray; import os; os._exit(0)"
FAIRSEQ = "0.12.2"
OLDEST_TORCH = (2, 6)
LONGEST = 300  # seconds that a check in its own process may take
IS_CLONE = (PACKAGE.parent / "scripts" / "setup.sh").is_file()
SET_UP = (
    "run scripts/setup.sh again, and start Python from the environment that it names"
    if IS_CLONE
    # pip installs the missing requirements of the installed package
    else "pip install fairseq_ext; python -m fairseq_ext.doctor --install-fairseq"
)
INSTALL_FAIRSEQ = "python -m fairseq_ext.doctor --install-fairseq"


class Failed(Exception):
    """An item that fails: what was found, and the remedy, if it is not the item's."""

    def __init__(self, found: str, remedy: str = "") -> None:
        super().__init__(found)
        self.remedy = remedy


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
        cwd=os.path.abspath(os.sep),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=LONGEST,
        check=False,
    )
    if done.returncode < 0:
        raise Failed(signal.Signals(-done.returncode).name)
    if done.returncode:
        raise Failed((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    return done.stdout.strip().rpartition("\n")[2]


def installed(distribution: str, module: str) -> Callable[[], str]:
    """Return a check that a package is installed and can be imported; it returns the version."""

    def check() -> str:
        version = importlib.metadata.version(distribution)
        importlib.import_module(module)
        return version

    return check


def python() -> str:
    return f"{sys.version.split()[0]} at {sys.executable}"


def torch_and_devices() -> str:
    import torch

    version = importlib.metadata.version("torch")
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST_TORCH:
        raise Failed(version, f"install torch {'.'.join(map(str, OLDEST_TORCH))} or newer")
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return f"{version}, {torch.get_num_threads()} CPU threads, " + (
        ", ".join(names) or "no CUDA device"
    )


def start_up_hook() -> str:
    probe(HOOK_PROBE)
    return f"active at every start of this Python, so --user-dir {PACKAGE} is not needed"


def fairseq() -> str:
    version = importlib.metadata.version("fairseq")
    if version != FAIRSEQ:
        raise Failed(version, f"install the release that this is made for: {INSTALL_FAIRSEQ}")
    importlib.import_module("fairseq.sequence_generator")
    return version


def cupy() -> str:
    cp = importlib.import_module("cupy")  # its distribution's name depends on the CUDA release
    return f"{cp.__version__}, {cp.cuda.runtime.getDeviceCount()} CUDA devices"


def cluster() -> str:
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("ray", "pyarrow")]
    try:
        probe(CLUSTER_PROBE)
    except Failed as failed:
        raise Failed(
            f"{', '.join(versions)}: {failed}",
            "only fairseq_ext.corpus needs it: pip install --force-reinstall ray pyarrow",
        ) from None
    return ", ".join(versions)


def compiled_step() -> str:
    # raises UsageError for an unknown set of instructions
    importlib.import_module("fairseq_ext.kernels.library").level()
    return probe("from fairseq_ext.kernels.library import build; print(build())")


def tiny_decode() -> str:
    """Check that the generator of translation_ext returns the same as fairseq's."""
    ours, theirs = importlib.import_module(
        "fairseq_ext.plugin.compat.tiny_decode"
    ).decode_with_both_generators()
    if ours != theirs:
        raise Failed(
            f"{ours} instead of fairseq's {theirs}",
            "this is an error of fairseq_ext: please report it with this page",
        )
    return f"{len(ours)} sentences, equal to fairseq's own generator"


def optional(name: str, check: Callable[[], str], extra: str, needs: str) -> Item:
    """Return an item for a package of an extra."""
    remedy = f"only {needs} it: pip install 'fairseq_ext[{extra}]'"
    return Item(name, check, required=False, remedy=remedy)


ITEMS = [
    Item("Python", python),
    Item("torch", torch_and_devices),
    Item("hydra", installed("hydra-core", "hydra")),
    Item("omegaconf", installed("omegaconf", "omegaconf")),
    Item(
        "start-up hook",
        start_up_hook,
        remedy=f"add --user-dir {PACKAGE} to each command, or put the hook in place: "
        f"cp {PACKAGE}/plugin/compat/fairseq_ext.pth {sysconfig.get_path('purelib')}",
    ),
    Item("fairseq", fairseq, remedy=f"{INSTALL_FAIRSEQ}, or {SET_UP}"),
    Item("sentencepiece", installed("sentencepiece", "sentencepiece")),
    Item("subword-nmt", installed("subword-nmt", "subword_nmt")),
    Item("sacrebleu", installed("sacrebleu", "sacrebleu")),
    *(
        optional(name, installed(name, name), extra, needs)
        for name, extra, needs in (
            ("simplemma", "terms", "lemmas of terms need"),
            ("interegular", "allowed", "--allowed-regex needs"),
            ("matplotlib", "plots", "the pictures of fairseq_ext.viz.ddg need"),
            ("safetensors", "hf", "models from Hugging Face need"),
            ("sentencex", "text", "whole texts need"),
            ("fastapi", "serve", "servers need"),
            ("uvicorn", "serve", "servers need"),
        )
    ),
    optional("CuPy", cupy, "gpu", "the CUDA kernels, on a GPU machine, need"),
    optional("Ray", cluster, "cluster", "fairseq_ext.corpus needs"),
    Item(
        "compiled step",
        compiled_step,
        required=False,
        remedy="the fast decoder runs as torch operations, which take longer: install a C++ "
        "compiler (g++)",
    ),
    Item("tiny decode", tiny_decode),
]


def examine(item: Item) -> bool:
    """Run one check and print its line; return False if a required item fails."""
    try:
        print(f"ok    {item.name}: {item.check()}", flush=True)
        return True
    except Failed as failed:
        found, remedy = str(failed), failed.remedy or item.remedy
    except importlib.metadata.PackageNotFoundError:
        found, remedy = "not installed", item.remedy
    except (Exception, SystemExit) as error:
        # a broken installation may raise any error
        if type(error).__name__ == "UsageError":  # about a setting; it names a remedy
            print(f"FAIL  {item.name}: {error}", flush=True)
            return False
        found, remedy = f"{type(error).__name__}: {error}".splitlines()[0], item.remedy
    mark = "FAIL" if item.required else "note"
    print(f"{mark}  {item.name}: {found}\n      -> {remedy}", flush=True)
    return not item.required


def installer() -> tuple[str, list[str]]:
    """Return the program that installs packages into this environment, pip or else uv, and its
    command; ("", []) if there is neither."""
    if importlib.util.find_spec("pip") is not None:
        return "pip", [sys.executable, "-m", "pip", "install", "--no-cache-dir"]
    if (uv := shutil.which("uv")) is not None:
        return "uv pip", [uv, "pip", "install", "--python", sys.executable, "--no-cache"]
    return "", []


def install_fairseq() -> str:
    """Install fairseq without its dependencies, whose versions do not support current Python, and
    without its compiled parts, which plugin/compat/repairs.py replaces: fairseq's setup.py leaves
    them out when documentation is built. Return the reason of a failure, else ""."""
    name, command = installer()
    if not command:
        return (
            f"the environment of {sys.executable} has no pip, and uv is not on the PATH: install "
            f"one of them ({sys.executable} -m ensurepip), and run this again"
        )
    print(
        f"{name} install --no-deps fairseq=={FAIRSEQ}, without its dependencies' old versions and "
        "its compiled parts",
        flush=True,
    )
    words = [*command, "--no-deps", "--no-binary", "fairseq", f"fairseq=={FAIRSEQ}"]
    done = subprocess.run(words, env={**os.environ, "READTHEDOCS": "1"}, check=False)
    return (
        f"{name} could not install fairseq (its message is above): mend that and run this again"
        if done.returncode
        else ""
    )


def main(given: Sequence[str] = ()) -> int:
    """Examine all items; return the exit code."""
    parser = argparse.ArgumentParser(
        "python -m fairseq_ext.doctor", description="Says what is missing, with a remedy for each."
    )
    parser.add_argument("--install-fairseq", action="store_true", help="install fairseq first")
    if parser.parse_args(given).install_fairseq and (problem := install_fairseq()):
        print(f"error: {problem}", file=sys.stderr)
        return 1
    logging.disable(logging.INFO)  # fairseq's notes on packages that are not used here
    good = [examine(item) for item in ITEMS]
    patches = startup.patches()
    for patch in patches.in_force + [patches.INVALID_BYTES] * repairs.are_kept():
        print(
            f"patch {patch.what}: {patch.why}"
            f"{' (in commands alone)' if patch in patches.COMMANDS + patches.QUICK else ''}"
        )
    failed = good.count(False)
    items = "1 required item" if failed == 1 else f"{failed} required items"
    print(f"{items} failed; mend the first one first" if failed else "all that is required works")
    return 1 if failed else 0


if __name__ == "__main__":
    # without the interpreter's clean-up, which takes half a second
    exit_process(main(command_line.arguments()))
