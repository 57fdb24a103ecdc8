"""Code that doctor.py runs in processes of its own, because it may die or because this process
must not be what it finds.

A fresh Python takes a while to start, so `start` lets one run beside what is examined meanwhile,
and `probe` waits for it.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import tempfile

from fairseq_ext.core import child

LONGEST = 300  # seconds that a probe may take

HOOK_PROBE = (
    "import sys; sys.exit(not any(type(f).__name__ in ('FairseqExtStart', 'Hook') for f "
    "in sys.meta_path))"
)

CLUSTER_PROBE = "import gc; gc.disable(); import pyarrow, ray; import os; os._exit(0)"

# subtle: its arguments are those of a command, since that is what starts quickly
# (core/command_line.py)
USER_DIR_PROBE = """
import __main__, argparse, os, sys
__main__.pose("fairseq-generate")
from fairseq import options
from fairseq.tasks import TASK_REGISTRY
from fairseq_ext.core.command_line import values_of
options.utils.import_user_module(argparse.Namespace(user_dir=values_of("--user-dir")[0]))
if "translation_ext" not in TASK_REGISTRY:
    sys.exit("it registers no task translation_ext")
os._exit(0)  # to look through all modules at the end takes as long as to import half of them
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
    layer, kinds = torch.nn.Sequential(torch.nn.Linear(512, 512)), {torch.nn.Linear}
    torch.ao.quantization.quantize_dynamic(layer, kinds, torch.qint8)(torch.ones(64, 512))
""",
}

# by code and arguments: probes that nobody has asked for yet
under_way: dict[tuple[str, ...], subprocess.Popen[str]] = {}


def start(code: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Start code in a fresh Python, away from the working directory."""
    return subprocess.Popen(
        child.python("-c", code, *arguments),
        cwd=os.path.abspath(os.sep),
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )


def start_ahead(code: str, *arguments: str) -> None:
    """Start a probe that will be asked for later."""
    key = (code, *arguments)
    under_way[key] = start(code, *arguments)


def probe(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh Python, away from this one and from the working directory; it may die."""
    ahead = None if environment else under_way.pop((code, *arguments), None)
    process = ahead or start(code, *arguments, **environment)
    try:
        out, err = process.communicate(timeout=LONGEST)
    except BaseException:  # too long, or Ctrl-C
        process.kill()
        process.communicate()
        raise
    return subprocess.CompletedProcess(code, process.returncode, out, err)


def forked(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a copy of this process, which has torch already; it may die, also of waiting for
    a thread that it has no copy of (SIGALRM)."""
    with (
        tempfile.TemporaryFile("w+", errors="replace") as out,
        tempfile.TemporaryFile("w+", errors="replace") as err,
    ):
        child = os.fork()
        if not child:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(LONGEST)
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            status = 1
            try:
                exec(
                    code,
                    {
                        "print": functools.partial(
                            print, file=open(1, "w", closefd=False), flush=True
                        )
                    },
                )
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


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """How a probe ended: its signal, or the last line that it said."""
    if done.returncode < 0:
        return signal.Signals(-done.returncode).name
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
