"""The files that tell others about the project agree: version, papers, the Pythons that are claimed and tested, what is installed."""

from __future__ import annotations

import re
from pathlib import Path

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
    assert re.findall(r"^## (\S+?),? ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[0] == __version__
    assert __version__ not in SETUP  # which reads it


def test_each_method_page_has_its_paper_in_the_citation_file_and_the_readme() -> None:
    cited = [reference["url"] for reference in yaml.safe_load((ROOT / "CITATION.cff").read_text())["references"]]
    readme = (ROOT / "README.md").read_text()
    assert len(cited) == len(METHODS)
    for name, url in zip(METHODS, cited, strict=True):
        page = (ROOT / "docs" / f"{name}.md").read_text().partition("## The paper")[2]
        assert url in page or url.rstrip("/") in page, name
        assert url in readme and f"](docs/{name}.md)" in readme, name


def test_the_workflow_runs_the_suite_on_every_python_that_is_claimed() -> None:
    job = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())["jobs"]["test"]
    assert sorted(job["strategy"]["matrix"]["python"]) == sorted(pythons())
    assert [step["run"] for step in job["steps"] if "run" in step] == ["scripts/test.sh"]
    readme = (ROOT / "README.md").read_text()
    assert all(version in readme for version in pythons())


def test_what_setup_installs_is_what_the_scripts_install() -> None:
    named = {re.split(r"[=<>\[]", line)[0] for line in (ROOT / "requirements.txt").read_text().splitlines() if line and line[0] != "#"}
    wanted = re.findall(r'^        "([\w-]+)', SETUP.partition("install_requires=[")[2].partition("]")[0], flags=re.MULTILINE)
    assert len(wanted) > 8 and set(wanted) <= named


def test_the_licence_is_the_one_that_is_named() -> None:
    assert (ROOT / "LICENSE").read_text().startswith("MIT License") and 'license="MIT"' in SETUP
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["license"] == "MIT"
