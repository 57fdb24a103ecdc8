"""The baselines with fixed slots: neutral without constraints, everything met with them, and as
large as they are said to be."""

import random

import pytest
from demo_model import FLAGS, ROOT
from models import batch, build, generators, run, same
from search.strategies.select.test_dba import (
    all_met,
    decode,
    outputs,
    random_constraints,
    satisfying,
    wanted,
)
from search.strategies.select.test_dba_models import LENGTHS, constrained, random_phrases, tokens
from search.strategies.select.test_dba_models import wanted as phrases
from sizes import covering, drawn
from table_model import random_table

from fairseq_ext import Translator, UsageError
from fairseq_ext.search.phrases.sentence import met
from fairseq_ext.search.strategies.select.cbs import ConstrainedBeam
from fairseq_ext.search.strategies.select.gbs import GridBeam

SELECTS = {"gbs": GridBeam, "cbs": ConstrainedBeam}


def flags(select: str, k: int) -> dict:
    """gbs takes its beam from --gbs-base."""
    return {"select": select, "gbs_base": k} if select == "gbs" else {"select": select}


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("select", SELECTS)
def test_sentences_without_constraints_are_plain_beam_search_next_to_others(select, k):
    draw = random.Random(k)
    constraints = [
        phrases(*random_phrases(draw, *n)) for n in ([], [1], [2, 1], [], [3], [], [1, 1], [2])
    ]
    pair = generators([build("transformer", 2)], flags(select, k), beam=k, max_len_b=12)
    got, stock = (
        run(pair.ours, constrained(batch(LENGTHS), constraints)),
        run(pair.stock, batch(LENGTHS)),
    )
    for i, c in enumerate(constraints):
        assert got[i] and all(all(met(row, c, False)) for row in tokens(got[i]))
        if not c.any_of:
            same(stock[i : i + 1], got[i : i + 1])


@covering(1)
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("select", SELECTS)
def test_everything_is_met(select, seed, ordered):
    draw = random.Random(seed)
    tables = [random_table(100 * seed + i) for i in range(3)]
    limits = [draw.randint(1, 7) for _ in tables]
    constraints = [random_constraints(draw, limit) for limit in limits]
    found = decode(tables, constraints, draw.randint(1, 3), limits, ordered, select=SELECTS[select])
    for nbest, c in zip(found.lists, constraints, strict=True):
        assert nbest and all(all_met(h, c, ordered) for h in nbest)


@pytest.mark.parametrize("wishes", [["c"], ["ab", "c"], ["ab|c"], ["a", "a"], ["ab", "ba"]])
@pytest.mark.parametrize("select", SELECTS)
def test_a_large_base_beam_finds_all_that_satisfy(select, wishes):
    table = random_table(5, possible=3)
    expected = satisfying(table, wanted(*wishes), 4, False, 3, deadline=True)
    (got,) = outputs(decode([table], [wanted(*wishes)], 100, 4, select=SELECTS[select]))
    assert dict(got) == pytest.approx(expected)


def test_grid_beam_has_b_rows_for_each_of_its_banks():
    """Four words that are all possible: from the third step on, each of the three banks is full."""
    found = decode(
        [random_table(1, possible=8, ending=0)], [wanted("a", "b")], 2, 12, select=GridBeam
    )
    assert max(found.rows) <= 12 * 6 and found.rows[0] >= 6 * (found.step[0] - 3)


def test_more_phrases_than_cbs_has_banks_for_are_refused():
    generator = generators([build("transformer")], {"select": "cbs"}, beam=2, max_len_b=12).ours
    six, seven = (phrases(*([w] for w in range(5, 5 + n))) for n in (6, 7))
    run(generator, constrained(batch([2]), [six]))
    with pytest.raises(UsageError, match="7 constraints .* at most 6, or --select dba"):
        run(generator, constrained(batch([2]), [seven]))


def test_a_base_beam_of_nothing_is_refused():
    with pytest.raises(UsageError, match="--gbs-base .*not 0"):
        generators([build("transformer")], {"select": "gbs", "gbs_base": 0}, beam=2)


@drawn(1)
@pytest.mark.parametrize("select", ["dba", *SELECTS])
def test_a_translation_does_not_depend_on_the_phrases_next_to_it(select):
    """Whole words, which have pieces of several lengths; under cbs the third sentence had other
    banks next to the others than alone."""
    source = (ROOT / "data" / "demo" / "test.de").read_text(encoding="utf-8").splitlines()
    numbers = [27, 91, 104, 128, 140]
    required = [[], ["electrical current"], ["an encryption", "creates a"], [], ["The"]]
    found = {}
    for size in (1, 5):
        translator = Translator(**FLAGS, beam=3, select=select, batch_size=size)
        lists = translator.translate([source[i] for i in numbers], constraints=required)
        found[size] = [[hypothesis.text for hypothesis in nbest] for nbest in lists]
    assert found[1] == found[5]
