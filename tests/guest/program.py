"""A program by another author that uses fairseq_ext: `python -I program.py FOLDER MODEL`. It prints
a JSON object, and ends with status 7.

Each of its ends is that of a forked child, which raises an error that no one catches.
"""

import atexit
import gc
import json
import os
import sys
import threading
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
from state import changed, state  # noqa: E402

FOLDER, MODEL = Path(sys.argv[1]), sys.argv[2]


def theirs(kind, error, trace) -> None:
    print(f"their hook: {error}", file=sys.stderr)


def thread_that_works() -> None:
    def work() -> None:
        time.sleep(0.3)
        (FOLDER / "work of a thread").write_text("done")

    threading.Thread(target=work).start()
    raise ValueError("size mismatch in my own matrix code")


def their_hook_set_later() -> None:
    sys.excepthook = theirs
    raise RuntimeError("mine")


ENDS = {
    "a size mismatch": thread_that_works,
    "a file that is not there": lambda: open("/tmp/nope.json"),
    "text that is not ASCII": lambda: "\xe9".encode("ascii"),
    "their hook, set later": their_hook_set_later,
}


def reported(name: str) -> dict:
    """How a child ends: its status, and standard error. In the child: its name."""
    path = FOLDER / "stderr"
    child = os.fork()
    if not child:
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        gc.freeze()  # to look through what is imported takes a second
        return {"child": name}
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return {"status": status, "stderr": path.read_text()}


found: dict = {}
before = state()
import fairseq  # noqa: E402, F401  the plug-in is installed next to it

found["changed by import fairseq"] = changed(before)
sys.excepthook = theirs
before = state()
import fairseq_ext  # noqa: E402

found["changed by import fairseq_ext"] = changed(before)
sys.excepthook = sys.__excepthook__
found["ends"] = {}
for end in ENDS:
    found["ends"][end] = reported(end)
    if "child" in found["ends"][end]:
        ENDS[end]()
        sys.exit(0)

found["raised"] = {}
for given in ({"path": str(FOLDER / "absent.pt")}, {"path": f"{MODEL}/checkpoint.pt", "beam": 0}):
    try:
        fairseq_ext.Translator(data=MODEL, source_lang="de", target_lang="en", cpu=True, **given)
    except Exception as error:
        found["raised"][str(given.keys() - {"path"})] = [type(error).__name__, str(error)]
before = state()
with fairseq_ext.Engine(
    f"{MODEL}/checkpoint.pt", MODEL, source_lang="de", target_lang="en", cpu=True, beam=2
) as engine:
    found["translation"] = engine.submit("\u2581Der \u2581Angebot").result().hypotheses[0].text
found["changed by an Engine"] = changed(before)
fairseq_ext.core.exit.at_process_end(lambda: 3)  # as a Translator with bad lines
gc.freeze()
atexit.register(lambda: (FOLDER / "at exit").write_text("done"))
print(json.dumps(found))
sys.exit(7)
