"""The contract's rows at each entry point (run.py): a failure names the row and both answers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import run


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Where the first process puts the models."""
    return tmp_path_factory.mktemp("contract")


def test_every_row_has_an_answer():
    assert [*run.table()] == [*run.answers()]


@pytest.mark.timeout(1800)  # of a busy machine
@pytest.mark.parametrize("entry", run.ENTRIES)
def test_an_entry_point_keeps_its_promises(entry, folder):
    broken = run.broken(entry, [*run.table().values()], folder)
    assert not broken, "\n".join(broken)
