"""scripts/experiments/streaming/cost_model.py: the fit, what its clocks distinguish, and its
tables on a few lines."""

import json
import subprocess
import sys
from pathlib import Path

import torch
import warm
from sizes import drawn, part_of

HERE = Path(__file__).resolve().parents[2] / "scripts" / "experiments" / "streaming"
sys.path.append(str(HERE))

import cost_model  # noqa: E402
from step_costs import Launches  # noqa: E402


def test_views_are_no_launches():
    with Launches() as counted:
        a = torch.ones(2, 3)
        (a.view(3, 2).t() + 1).sum()
    assert counted.count == 3  # ones, add, sum


@drawn(0)  # long
def test_tables_predict_and_measure(tmp_path, monkeypatch, capsys):
    backends = ["torch", "compiled", "lstm"][: len(part_of(3, 2))]
    flags = [
        "--out",
        str(tmp_path),
        *"--limit 5 --n 2 --repeats 1 --backends".split(),
        *backends,
    ]
    done = subprocess.run(
        [warm.python(), str(HERE / "cost_model.py"), *flags], capture_output=True, text=True
    )
    assert done.returncode == 0 and {*backends} <= set(done.stderr.splitlines()), done.stderr
    text = (tmp_path / "cost_model.md").read_text(encoding="utf-8")
    assert text.strip() == done.stdout.strip() and "Prediction for an H100" in text
    monkeypatch.setattr(sys, "argv", ["cost_model.py", *flags])
    cost_model.main()  # a second run measures nothing
    again = capsys.readouterr()
    assert again.out.strip() == text.strip() and not {*backends} & set(again.err.splitlines())
    for backend in ("torch", "compiled"):
        result = json.loads((tmp_path / f"{backend}.json").read_text(encoding="utf-8"))
        assert [one["kind"] for one in result["pairs"]] == ["fixed", "variable"]
        for one in result["pairs"]:
            assert "equal" in one["outputs"]
            for search in one["searches"]:
                # the last step has no next one
                assert len(search["steps"]) + len(search["changed"]) == search["calls"] - 1
                assert (
                    sum(rows for rows, *_ in search["steps"] + search["changed"]) < search["rows"]
                )
                # a row sees its source, at least
                assert all(cells > rows for rows, cells, _ in search["steps"])
    rows = [
        line.split(" | ")
        for line in text.splitlines()
        if line.startswith((*(f"| {name} | fixed" for name in backends),))
    ]
    assert len(rows) == len(backends) and all(
        cells[11].endswith("x") and cells[12].endswith(")") for cells in rows
    )
