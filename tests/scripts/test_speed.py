"""The table that compares the speed of two checkouts: a cell of each kind, this checkout on both
sides."""

import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "scripts" / "bench"
sys.path.insert(0, str(BENCH))

import speed  # noqa: E402

BEFORE = ["--before", str(BENCH.parents[1]), sys.executable]


def test_there_are_twelve_cells_in_process_and_commands_and_two_of_the_server():
    assert len(speed.CELLS) == len(set(speed.CELLS)) == 14


@pytest.mark.parametrize("lost", [0.0, 1e9], ids=["held", "lost"])
def test_a_cell_is_lost_where_its_whole_interval_is_below_the_bound(lost, tmp_path, monkeypatch):
    monkeypatch.setattr(speed, "LOST", lost)
    monkeypatch.setattr(speed, "fix_threads", lambda threads: None)  # this process has other tests
    cells = ["constrained, int8", "typed line, float32", "HTTP requests"] if lost else ["HTTP p95"]
    small = [*"--repeats 1 --limit 2 --seconds 0.2 --out".split(), str(tmp_path / "out")]
    assert speed.main([*BEFORE, *small, "--cells", *cells]) == int(lost > 0)
    lines = (tmp_path / "out.md").read_text(encoding="utf-8").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")][2:]
    assert [row[0] for row in rows] == cells
    assert all(float(row[2].split()[0]) > 0 and "equal (" in row[3] for row in rows)
    assert all((row[-1] == "lost") == (lost > 0) for row in rows)
