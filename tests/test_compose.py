"""Strategies two by two: each pair keeps its properties, or is refused in one sentence.

A strategy adds a row to STRATEGIES; a pair that cannot work adds one to REFUSED; a property that a pair must keep is a function in
its strategy's row. Every pair runs on the same random models and batch.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations_with_replacement

import pytest
from models import alone, batch, build, dictionary, generators, run

from fairseq_ext import UsageError
from fairseq_ext.constraints.files import SentenceConstraints, met

Check = Callable[[list[list[dict]], list[list[dict]]], None]  # (n-best lists of the pair, those of stock)


def complete(got: list[list[dict]], stock: list[list[dict]]) -> None:
    """Every sentence has an answer that ends in EOS, best first."""
    assert len(got) == len(stock)
    for nbest in got:
        assert nbest and all(h["tokens"][-1] == dictionary().eos() for h in nbest)
        assert [float(h["score"]) for h in nbest] == sorted((float(h["score"]) for h in nbest), reverse=True)


def meets(got: list[list[dict]], stock: list[list[dict]]) -> None:
    """Every hypothesis holds its sentence's phrases."""
    for nbest, constraints in zip(got, CONSTRAINTS, strict=True):
        for h in nbest:
            assert all(met(h["tokens"].tolist(), constraints, ordered=False))


@dataclass
class Row:
    """A strategy at a setting that is not neutral."""

    flags: dict = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    generation: dict = field(default_factory=dict)  # stock flags it needs
    constrained: bool = False


def phrases(*each: tuple[int, ...]) -> SentenceConstraints:
    return SentenceConstraints(tuple((p,) for p in each), tuple(map(str, each)))


LENGTHS = [7, 5, 3, 1, 0]
CONSTRAINTS = [phrases((9, 10)), phrases(), phrases((8,), (11, 8)), phrases((12,)), phrases()]
RAW = {"unnormalized": True}
LSH = {"softmax": "lsh", "lsh_k": 4, "lsh_u": 2, "lsh_bands": 20, "lsh_hits": 3, "lsh_top": 8, "lsh_share": "sentence"}
STRATEGIES: dict[str, Row] = {
    "default": Row(),
    "fairseq's modules": Row({"decoder_backend": "fairseq"}),
    "dba": Row({"select": "dba"}, (meets,), constrained=True),
    "gbs": Row({"select": "gbs", "gbs_base": 2}, (meets,), constrained=True),
    "cbs": Row({"select": "cbs"}, (meets,), constrained=True),
    "prune-finished": Row({"prune_finished": 2.0}),
    "optimal": Row({"stop": "optimal"}),
    "optimal, paper": Row({"stop": "optimal", "stop_expansion": "paper"}),
    "optimal, bound": Row({"stop": "optimal", "prune_bound": True}, generation=RAW),
    "optimal, reward": Row({"stop": "optimal", "length_reward": 0.5}, generation=RAW),
    "first": Row({"stop": "first"}),
    "shrink": Row({"stop": "shrink"}),
    "patience": Row({"patience": 2}),
    "stream": Row({"schedule": "stream", "stream_width": 2}),
    "stream, fifo": Row({"schedule": "stream", "stream_width": 3, "stream_order": "fifo"}),
    "stream, few rows": Row({"schedule": "stream", "stream_rows": 9}),
    "prune-threshold": Row({"prune_threshold": 1.0}),
    "prune-children": Row({"prune_children": 2}),
    "ranked": Row({"stop": "ranked"}),
    "window": Row({"decoding": "window"}, generation={"beam": 1}),
    "gs-jacobi": Row({"decoding": "gs-jacobi", "block_size": 4}, generation={"beam": 1}),
    "lsh": Row(LSH),
    "lsh, exact": Row({**LSH, "lsh_normalise": "exact"}),
    "top": Row({"softmax": "top", "shortlist_top": 12, "shortlist_share": "sentence"}),
    "screened": Row({"softmax": "screened"}),
}
# --patience belongs to --stop count
REFUSED = {frozenset(("patience", name)) for name, row in STRATEGIES.items() if "stop" in row.flags}
# scores of different banks do not compare
REFUSED |= {frozenset(("ranked", name)) for name in ("dba", "gbs", "cbs")}
# a driver without a beam has nothing to select from, to prune or to stop; a stream's new rows are read beside longer ones
REFUSED |= {
    frozenset((parallel, name))
    for parallel in ("window", "gs-jacobi")
    for name, row in STRATEGIES.items()
    if name not in ("window", "gs-jacobi") and not {"decoder_backend"}.issuperset(row.flags) and "schedule" not in row.flags
}


def pairs() -> list[tuple[str, str]]:
    """All pairs but those that set one flag to two values, which no command can."""
    flags = {name: row.flags for name, row in STRATEGIES.items()}
    return [(a, b) for a, b in combinations_with_replacement(STRATEGIES, 2) if all(flags[b].get(f, v) == v for f, v in flags[a].items())]


def decode(generator, sample: dict, constraints: list[SentenceConstraints] | None) -> list[list[dict]]:
    return run(generator, sample if constraints is None else {**sample, "sentence_constraints": constraints})


@pytest.mark.parametrize("first, second", pairs())
def test_pair_keeps_its_properties_or_is_refused(first, second):
    rows = [STRATEGIES[first], STRATEGIES[second]]
    flags = rows[0].flags | rows[1].flags
    generation = {"beam": 4, "max_len_b": 10, **rows[0].generation, **rows[1].generation}
    models = [build("transformer", seed=2)]
    if frozenset((first, second)) in REFUSED:
        with pytest.raises(UsageError):
            generators(models, flags, **generation)
        return
    pair = generators(models, flags, **generation)
    sample = batch(LENGTHS)
    constraints = CONSTRAINTS if rows[0].constrained or rows[1].constrained else None
    got, stock = decode(pair.ours, sample, constraints), run(pair.stock, sample)
    for check in (complete, *rows[0].checks, *rows[1].checks):
        check(got, stock)
    for i, nbest in enumerate(got):  # no pair lets a sentence depend on those beside it
        [single] = decode(pair.ours, alone(sample, i), constraints and constraints[i : i + 1])
        assert single[0]["tokens"].tolist() == nbest[0]["tokens"].tolist()
        assert float(single[0]["score"]) == pytest.approx(float(nbest[0]["score"]), abs=1e-9)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("generation", [RAW, {}, {"lenpen": 0.5}], ids=str)
@pytest.mark.parametrize("select", ["topk", "dba", "gbs", "cbs"])
def test_certified_answers_equal_those_of_a_search_that_never_stops_early(select, generation, seed):
    """--stop optimal, with and without --prune-bound, against --stop count that waits for more hypotheses than max_len allows."""
    models, sample = [build("transformer", seed)], batch(LENGTHS, seed)
    constraints = None if select == "topk" else CONSTRAINTS
    stops: list[dict] = [{"patience": 1000}, {"stop": "optimal"}, {"stop": "optimal", "prune_bound": True}]
    full, certified, pruned = (
        decode(generators(models, {"select": select, **stop}, beam=4, nbest=2, max_len_b=10, **generation).ours, sample, constraints)
        for stop in stops
    )
    for expected, *others in zip(full, certified, pruned, strict=True):
        for got in others:
            assert [h["tokens"].tolist() for h in got[:2]] == [h["tokens"].tolist() for h in expected[:2]]
