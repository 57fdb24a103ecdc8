"""fairseq_ext in another program's process: an import changes nothing, and what goes wrong
there ends as in any Python; programs that run for long: forks, forgotten engines, closed
streams. And no command, and no process that one starts, runs a file of the working folder:
test_install.py has the doctor, corpus/test_corpus_ray.py the corpus and its Ray workers."""

import contextlib
import itertools
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import torch
from conftest import BIN, ran
from demo_model import FLAGS, OURS, ROOT, STOCK
from demo_model import MODEL as DEMO
from sizes import covering, drawn

from fairseq_ext import Translator, UsageError
from fairseq_ext.core.child import search_path
from fairseq_ext.kernels.library import library

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def program(hostile, tmp_path_factory):
    """What program.py found, started in a folder of modules that no one means to
    run, and how it ended."""
    folder = tmp_path_factory.mktemp("program")
    words = [sys.executable, "-I", HERE / "program.py", folder, DEMO]
    done = ran(*words, cwd=hostile, check=False)
    assert done.stdout, done.stderr
    files = {path.name for path in folder.iterdir()}
    return {**json.loads(done.stdout), "status": done.returncode, "files": files}


@contextlib.contextmanager
def by_default(value):
    """With this as torch's default dtype, or device."""
    kind = "dtype" if isinstance(value, torch.dtype) else "device"
    read, write = (getattr(torch, f"{way}_default_{kind}") for way in ("get", "set"))
    before = read()
    write(value)
    try:
        yield
        assert str(read()) == str(value)
    finally:
        write(None if before == torch.device("cpu") else before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_defaults_of_torch_with_which_no_model_can_be_loaded(dtype):
    with by_default(dtype), pytest.raises(UsageError, match="load it under torch.float32"):
        Translator(**FLAGS)


SEARCHES = {
    "beam": {"beam": 2},
    "beam by torch": {"beam": 2, "decoder_backend": "fairseq"},
    "beam with constraints": {"beam": 3, "stop": "ranked"},
    "proved best": {"beam": 3, "stop": "optimal", "lenpen": -0.5, "decoder_backend": "fairseq"},
    "parallel": {"beam": 1, "decoding": "jacobi"},
    "parallel by torch": {"beam": 1, "decoding": "hybrid-jacobi", "decoder_backend": "fairseq"},
    "samples": {"beam": 2, "sampling": True, "seed": 3, "decoder_backend": "fairseq"},
    "shortlist": {"softmax": "lsh", "lsh_k": 4, "lsh_u": 2, "lsh_bands": 20, "lsh_top": 8},
    "length reward": {"unnormalized": True, "length_reward": 0.3, "length_reward_unbounded": True},
    "alignment": {"beam": 2, "print_alignment": "hard"},
    "glossary": {"beam": 2},
    "glossary by torch": {"beam": 2, "decoder_backend": "fairseq"},
}


def translator_of(search, folder):
    """A translator, with a glossary where the search's name says so."""
    glossary = {}
    if "glossary" in search:
        (folder / "terms.tsv").write_text("Hund\thound\n")
        glossary["glossary"] = str(folder / "terms.tsv")
    return Translator(**FLAGS, **SEARCHES[search], **glossary)


def results_of(translator, search):
    """What it returns, to the last bit."""
    lines = ["Der Hund bellt.", "Das Haus und der Hund sind klein."]
    phrases = [["house"], []] if "constraints" in search or search == "proved best" else None
    found = [nbest[0] for nbest in translator.translate(lines, constraints=phrases)]
    found += translator.score(lines, [each.text for each in found])
    if search.startswith("beam"):
        translator.align(lines, found[:2])
    marked = translator.translate_text("<p>Das <b>Haus</b> ist klein.</p>", "html").text
    return [marked, translator.signature, *found]


DTYPES = [torch.float16, torch.bfloat16, torch.float64]
CASES = [*itertools.product(SEARCHES, DTYPES)]
CASES += [(each, "meta") for each in ("beam", "beam by torch", "parallel", "glossary")]
CASES += itertools.product(["beam with constraints", "beam by torch"], ["autocast"])


@covering(2)
@pytest.mark.parametrize(("search", "default"), CASES, ids=str)
def test_a_default_of_the_programs_changes_no_result(search, default, tmp_path):
    """A dtype that is set after loading; a device, and autocast, neither at loading nor at
    a call."""
    expected = results_of(translator_of(search, tmp_path), search)
    translator, is_dtype = translator_of(search, tmp_path), default in DTYPES
    settings = [by_default(default)]
    if default == "autocast":
        settings = [torch.autocast("cpu", dtype=dtype) for dtype in DTYPES[1::-1]]
    for setting in settings:
        with setting:
            for each in (translator, *([] if is_dtype else [translator_of(search, tmp_path)])):
                assert results_of(each, search) == expected
            assert torch.is_autocast_enabled("cpu") == (default == "autocast")


def test_phrases_are_typed_in_a_program_that_runs_fairseqs_command(tmp_path):
    """A phrase has its spellings, one that the dictionary lacks is unmet, and a stock task after it
    fails on invalid bytes as before."""
    (tmp_path / "in").write_text("Das Haus ist klein.\tHouse\nDas Haus.\tcafé\n", encoding="utf-8")
    (tmp_path / "bad").write_bytes(b"Das Haus.\n\xff\n")
    words = [DEMO, *STOCK, "--beam", 4, "--input"]
    ours = [*words, "in", "--constraints", "--constraint-case", "any", "--buffer-size", 9]
    ours += ["--task", "translation_ext", "--user-dir", ROOT / "fairseq_ext"]
    runs = [[str(word) for word in run] for run in (ours, [*words, "bad"])]
    (tmp_path / "program.py").write_text(
        "import sys\nfrom fairseq_cli import interactive\n"
        f"for run in {runs}:\n    sys.argv[1:] = run\n    interactive.cli_main()\n"
    )
    done = ran(sys.executable, "program.py", cwd=tmp_path, check=False)
    first, second, *_ = re.findall(r"^D-\d\t\S+\t(.*)$", done.stdout, re.MULTILINE)
    assert "house" in first.lower() and second, done.stderr
    assert re.findall(r"^C-(\d)\t(.*)$", done.stdout, re.MULTILINE)[0][0] == "0"
    assert "constraints not met: 1 of 2, the first in sentence 2, 'café'" in done.stderr
    assert "UnicodeDecodeError" in done.stderr and done.returncode == 1


def test_an_import_changes_nothing(program):
    assert program["changed by import fairseq_ext"] == []
    # fairseq's own doing: two of its tasks call logging.basicConfig
    assert program["changed by import fairseq"] == ["log"]
    assert program["changed by an Engine"] == []


ERRORS = {
    "a size mismatch": "ValueError: size mismatch in my own matrix code",
    "a file that is not there": "FileNotFoundError: [Errno 2] No such file or directory: "
    "'/tmp/nope.json'",
    "text that is not ASCII": "UnicodeEncodeError: 'ascii' codec can't encode character '\\xe9' in "
    "position 0: ordinal not in range(128)",
}


@pytest.mark.parametrize("end", ERRORS)
def test_an_error_of_the_programs_has_its_traceback(program, end):
    status, said = program["ends"][end].values()
    assert status == 1 and said.startswith("Traceback (most recent call last):\n")
    assert said.splitlines()[-1] == ERRORS[end] and "error: " not in said


def test_the_program_ends_as_it_would_without_the_package(program):
    """A thread finishes its work after an error; another hook stays, whether it was set before (it
    is among what an import does not change) or after; status and exit handlers are its own."""
    assert {"work of a thread", "at exit"} <= program["files"] and program["status"] == 7
    assert program["ends"]["their hook, set later"] == {"status": 1, "stderr": "their hook: mine\n"}


def test_a_translator_raises_and_an_engine_answers(program):
    kind, said = program["raised"]["set()"]
    assert kind == "OSError" and said.startswith("Model file not found: ")
    assert program["raised"]["{'beam'}"][0] == "UsageError"
    assert program["translation"].startswith("\u2581The ")


def test_nothing_of_the_working_folder_was_run(program, hostile):
    assert not list(hostile.glob("*.run"))


IN_A_THREAD = f"""
import sys, threading
sys.path.append({str(HERE)!r})
from program import changed, state
before = state()
def load():
    import fairseq_ext
    assert fairseq_ext.Translator
thread = threading.Thread(target=load)
thread.start()
thread.join()
assert "fairseq_ext.plugin.tasks" in sys.modules
"""


def test_nothing_changes_under_pytest_and_in_a_thread(tmp_path):
    body = (
        f"{IN_A_THREAD}assert changed(before) == []\nimport gc\ngc.freeze()"  # a second of its end
    )
    (tmp_path / "test_theirs.py").write_text(f"def test_theirs():\n    exec({body!r}, {{}})\n")
    words = "-m pytest -q -p no:cacheprovider test_theirs.py".split()
    done = ran(sys.executable, *words, cwd=tmp_path, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert "1 passed" in done.stdout, done.stdout


WITHOUT = """import sys
class No:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "{name}":
            raise ModuleNotFoundError("No module named '{name}'", name="{name}")
sys.meta_path.insert(0, No())
"""


@pytest.mark.parametrize(
    ("lacks", "words", "said"),
    [
        *(
            (
                "fastapi",
                ["-m", f"fairseq_ext.{command}", "--data", "x"],
                "error: the server needs fastapi, which is not installed: pip install "
                "'fairseq_ext[serve]'",
            )
            for command in ("serve", "serve.guard")
        ),
        *(  # as where pip has installed this package alone
            (
                "fairseq",
                words,
                f"{begins}: fairseq_ext is a plug-in for fairseq, which is not installed: python "
                "-m fairseq_ext.doctor --install-fairseq",
            )
            for words, begins in (
                (["-c", "import fairseq_ext"], "ImportError"),
                (["-m", "fairseq_ext.corpus", "translate"], "error"),
            )
        ),
    ],
)
def test_what_is_not_installed_is_named(tmp_path, lacks, words, said):
    (tmp_path / "sitecustomize.py").write_text(WITHOUT.replace("{name}", lacks))
    python = [sys.executable, *words]
    done = ran(*python, cwd=tmp_path, check=False, PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, said)
    assert ("Traceback" in done.stderr) == said.startswith("Import")


TEXTS = ["The offer is checked tomorrow.", "The doctor opens the folder."]  # docs/python.md


def lived(folder, *parts, streams=""):
    """What long_lived.py finds; streams: what the shell does to its standard streams."""
    words = [sys.executable, HERE / "long_lived.py", DEMO, folder / "found", *parts]
    ran("sh", "-c", f'exec "$@" {streams}', "sh", *words)
    found = json.loads((folder / "found").read_text())
    assert "error" not in found, found["error"]
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return lived(tmp_path_factory.mktemp("found"), "forks", "engines")


def test_a_child_of_a_process_with_two_threads_translates(found):
    forks = found["forks"]
    assert forks["expected"] == TEXTS and forks["two threads of a child"][0] == [TEXTS, TEXTS]
    for when in ("after a load", "made in a child", "during a call, another"):
        assert forks[when][0] == TEXTS


def test_a_child_that_was_forked_during_a_call_is_reported_at_once(found):
    forks = found["forks"]
    (kind, said), seconds = forks["during a call"]
    assert kind == "UsageError" and seconds < 20
    assert said == (
        "this process was forked while another thread used the Translator: make a Translator in "
        "this process, or fork while no call is under way"
    )
    assert forks["the parent"] == sorted(TEXTS)


def test_an_engine_that_is_forgotten_answers_what_is_open_and_ends_its_processes(found):
    assert found["engines"]["a future alone"] == TEXTS[1]
    assert found["engines"]["left"] == []


@drawn(1)
@pytest.mark.parametrize(
    ("part", "closed"),
    [("streams", "<&- >&- 2>&-"), ("daemon", ""), ("streams", ">&-"), ("no_streams", "")],
)
def test_closed_standard_streams_are_no_obstacle(tmp_path, part, closed):
    streams = lived(tmp_path, part, streams=closed)[part]
    is_none = [part == "no_streams" or each in closed for each in (">&-", "2>&-")]
    assert streams["streams"] == is_none
    assert streams["translator"] == streams["workers"] == streams["engine"] == TEXTS
    assert streams.get("progress", TEXTS[0]) == TEXTS[0]
    assert streams["text"] == " ".join(TEXTS)


# ---- files of the working folder

needs_library = pytest.mark.skipif(library() is None, reason="there is no C++ compiler")


@pytest.fixture
def compiling(tmp_path):
    """An environment in which the kernels are compiled again, by a compiler that gives what
    was compiled before."""
    compiler = tmp_path / "c++"
    compiler.write_text(
        "#!/bin/sh\n"
        f'for word; do [ "$last" = -o ] && cp {library().file} "$word"; last=$word; done; true\n'
    )
    compiler.chmod(0o700)
    return {"CXX": str(compiler), "XDG_CACHE_HOME": str(tmp_path / "cache")}


def run(words, folder, given="", **environment):
    done = ran(*words, cwd=folder, stdin=given, **environment)
    assert not list(folder.glob("*.run"))
    return done


@needs_library
def test_commands_of_fairseq(hostile, compiling, tiny):
    ours = ["--cpu", "--task", "translation_ext"]
    run([BIN / "fairseq-generate", tiny / "data", *ours, "--path", tiny / "model.pt"], hostile)
    said = run([BIN / "fairseq-interactive", DEMO, *OURS], hostile, "Die Akte.\n", **compiling)
    assert "H-0" in said.stdout and list(Path(compiling["XDG_CACHE_HOME"]).rglob("*.so"))


@pytest.mark.parametrize(
    "python", [[sys.executable], [sys.executable, "-I"]], ids=["python", "python -I"]
)
@needs_library
def test_commands_that_start_without_torch(hostile, compiling, python):
    run([*python, "-m", "fairseq_ext.kernels"], hostile, **compiling)
    assert "{score,expand}" in run([*python, "-m", "fairseq_ext.terms", "--help"], hostile).stdout


def test_the_server_and_its_workers(hostile):
    words = [sys.executable, "-m", "fairseq_ext.serve", "--data", DEMO, *STOCK, "--port", "0"]
    with subprocess.Popen(words, cwd=hostile, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            url = re.search(r"http://[\d.:]+", server.stderr.readline())
            assert url and server.stderr.readline().startswith("ready: ")
            body = {"source": "Die Akte."}
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
    removed = ["sh", "-c", 'rmdir "$PWD" && "$@"', "sh", BIN / "fairseq-interactive", DEMO, *OURS]
    done = ran(*removed, cwd=gone, stdin="Ja\n", check=False)
    said = "error: the working folder has been removed: change to another\n"
    assert (done.returncode, done.stderr) == (1, said)
