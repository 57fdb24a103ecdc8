"""The files that describe the project agree: version, papers, the Pythons that are claimed
and tested, what is installed."""

import hashlib
import os
import re
import sys

import pytest
import yaml
from conftest import ran
from demo_model import ROOT

from fairseq_ext import __version__

METHODS = ("constraints", "optimal-ending", "streaming", "large-vocabularies", "parallel-decoding")
SETUP = (ROOT / "setup.py").read_text()


# the versions that setup.py names
PYTHONS = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', SETUP)
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())


def test_one_version():
    changes = (ROOT / "CHANGELOG.md").read_text()
    newest = re.search(r"^## (\S+?),? ", changes, re.MULTILINE)
    assert CITATION["version"] == __version__ == newest[1]
    assert __version__ not in SETUP  # which reads it


def test_each_method_page_has_its_paper_in_the_citation_file_and_the_readme():
    readme = (ROOT / "README.md").read_text()
    for name, reference in zip(METHODS, CITATION["references"], strict=True):
        page = (ROOT / "docs" / f"{name}.md").read_text().partition("## The paper")[2]
        assert reference["url"].rstrip("/") in page, name
        assert reference["url"] in readme and f"](docs/{name}.md)" in readme, name


def workflow(name):
    """A file of .github/workflows; YAML takes its `on` for True."""
    return yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text())


def test_a_release_waits_for_the_tests_the_wheels_and_the_image_on_both_machines():
    release, test = workflow("release.yml"), workflow("test.yml")
    jobs = release["jobs"]
    assert (
        set(jobs["release"]["needs"]) == set(jobs) - {"release"}
        and "v*" in release[True]["push"]["tags"]
    )
    assert jobs["test"]["uses"] == "./.github/workflows/test.yml" and "workflow_call" in test[True]
    assert jobs["test"]["if"] == jobs["release"]["if"] == "startsWith(github.ref, 'refs/tags/v')"
    tests, install = test["jobs"]["test"], jobs["install"]
    for job in (tests, jobs["wheels"], install):
        assert job["runs-on"] == "${{ matrix.machine }}"
        machines = job["strategy"]["matrix"]["machine"]
        assert [name.endswith("-arm") for name in machines] == [False, True]
    assert install["strategy"]["matrix"]["python"] == tests["strategy"]["matrix"]["python"]
    assert install["steps"][-1]["run"] == "python -m fairseq_ext.doctor --install-fairseq"


def test_the_workflow_runs_the_suite_on_every_python_that_is_claimed():
    job = workflow("test.yml")["jobs"]["test"]
    # and on one that is not claimed until it has run there
    assert set(PYTHONS) <= set(job["strategy"]["matrix"]["python"])
    assert [step["run"] for step in job["steps"] if "run" in step] == ["scripts/test.sh"]
    page = (ROOT / "docs" / "install.md").read_text()
    assert all(version in page for version in PYTHONS)
    assert f"Python {PYTHONS[0]} to " in (ROOT / "README.md").read_text()


def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize(
    "tag, heading, released",
    [
        ("v0.1.0", "## 0.1.0 (2027-01-01)", True),
        ("v0.1.0", "## 0.1.0, not released yet", False),
        ("v0.2.0", "", False),
    ],
)
def test_a_release_has_the_notes_of_its_version_and_checksums(tmp_path, tag, heading, released):
    """By the workflow's own step, with a `gh` that writes down what it is given."""
    step = workflow("release.yml")["jobs"]["release"]["steps"][-1]["run"]
    notes = f"# Changes\n\n## 0.10.0\n\n- No.\n\n{heading}\n\n- Yes.\n\n## 0.0.9\n\n- No.\n"
    files = {
        "fairseq_ext/core/__init__.py": '__version__ = "0.1.0"\n',
        "wheels/one.whl": "1",
        "wheels/two.whl": "2",
        "gh": '#!/bin/sh\necho "$@" > given\n',
        "CHANGELOG.md": notes,
    }
    write(tmp_path, files)
    (tmp_path / "gh").chmod(0o700)
    settings = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "GITHUB_REF_NAME": tag}
    done = ran("bash", "-e", "-c", step, cwd=tmp_path, check=False, **settings)
    assert (done.returncode == 0) == (tmp_path / "given").exists() == released, done.stderr
    if released:
        assert (tmp_path / "notes.md").read_text() == "\n- Yes.\n\n"
        words = f"release create {tag} --notes-file notes.md "
        assert (tmp_path / "given").read_text().startswith(words)
        sums = (tmp_path / "wheels" / "SHA256SUMS").read_text().split()
        digests = [
            hashlib.sha256(files[f"wheels/{name}"].encode()).hexdigest() for name in sums[1::2]
        ]
        assert sums[1::2] == ["one.whl", "two.whl"] and sums[::2] == digests


def test_what_setup_installs_is_what_the_scripts_install():
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    named = {re.split(r"[=<>\[]", line)[0] for line in lines}
    part = SETUP.partition("install_requires=[")[2].partition("]")[0]
    wanted = re.findall(r'^        "([\w-]+)', part, re.MULTILINE)
    assert len(wanted) > 8 and set(wanted) <= named


def test_the_licence_is_the_one_that_is_named():
    assert (ROOT / "LICENSE").read_text().startswith("MIT License") and 'license="MIT"' in SETUP
    assert CITATION["license"] == "MIT"


def test_a_second_set_up_does_nothing_and_another_start_up_file_is_noticed(tmp_path):
    """Which environment fits is determined by a digest of files, the start-up file among
    them, wherever it lies."""
    files = (
        "scripts/setup.sh",
        "requirements.txt",
        "setup.py",
        "fairseq_ext/plugin/compat/fairseq_ext.pth",
        "fairseq_ext/plugin/compat/fairseq_ext_start.py",
    )
    write(tmp_path, {name: (ROOT / name).read_text() for name in files})
    venv = tmp_path / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(sys.executable)
    settings = {"ROOT": str(tmp_path), "VENV": str(venv), "PYTHON": "/no/python"}
    write_stamp = (
        'eval "$(sed -n "/^fingerprint()/,/^}/p" scripts/setup.sh)"; fingerprint > '
        ".venv/fairseq_ext.stamp"
    )

    def run(*command):
        return ran(*command, cwd=tmp_path, check=False, **settings)

    assert run("bash", "-c", write_stamp).returncode == 0
    again = run("bash", "scripts/setup.sh")
    assert again.returncode == 0 and f"{venv} is up to date" in again.stderr
    with open(tmp_path / files[-1], "a") as file:
        file.write("# changed\n")
    changed = run("bash", "scripts/setup.sh")
    assert changed.returncode and "up to date" not in changed.stderr
