"""scripts/mutants.py in a project of one function."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "mutants.py"
SOURCE = '''"""1 < 2"""


def clipped(n):  # at 3 or n < 0
    if n > 3:
        n = 3
    return n
'''
TEST = "from fairseq_ext.a import clipped\n\n\ndef test_it():\n    assert clipped({}) == {}\n"


def test_errors_are_planted_and_those_that_tests_notice_no_more_are_named(tmp_path):
    root = tmp_path / "project"
    for name, text in {"fairseq_ext/a.py": SOURCE, "tests/test_a.py": TEST.format(5, 3)}.items():
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(text)
    (root / "scripts").mkdir()
    shutil.copy(SCRIPT, root / "scripts")

    def run(*words: str) -> tuple[int, list[str]]:
        command = [sys.executable, root / "scripts" / "mutants.py", *words]
        environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, env=environment
        )
        assert done.returncode in (0, 1), done.stderr
        return done.returncode, done.stdout.splitlines()

    drawn = ["fairseq_ext/a.py", "--count", "20", "--out", "before.jsonl"]
    status, said = run(*drawn)
    errors = [json.loads(line) for line in (tmp_path / "before.jsonl").read_text().splitlines()]
    places = {(e["line"], e["before"]): e["after"] for e in errors}
    killed = {place for place, e in zip(places, errors, strict=True) if e["killed_by"]}
    assert places.pop((5, ">")) in (">=", "<") and places == {
        (5, "3"): "4",
        (5, "n > 3"): "not (n > 3)",
        (6, "3"): "4",
        (6, "n = 3"): "pass",
        (7, "return n"): "pass",
    }
    assert {(5, "n > 3"), (6, "3"), (6, "n = 3"), (7, "return n")} <= killed
    assert (
        (5, "3") not in killed and status == 0 and "survived: fairseq_ext/a.py:5:11: 3 -> 4" in said
    )
    assert (
        run(*drawn) == (0, said) and len((tmp_path / "before.jsonl").read_text().splitlines()) == 6
    )

    (root / "tests" / "test_a.py").write_text(TEST.format(2, 2))
    status, said = run("--repeat", "before.jsonl", "--out", "after.jsonl")
    assert status == 1 and "survived, unlike before: fairseq_ext/a.py:6:12: 3 -> 4" in said
    assert (root / "fairseq_ext" / "a.py").read_text() == SOURCE
