"""The files that describe the project agree: version, papers, the Pythons that are claimed
and tested, what is installed."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fairseq_ext import __version__

ROOT = Path(__file__).resolve().parents[2]
METHODS = ("constraints", "optimal-ending", "streaming", "large-vocabularies", "parallel-decoding")
SETUP = (ROOT / "setup.py").read_text()


def pythons() -> list[str]:
    """The versions that setup.py names."""
    return re.findall(r'"Programming Language :: Python :: (3\.\d+)"', SETUP)


def test_one_version() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__
    assert (
        re.findall(r"^## (\S+?),? ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[0]
        == __version__
    )
    assert __version__ not in SETUP  # which reads it


def test_each_method_page_has_its_paper_in_the_citation_file_and_the_readme() -> None:
    cited = [
        reference["url"]
        for reference in yaml.safe_load((ROOT / "CITATION.cff").read_text())["references"]
    ]
    readme = (ROOT / "README.md").read_text()
    assert len(cited) == len(METHODS)
    for name, url in zip(METHODS, cited, strict=True):
        page = (ROOT / "docs" / f"{name}.md").read_text().partition("## The paper")[2]
        assert url in page or url.rstrip("/") in page, name
        assert url in readme and f"](docs/{name}.md)" in readme, name


def workflow(name: str) -> dict:
    """A file of .github/workflows; YAML takes its `on` for True."""
    return yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text())


def test_a_release_waits_for_the_tests_the_wheels_and_the_image_on_both_machines() -> None:
    release, test = workflow("release.yml"), workflow("test.yml")
    jobs = release["jobs"]
    assert (
        set(jobs["release"]["needs"]) == set(jobs) - {"release"}
        and "v*" in release[True]["push"]["tags"]
    )
    assert jobs["test"]["uses"] == "./.github/workflows/test.yml" and "workflow_call" in test[True]
    assert jobs["test"]["if"] == jobs["release"]["if"] == "startsWith(github.ref, 'refs/tags/v')"
    for job in (test["jobs"]["test"], jobs["wheels"], jobs["install"]):
        assert job["runs-on"] == "${{ matrix.machine }}"
        assert [name.endswith("-arm") for name in job["strategy"]["matrix"]["machine"]] == [
            False,
            True,
        ]
    assert (
        jobs["install"]["strategy"]["matrix"]["python"]
        == test["jobs"]["test"]["strategy"]["matrix"]["python"]
    )
    assert jobs["install"]["steps"][-1]["run"] == "python -m fairseq_ext.doctor --install-fairseq"


def test_the_workflow_runs_the_suite_on_every_python_that_is_claimed() -> None:
    job = workflow("test.yml")["jobs"]["test"]
    # and on one that is not claimed until it has run there
    assert set(pythons()) <= set(job["strategy"]["matrix"]["python"])
    assert [step["run"] for step in job["steps"] if "run" in step] == ["scripts/test.sh"]
    page = (ROOT / "docs" / "install.md").read_text()
    assert all(version in page for version in pythons())
    assert f"Python {pythons()[0]} to " in (ROOT / "README.md").read_text()


@pytest.mark.parametrize(
    "tag, heading, released",
    [
        ("v0.1.0", "## 0.1.0 (2027-01-01)", True),
        ("v0.1.0", "## 0.1.0, not released yet", False),
        ("v0.2.0", "", False),
    ],
)
def test_a_release_has_the_notes_of_its_version_and_checksums(
    tmp_path: Path, tag: str, heading: str, released: bool
) -> None:
    """By the workflow's own step, with a `gh` that writes down what it is given."""
    step = workflow("release.yml")["jobs"]["release"]["steps"][-1]["run"]
    files = {
        "fairseq_ext/core/__init__.py": '__version__ = "0.1.0"\n',
        "wheels/one.whl": "1",
        "wheels/two.whl": "2",
        "gh": '#!/bin/sh\necho "$@" > given\n',
        "CHANGELOG.md": "# Changes\n\n"
        "## 0.10.0\n\n"
        "- No.\n\n"
        f"{heading}\n\n"
        "- Yes.\n\n"
        "## 0.0.9\n\n"
        "- No.\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "gh").chmod(0o700)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "GITHUB_REF_NAME": tag}
    done = subprocess.run(
        ["bash", "-e", "-c", step], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert (done.returncode == 0) == (tmp_path / "given").exists() == released, done.stderr
    if released:
        assert (tmp_path / "notes.md").read_text() == "\n- Yes.\n\n"
        assert (tmp_path / "given").read_text().split()[:5] == [
            "release",
            "create",
            tag,
            "--notes-file",
            "notes.md",
        ]
        sums = dict(
            reversed(line.split())
            for line in (tmp_path / "wheels" / "SHA256SUMS").read_text().splitlines()
        )
        assert sums == {
            f"{name}.whl": hashlib.sha256(text.encode()).hexdigest()
            for name, text in (("one", "1"), ("two", "2"))
        }


def test_what_setup_installs_is_what_the_scripts_install() -> None:
    named = {
        re.split(r"[=<>\[]", line)[0]
        for line in (ROOT / "requirements.txt").read_text().splitlines()
        if line and line[0] != "#"
    }
    wanted = re.findall(
        r'^        "([\w-]+)',
        SETUP.partition("install_requires=[")[2].partition("]")[0],
        flags=re.MULTILINE,
    )
    assert len(wanted) > 8 and set(wanted) <= named


def test_the_licence_is_the_one_that_is_named() -> None:
    assert (ROOT / "LICENSE").read_text().startswith("MIT License") and 'license="MIT"' in SETUP
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["license"] == "MIT"


def test_a_second_set_up_does_nothing_and_another_start_up_file_is_noticed(tmp_path: Path) -> None:
    """Which environment fits is determined by a digest of files, the start-up file among
    them, wherever it lies."""
    files = (
        "scripts/setup.sh",
        "requirements.txt",
        "setup.py",
        "fairseq_ext/plugin/compat/fairseq_ext.pth",
        "fairseq_ext/plugin/compat/fairseq_ext_start.py",
    )
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    venv = tmp_path / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(sys.executable)
    environment = {**os.environ, "ROOT": str(tmp_path), "VENV": str(venv), "PYTHON": "/no/python"}
    write_stamp = (
        'eval "$(sed -n "/^fingerprint()/,/^}/p" scripts/setup.sh)"; fingerprint > '
        ".venv/fairseq_ext.stamp"
    )

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    assert run("bash", "-c", write_stamp).returncode == 0
    again = run("bash", "scripts/setup.sh")
    assert again.returncode == 0 and f"{venv} is up to date" in again.stderr
    with open(tmp_path / files[-1], "a") as file:
        file.write("# changed\n")
    changed = run("bash", "scripts/setup.sh")
    assert changed.returncode and "up to date" not in changed.stderr
