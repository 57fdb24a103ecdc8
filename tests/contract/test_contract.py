"""The contract's rows at each entry point (run.py): a failure names the row and both answers."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the first process puts the models."""
    return tmp_path_factory.mktemp("contract")


def test_every_row_has_an_answer():
    assert [*run.table()] == [*run.answers()]


def test_flags_at_their_defaults_change_no_answer():
    given = run.answers()
    rows = [row for row in run.table().values() if "defaults" in row]
    assert rows
    for row in rows:
        same = ({**given[name], "row": "", "origin": ""} for name in (row["row"], row["like"]))
        assert next(same) == next(same), row["row"]


@pytest.mark.timeout(1800)  # of a busy machine
@pytest.mark.parametrize("entry", run.ENTRIES)
def test_an_entry_point_keeps_its_promises(entry, folder):
    broken = run.broken(entry, [*run.table().values()], folder)
    assert not broken, "\n".join(broken)
