"""What a program can see of its own process; the guest tests take it before and after an
import of fairseq_ext."""

import atexit
import dataclasses
import gc
import logging
import os
import signal
import sys
import threading
import warnings

import omegaconf
import sacrebleu  # noqa: F401  these and what they import change the process in their own ways
import torch
import torch.distributed.fsdp


def state() -> dict:
    """Each thing by name."""
    return {
        "hooks": (sys.excepthook, threading.excepthook, sys.unraisablehook, sys.displayhook),
        "signals": [
            signal.getsignal(number)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD)
        ],
        "garbage collection": (
            gc.isenabled(),
            gc.get_threshold(),
            gc.get_freeze_count(),
            len(gc.callbacks),
        ),
        # which has one of its own
        "exit handlers": atexit._ncallbacks() - ("fairseq.logging.progress_bar" in sys.modules),
        "warnings": (list(warnings.filters), warnings.showwarning),
        "log": (
            logging.root.level,
            logging.root.handlers[:],
            logging.root.filters[:],
            logging.basicConfig,
            logging.Handler.handleError,
        ),
        "streams": (sys.stdin, sys.stdout, sys.stderr),
        "search": (sys.path[:], sys.path_hooks[:], sys.argv[:], sys.orig_argv[:]),
        "environment": (dict(os.environ), os.getcwd()),
        "Python": (
            dataclasses._get_field,
            dataclasses.dataclass,
            sys.getrecursionlimit(),
            sys.getswitchinterval(),
        ),
        "omegaconf": (omegaconf.DictConfig.__getattr__, omegaconf.DictConfig.__getitem__),
        "torch": (
            torch.serialization.get_safe_globals(),
            torch.load,
            torch.get_num_threads(),
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
            torch.random.get_rng_state().tolist(),
            torch.backends.mkldnn.is_available(),
        ),
    }


def changed(before: dict) -> list[str]:
    """What is not as it was."""
    return [name for name, value in state().items() if value != before[name]]
