"""Strategies two by two: each pair keeps its properties, or is refused in one sentence.

A strategy adds a row to STRATEGIES; a pair that cannot work adds one to REFUSED; a property that a pair must keep is a function in
its strategy's row. Every pair runs on the same random models and batch.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations_with_replacement

import pytest
from models import batch, build, dictionary, generators, run

from fairseq_ext import UsageError

Check = Callable[[list[list[dict]], list[list[dict]]], None]  # (n-best lists of the pair, those of stock)


def complete(got: list[list[dict]], stock: list[list[dict]]) -> None:
    """Every sentence has an answer that ends in EOS, best first."""
    assert len(got) == len(stock)
    for nbest in got:
        assert nbest and all(h["tokens"][-1] == dictionary().eos() for h in nbest)
        assert [float(h["score"]) for h in nbest] == sorted((float(h["score"]) for h in nbest), reverse=True)


@dataclass
class Row:
    """A strategy at a setting that is not neutral."""

    flags: dict = field(default_factory=dict)
    checks: tuple[Check, ...] = ()


STRATEGIES: dict[str, Row] = {
    "default": Row(),
}
REFUSED: set[frozenset[str]] = set()  # pairs for which validate() raises UsageError


@pytest.mark.parametrize("first, second", combinations_with_replacement(STRATEGIES, 2))
def test_pair_keeps_its_properties_or_is_refused(first, second):
    rows = [STRATEGIES[first], STRATEGIES[second]]
    flags = rows[0].flags | rows[1].flags
    models = [build("transformer", seed=2)]
    if frozenset((first, second)) in REFUSED:
        with pytest.raises(UsageError):
            generators(models, flags, beam=5, max_len_b=12)
        return
    pair = generators(models, flags, beam=5, max_len_b=12)
    sample = batch([3, 1, 7, 0, 5])
    got, stock = run(pair.ours, sample), run(pair.stock, sample)
    for check in (complete, *rows[0].checks, *rows[1].checks):
        check(got, stock)
