"""`python -m fairseq_ext.doctor`: prints a line for each thing that fairseq_ext needs, with a
remedy if it is missing or broken.

With --install-fairseq it installs fairseq first.

At the end there is a line for each active change of other packages, with the reason
(plugin/compat/patches.py). The exit code is 1 if a required item fails. An item marked `note` is
information only. Packages outside the standard library are imported only by the item that needs
them, so `python fairseq_ext/doctor.py` also runs if many packages are missing.
"""

import importlib
import importlib.metadata
import importlib.util
import logging
import os
import shutil
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

from fairseq_ext.core import command_line  # noqa: E402
from fairseq_ext.core.exit import exit_process  # noqa: E402
from fairseq_ext.plugin.compat import repairs, startup  # noqa: E402
from fairseq_ext.plugin.compat.probes import (  # noqa: E402
    CLUSTER_PROBE,
    HOOK_PROBE,
    USER_DIR_PROBE,
    last_line,
    probe,
)

FAIRSEQ = "0.12.2"
IS_CLONE = (PACKAGE.parent / "scripts" / "setup.sh").is_file()
SET_UP = (
    "run scripts/setup.sh again, and start Python from the environment that it names"
    if IS_CLONE
    # pip installs the missing requirements of the installed package
    else "pip install fairseq_ext; python -m fairseq_ext.doctor --install-fairseq"
)
AS_COMMAND = ("--user-dir", str(PACKAGE), "--task", "translation_ext")
OLDEST_PYTHON = (3, 10)
OLDEST_TORCH = (2, 6)


class Failed(Exception):
    """An item that fails: what was found, and the remedy."""

    def __init__(self, found: str, remedy: str) -> None:
        super().__init__(found)
        self.remedy = remedy


class Item(NamedTuple):
    name: str
    check: Callable[[], str]  # returns what it found, or raises
    required: bool = True
    remedy: str = SET_UP  # used if the check names none


