"""The shell scripts: they parse, explain themselves, refuse what cannot work in one sentence, and
do their work on a small corpus."""

import functools
import gzip
import http.server
import itertools
import os
import shutil
import subprocess
import sys
import threading
import venv
from pathlib import Path

import pytest
import warm
from sizes import drawn

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "scripts").glob("*.sh"))
BIN = Path(sys.executable).parent


def run(*command, timeout: int = 120, **environment) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **environment}
    return subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment,
    )


def prepare(*arguments) -> subprocess.CompletedProcess:
    return run(warm.python(), ROOT / "scripts" / "prepare_multi30k.py", *arguments)


def last(done: subprocess.CompletedProcess) -> str:
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("script", [*SCRIPTS, ROOT / ".ci" / "run"], ids=lambda path: path.name)
def test_a_script_parses_and_prints_its_help_without_set_up(script, tmp_path):
    assert os.access(script, os.X_OK) and run("bash", "-n", script).returncode == 0
    if script in SCRIPTS:
        done = run(script, "--help", VENV=str(tmp_path / "never"))
        assert done.returncode == 0 and f"scripts/{script.name}" in done.stdout
        assert "set -euo" not in done.stdout and not (tmp_path / "never").exists()


# ---- set-up


@pytest.fixture
def python_of(tmp_path):
    """Make a `python3` that claims a version (and has a venv module or not), first in PATH, and
    notes its arguments."""

    def make(version: str, venv: bool = True) -> str:
        fake = tmp_path / "bin" / "python3"
        fake.parent.mkdir(exist_ok=True)
        answer = f"*version_info*) echo {version} ;; *) exit {0 if venv else 1} ;;"
        log = f'echo "$*" >> {tmp_path}/log'
        fake.write_text(f'#!/bin/sh\n{log}\ncase "$2" in {answer} esac\n')
        fake.chmod(0o755)
        return f"{fake.parent}{os.pathsep}{os.environ['PATH']}"

    return make


def set_up(tmp_path: Path, path: str, **environment) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PATH": path, "VENV": str(tmp_path / "venv"), **environment}
    environment.pop("PYTHON", None)
    script = [str(ROOT / "scripts" / "setup.sh")]
    return subprocess.run(script, capture_output=True, text=True, timeout=60, env=environment)


def test_set_up_refuses_what_it_cannot_use_and_leaves_it_alone(tmp_path, python_of):
    """Such as an environment of uv's, which has no pip; or one that has moved."""
    place = tmp_path / "venv"
    for version in ("3.9", "2.7", "4.0"):
        said = f"'python3' is Python {version}, but 3.10 or newer is needed; name one with PYTHON=."
        assert set_up(tmp_path, python_of(version)).stderr == f"set-up: {said}\n"
        assert not place.exists()
    path = python_of("3.12")
    done = set_up(tmp_path, path, WHEELS=str(tmp_path / "none"))
    assert done.returncode == 1 and "is not a folder" in last(done)
    done = set_up(tmp_path, python_of("3.12", venv=False))
    assert done.returncode == 1
    assert "has no venv module" in last(done) and "python3.12-venv" in last(done)
    python_of("3.12")
    place.mkdir()
    (place / "precious.txt").write_text("keep")
    done = set_up(tmp_path, path)
    assert done.returncode == 1 and "is no virtual environment" in last(done)
    venv.create(place, with_pip=False)
    done = set_up(tmp_path, path)
    assert done.returncode == 1 and last(done) == (
        f"set-up: {place} was not made by this script and cannot be used, because it has "
        f"no pip ({place}/bin/python -m ensurepip installs it); name another place with "
        "VENV=, or remove it."
    )
    (place / "bin" / "python").unlink()
    assert "because its Python does not start" in last(set_up(tmp_path, path))
    assert (place / "precious.txt").read_text() == "keep"


def test_set_up_clears_what_it_made_where_that_is_broken(tmp_path, python_of):
    path, log = python_of("3.12"), tmp_path / "log"
    for made in (["-m venv"], ["-m venv", "-m venv --clear"]):
        set_up(tmp_path, path)  # which ends since no Python is in what the fake one made
        lines = [line for line in log.read_text().splitlines() if line.startswith("-m venv")]
        assert lines == [f"{words} {tmp_path}/venv" for words in made]
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
    fake = tmp_path / "venv" / "bin" / "python"
    fake.parent.mkdir(parents=True)
    fake.write_text(
        f'#!/bin/sh\necho "${{READTHEDOCS:-}} $*" >> {tmp_path}/log\ncase "$*" in\n'
        f"*Python.h*) exit {int(not has_headers)} ;;\n"
        f"*--only-binary*) exit {int(not has_wheel)} ;;\nesac\n"
    )
    fake.chmod(0o755)
    names = "say|die|pip|builds|install_fairseq"
    code = f'eval "$(sed -nE "/^({names})\\(\\)/,/^}}/p" {ROOT}/scripts/setup.sh)"'
    settings = {"VENV": str(tmp_path / "venv"), "FAIRSEQ": "fairseq==0.12.2", "WHEELS": ""}
    settings["CXX"] = "true" if has_compiler else "/no/compiler"
    done = run("bash", "-ec", f"{code}; install_fairseq", **settings)
    assert done.returncode == 0, done.stderr
    log = (tmp_path / "log").read_text().splitlines()
    requested = [each for each in log if " pip install" in each]
    builds = has_compiler and has_headers
    assert len(requested) == (1 if builds or has_wheel else 2)
    assert requested[-1].startswith("1 ") == (not builds and not has_wheel)  # READTHEDOCS
    assert ("without fairseq's compiled parts" in done.stderr) == (not builds and not has_wheel)


