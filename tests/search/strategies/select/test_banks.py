"""kernels/banks.cpp against its definition, DBA.__call__: the same candidates at every step of
random searches in float32."""

import copy
import random
from functools import partial

import pytest
import torch
from search.strategies.select.test_dba import decode, random_constraints, wanted
from sizes import drawn
from table_model import TableDecoder, random_table

from fairseq_ext.kernels.library import library
from fairseq_ext.search.strategies.prune import PruneFinished
from fairseq_ext.search.strategies.select.dba import DBA

pytestmark = pytest.mark.skipif(library() is None, reason="no compiled library")


class Both(DBA):
    """Selects twice, by the library and by tensor operations, and compares."""

    steps = 0

    def __call__(self, beam, log_probs, pool):
        untouched = copy.deepcopy(log_probs)
        self.may_compile = False
        expected = super().__call__(copy.copy(beam), untouched, pool)
        self.may_compile = True
        got = super().__call__(beam, log_probs, pool)
        # EOS is impossible for the same rows
        assert torch.equal(log_probs.dense(), untouched.dense())
        assert torch.equal(got.score, expected.score)
        possible = got.score > -torch.inf
        for name in ("row", "token", "group"):
            assert torch.equal(getattr(got, name)[possible], getattr(expected, name)[possible]), (
                name
            )
        for name in got.aux:
            assert torch.equal(got.aux[name][possible], expected.aux[name][possible]), name
        assert torch.equal(got.goal, expected.goal) and got.width == expected.width
        assert (got.slots is None) == (expected.slots is None)
        if got.slots is not None:
            assert torch.equal(got.slots, expected.slots)
        # also what stands for nothing points into its own sentence
        sentence = beam.sentence_of_row()[got.row]
        assert torch.equal(sentence, torch.arange(len(beam.live))[:, None].expand_as(sentence))
        Both.steps += 1
        return got


@pytest.fixture(autouse=True)
def float32(monkeypatch):
    monkeypatch.setattr(TableDecoder, "dtype", torch.float32)
    Both.steps = 0
    yield
    assert Both.steps


@drawn(15)
@pytest.mark.parametrize("even", [False, True])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_random_batches(seed, ordered, even):
    draw = random.Random(seed)
    size, k = draw.randint(1, 6), draw.randint(1, 12)
    tables = [random_table(100 * seed + i, ending=draw.choice([0, 0.3, 1])) for i in range(size)]
    limits = [draw.randint(1, 9) for _ in range(size)]
    # now and then more tokens than the sentence may have
    constraints = [
        random_constraints(draw, limit + draw.choice([0, 0, 2]), "abc") for limit in limits
    ]
    more = {"competing": draw.choice([0, 1, 3]), "more": draw.choice([0, 0, 1, 2])}
    decode(tables, constraints, k, limits, ordered, select=partial(Both, even=even, **more))


@pytest.mark.parametrize("k", [1, 3, 10])
def test_alternatives_banned_phrases_and_prefixes(k):
    constraints = [
        wanted("ab|cd|d", "aa", banned=("c",)),
        wanted("abc|b", "bb|a", prefix="da"),
        wanted(banned=("a", "b", "c", "d")),
    ]
    decode([random_table(i) for i in range(3)], constraints, k, 8, select=Both)


def test_rows_that_pruning_has_thinned_out():
    constraints = [wanted("ab", "c"), wanted(), wanted("d")]
    decode(
        [random_table(i) for i in range(3)],
        constraints,
        6,
        8,
        select=Both,
        prune=[PruneFinished(0.5)],
    )


def test_ten_constraint_tokens_with_five_rows():
    decode([random_table(3)], [wanted("abcd", "dcba", "aa")], 5, 16, select=Both)


@pytest.mark.parametrize("k", [1, 4])
def test_dead_ends_behind_words_that_count(k):
    """Rows that have begun or met a phrase and may not go on: their sentence ends as
    it is, in both alike."""
    constraints = [
        wanted("aab", "d", banned=("aab", "b", "c")),
        wanted("ab", "cd", banned=("b", "d")),
    ]
    decode([random_table(i) for i in range(2)], constraints, k, 5, select=Both)
