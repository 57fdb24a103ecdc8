"""Counts are of work really done, and the file is whole at any time."""

import json
import os

import pytest
from models import batch, build, generators, run

from fairseq_ext.stats import Stats


def greedy(lengths: list[int]):
    """A greedy run: its statistics and the lengths of its outputs."""
    ours = generators([build("transformer", seed=2)], beam=1, max_len_b=9).ours
    return ours.stats, [len(nbest[0]["tokens"]) for nbest in run(ours, batch(lengths))]


def test_greedy_search_of_one_sentence_calls_the_decoder_once_a_token():
    stats, (length,) = greedy([4])
    assert (stats.sentences, stats.encoder_calls) == (1, 1)
    assert stats.target_tokens == stats.decoder_calls == stats.decoder_rows == stats.decoder_positions == length
    assert stats.seconds > 0


def test_a_greedy_batch_reads_one_row_for_each_token():
    stats, lengths = greedy([4, 1, 7])
    assert stats.decoder_calls == max(lengths)
    assert stats.decoder_rows == stats.target_tokens == sum(lengths)


def test_counts_add_up_over_batches():
    ours = generators([build("transformer")], beam=3, max_len_b=5).ours
    run(ours, batch([3, 2]))
    run(ours, batch([1]))
    assert (ours.stats.sentences, ours.stats.encoder_calls) == (3, 2)
    assert ours.stats.decoder_rows <= 3 * 3 * 6


def test_stock_searches_are_counted_too():
    ours = generators([build("transformer")], beam=3, max_len_b=5, sampling=True).ours
    run(ours, batch([3, 2]))
    assert ours.stats.sentences == 2 and ours.stats.target_tokens > 0


def test_json_has_the_counts_and_the_strategies_sections_at_its_top(tmp_path):
    stats = Stats(signature="made by hand", decoder_calls=3, extra={"parallel": {"calls": 2}})
    stats.count_step(rows=5, width=4)
    stats.write(str(tmp_path / "stats.json"))
    record = json.loads((tmp_path / "stats.json").read_text())
    assert record["signature"] == "made by hand" and record["parallel"] == {"calls": 2} and "extra" not in record
    assert (record["decoder_calls"], record["decoder_rows"], record["decoder_positions"]) == (4, 5, 20)


def test_an_interrupted_write_leaves_the_last_whole_file(tmp_path, monkeypatch):
    path = tmp_path / "stats.json"
    Stats(sentences=1).write(str(path))
    monkeypatch.setattr(os, "replace", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        Stats(sentences=2).write(str(path))
    assert json.loads(path.read_text())["sentences"] == 1
