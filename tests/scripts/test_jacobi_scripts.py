"""scripts/experiments/jacobi: gains by sentence length, computed from made-up runs and from
a run on a few lines."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import warm
from sizes import drawn

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "scripts" / "experiments" / "jacobi"
sys.path.append(str(HERE))

import by_length  # noqa: E402


def test_gains_are_of_the_sentences_of_a_class():
    short, long = [4, 9, 10, 8, 7, 3], [46, 50, 60, 99, 47]
    # both kinds mixed; a single line of 30 tokens is no class
    tokens = [n for pair in zip(short, [*long, 30], strict=True) for n in pair]
    found = by_length.classes(tokens)
    assert {name: [tokens[i] for i in places] for name, places in found.items()} == {
        "1-10": short,
        "46 and more": long,
    }
    method = [n / 2 if n <= 10 else n / 4 for n in tokens]
    # no spread: the interval is a point
    assert by_length.gain(tokens, method, found["1-10"]) == pytest.approx((2, 2, 2))
    middle, low, high = by_length.gain([1.0, 3.0], [1.0, 1.0], by_length.np.arange(2))
    assert (low, middle, high) == pytest.approx((1, 2, 3))


@drawn(0)  # long
def test_a_run_on_a_few_lines_has_tables_by_length(tmp_path):
    demo = ROOT / "data" / "demo"
    flags = [
        "--models",
        ROOT / "checkpoints" / "demo",
        "--text",
        demo / "test",
        "--out",
        tmp_path,
    ]
    flags += ["--limit", "12", "--repeats", "1", "--only", "PGJ b=3", "--graphs", "2"]
    environment = os.environ | {"PYTHON": warm.python(), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(HERE / "run.sh"), *map(str, flags)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    # one sentence with the output of each method, which is greedy's
    tables = (tmp_path / "tables.md").read_text(encoding="utf-8")
    assert "## Table 4: data" in tables and (tmp_path / "graph2.svg").exists()
    shown = re.findall(
        r"^\| (?:our greedy|PGJ b=3) \| (.*) \| [\d.]+ \| [\d.]+ \|$", tables, re.MULTILINE
    )
    assert len(shown) == 2 and len(set(shown)) == 1
    text = (tmp_path / "by_length.md").read_text(encoding="utf-8")
    calls, time = re.findall(r"^\| PGJ b=3 \| (.*) \|$", text, re.MULTILINE)
    assert len(calls.split("|")) == len(time.split("|")) == text.splitlines()[4].count("|") - 2
    # never more calls than greedy
    assert all(float(cell.split("x")[0]) >= 1 for cell in calls.split("|"))
    assert (tmp_path / "by_length.svg").exists() and (tmp_path / "tables.md").exists()
