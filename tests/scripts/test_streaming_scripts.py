"""The scripts of scripts/experiments/streaming: what they count and compute."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
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
import parsing  # noqa: E402
import step_costs  # noqa: E402
import train_parsing  # noqa: E402
import translation  # noqa: E402
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


@pytest.mark.parametrize("longest", [1, 3, 8])
def test_a_mixed_corpus_holds_every_sentence_once_in_order(longest):
    made = mixed_corpus.groups(100, longest, seed=3)
    assert [i for group in made for i in group] == list(range(100))
    assert {len(group) for group in made[:-1]} == set(range(1, longest + 1))
    assert made == mixed_corpus.groups(100, longest, seed=3)
    assert longest == 1 or made != mixed_corpus.groups(100, longest, seed=4)


def test_a_mixed_corpus_can_be_longer_than_its_text():
    made = mixed_corpus.groups(5, 3, seed=1, lines=50)
    assert len(made) == 50 and {i for group in made for i in group} == set(range(5))


def test_source_and_reference_are_joined_alike(tmp_path):
    for language in ("de", "en"):
        (tmp_path / f"text.{language}").write_text(
            "".join(f"{language}{i}\n" for i in range(40)), encoding="utf-8"
        )
    count = mixed_corpus.mix(str(tmp_path / "text"), ["de", "en"], tmp_path / "out", limit=30)
    sides = [
        (tmp_path / f"out.{language}").read_text(encoding="utf-8").splitlines()
        for language in ("de", "en")
    ]
    assert len(sides[0]) == count and sides[0][-1].endswith("de29")
    assert [line.replace("de", "en") for line in sides[0]] == sides[1]
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


def test_averaged_weights_are_the_mean_of_the_epochs(tmp_path):
    epochs = [tmp_path / f"{i}.pt" for i in range(3)]
    for i, file in enumerate(epochs):
        torch.save({"model": {"weight": torch.full((2, 2), float(i * i))}}, file)
    torch.save(
        {"cfg": {"lr": 1}, "model": {"weight": torch.zeros(2, 2, dtype=torch.float16)}},
        tmp_path / "kept.pt",
    )
    train_parsing.average(epochs, tmp_path / "kept.pt")
    kept = torch.load(tmp_path / "kept.pt")
    assert kept["cfg"] == {"lr": 1} and kept["model"]["weight"].dtype == torch.float16
    assert torch.allclose(kept["model"]["weight"].float(), torch.full((2, 2), 5 / 3), atol=1e-3)


def test_exact_match_and_oracle(tmp_path):
    # ids 4 to 7
    (tmp_path / "dict.sql.txt").write_text(
        "SELECT 9\nA 5\nB 5\n;  1\n".replace("  ", " "), encoding="utf-8"
    )
    text = methods.Text(
        tmp_path, [], tmp_path, "nl", "sql", ["SELECT  A ;", "SELECT B ; ", "SELECT A A ;"]
    )
    right, other, longer = [4, 5, 7, 2], [4, 6, 7, 2], [4, 5, 5, 5, 7, 2]
    outputs = [
        [(right, -0.1), (other, -1.0)],
        [(right, -0.1), (other, -1.0)],
        [(right, -0.1), (longer, -1.0)],
    ]
    assert parsing.exact_match(text, outputs) == pytest.approx(
        {"exact match": 100 / 3, "oracle": 200 / 3}
    )


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


def test_a_stream_refills_from_more_than_a_batch(text):
    flags = ["--cpu", "--beam", "2", "--batch-size", "2"]
    stream = [*flags, *"--schedule stream --stream-width 2 --refill-threshold 0.5".split()]
    batch, stream = (
        methods.Decoding(name, given, text)
        for name, given in (("batch", flags), ("stream", stream))
    )
    assert [len(d.loaded.batches) for d in (batch, stream)] == [5, 1]
    assert [[tokens for tokens, _ in nbest] for nbest in methods.read(batch.run())] == [
        [tokens for tokens, _ in nbest] for nbest in methods.read(stream.run())
    ]
    assert stream.generator.stats.refills >= 4 and stream.expansions == batch.expansions


def test_lstm_sources_without_padding_can_be_joined_and_reordered():
    """fairseq's LSTM encoder always gives a padding mask, and reorders it."""
    from fairseq.models.lstm import LSTMEncoder

    def sources(n):
        states = torch.full((3, n, 4), float(n))  # (source, S, d)
        return states, states[:1], states[:1], torch.zeros(3, n, dtype=torch.bool)

    joined = join_sources(sources(1), sources(2))
    states, *_, mask = LSTMEncoder.reorder_encoder_out(None, joined, torch.tensor([2, 0]))
    assert states[0, :, 0].tolist() == [2.0, 1.0] and mask.shape == (3, 2) and not mask.any()


def test_steps_are_timed_by_length():
    class Decoder:
        def step(self, tokens):
            return tokens

    decoder, ticks = Decoder(), iter([0.0, 1.0, 3.0, 6.0, 10.0])
    clock = translation.StepClock(decoder, lambda: next(ticks))
    for length, rows in ((1, 2), (2, 8), (1, 3), (2, 7), (3, 5)):
        decoder.step(torch.zeros(rows, length))
    assert clock.times() == [(1, ([2, 3], [1.0, 3.0])), (2, ([7], [4.0]))]


def test_steps_of_the_compiled_search_are_timed(tmp_path):
    text = methods.prepare(
        tmp_path, ROOT / "checkpoints" / "demo", str(ROOT / "data" / "demo" / "test"), "de", "en", 6
    )
    flags = methods.methods(methods.Setting(3, 2, 1.5, 3))["VAR-STREAM"]
    decoding = methods.Decoding("VAR-STREAM", ["--cpu", *flags], text)
    clock = translation.StepClock(
        decoding.generator.decoder,
        time.process_time,
        step_costs.compiled_search(decoding.generator.driver),
    )
    decoding.run()
    assert (
        len(clock.begun) == decoding.timesteps
        and sum(rows for _, rows, _ in clock.begun) == decoding.rows
    )
    assert all(seconds > 0 for _, (_, found) in clock.times() for seconds in found)


def test_rows_that_are_there_are_not_made_again(tmp_path):
    made = []
    for key in (["a"], ["a"], ["b"]):
        rows = methods.cached(tmp_path / "group.json", key, lambda: made.append(1) or [ROW])
        assert rows == [ROW]
    assert len(made) == 2


def test_tables_show_medians_and_ratios_round_by_round(tmp_path):
    fast = ROW | {
        "method": "VAR-STREAM",
        "seconds": [2.0, 1.0, 4.4],
        "expansions": 100,
        "timesteps": 20,
    }
    line = tables.methods_table([ROW, fast], ("FIXED", "VAR-BATCH")).splitlines()[-1]
    assert line == "| VAR-STREAM | 40.00 | 2.00 (1.00-4.40) | 2.00x | 20 | 100 | 5.0 | 0.500 |  |"
    with pytest.raises(BenchError, match="no results"):
        tables.markdown(tmp_path)
    (tmp_path / "parsing").mkdir()
    (tmp_path / "parsing" / "geo.json").write_text(
        json.dumps({"rows": [ROW], "about": "279 questions"}), encoding="utf-8"
    )
    assert all(
        word in tables.markdown(tmp_path) for word in ("Table 7", "| FIXED |", "279 questions")
    )


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
