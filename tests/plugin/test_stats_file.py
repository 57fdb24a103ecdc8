"""--stats-file is whole or as it was, and a run whose counts could not be written does
not end with status 0."""

import json
import shutil

import forked
import pytest
from test_cli import EXT, generate, sentence

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.stats import Stats
from fairseq_ext.plugin import results
from fairseq_ext.plugin.results import StatsFile


def test_the_file_follows_the_run(tmp_path, monkeypatch):
    path, stats = tmp_path / "stats.json", Stats()
    file = StatsFile(str(path), stats)
    stats.sentences = 3
    file.write_occasionally()
    assert json.loads(path.read_text())["sentences"] == 0  # too soon
    monkeypatch.setattr(results, "SECONDS_BETWEEN_WRITES", 0.0)
    file.write_occasionally()
    assert json.loads(path.read_text())["sentences"] == 3


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path, monkeypatch):
    with pytest.raises(
        UsageError,
        match="--stats-file .* cannot be written .No such file or directory.: make room, "
        "or name another file",
    ):
        StatsFile(str(tmp_path / "nowhere" / "stats.json"), Stats())
    (tmp_path / "later").mkdir()
    file = StatsFile(str(tmp_path / "later" / "stats.json"), Stats())
    shutil.rmtree(tmp_path / "later")
    monkeypatch.setattr(results, "SECONDS_BETWEEN_WRITES", 0.0)
    file.write_occasionally()  # there may be room at the end
    with pytest.raises(UsageError, match="cannot be written"):
        file.write()


def test_a_run_whose_counts_find_no_room_says_so_at_its_end(tiny):
    """/dev/full takes nothing: the translations are printed, and the status is 1."""
    done = generate(tiny, *EXT, "--stats-file", "/dev/full", run=forked.command, check=False)
    assert sentence(done) == (
        "error: --stats-file /dev/full cannot be written (No space left on device): make room, "
        "or name another file"
    )
    assert done.stdout.count("H-") == 11


def test_standard_output_takes_the_counts_once(tiny):
    done = generate(tiny, *EXT, "--stats-file", "/dev/stdout")
    assert (
        done.stdout.count('"sentences": 11') == done.stdout.count('"sentences"') == 1
        and done.stdout.count("H-") == 11
    )
