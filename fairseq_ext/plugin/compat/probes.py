"""Code that doctor.py runs in processes of its own, because it may crash, or because it must not
see the state of this process."""

from __future__ import annotations

import os
import signal
import subprocess

from fairseq_ext.core import child

LONGEST = 300  # seconds

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


def probe(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run code in a new Python process, outside the working directory; it may crash."""
    return subprocess.run(
        child.python("-c", code, *arguments),
        cwd=os.path.abspath(os.sep),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=LONGEST,
        check=False,
    )


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """Return how a probe ended: its signal, or the last line of its output."""
    if done.returncode < 0:
        return signal.Signals(-done.returncode).name
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
