"""fairseq's advice to install tensorboardX, which only training to speak would use, is not shown by
any `python -m fairseq_ext...`."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sizes import drawn

import fairseq_ext

PACKAGE = Path(fairseq_ext.__file__).parent
MAIN = re.compile(r'^if __name__ == "__main__":', re.MULTILINE)
# each entry in a forked child of one young process, as far as `--help` goes; then the module of
# fairseq that gives the advice
RUN = """
import importlib, logging, os, runpy, sys
import hydra, omegaconf, sacrebleu, torch, torch.distributed.fsdp  # which take longest

def leave(status):
    raise SystemExit(status)

def live(name):
    sys.argv, sys.orig_argv = ["-m", "--help"], ["python", "-m", name, "--help"]
    sys.stdout = open(os.devnull, "w")
    end, os._exit = os._exit, leave  # some entries end at once
    try:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    except (SystemExit, ValueError):
        pass
    logging.disable(logging.NOTSET)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, force=True, format="%(message)s")
    if name == "json.tool":  # an entry for which nothing is silenced
        logging.Logger.addFilter = lambda self, silence: None
    importlib.import_module("fairseq.tasks.text_to_speech").TextToSpeechTask
    print(name, "has it loaded", file=sys.stderr, flush=True)
    end(0)

for name in sys.argv[1:]:
    print("entry", name, file=sys.stderr, flush=True)
    if not (child := os.fork()):
        live(name)
    os.waitpid(child, 0)
"""  # noqa: E501


def entries() -> list[str]:
    """Every module that runs as a program, by name; tests/test_doctor.py has the doctor,
    which examines much."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(["fairseq_ext", *path.relative_to(PACKAGE).with_suffix("").parts])
        if path.name == "__main__.py":
            found.append(name.removesuffix(".__main__"))
        elif MAIN.search(path.read_text(encoding="utf-8")) and path.name != "doctor.py":
            found.append(name)
    return sorted(found)


@drawn(0)  # long
@pytest.mark.skipif(
    importlib.util.find_spec("tensorboardX") is not None,
    reason="it is installed, so nobody is advised to",
)
def test_no_entry_shows_the_advice_to_install_tensorboardx():
    names = entries()
    assert {"fairseq_ext", "fairseq_ext.corpus", "fairseq_ext.serve", "fairseq_ext.viz.ddg"} <= set(
        names
    )
    done = subprocess.run(
        [sys.executable, "-c", RUN, *names, "json.tool"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    said = {part.partition("\n")[0]: part for part in done.stderr.split("entry ")[1:]}
    assert list(said) == [*names, "json.tool"]
    for name, text in said.items():
        assert f"{name} has it loaded" in text, text
        assert ("tensorboardX" in text) == (name == "json.tool"), text
