"""fairseq_ext in another program's process: an import changes nothing, and what goes wrong
there ends as in any Python; programs that run for long: forks, forgotten engines, closed
streams."""

import contextlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from conftest import ran
from demo_model import FLAGS
from sizes import covering, drawn

from fairseq_ext import Translator, UsageError

HERE = Path(__file__).parent
DEMO = HERE.parents[1] / "checkpoints" / "demo"


@pytest.fixture(scope="module")
def program(hostile, tmp_path_factory) -> dict:
    """What program.py found, started in a folder of modules that no one means to
    run, and how it ended."""
    folder = tmp_path_factory.mktemp("program")
    words = [sys.executable, "-I", str(HERE / "program.py"), str(folder), str(DEMO)]
    done = ran(*words, cwd=hostile, check=False)
    assert done.stdout, done.stderr
    return {
        **json.loads(done.stdout),
        "status": done.returncode,
        "stderr": done.stderr,
        "files": {path.name for path in folder.iterdir()},
    }


@contextlib.contextmanager
def by_default(dtype: torch.dtype) -> Iterator[None]:
    """With this as torch's default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


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


def translator_of(search: str, folder: Path) -> Translator:
    """A translator, with a glossary where the search's name says so."""
    glossary = {}
    if "glossary" in search:
        (folder / "terms.tsv").write_text("Hund\thound\n")
        glossary["glossary"] = str(folder / "terms.tsv")
    return Translator(**FLAGS, **SEARCHES[search], **glossary)


def results_of(translator: Translator, search: str) -> list:
    """What it returns, to the last bit."""
    lines = ["Der Hund bellt.", "Das Haus und der Hund sind klein."]
    phrases = [["house"], []] if "constraints" in search or search == "proved best" else None
    found = [nbest[0] for nbest in translator.translate(lines, constraints=phrases)]
    found += translator.score(lines, [each.text for each in found])
    marked = translator.translate_text("<p>Das <b>Haus</b> ist klein.</p>", "html").text
    return [marked, *((h.text, h.score, h.positional_scores) for h in found)]


@covering(1)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("search", SEARCHES)
def test_a_default_dtype_set_after_loading_changes_no_result(search, dtype, tmp_path):
    expected = results_of(translator_of(search, tmp_path), search)
    translator = translator_of(search, tmp_path)
    with by_default(dtype):
        assert results_of(translator, search) == expected
        assert torch.get_default_dtype() == dtype


@pytest.mark.parametrize("search", ["beam", "beam by torch", "parallel", "glossary"])
def test_a_default_device_changes_no_result(search, tmp_path):
    """Neither at loading nor at a call."""
    expected = results_of(translator_of(search, tmp_path), search)
    translator = translator_of(search, tmp_path)
    before = torch.get_default_device()
    torch.set_default_device("meta")
    try:
        for each in (translator, translator_of(search, tmp_path)):
            assert results_of(each, search) == expected
        assert torch.get_default_device().type == "meta"
    finally:
        torch.set_default_device(None if before.type == "cpu" else before)


@pytest.mark.parametrize("backend", ["auto", "fairseq"])
def test_a_program_under_autocast_gets_the_translations_of_one_without(backend):
    def results():
        translator = Translator(**FLAGS, decoder_backend=backend)
        found = translator.translate(["Das Haus ist klein."], constraints=[["house"]])[0][0]
        translator.align(["Das Haus ist klein."], [found])
        (scored,) = translator.score(["Das Haus ist klein."], [found.text])
        marked = translator.translate_text("<p>Das <b>Haus</b> ist klein.</p>", "html").text
        return found, scored, marked, translator.signature

    expected = results()
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=dtype):
            assert results() == expected
            assert torch.is_autocast_enabled("cpu")


def test_phrases_are_typed_in_a_program_that_runs_fairseqs_command(tmp_path):
    """A phrase has its spellings, one that the dictionary lacks is unmet, and a stock task after it
    fails on invalid bytes as before."""
    (tmp_path / "in").write_text("Das Haus ist klein.\tHouse\nDas Haus.\tcafé\n", encoding="utf-8")
    (tmp_path / "bad").write_bytes(b"Das Haus.\n\xff\n")
    words = [DEMO, "--path", DEMO / "checkpoint.pt", "-s", "de", "-t", "en", "--cpu", "--beam", 4]
    words += ["--bpe", "sentencepiece", "--sentencepiece-model", DEMO / "spm.model", "--input"]
    ours = [*words, "in", "--constraints", "--constraint-case", "any", "--buffer-size", 9]
    ours += ["--task", "translation_ext", "--user-dir", DEMO.parents[1] / "fairseq_ext"]
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


@pytest.mark.parametrize(
    ("end", "last"),
    [
        ("a size mismatch", "ValueError: size mismatch in my own matrix code"),
        (
            "a file that is not there",
            "FileNotFoundError: [Errno 2] No such file or directory: '/tmp/nope.json'",
        ),
        (
            "text that is not ASCII",
            (
                "UnicodeEncodeError: 'ascii' codec can't encode character '\\xe9' in position 0: "
                "ordinal not in range(128)"
            ),
        ),
    ],
)
def test_an_error_of_the_programs_has_its_traceback(program, end, last):
    done = program["ends"][end]
    assert done["status"] == 1 and done["stderr"].startswith("Traceback (most recent call last):\n")
    assert done["stderr"].splitlines()[-1] == last and "error: " not in done["stderr"]


def test_a_thread_of_the_programs_finishes_its_work_after_an_error(program):
    assert "work of a thread" in program["files"]


