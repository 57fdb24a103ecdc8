"""The shell scripts, prepare_multi30k.py and mutants.py: they parse, explain themselves, refuse
what cannot work in one sentence, and do their work on a small corpus."""

import functools
import gzip
import http.server
import itertools
import json
import os
import shutil
import sys
import threading
import venv

import pytest
import warm
from conftest import BIN, ran, table
from demo_model import ROOT
from sizes import drawn

SCRIPTS = sorted((ROOT / "scripts").glob("*.sh"))
PATH = f"{BIN}{os.pathsep}{os.environ['PATH']}"


def run(*command, **environment):
    return ran(*command, check=False, **{"PATH": PATH, **environment})


def prepare(*arguments, check=True):
    script = ROOT / "scripts" / "prepare_multi30k.py"
    return ran(warm.python(), script, *arguments, check=check, PATH=PATH)


def last(done):
    """The last line of what a script that has failed says."""
    assert done.returncode == 1 and "Traceback" not in done.stderr
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("script", [*SCRIPTS, ROOT / ".ci" / "run"], ids=lambda path: path.name)
def test_a_script_parses_and_prints_its_help_without_set_up(script, tmp_path):
    assert os.access(script, os.X_OK) and run("bash", "-n", script).returncode == 0
    if script in SCRIPTS:
        done = run(script, "--help", VENV=str(tmp_path / "never"))
        assert done.returncode == 0 and f"scripts/{script.name}" in done.stdout
        assert "set -euo" not in done.stdout and not (tmp_path / "never").exists()


# ---- set-up


def program(file, text):
    """An executable file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{text}")
    file.chmod(0o755)


@pytest.fixture
def set_up(tmp_path):
    """Runs the set-up with a `python3` that claims a version (and has a venv module or not), first
    in PATH, and notes its arguments."""

    def run_it(version="3.12", venv=True, **environment):
        answer = f"*version_info*) echo {version} ;; *) exit {int(not venv)} ;;"
        fake = f'echo "$*" >> {tmp_path}/log\ncase "$2" in {answer} esac\n'
        program(tmp_path / "bin" / "python3", fake)
        path = f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}"
        here = {"PATH": path, "VENV": str(tmp_path / "venv"), **environment}
        return run("env", "-u", "PYTHON", ROOT / "scripts" / "setup.sh", **here)

    return run_it


def test_set_up_refuses_what_it_cannot_use_and_leaves_it_alone(tmp_path, set_up):
    """Such as an environment of uv's, which has no pip; or one that has moved."""
    place = tmp_path / "venv"
    for version in ("3.9", "2.7", "4.0"):
        said = f"'python3' is Python {version}, but 3.10 or newer is needed; name one with PYTHON=."
        assert set_up(version).stderr == f"set-up: {said}\n" and not place.exists()
    assert "is not a folder" in last(set_up(WHEELS=str(tmp_path / "none")))
    said = last(set_up(venv=False))
    assert "has no venv module" in said and "python3.12-venv" in said
    place.mkdir()
    (place / "precious.txt").write_text("keep")
    assert "is no virtual environment" in last(set_up())
    venv.create(place, with_pip=False)
    assert last(set_up()) == (
        f"set-up: {place} was not made by this script and cannot be used, because it has "
        f"no pip ({place}/bin/python -m ensurepip installs it); name another place with "
        "VENV=, or remove it."
    )
    (place / "bin" / "python").unlink()
    assert "because its Python does not start" in last(set_up())
    assert (place / "precious.txt").read_text() == "keep"


def test_set_up_clears_what_it_made_where_that_is_broken(tmp_path, set_up):
    for made in (["-m venv"], ["-m venv", "-m venv --clear"]):
        set_up()  # which ends since no Python is in what the fake one made
        lines = (tmp_path / "log").read_text().splitlines()
        noted = [line for line in lines if line.startswith("-m venv")]
        assert noted == [f"{words} {tmp_path}/venv" for words in made]
        (tmp_path / "venv").mkdir(exist_ok=True)
        (tmp_path / "venv" / "pyvenv.cfg").touch()


