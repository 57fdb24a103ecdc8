"""scripts/experiments/streaming/cost_model.py: the fit, what its clocks distinguish, and its
tables on a few lines."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import warm
from sizes import drawn, part_of

HERE = Path(__file__).resolve().parents[2] / "scripts" / "experiments" / "streaming"
sys.path.append(str(HERE))

import cost_model  # noqa: E402
from step_costs import Launches, Line, Measured, Plane, StepCosts  # noqa: E402


def test_the_line_goes_through_points_on_a_line():
    line = Line.fit([(rows, 0.002 + 0.0001 * rows) for rows in (1, 5, 40, 80)])
    assert (line.a, line.b, line.r2) == pytest.approx((0.002, 0.0001, 1.0))
    assert line.of(calls=10, size=300) == pytest.approx(10 * 0.002 + 300 * 0.0001)
    assert Line.fit([(5, 1.0), (5, 3.0)]).of(2, 10) == pytest.approx(4.0)  # one width: its mean
    with pytest.raises(ValueError, match="take more lines"):
        Line.fit([])


def test_the_plane_goes_through_points_on_a_plane():
    plane = Plane.fit(
        [
            (rows, cells, 0.002 + 0.0001 * rows + 3e-7 * cells)
            for rows in (1, 5, 40)
            for cells in (90, 20, 700)
        ]
    )
    assert (plane.a, plane.b, plane.c, plane.r2) == pytest.approx((0.002, 0.0001, 3e-7, 1.0))
    assert plane.of(10, 300, 5000) == pytest.approx(10 * 0.002 + 300 * 0.0001 + 5000 * 3e-7)


def test_steps_changes_and_the_encoder_are_distinguished():
    """A step of r rows takes 2 + r ticks, the encoder 7, joining 3; a row attends to 4 positions
    of the cache and 6 of the source."""

    class Decoder:
        now = 0.0
        source = SimpleNamespace(source=torch.zeros(1, 1, 1, 1, 6, 1))
        group = SimpleNamespace(cache=SimpleNamespace(positions=4, models=[source]))

        def step(self, tokens):
            self.now += tokens.size(0)

        def select(self):
            self.now += 2

        def admit(self, inputs):
            self.now += 7

        def join(self, group):
            self.now += 3

    decoder = Decoder()
    with StepCosts(decoder, clock=lambda: decoder.now) as clocks:
        decoder.admit({"src_tokens": torch.zeros(4, 5)})
        for rows in (4, 8, 6):
            decoder.step(torch.zeros(rows, 1))
            decoder.select()
            if rows == 8:
                decoder.admit({"src_tokens": torch.zeros(1, 6)})
                decoder.join(None)
        decoder.step(torch.zeros(2, 1))
    found = clocks.measured()
    assert found == Measured(
        steps=[(4, 40, 6.0), (6, 60, 8.0)], encoder=[(20, 7.0), (6, 7.0)], changed=[(8, 80, 13.0)]
    )
    assert found.cells == 180 and found.change(lambda rows, _: 2 + rows) == pytest.approx(3.0)
    assert "step" not in vars(decoder)


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
