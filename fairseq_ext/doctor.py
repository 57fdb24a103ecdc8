"""`python -m fairseq_ext.doctor`: a line for each thing that fairseq_ext needs, and for each that fails what to do about it.

Ends with exit code 1 when a required item fails. An item marked `note` is worth knowing and stops nothing. Nothing but the standard
library is imported before an item asks for it, so `python fairseq_ext/doctor.py` also runs where half of the packages are missing.
"""

import functools
import importlib
import importlib.metadata
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).resolve().parent
SET_UP = "run scripts/setup.sh again, and start Python from the environment that it names"
FAIRSEQ = "0.12.2"
OLDEST_PYTHON = (3, 10)
OLDEST_TORCH = (2, 6)
ISA = "ONEDNN_MAX_CPU_ISA"

HOOK_PROBE = "import sys; sys.exit(not any(type(f).__name__ in ('FairseqExtStart', 'Hook') for f in sys.meta_path))"

USER_DIR_PROBE = """
import argparse, atexit, gc, sys
atexit.register(gc.freeze)  # to look through all modules once more at the end takes as long as to import half of them
from fairseq.tasks import TASK_REGISTRY
from fairseq.utils import import_user_module
import_user_module(argparse.Namespace(user_dir=sys.argv[1]))
sys.exit("it registers no task translation_ext" if "translation_ext" not in TASK_REGISTRY else 0)
"""

ONEDNN_PROBES = {
    "bfloat16 linear": """
import torch
torch.nn.functional.linear(torch.ones(64, 512).bfloat16(), torch.ones(512, 512).bfloat16())
""",
    "int8 linear (engine onednn)": """
import torch, warnings
warnings.simplefilter("ignore")
if "onednn" in torch.backends.quantized.supported_engines:
    torch.backends.quantized.engine = "onednn"
    layer = torch.nn.Sequential(torch.nn.Linear(512, 512))
    torch.ao.quantization.quantize_dynamic(layer, {torch.nn.Linear}, torch.qint8)(torch.ones(64, 512))
""",
}


class Failed(Exception):
    """An item that is not as it should be: what was found, and what to do."""

    def __init__(self, found: str, cure: str) -> None:
        super().__init__(found)
        self.cure = cure


class Item(NamedTuple):
    name: str
    check: Callable[[], str]  # says what it found, or raises
    required: bool = True
    cure: str = SET_UP  # where the check names none


def probe(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """Run code in a fresh Python, away from this one and from the working directory; it may die."""
    command = [sys.executable, "-c", code, *arguments]
    with tempfile.TemporaryDirectory() as elsewhere:
        return subprocess.run(
            command, cwd=elsewhere, env={**os.environ, **environment}, capture_output=True, text=True, errors="replace", timeout=300
        )


def forked(code: str) -> subprocess.CompletedProcess:
    """Run code in a copy of this process, which has torch already; it may die. Without processes that can be copied: as `probe`."""
    if not hasattr(os, "fork"):
        return probe(code)
    with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as err:
        child = os.fork()
        if not child:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            status = 1
            try:
                exec(code, {"print": functools.partial(print, file=open(1, "w", closefd=False), flush=True)})
                status = 0
            except BaseException as error:
                os.write(2, f"{type(error).__name__}: {error}".encode(errors="replace"))
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read())
    return subprocess.CompletedProcess(code, status, *said)


def last_line(done: subprocess.CompletedProcess) -> str:
    """How a probe ended: its signal, or the last line that it said."""
    if done.returncode < 0:
        return signal.Signals(-done.returncode).name
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