@pytest.mark.parametrize(
    ("has_compiler", "has_headers", "has_wheel"),
    [(True, True, False), (False, True, False), (True, False, False), (False, False, True)],
)
def test_set_up_leaves_fairseqs_compiled_parts_out_where_they_cannot_be_built(
    tmp_path, has_compiler, has_headers, has_wheel
):
    """As the doctor does; the environment's Python only notes its arguments."""
    program(
        tmp_path / "venv" / "bin" / "python",
        f'echo "${{READTHEDOCS:-}} $*" >> {tmp_path}/log\ncase "$*" in\n'
        f"*Python.h*) exit {int(not has_headers)} ;;\n"
        f"*--only-binary*) exit {int(not has_wheel)} ;;\nesac\n",
    )
    names = "say|die|pip|builds|install_fairseq"
    code = f'eval "$(sed -nE "/^({names})\\(\\)/,/^}}/p" {ROOT}/scripts/setup.sh)"'
    settings = {"VENV": str(tmp_path / "venv"), "FAIRSEQ": "fairseq==0.12.2", "WHEELS": ""}
    settings["CXX"] = "true" if has_compiler else "/no/compiler"
    done = run("bash", "-ec", f"{code}; install_fairseq", **settings)
    assert done.returncode == 0, done.stderr
    log = (tmp_path / "log").read_text().splitlines()
    requested = [each for each in log if " pip install" in each]
    builds = has_compiler and has_headers
    is_left_out = not builds and not has_wheel
    assert len(requested) == (1 if builds or has_wheel else 2)
    assert requested[-1].startswith("1 ") == is_left_out  # READTHEDOCS
    assert ("without fairseq's compiled parts" in done.stderr) == is_left_out


# ---- Multi30k

SUBJECTS = (
    "Ein Mann|A man, Eine Frau|A woman, Das Kind|The child, Der Hund|The dog, Ein Junge|A boy"
)
VERBS = "läuft|runs, schläft|sleeps, spielt|plays, wartet|waits, singt|sings"
PLACES = (
    "im Park|in the park, am Strand|on the beach, auf der Straße|in the street, zu Hause|at home"
)


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    """A corpus of 100 pairs in the dataset's own file names."""
    folder = tmp_path_factory.mktemp("raw")
    parts = [[each.split("|") for each in text.split(", ")] for text in (SUBJECTS, VERBS, PLACES)]
    for side, language in enumerate(("de", "en")):
        words = itertools.product(*([each[side] for each in part] for part in parts))
        lines = [f"{' '.join(each)}.\n" for each in words]
        for part, every in (("train", 1), ("val", 7), ("test_2016_flickr", 9)):
            (folder / f"{part}.{language}").write_text("".join(lines[::every]), encoding="utf-8")
    return folder


@drawn(1)
def test_prepare_multi30k_binarises_a_local_copy(raw, tmp_path):
    prepare("--raw", raw, "--out", tmp_path, "--vocab", 80)
    for name, language in itertools.product(("train", "valid", "test"), ("de", "en")):
        assert (tmp_path / "bin" / f"{name}.de-en.{language}.bin").stat().st_size > 0
    both = [(tmp_path / "bin" / f"dict.{language}.txt").read_text() for language in ("de", "en")]
    assert both[0] == both[1]
    segmented = (tmp_path / "test.de").read_text(encoding="utf-8").splitlines()
    expected = (raw / "test_2016_flickr.de").read_text(encoding="utf-8").splitlines()
    assert [line.replace(" ", "").replace("▁", " ").strip() for line in segmented] == expected
    assert max(len(line.split()) for line in segmented) > 5  # words were split
    # another direction with this segmentation and dictionary
    own = ["--spm", tmp_path / "spm.model", "--dict", tmp_path / "bin"]
    prepare("--raw", raw, "--out", tmp_path / "2", *own, "--src", "en", "--tgt", "de")
    assert (tmp_path / "2" / "test.de").read_text() == (tmp_path / "test.de").read_text()
    assert (tmp_path / "2" / "bin" / "dict.en.txt").read_text() == both[1]