def release(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: (2, 13, 0) for 2.13.0+cpu."""
    numbers = []
    for part in version.split("+")[0].split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def installed(distribution: str, module: str) -> Callable[[], str]:
    """Return a check that a package is installed and can be imported; it returns the version."""

    def check() -> str:
        version = importlib.metadata.version(distribution)
        importlib.import_module(module)
        return version

    return check


def python() -> str:
    found = f"{sys.version.split()[0]} at {sys.executable}"
    if sys.version_info < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        raise Failed(
            found,
            f"install Python {oldest} or newer"
            + (" and name it: PYTHON=... scripts/setup.sh" if IS_CLONE else ""),
        )
    return found


def torch_and_devices() -> str:
    import torch

    version = importlib.metadata.version("torch")
    if release(version) < OLDEST_TORCH:
        raise Failed(
            version, f"install torch {'.'.join(map(str, OLDEST_TORCH))} or newer: {SET_UP}"
        )
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return f"{version}, {torch.get_num_threads()} CPU threads, " + (
        ", ".join(names) or "no CUDA device"
    )


def fairseq() -> str:
    version = importlib.metadata.version("fairseq")
    if version != FAIRSEQ:
        raise Failed(
            version,
            "install the release that this is made for: python -m fairseq_ext.doctor "
            "--install-fairseq",
        )
    importlib.import_module("fairseq.sequence_generator")
    return version


def start_up_hook() -> str:
    if probe(HOOK_PROBE).returncode:
        raise Failed(
            "not active",
            f"put it in place: cp {PACKAGE}/plugin/compat/fairseq_ext.pth "
            f"{sysconfig.get_path('purelib')}",
        )
    return "active at every start of this Python"


def cupy() -> str:
    try:
        cp = importlib.import_module("cupy")  # its distribution's name depends on the CUDA release
    except ModuleNotFoundError:
        raise Failed(
            "not installed", extra("gpu", "the CUDA kernels, on a GPU machine, need")
        ) from None
    return f"{cp.__version__}, {cp.cuda.runtime.getDeviceCount()} CUDA devices"


def cluster() -> str:
    versions = []
    for name in ("ray", "pyarrow"):
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            raise Failed(
                f"{name} is not installed", extra("cluster", "fairseq_ext.corpus needs")
            ) from None
    done = probe(CLUSTER_PROBE)
    if done.returncode:
        remedy = "only fairseq_ext.corpus needs it: pip install --force-reinstall ray pyarrow"
        raise Failed(f"{', '.join(versions)}: {last_line(done)}", remedy)
    return ", ".join(versions)


def compiled_step() -> str:
    done = probe("from fairseq_ext.kernels.library import build; print(build())")
    if done.returncode:
        # raises an error for an unknown name
        importlib.import_module("fairseq_ext.kernels.library").level()
        raise Failed(
            last_line(done),
            "the fast decoder runs as torch operations, which take longer: install a "
            "C++ compiler (g++)",
        )
    return done.stdout.strip().rpartition("\n")[2]


def user_dir() -> str:
    done = probe(USER_DIR_PROBE, *AS_COMMAND)
    if done.returncode:
        raise Failed(
            f"--user-dir {PACKAGE}: {last_line(done)}", f"mend the items above first; else {SET_UP}"
        )
    return f"--user-dir {PACKAGE}"


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


def extra(name: str, needs: str) -> str:
    """Return the remedy for a missing package of an extra."""
    return f"only {needs} it: pip install 'fairseq_ext[{name}]'"


OPTIONAL = (  # package, its module, the extra that brings it, and what needs it
    ("simplemma", "simplemma", "terms", "lemmas of terms"),
    ("matplotlib", "matplotlib", "plots", "the pictures of fairseq_ext.viz.ddg"),
    ("safetensors", "safetensors", "hf", "models from Hugging Face"),
    ("sentencex", "sentencex", "text", "whole texts"),
    ("fastapi", "fastapi", "serve", "servers"),
    ("uvicorn", "uvicorn", "serve", "servers"),
)
ITEMS = [
    Item("Python", python),
    Item("torch", torch_and_devices),
    Item("hydra", installed("hydra-core", "hydra")),
    Item("omegaconf", installed("omegaconf", "omegaconf")),
    Item("start-up hook", start_up_hook),
    Item("fairseq", fairseq, remedy=f"python -m fairseq_ext.doctor --install-fairseq, or {SET_UP}"),
    Item("sentencepiece", installed("sentencepiece", "sentencepiece")),
    Item("subword-nmt", installed("subword-nmt", "subword_nmt")),
    Item("sacrebleu", installed("sacrebleu", "sacrebleu")),
    *(
        Item(name, installed(name, module), required=False, remedy=extra(of, f"{what} need"))
        for name, module, of, what in OPTIONAL
    ),
    Item(
        "CuPy",
        cupy,
        required=False,
        remedy="only the CUDA kernels need it; see whether its CUDA release fits the driver",
    ),
    Item(
        "Ray",
        cluster,
        required=False,
        remedy="only fairseq_ext.corpus needs it",
    ),
    Item(
        "compiled step",
        compiled_step,
        required=False,
        remedy="the fast decoder runs as torch operations, which take longer",
    ),
    Item("user-dir", user_dir),
    Item("tiny decode", tiny_decode),
]


def examine(item: Item) -> bool:
    """Run one check and print its line; return False if a required item fails."""
    try:
        print(f"ok    {item.name}: {item.check()}", flush=True)
        return True
    except Failed as trouble:
        found, remedy = str(trouble), trouble.remedy
    except importlib.metadata.PackageNotFoundError:
        found, remedy = "not installed", item.remedy
    except (Exception, SystemExit) as error:
        # a broken installation may raise any error
        if type(error).__name__ == "UsageError":  # about a setting; it names a remedy
            print(f"FAIL  {item.name}: {error}", flush=True)
            return False
        found, remedy = f"{type(error).__name__}: {error}".splitlines()[0], item.remedy
    print(
        f"{'FAIL' if item.required else 'note'}  {item.name}: {found}\n      -> {remedy}",
        flush=True,
    )
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
    if list(given) not in ([], ["--install-fairseq"]):
        print(
            "error: python -m fairseq_ext.doctor takes --install-fairseq or nothing, not "
            f"{' '.join(given)}",
            file=sys.stderr,
        )
        return 2
    if given and (problem := install_fairseq()):
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