def release(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: 2.13.0+cpu is (2, 13, 0)."""
    numbers = []
    for part in version.split("+")[0].split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def installed(distribution: str, module: str) -> Callable[[], str]:
    """A check that a package is installed and can be imported; it finds the version."""

    def check() -> str:
        version = importlib.metadata.version(distribution)
        importlib.import_module(module)
        return version

    return check


def python() -> str:
    found = f"{sys.version.split()[0]} at {sys.executable}"
    if sys.version_info < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        raise Failed(found, f"install Python {oldest} or newer and name it: PYTHON=... scripts/setup.sh")
    return found


def torch_and_devices() -> str:
    import torch

    version = importlib.metadata.version("torch")
    if release(version) < OLDEST_TORCH:
        raise Failed(version, f"install torch {'.'.join(map(str, OLDEST_TORCH))} or newer: {SET_UP}")
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return f"{version}, {torch.get_num_threads()} CPU threads, " + (", ".join(names) or "no CUDA device")


def fairseq() -> str:
    version = importlib.metadata.version("fairseq")
    if version != FAIRSEQ:
        raise Failed(version, f"install the release that this is made for: pip install --no-deps fairseq=={FAIRSEQ}")
    importlib.import_module("fairseq.sequence_generator")
    return version


def start_up_hook() -> str:
    if probe(HOOK_PROBE).returncode:
        raise Failed("not active", "fairseq_ext.pth is missing from site-packages: pip install --no-deps -e . (or without -e)")
    return "active at every start of this Python"


def cupy() -> str:
    try:
        cp = importlib.import_module("cupy")  # its distribution's name depends on the CUDA release
    except ModuleNotFoundError:
        raise Failed("not installed", "only the CUDA kernels need it (on a GPU machine: pip install cupy-cuda12x)") from None
    return f"{cp.__version__}, {cp.cuda.runtime.getDeviceCount()} CUDA devices"


def cluster() -> str:
    versions = []
    for name in ("ray", "pyarrow"):
        try:
            versions.append(f"{name} {installed(name, name)()}")
        except ModuleNotFoundError:  # importlib.metadata's own error is one as well
            raise Failed(f"{name} is not installed", "only fairseq_ext.corpus needs it: pip install ray pyarrow") from None
    return ", ".join(versions)


def onednn() -> str:
    """subtle: some machines announce AMX and then kill the process that uses it; so each linear layer is tried in a process of its own."""
    dying = {name: last_line(done) for name, code in ONEDNN_PROBES.items() if (done := forked(code)).returncode}
    if not dying:
        return "bfloat16 and int8 linear layers work" + (f" with {ISA}={os.environ[ISA]}" if ISA in os.environ else "")
    found = "; ".join(f"{name} ends in {end}" for name, end in dying.items())
    for isa in ("AVX512_CORE_BF16", "AVX512_CORE_VNNI", "AVX2"):
        if not any(probe(ONEDNN_PROBES[name], **{ISA: isa}).returncode for name in dying):
            raise Failed(found, f"before bfloat16 or int8 is used on this CPU, set {ISA}={isa} (tried: it works) and then start Python")
    raise Failed(found, f"use float32 on this CPU: no setting of {ISA} that was tried helps")


def compiled_step() -> str:
    imports = "from fairseq_ext.kernels.library import build; from fairseq_ext.kernels.transformer import has_int8"
    done = forked(f"{imports}; print(build(), has_int8())")
    if done.returncode:
        raise Failed(last_line(done), "the fast decoder runs as torch operations, which take longer: install a C++ compiler (g++)")
    path, _, int8 = done.stdout.strip().rpartition("\n")[2].rpartition(" ")
    return path + (", with 8-bit linear layers (--int8)" if int8 == "True" else ", without 8-bit linear layers (--int8)")


def user_dir() -> str:
    done = probe(USER_DIR_PROBE, str(PACKAGE))
    if done.returncode:
        raise Failed(f"--user-dir {PACKAGE}: {last_line(done)}", f"mend the items above first; else {SET_UP}")
    return f"--user-dir {PACKAGE}"


def tiny_decode() -> str:
    """The generator of translation_ext must give what fairseq's own gives."""
    ours, theirs = importlib.import_module("fairseq_ext.compat.tiny_decode").both()
    if ours != theirs:
        raise Failed(f"{ours} instead of fairseq's {theirs}", "this is an error of fairseq_ext: please report it with this page")
    return f"{len(ours)} sentences, equal to fairseq's own generator"


ITEMS = [
    Item("Python", python),
    Item("torch", torch_and_devices),
    Item("hydra", installed("hydra-core", "hydra")),
    Item("omegaconf", installed("omegaconf", "omegaconf")),
    Item("start-up hook", start_up_hook),
    Item("fairseq", fairseq, cure=f"pip install --no-deps fairseq=={FAIRSEQ}, or {SET_UP}"),
    Item("sentencepiece", installed("sentencepiece", "sentencepiece")),
    Item("subword-nmt", installed("subword-nmt", "subword_nmt")),
    Item("sacrebleu", installed("sacrebleu", "sacrebleu")),
    Item("simplemma", installed("simplemma", "simplemma"), required=False, cure="only lemmas of terms need it: pip install simplemma"),
    Item("CuPy", cupy, required=False, cure="only the CUDA kernels need it; see whether its CUDA release fits the driver"),
    Item("Ray", cluster, required=False, cure="only fairseq_ext.corpus needs it"),
    Item("oneDNN", onednn, required=False, cure="float32 does not need it"),
    Item("compiled step", compiled_step, required=False, cure="the fast decoder runs as torch operations, which take longer"),
    Item("user-dir", user_dir),
    Item("tiny decode", tiny_decode),
]


def examine(item: Item) -> bool:
    """Run one check and print its line; False when a required item fails."""
    try:
        print(f"ok    {item.name}: {item.check()}", flush=True)
        return True
    except Failed as trouble:
        found, cure = str(trouble), trouble.cure
    except importlib.metadata.PackageNotFoundError:
        found, cure = "not installed", item.cure
    except (Exception, SystemExit) as error:  # whatever a broken installation throws is what this page is about
        found, cure = f"{type(error).__name__}: {error}".splitlines()[0], item.cure
    print(f"{'FAIL' if item.required else 'note'}  {item.name}: {found}\n      -> {cure}", flush=True)
    return not item.required


def main() -> int:
    """Examine everything; the exit code."""
    logging.disable(logging.INFO)  # fairseq's own notes on packages that nothing here uses
    good = [examine(item) for item in ITEMS]
    print("all that is required works" if all(good) else f"{good.count(False)} required item(s) failed; mend the first one first")
    return 0 if all(good) else 1


if __name__ == "__main__":
    if sys.path and Path(sys.path[0]).resolve() == PACKAGE:
        sys.path[0] = str(PACKAGE.parent)  # started as a file: its folder must not be searched for modules
    sys.exit(main())
