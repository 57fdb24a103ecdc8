"""scripts/experiments/jacobi: gains by sentence length, computed from made-up runs and from
a run on a few lines."""

import os
import re
import subprocess
import sys
from pathlib import Path

import warm
from sizes import drawn

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "scripts" / "experiments" / "jacobi"
sys.path.append(str(HERE))


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
