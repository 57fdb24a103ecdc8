"""A program by another author that uses fairseq_ext: `python -I program.py FOLDER MODEL`. It prints
a JSON object, and ends with status 7.

Each of its ends is that of a forked child, which raises an error that no one catches. What a
program can see of its own process (`state`) is taken before and after an import of fairseq_ext.
"""

import atexit
import dataclasses
import gc
import json
import logging
import os
import signal
import sys
import threading
import time
import warnings
from pathlib import Path

import omegaconf
import sacrebleu  # noqa: F401  these and what they import change the process in their own ways
import torch
import torch.distributed.fsdp


def state():
    """Each thing by name."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD)
    root, load = logging.root, torch.load
    collector = gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), len(gc.callbacks)
    limits = sys.getrecursionlimit(), sys.getswitchinterval()
    of_torch = torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()
    of_torch += torch.serialization.get_safe_globals(), torch.backends.mkldnn.is_available()
    return {
        "hooks": (sys.excepthook, threading.excepthook, sys.unraisablehook, sys.displayhook),
        "signals": [*map(signal.getsignal, numbers)],
        "garbage collection": collector,
        # which has one of its own
        "exit handlers": atexit._ncallbacks() - ("fairseq.logging.progress_bar" in sys.modules),
        "warnings": (list(warnings.filters), warnings.showwarning),
        "log": (root.level, root.handlers[:], root.filters[:], logging.basicConfig),
        "errors of logs": logging.Handler.handleError,
        "streams": (sys.stdin, sys.stdout, sys.stderr),
        "search": (sys.path[:], sys.path_hooks[:], sys.argv[:], sys.orig_argv[:]),
        "environment": (dict(os.environ), os.getcwd()),
        "Python": (dataclasses._get_field, dataclasses.dataclass, *limits),
        "omegaconf": (omegaconf.DictConfig.__getattr__, omegaconf.DictConfig.__getitem__),
        "torch": (load, torch.random.get_rng_state().tolist(), *of_torch),
    }


def changed(before):
    """What is not as it was."""
    return [name for name, value in state().items() if value != before[name]]


def theirs(kind, error, trace):
    print(f"their hook: {error}", file=sys.stderr)


def thread_that_works():
    def work():
        time.sleep(0.3)
        (FOLDER / "work of a thread").write_text("done")

    threading.Thread(target=work).start()
    raise ValueError("size mismatch in my own matrix code")


def their_hook_set_later():
    sys.excepthook = theirs
    raise RuntimeError("mine")


ENDS = {
    "a size mismatch": thread_that_works,
    "a file that is not there": lambda: open("/tmp/nope.json"),
    "text that is not ASCII": lambda: "\xe9".encode("ascii"),
    "their hook, set later": their_hook_set_later,
}


def reported(name):
    """How a child ends: its status, and standard error. In the child: its name."""
    path = FOLDER / "stderr"
    child = os.fork()
    if not child:
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        gc.freeze()  # to look through what is imported takes a second
        return {"child": name}
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return {"status": status, "stderr": path.read_text()}


if __name__ == "__main__":
    FOLDER, MODEL = Path(sys.argv[1]), sys.argv[2]
    found = {}
    before = state()
    import fairseq  # noqa: F401  the plug-in is installed next to it

    found["changed by import fairseq"] = changed(before)
    sys.excepthook = theirs
    before = state()
    import fairseq_ext

    found["changed by import fairseq_ext"] = changed(before)
    sys.excepthook = sys.__excepthook__
    found["ends"] = {}
    for end in ENDS:
        found["ends"][end] = reported(end)
        if "child" in found["ends"][end]:
            ENDS[end]()
            sys.exit(0)

    found["raised"] = {}
    checkpoint = f"{MODEL}/checkpoint.pt"
    how = dict(data=MODEL, source_lang="de", target_lang="en", cpu=True)
    for given in ({"path": str(FOLDER / "absent.pt")}, {"path": checkpoint, "beam": 0}):
        try:
            fairseq_ext.Translator(**how, **given)
        except Exception as error:
            found["raised"][str(given.keys() - {"path"})] = [type(error).__name__, str(error)]
    before = state()
    with fairseq_ext.Engine(checkpoint, **how, beam=2) as engine:
        found["translation"] = engine.submit("\u2581Der \u2581Angebot").result().hypotheses[0].text
    found["changed by an Engine"] = changed(before)
    fairseq_ext.core.exit.at_process_end(lambda: 3)  # as a Translator with bad lines
    gc.freeze()
    atexit.register(lambda: (FOLDER / "at exit").write_text("done"))
    print(json.dumps(found))
    sys.exit(7)
