"""The page "Install" from nothing: a wheel in an environment of its own, without compilers, in a
folder that is not the clone (--all)."""

import os
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
import sizes
from conftest import BIN

from fairseq_ext.kernels import library as building
from fairseq_ext.kernels.compiling import LEVELS

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "checkpoints" / "demo"
TOOLS = ("cat", "grep", "sh")
pytestmark = pytest.mark.timeout(3600)  # a wheel compiles each level; busy machines take long
needs_all = pytest.mark.skipif(
    not os.environ.get(sizes.ALL),
    reason="with --all: it takes minutes, and a network or pip's settings",
)


def run(words: list, folder: Path, **environment: str) -> subprocess.CompletedProcess:
    done = subprocess.run(
        [*map(str, words)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done


@needs_all
@pytest.mark.skipif(
    building.compiler() is None or os.uname().machine not in LEVELS,
    reason="there is no C++ compiler, or no level",
)
def test_one_wheel_of_this_machine_holds_a_library_of_every_level(wheel):
    assert wheel.name.partition("-py3-none-")[2] == f"linux_{os.uname().machine}.whl"
    libraries = {
        Path(name).stem for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")
    }
    assert libraries == {"levels", *LEVELS[os.uname().machine]}


@needs_all
def test_a_wheel_holds_the_files_of_the_package_and_none_that_an_earlier_build_left(wheel):
    packed = {
        name
        for name in zipfile.ZipFile(wheel).namelist()
        if not name.endswith(".so") and ".dist-info/" not in name
    }
    there = {
        path.relative_to(ROOT)
        for path in (ROOT / "fairseq_ext").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == {"fairseq_ext.pth", "fairseq_ext_start.py", *map(str, there)}


def test_the_first_command_makes_the_environment_that_pip_installs_into(tmp_path):
    """The system's pip refuses on Debian 12 and Ubuntu 24.04 (PEP 668)."""
    first = "python3 -m venv .venv && . .venv/bin/activate"
    for page in ("README.md", "docs/install.md"):
        text = (ROOT / page).read_text("utf-8")
        assert first in text and text.index(first) < text.index("pip install"), page
    done = run(["bash", "-ec", f"{first}; command -v pip; command -v python"], tmp_path)
    assert done.stdout.split() == [f"{tmp_path}/.venv/bin/{name}" for name in ("pip", "python")]


@needs_all
def test_the_wheel_of_the_demo_holds_the_demo_model(tmp_path):
    run(["bash", ROOT / "scripts" / "wheels.sh", "--demo", "out"], tmp_path, PYTHON=sys.executable)
    (wheel,) = (tmp_path / "out").glob("fairseq_ext_demo-*-py3-none-any.whl")
    packed = zipfile.ZipFile(wheel)
    for path in DEMO.iterdir():
        assert packed.read(f"fairseq_ext_demo/{path.name}") == path.read_bytes()
    packed.extractall(tmp_path / "installed")
    found = run(
        [sys.executable, "-c", "import fairseq_ext_demo as d; print(d.__path__[0])"],
        tmp_path,
        PYTHONPATH=str(tmp_path / "installed"),
    )
    assert found.stdout.strip() == str(tmp_path / "installed" / "fairseq_ext_demo")


@needs_all
def test_the_installed_wheel_translates_as_the_clone_does(wheel, tmp_path):
    """The page's commands; pip gets the torch of this environment, which may be there."""
    for line in ("pip install fairseq_ext-*.whl", "python -m fairseq_ext.doctor --install-fairseq"):
        assert line in (ROOT / "docs" / "install.md").read_text()
    tools, home = tmp_path / "tools", tmp_path / "here"
    tools.mkdir()
    home.mkdir()
    for name in TOOLS:
        (tools / name).symlink_to(f"/bin/{name}")
    venv.create(home / ".venv", with_pip=True)
    bare = {
        "PATH": f"{home / '.venv' / 'bin'}:{tools}",
        "PYTHONPATH": "",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "CXX": "",
    }
    (home / "torch.txt").write_text(f"torch=={version('torch')}\n")
    python = home / ".venv" / "bin" / "python"
    run([python, "-m", "pip", "install", "-q", "-c", "torch.txt", wheel], home, **bare)
    reported = run([python, "-m", "fairseq_ext.doctor", "--install-fairseq"], home, **bare).stdout
    assert "FAIL" not in reported and "all that is required works" in reported
    assert (
        f"ok    compiled step: {home}" in reported
        and "fairseq was installed without a compiler" in reported
    )
    text = (ROOT / "data" / "demo" / "test.de").read_text("utf-8").splitlines(keepends=True)[:20]
    (home / "text.de").write_text("".join(text), "utf-8")
    flags = [
        DEMO,
        "--path",
        DEMO / "checkpoint.pt",
        "-s",
        "de",
        "-t",
        "en",
        "--cpu",
        "--input",
        "text.de",
        "--task",
        "translation_ext",
    ]
    flags += [
        "--bpe",
        "sentencepiece",
        "--sentencepiece-model",
        DEMO / "spm.model",
        "--buffer-size",
        20,
        "--batch-size",
        7,
    ]
    ours, theirs = (
        [
            line
            for line in run(
                [folder / "fairseq-interactive", *flags], home, **given
            ).stdout.splitlines()
            if line.startswith("D-")
        ]
        for folder, given in ((python.parent, bare), (BIN, {}))
    )
    assert len(ours) == 20 and ours == theirs
    run([python, "-m", "pip", "install", "-q", "numpy<2"], home, **bare)  # as mbrs wants it
    again = run([python.parent / "fairseq-interactive", *flags], home, **bare).stdout
    assert [line for line in again.splitlines() if line.startswith("D-")] == theirs
    assert not list((tmp_path / "cache").rglob("*.so"))  # nothing was compiled


@needs_all
def test_the_commands_of_the_first_pages_run_with_the_wheel(wheel):
    run(
        [
            sys.executable,
            ROOT / "scripts" / "docs.py",
            "--wheel",
            wheel,
            ROOT / "README.md",
            ROOT / "docs" / "quickstart.md",
        ],
        ROOT,
    )
