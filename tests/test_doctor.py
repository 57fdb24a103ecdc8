"""The doctor names what is wrong, says what to do, and its exit code is for scripts."""

import importlib.metadata
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
import torch
from conftest import ran
from torch.torch_version import TorchVersion

from fairseq_ext import doctor
from fairseq_ext.plugin.compat import patches


@pytest.fixture
def quick(monkeypatch):
    """Only the items that start no other process."""
    items = [
        item
        for item in doctor.ITEMS
        if item.name not in ("start-up hook", "tiny decode", "compiled step")
    ]
    monkeypatch.setattr(doctor, "ITEMS", items)


def test_doctor_passes_here_and_decodes(hostile):
    done = ran(sys.executable, "-m", "fairseq_ext.doctor", cwd=hostile)
    assert not list(hostile.glob("*.run"))
    found = {
        line[6:].split(":")[0]: line[:4].strip()
        for line in done.stdout.splitlines()
        if line[:4].strip() in ("ok", "note", "FAIL")
    }
    assert list(found) == [item.name for item in doctor.ITEMS]
    assert "FAIL" not in found.values()
    assert found["tiny decode"] == "ok"
    assert f"--user-dir {Path(doctor.__file__).parent}" in done.stdout
    reported = [line for line in done.stdout.splitlines() if line.startswith("patch ")]
    for patch in patches.PATCHES:
        # of two tasks; of numpy 2; of an installation without a compiler; of fairseq's commands
        if patch.change.__name__ not in (
            "set_up_no_log",
            "give_numpy_long",
            "replace_compiled",
            "log_as_stock",
            "read_lines_as_typed",
        ):
            where = " (in commands alone)" * patch.is_of_command
            assert f"patch {patch.what}: {patch.why}{where}" in reported
            assert patch.why.endswith((".", ":")), patch.what


def test_another_fairseq_is_a_failing_item_with_its_remedy(quick, monkeypatch, capsys):
    version = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: "0.10.0" if name == "fairseq" else version(name)
    )
    assert doctor.main() == 1
    said = capsys.readouterr().out
    assert "FAIL  fairseq: 0.10.0\n      -> " in said
    assert "python -m fairseq_ext.doctor --install-fairseq" in said
    assert "1 required item failed; mend" in said


@pytest.fixture
def without_pip(tmp_path) -> Path:
    """The Python of an environment such as uv makes."""
    venv.create(tmp_path / "venv", with_pip=False)
    return tmp_path / "venv" / "bin" / "python"


def install_fairseq(python: Path, path: Path) -> subprocess.CompletedProcess:
    words = [python, Path(doctor.__file__), "--install-fairseq"]
    return ran(*words, check=False, PATH=str(path), PYTHONPATH="")


def test_in_an_environment_of_uv_fairseq_is_installed_by_uv(without_pip, tmp_path):
    """The uv here notes its arguments, and fails."""
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text(f'#!/bin/sh\necho "$READTHEDOCS $*" > {tmp_path}/log\nexit 1\n')
    uv.chmod(0o755)
    done = install_fairseq(without_pip, uv.parent)
    assert (tmp_path / "log").read_text() == (
        f"1 pip install --python {without_pip} --no-cache --no-deps --no-binary fairseq "
        "fairseq==0.12.2\n"
    )
    assert done.returncode == 1 and done.stderr == (
        "error: fairseq could not be installed (the message is above): mend that and run this "
        "again\n"
    )


def test_without_pip_and_uv_the_doctor_says_how_to_get_one(without_pip, tmp_path):
    done = install_fairseq(without_pip, tmp_path)
    assert done.returncode == 1 and done.stderr == (
        f"error: the environment of {without_pip} has no pip, and uv is not on the PATH: install "
        f"one of them ({without_pip} -m ensurepip), and run this again\n"
    )


def test_a_missing_package_is_a_failing_item(quick, monkeypatch, capsys):
    monkeypatch.setattr(
        doctor,
        "ITEMS",
        [doctor.Item("nothing", doctor.installed("no-such-distribution", "no_such_module"))],
    )
    assert doctor.main() == 1
    assert f"FAIL  nothing: not installed\n      -> {doctor.SET_UP}" in capsys.readouterr().out


def test_an_optional_item_fails_no_one(monkeypatch, capsys):
    def broken() -> str:
        raise RuntimeError("the driver is too old\nand more")

    monkeypatch.setattr(
        doctor, "ITEMS", [doctor.Item("CuPy", broken, required=False, remedy="do without")]
    )
    assert doctor.main() == 0
    assert (
        "note  CuPy: RuntimeError: the driver is too old\n      -> do without"
        in capsys.readouterr().out
    )


def test_a_dead_start_up_hook_is_noticed_and_its_remedy_is_a_command(monkeypatch, tmp_path, capsys):
    (hook,) = (item for item in doctor.ITEMS if item.name == "start-up hook")
    monkeypatch.setattr(
        doctor.child, "python", lambda kind, code: [sys.executable, "-S", kind, code]
    )
    assert not doctor.examine(hook)
    said = capsys.readouterr().out
    assert said.startswith("FAIL  start-up hook: not active\n      -> add --user-dir ")
    words = said.rpartition(": ")[2].replace(sysconfig.get_path("purelib"), str(tmp_path))
    ran("sh", "-c", words)
    start = f"import site; site.addsitedir({str(tmp_path)!r}); {doctor.HOOK_PROBE}"
    ran(sys.executable, "-S", "-c", start)


@pytest.mark.parametrize("version", ["2.13.0+cpu", "2.10.0a0+git1", "2.5.1", "1.13"])
def test_an_old_torch_fails_and_a_newer_one_does_not(version, monkeypatch, capsys):
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    good = doctor.examine(doctor.Item("torch", doctor.torch_and_devices))
    assert good == version.startswith(("2.13", "2.10"))
    assert f"torch: {version}" in capsys.readouterr().out


def test_where_the_packages_of_the_extras_are_missing_each_extra_is_named(
    quick, monkeypatch, capsys
):
    """Those of setup.py, but for the one that builds the pages."""
    missing = {
        "interegular",
        "matplotlib",
        "safetensors",
        "sentencex",
        "fastapi",
        "uvicorn",
        "ray",
        "pyarrow",
    }
    version = importlib.metadata.version

    def version_here(name: str) -> str:
        if name in missing:
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(importlib.metadata, "version", version_here)
    monkeypatch.setitem(sys.modules, "cupy", None)
    setup = (Path(doctor.__file__).parents[1] / "setup.py").read_text()
    extras = set(
        re.findall(r'^        "(\w+)": \[', setup[setup.index("extras_require") :], re.MULTILINE)
    ) - {"docs"}
    assert doctor.main() == 0
    assert (
        set(re.findall(r"pip install 'fairseq_ext\[(\w+)\]'", capsys.readouterr().out)) == extras
        and len(extras) == 7
    )