def test_another_hook_stays_whether_it_was_set_before_or_after(program):
    """Before: it is among what an import does not change."""
    assert program["ends"]["their hook, set later"] == {"status": 1, "stderr": "their hook: mine\n"}


def test_a_translator_raises_and_an_engine_answers(program):
    kind, said = program["raised"]["set()"]
    assert kind == "OSError" and said.startswith("Model file not found: ")
    assert program["raised"]["{'beam'}"][0] == "UsageError"
    assert program["translation"].startswith("\u2581The ")


def test_the_program_ends_with_its_own_status_and_its_exit_handlers_run(program):
    assert program["status"] == 7 and "at exit" in program["files"]


def test_nothing_of_the_working_folder_was_run(program, hostile):
    assert not list(hostile.glob("*.run"))


IN_A_THREAD = f"""
import sys, threading
sys.path.append({str(HERE)!r})
from state import changed, state
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
    body = "".join(f"    {line}\n" for line in IN_A_THREAD.splitlines())
    (tmp_path / "test_theirs.py").write_text(
        f"def test_theirs():\n{body}    assert changed(before) == []\n"
        "    import gc\n    gc.freeze()  # to look through what is imported takes a second\n"
    )
    words = "-m pytest -q -p no:cacheprovider test_theirs.py".split()
    done = ran(sys.executable, *words, cwd=tmp_path, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert "1 passed" in done.stdout, done.stdout


@drawn(0)  # long
def test_nothing_changes_in_a_notebook(tmp_path, monkeypatch):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "kernels" / "here").mkdir(parents=True)
    start = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (tmp_path / "kernels" / "here" / "kernel.json").write_text(
        json.dumps({"argv": start, "display_name": "here", "language": "python"})
    )
    cells = [
        IN_A_THREAD,
        "print(changed(before))",
        'raise ValueError("size mismatch in my own matrix code")',
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    with pytest.raises(nbclient.exceptions.CellExecutionError) as failed:
        nbclient.NotebookClient(
            notebook,
            kernel_name="here",
            timeout=120,
            resources={"metadata": {"path": str(tmp_path)}},
        ).execute()
    assert notebook.cells[1].outputs[0]["text"] == "[]\n"
    assert (
        failed.value.ename == "ValueError"
        and "Traceback" in notebook.cells[2].outputs[0]["traceback"][1]
    )


WITHOUT = """import sys
class No:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "{name}":
            raise ModuleNotFoundError("No module named '{name}'", name="{name}")
sys.meta_path.insert(0, No())
"""


def test_without_its_extra_each_command_of_the_server_says_what_is_missing(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(WITHOUT.replace("{name}", "fastapi"))
    for command in ("serve", "serve.guard"):
        words = [sys.executable, "-m", f"fairseq_ext.{command}", "--data", "x"]
        done = ran(*words, cwd=tmp_path, check=False, PYTHONPATH=str(tmp_path))
        said = (
            "error: the server needs fastapi, which is not installed: pip install "
            "'fairseq_ext[serve]'"
        )
        assert (done.returncode, done.stderr.splitlines()[-1]) == (1, said)
        assert "Traceback" not in done.stderr


def test_without_fairseq_the_import_and_each_command_say_what_is_missing(tmp_path):
    """As where pip has installed this package alone."""
    (tmp_path / "sitecustomize.py").write_text(WITHOUT.replace("{name}", "fairseq"))
    said = (
        "fairseq_ext is a plug-in for fairseq, which is not installed: python -m "
        "fairseq_ext.doctor --install-fairseq"
    )
    for words, begins in (
        (["-c", "import fairseq_ext"], "ImportError: "),
        (["-m", "fairseq_ext.corpus", "translate"], "error: "),
    ):
        python = [sys.executable, *words]
        done = ran(*python, cwd=tmp_path, check=False, PYTHONPATH=str(tmp_path))
        assert done.returncode == 1 and done.stderr.splitlines()[-1] == begins + said
        assert ("Traceback" in done.stderr) == (begins != "error: ")


TEXTS = ["The offer is checked tomorrow.", "The doctor opens the folder."]  # docs/python.md


def run(folder: Path, *parts: str, streams: str = "") -> dict:
    """What long_lived.py finds; streams: what the shell does to its standard streams."""
    words = [sys.executable, str(HERE / "long_lived.py"), str(DEMO), str(folder / "found"), *parts]
    ran("sh", "-c", f'exec "$@" {streams}', "sh", *words)
    found = json.loads((folder / "found").read_text())
    assert "error" not in found, found["error"]
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict:
    return run(tmp_path_factory.mktemp("found"), "forks", "engines")


@pytest.mark.parametrize("when", ["after a load", "made in a child", "during a call, another"])
def test_a_child_of_a_process_with_two_threads_translates(found, when):
    forks = found["forks"]
    assert forks["expected"] == TEXTS and forks[when][0] == TEXTS


def test_two_threads_of_a_child_share_a_translator(found):
    assert found["forks"]["two threads of a child"][0] == [TEXTS, TEXTS]


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
    [
        ("streams", "<&- >&- 2>&-"),
        ("daemon", ""),
        ("streams", ">&-"),
        ("no_streams", ""),
    ],
)
def test_closed_standard_streams_are_no_obstacle(tmp_path, part, closed):
    streams = run(tmp_path, part, streams=closed)[part]
    is_none = [part == "no_streams" or each in closed for each in (">&-", "2>&-")]
    assert streams["streams"] == is_none
    assert streams["translator"] == streams["workers"] == streams["engine"] == TEXTS
    assert streams.get("progress", TEXTS[0]) == TEXTS[0]
    assert streams["text"] == " ".join(TEXTS)
