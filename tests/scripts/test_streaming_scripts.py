"""The scripts of scripts/experiments/streaming: what they count and compute."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import warm
from sizes import drawn

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
HERE = SCRIPTS / "experiments" / "streaming"
sys.path += [str(HERE), str(SCRIPTS / "bench")]

import methods  # noqa: E402
import mixed_corpus  # noqa: E402
import train_parsing  # noqa: E402
from harness import BenchError  # noqa: E402

from fairseq_ext.model.stock_model import join_sources  # noqa: E402

# other folders have a tables.py too
spec = importlib.util.spec_from_file_location("streaming_tables", HERE / "tables.py")
assert spec is not None and spec.loader is not None
tables = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tables)

ROW = dict(
    method="FIXED",
    quality={"BLEU": 40.0},
    seconds=[4.0, 6.0, 4.4],
    timesteps=10,
    expansions=250,
    useful=0.5,
    signature="",
    outputs="",
)


def test_sides_of_unlike_lengths_are_not_mixed(tmp_path):
    (tmp_path / "text.de").write_text("a\n" * 40, encoding="utf-8")
    (tmp_path / "text.en").write_text("one\n", encoding="utf-8")
    with pytest.raises(BenchError, match="40 and 1 lines"):
        mixed_corpus.mix(str(tmp_path / "text"), ["de", "en"], tmp_path / "out")


def test_raw_parsing_data_are_checked(tmp_path):
    for split in ("train", "dev", "test"):
        for side in ("nl", "sql"):
            (tmp_path / f"geo.{split}.{side}").write_text("a b\nc d\n", encoding="utf-8")
    assert train_parsing.check(tmp_path, "geo") == 2
    (tmp_path / "geo.dev.sql").write_text("a b\n", encoding="utf-8")
    with pytest.raises(train_parsing.TrainingError, match="2 lines and geo.dev.sql 1"):
        train_parsing.check(tmp_path, "geo")
    with pytest.raises(train_parsing.TrainingError, match="atis.train.nl is missing"):
        train_parsing.check(tmp_path, "atis")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return methods.prepare(
        tmp_path_factory.mktemp("text"),
        ROOT / "checkpoints" / "demo",
        str(ROOT / "data" / "demo" / "test"),
        "de",
        "en",
        10,
    )


def test_steps_and_expansions_of_stock_are_counted_like_ours(text):
    flags = ["--cpu", "--beam", "4", "--batch-size", "5"]
    stock, ours = (
        methods.Decoding("FIXED", flags, text, stock=True),
        methods.Decoding("ours", flags, text),
    )
    for _ in range(2):  # every run starts from zero
        for decoding in (stock, ours):
            decoding.run()
        assert (stock.timesteps, stock.expansions) == (ours.timesteps, ours.expansions)
        assert stock.rows == ours.rows + 10 * 3  # k copies of each sentence at the first step


def test_lstm_sources_without_padding_can_be_joined_and_reordered():
    """fairseq's LSTM encoder always gives a padding mask, and reorders it."""
    from fairseq.models.lstm import LSTMEncoder

    def sources(n):
        states = torch.full((3, n, 4), float(n))  # (source, S, d)
        return states, states[:1], states[:1], torch.zeros(3, n, dtype=torch.bool)

    joined = join_sources(sources(1), sources(2))
    states, *_, mask = LSTMEncoder.reorder_encoder_out(None, joined, torch.tensor([2, 0]))
    assert states[0, :, 0].tolist() == [2.0, 1.0] and mask.shape == (3, 2) and not mask.any()


def test_rows_that_are_there_are_not_made_again(tmp_path):
    made = []
    for key in (["a"], ["a"], ["b"]):
        rows = methods.cached(tmp_path / "group.json", key, lambda: made.append(1) or [ROW])
        assert rows == [ROW]
    assert len(made) == 2


def test_the_figure_is_drawn(tmp_path):
    (tmp_path / "translation").mkdir()
    steps = [
        {"length": n, "rows": [10, 10, 20], "seconds": [0.01, 0.02, 0.03]} for n in range(1, 4)
    ]
    (tmp_path / "translation" / "steps.json").write_text(
        json.dumps({"rows": steps}), encoding="utf-8"
    )
    done = subprocess.run(
        [warm.python(), str(HERE / "figures.py"), "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (
        done.stdout.strip().endswith("figure2.svg")
        and (tmp_path / "figure2.svg").stat().st_size > 1000
    )
    # text, not outlines
    assert (tmp_path / "figure2.svg").read_text().count("tokens decoded before the step") == 1


@drawn(0)  # long
def test_tables_are_written_where_the_figure_is_not_requested(tmp_path):
    flags = [
        *"--limit 3 --parts grid --texts test --beams 1 --n 2 --repeats 1 --ensemble".split(),
        str(ROOT / "checkpoints" / "demo" / "checkpoint.pt"),
    ]
    environment = os.environ | {"PYTHON": warm.python(), "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [str(HERE / "run.sh"), "--out", str(tmp_path), *flags],
        env=environment,
        check=True,
        capture_output=True,
    )
    text = (tmp_path / "tables.md").read_text(encoding="utf-8")
    assert not (tmp_path / "figure2.svg").exists()
    assert "test, ensemble, k = 1" in text and "test, single model, k = 1" in text
    equal = r"^\| VAR-STR-(?:FIFO|FLUSH) \| .* equal \(3 hypotheses\) to VAR-BATCH \|$"
    assert len(re.findall(equal, text, re.MULTILINE)) == 4


def test_the_natural_mix_is_counted_and_its_streams_give_what_batches_give(tmp_path):
    script = [
        warm.python(),
        str(HERE / "natural.py"),
        *"--limit 7 --k 2 --n 2 --count --out".split(),
        str(tmp_path),
    ]
    for _ in range(2):  # the second run measures nothing
        done = subprocess.run(script, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert "k2.n2" not in done.stderr.splitlines()
    rows = {row["method"]: row for row in json.loads((tmp_path / "k2.n2.json").read_text())["rows"]}
    assert len(rows) == 9 and sum(row["outputs"].startswith("equal") for row in rows.values()) == 6
    for width in ("default", "fixed"):
        # the same hypotheses are extended
        assert len({row["expansions"] for name, row in rows.items() if name.startswith(width)}) == 1
    assert rows["fixed stream"]["timesteps"] < rows["fixed batches, corpus order"]["timesteps"]
    assert "over variable batches" not in done.stdout  # no times
