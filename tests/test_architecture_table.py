"""The table of architectures says what is: each line of it is run here."""

import logging
import random
import re

import architecture_table
import pytest
from fairseq.models import ARCH_MODEL_REGISTRY
from models import ENSEMBLES, RECIPES
from saved_models import Saved
from sizes import drawn, part_of


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return Saved(tmp_path_factory.mktemp("saved"))


@pytest.fixture(scope="module")
def rows(saved):
    """All of them with --all, else a part."""
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    names = [(name,) for name in RECIPES] + ENSEMBLES
    count = len(part_of(len(names), 7))
    return [architecture_table.row(saved, *each) for each in random.Random(1).sample(names, count)]


@pytest.fixture(scope="module")
def cells():
    """Of the page's lines."""
    lines = architecture_table.PAGE.read_text(encoding="utf-8").splitlines()
    return [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]


def test_what_runs_equals_stock_and_one_line_says_why_it_is_not_fast(rows):
    for row in rows:
        assert row.difference <= 1e-4, row
        backend = ("fairseq", 1) if row.reason else ("transformer", 0)
        assert (row.backend, row.said) == backend, row


def test_the_fast_backend_runs_every_plain_transformer_and_refuses_it_nothing(rows):
    slow = re.compile("quantisation|adaptive|cross-self|NormFormer")
    fast = ("transformer", "marian_transformer", "transformer_align", "bart_base", "mbart_base")
    for row in rows:
        if recipe := RECIPES.get(row.name):
            plain = recipe.arch in fast and not slow.search(row.name)
            assert row.backend == ("transformer" if plain else "fairseq"), row
            assert not (plain and row.refused), row


def test_every_refusal_names_its_flag_or_the_model_and_the_way_out(rows):
    for flag, said in (each for row in rows for each in row.refused.items()):
        assert any(word in said for word in re.findall(r"--\S+", flag)), (flag, said)
        assert ": " in said and "\n" not in said, (flag, said)


def test_the_page_holds_every_architecture_once_and_each_row_as_it_is(saved, rows, cells):
    for name in (*RECIPES, *map(" + ".join, ENSEMBLES)):
        assert sum(name in first.split("; ") for first, *_ in cells) == 1, name
    whole = {name for names in architecture_table.refusals(saved).values() for name in names}
    run = {ARCH_MODEL_REGISTRY[recipe.arch] for recipe in RECIPES.values()}
    assert {kind for name, kind in ARCH_MODEL_REGISTRY.items() if name not in whole} == run
    for row in rows:
        (found,) = [each for each in cells if row.name in each[0].split("; ")]
        assert found[1:3] == [row.backend, row.reason or "-"], row
        assert re.findall("`(.+?)`", found[3]) == list(row.refused), row


@drawn(0)  # long
def test_the_page_is_fresh(saved):
    """Written again by `python tests/architecture_table.py`."""
    assert architecture_table.PAGE.read_text(encoding="utf-8") == architecture_table.page(
        architecture_table.all_rows(saved), architecture_table.refusals(saved)
    )