# ---- Multi30k

SUBJECTS = (
    "Ein Mann|A man, Eine Frau|A woman, Das Kind|The child, Der Hund|The dog, Ein Junge|A boy"
)
VERBS = "läuft|runs, schläft|sleeps, spielt|plays, wartet|waits, singt|sings"
PLACES = (
    "im Park|in the park, am Strand|on the beach, auf der Straße|in the street, zu Hause|at home"
)


@pytest.fixture(scope="module")
def raw(tmp_path_factory) -> Path:
    """A corpus of 100 pairs in the dataset's own file names."""
    folder = tmp_path_factory.mktemp("raw")
    parts = [[each.split("|") for each in text.split(", ")] for text in (SUBJECTS, VERBS, PLACES)]
    pairs = [
        [f"{' '.join(words)}." for words in zip(*p, strict=True)] for p in itertools.product(*parts)
    ]
    for part, chosen in (("train", pairs), ("val", pairs[::7]), ("test_2016_flickr", pairs[::9])):
        for side, language in enumerate(("de", "en")):
            text = "".join(f"{pair[side]}\n" for pair in chosen)
            (folder / f"{part}.{language}").write_text(text, encoding="utf-8")
    return folder


@drawn(1)
def test_prepare_multi30k_binarises_a_local_copy(raw, tmp_path):
    done = prepare("--raw", raw, "--out", tmp_path, "--vocab", 80)
    assert done.returncode == 0, done.stdout + done.stderr
    for name, language in itertools.product(("train", "valid", "test"), ("de", "en")):
        assert (tmp_path / "bin" / f"{name}.de-en.{language}.bin").stat().st_size > 0
    both = [(tmp_path / "bin" / f"dict.{language}.txt").read_text() for language in ("de", "en")]
    assert both[0] == both[1]
    segmented = (tmp_path / "test.de").read_text(encoding="utf-8").splitlines()
    expected = (raw / "test_2016_flickr.de").read_text(encoding="utf-8").splitlines()
    joined = [line.replace(" ", "").replace("▁", " ").strip() for line in segmented]
    assert joined == expected
    assert max(len(line.split()) for line in segmented) > 5  # words were split
    # another direction with this segmentation and dictionary
    own = ["--spm", tmp_path / "spm.model", "--dict", tmp_path / "bin"]
    done = prepare("--raw", raw, "--out", tmp_path / "2", *own, "--src", "en", "--tgt", "de")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "2" / "test.de").read_text() == (tmp_path / "test.de").read_text()
    assert (tmp_path / "2" / "bin" / "dict.en.txt").read_text() == both[1]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--src de --tgt de", "--src and --tgt are both de"),
        ("--raw RAW --tgt fr", "cannot read"),
        ("--raw RAW --vocab 90000", "change --vocab"),
        ("--raw RAW --dict RAW", "has no dict.de.txt"),
        ("--raw RAW --spm RAW/train.de", "is no SentencePiece model"),
        ("--raw RAW --spm RAW/none", "is no SentencePiece model"),
        ("--raw SHORT", "train.de has 1 lines and"),
        ("--raw WRONG", "it is not UTF-8"),
    ],
)
def test_prepare_multi30k_refuses_in_one_sentence(raw, tmp_path, arguments, sentence):
    for name, text in (("SHORT", b"eins\n"), ("WRONG", b"\xff\xfe\n" * 100)):
        shutil.copytree(raw, tmp_path / name)
        (tmp_path / name / "train.de").write_bytes(text)
        arguments = arguments.replace(name, str(tmp_path / name))
    done = prepare(*arguments.replace("RAW", str(raw)).split(), "--out", tmp_path / "out")
    assert done.returncode == 1
    assert sentence in last(done) and "Traceback" not in done.stderr


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
        done = run(*fetch, url, out, no_proxy="127.0.0.1")
        missing = run(*fetch, f"{url}/no", tmp_path / "new", no_proxy="127.0.0.1")
        server.shutdown()
    assert done.returncode == 0, done.stderr
    assert (out / "val.de").read_bytes() == (raw / "val.de").read_bytes()
    assert missing.returncode == 1 and "train.de.gz cannot be fetched" in last(missing)