@pytest.mark.parametrize(("arguments", "sentence"), table("scripts/commands.tsv", "prepare"))
def test_prepare_multi30k_refuses_in_one_sentence(raw, tmp_path, arguments, sentence):
    for name, text in (("SHORT", b"eins\n"), ("WRONG", b"\xff\xfe\n" * 100)):
        shutil.copytree(raw, tmp_path / name)
        (tmp_path / name / "train.de").write_bytes(text)
        arguments = arguments.replace(name, str(tmp_path / name))
    words = [*arguments.replace("RAW", str(raw)).split(), "--out", tmp_path / "out"]
    assert sentence in last(prepare(*words, check=False))


def test_prepare_multi30k_downloads_and_unpacks(raw, tmp_path):
    """From a server of our own."""
    served, out = tmp_path / "served", tmp_path / "out"
    served.mkdir()
    for file in raw.iterdir():
        (served / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'scripts')!r}); import prepare_multi30k as p, "
        "pathlib; p.SOURCE, out = sys.argv[1], pathlib.Path(sys.argv[2]); "
        "p.download(out, ('de', 'en'))"
    )
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=served)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        fetch = [sys.executable, "-c", code]
        ran(*fetch, url, out, no_proxy="127.0.0.1")
        missing = run(*fetch, f"{url}/no", tmp_path / "new", no_proxy="127.0.0.1")
        server.shutdown()
    assert (out / "val.de").read_bytes() == (raw / "val.de").read_bytes()
    assert "train.de.gz cannot be fetched" in last(missing)


# ---- mutants.py in a project of one function

SOURCE = '''"""1 < 2"""


def clipped(n):  # at 3 or n < 0
    if n > 3:
        n = 3
    return n
'''
TEST = "from fairseq_ext.a import clipped\n\n\ndef test_it():\n    assert clipped({}) == {}\n"


def test_errors_are_planted_and_those_that_tests_notice_no_more_are_named(tmp_path):
    root = tmp_path / "project"
    files = {"fairseq_ext/a.py": SOURCE, "tests/test_a.py": TEST.format(5, 3), "scripts/x": ""}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(text)
    script = shutil.copy(ROOT / "scripts" / "mutants.py", root / "scripts")

    def mutants(*words):
        done = ran(
            *(sys.executable, script, *words),
            check=False,
            cwd=tmp_path,
            PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",
        )
        return done.returncode, done.stdout.splitlines()

    words = ["fairseq_ext/a.py", "--count", "20", "--out", "before.jsonl"]
    status, said = mutants(*words)
    written = (tmp_path / "before.jsonl").read_text()
    errors = [json.loads(line) for line in written.splitlines()]
    places = {(e["line"], e["before"]): e["after"] for e in errors}
    killed = {(e["line"], e["before"]) for e in errors if e["killed_by"]}
    assert places.pop((5, ">")) in (">=", "<") and places == {
        (5, "3"): "4",
        (5, "n > 3"): "not (n > 3)",
        (6, "3"): "4",
        (6, "n = 3"): "pass",
        (7, "return n"): "pass",
    }
    assert killed - {(5, ">")} == {*places} - {(5, "3")}
    assert status == 0 and "survived: fairseq_ext/a.py:5:11: 3 -> 4" in said
    assert mutants(*words) == (0, said) and (tmp_path / "before.jsonl").read_text() == written

    (root / "tests" / "test_a.py").write_text(TEST.format(2, 2))
    status, said = mutants("--repeat", "before.jsonl", "--out", "after.jsonl")
    assert status == 1 and "survived, unlike before: fairseq_ext/a.py:6:12: 3 -> 4" in said
    assert (root / "fairseq_ext" / "a.py").read_text() == SOURCE
