"""No command, and no process that one starts, runs a file of the working folder.

tests/test_install.py has the doctor, test_guest.py an Engine under `python -I`,
tests/corpus/test_corpus_ray.py the corpus and its Ray workers.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from conftest import BIN, ran
from sizes import drawn

from fairseq_ext.core.child import search_path
from fairseq_ext.kernels.library import library

DEMO = Path(__file__).parents[2] / "checkpoints" / "demo"
MODEL = ["--path", str(DEMO / "checkpoint.pt"), "-s", "de", "-t", "en", "--cpu", "--beam", "1"]
needs_library = pytest.mark.skipif(library() is None, reason="there is no C++ compiler")


@pytest.fixture
def compiling(tmp_path) -> dict[str, str]:
    """An environment in which the kernels are compiled again, by a compiler that gives what
    was compiled before."""
    compiler = tmp_path / "c++"
    compiler.write_text(
        "#!/bin/sh\n"
        f'for word; do [ "$last" = -o ] && cp {library().file} "$word"; last=$word; done; true\n'
    )
    compiler.chmod(0o700)
    return {"CXX": str(compiler), "XDG_CACHE_HOME": str(tmp_path / "cache")}


def run(
    words: list, folder: Path, given: str = "", **environment: str
) -> subprocess.CompletedProcess:
    done = ran(*words, cwd=folder, stdin=given, **environment)
    assert not list(folder.glob("*.run"))
    return done


@needs_library
def test_commands_of_fairseq(hostile, compiling, tiny):
    ours = ["--cpu", "--task", "translation_ext"]
    run([BIN / "fairseq-generate", tiny / "data", *ours, "--path", tiny / "model.pt"], hostile)
    words = [BIN / "fairseq-interactive", DEMO, *ours, *MODEL]
    said = run(words, hostile, "\u2581Die \u2581Akte .\n", **compiling)
    assert "H-0" in said.stdout and list(Path(compiling["XDG_CACHE_HOME"]).rglob("*.so"))


@pytest.mark.parametrize(
    "python", [[sys.executable], [sys.executable, "-I"]], ids=["python", "python -I"]
)
@needs_library
def test_commands_that_start_without_torch(hostile, compiling, python):
    run([*python, "-m", "fairseq_ext.kernels"], hostile, **compiling)
    assert "{score,expand}" in run([*python, "-m", "fairseq_ext.terms", "--help"], hostile).stdout


def test_the_server_and_its_workers(hostile):
    words = [sys.executable, "-m", "fairseq_ext.serve", "--data", str(DEMO), *MODEL, "--port", "0"]
    with subprocess.Popen(words, cwd=hostile, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            url = re.search(r"http://[\d.:]+", server.stderr.readline())
            assert url and server.stderr.readline().startswith("ready: ")
            body = {"source": "\u2581Die \u2581Akte ."}
            assert httpx.post(f"{url[0]}/v1/translate", json=body, timeout=60).status_code == 200
        finally:
            server.terminate()
    assert not list(hostile.glob("*.run"))


@drawn(0)  # long
def test_a_folder_that_pythonpath_names_is_searched(tmp_path):
    """So is the folder in which the package lies, as for a user who works on it."""
    (tmp_path / "theirs.py").write_text("print('theirs')\n")
    code = "from fairseq_ext import doctor; print(doctor.probe('import theirs'))"
    done = run(
        [sys.executable, "-c", f"import sys; sys.argv = sys.orig_argv = ['']; {code}"],
        tmp_path,
        PYTHONPATH=str(tmp_path),
    )
    assert "theirs\n" in done.stdout
    package = Path(search_path.__code__.co_filename).parents[1]
    shutil.copytree(
        package, tmp_path / "clone" / "fairseq_ext", ignore=shutil.ignore_patterns("__pycache__")
    )
    with open(tmp_path / "clone" / "fairseq_ext" / "core" / "child.py", "a") as file:
        file.write("print('the clone')\n")
    said = run([sys.executable, "-m", "fairseq_ext.terms", "--help"], tmp_path / "clone")
    assert said.stdout.startswith("the clone\n") and "{score,expand}" in said.stdout


def test_a_removed_folder(tmp_path):
    """MKL ends the process there, with a sentence that says nothing of it, as soon
    as torch is imported."""
    gone = tmp_path / "gone"
    gone.mkdir()
    words = [BIN / "fairseq-interactive", DEMO, "--task", "translation_ext", *MODEL]
    removed = ["sh", "-c", 'rmdir "$PWD" && "$@"', "sh", *words]
    done = ran(*removed, cwd=gone, stdin="\u2581Ja\n", check=False)
    said = "error: the working folder has been removed: change to another\n"
    assert (done.returncode, done.stderr) == (1, said)
