"""Sentences that come and go while the loop or the compiled search runs: each gets what the search
gives it alone, whatever is next to it."""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from models import (
    MASKED_IN_FLOAT32,
    WORDS,
    batch,
    build,
    dictionary,
    generators,
    near_ties,
    requests_of,
    run,
    same,
)
from required_phrases import required_phrases
from sizes import drawn
from test_random_flags import ARCHITECTURES, drawn_constraints, drawn_search, drawn_select, made
from test_random_flags import model as model_of

from fairseq_ext.kernels.library import library
from fairseq_ext.plugin.generator import dictionary_of
from fairseq_ext.search.compiled import CompiledSearch
from fairseq_ext.search.interpreted import LoopSearch, OpenPool
from fairseq_ext.search.phrases.sentence import EMPTY, SentenceConstraints
from fairseq_ext.search.scheduler import Entry, common_prefix
from fairseq_ext.search.strategies.stop.early import LengthRetry

WORD = dictionary().nspecial
LENGTHS = [0, 1, 2, 3, 4, 5, 7, 9]
STREAM = {"schedule": "stream", "stream_order": "fifo"}
COMPILED = [
    *({}, {"int8": True}, {"stop": "ranked"}, {"stop": "optimal", "prune_bound": True}),
    {"stop": "ranked", "prune_threshold": 2.5, "prune_children": 3},
    *({"select": "dba"}, STREAM | {"stream_rows": 9}),
]


@drawn(16)
@pytest.mark.parametrize("case", range(80))
def test_each_gets_what_it_gets_alone(case, tmp_path):
    """With random flags, phrases and architectures. In float32 rows lie in shared slots of one
    store. While no sentence has constraints, the strategy of plain search selects; the other one
    takes over live rows, and gives them back."""
    draw, ours = random.Random(f"arriving {case}"), None
    while ours is None:
        flags = drawn_search(draw) | drawn_select(draw, "topk", "dba", "dba", "gbs", "cbs", "bonus")
        flags.pop("decoding", None)
        if flags.get("constraint_compete") == "search":  # a second search behind this one
            del flags["constraint_compete"]
        name = draw.choice([*ARCHITECTURES, "fconv"])
        dtype = torch.float32 if name == "transformer" else torch.float64
        of = [model_of(name, draw.randint(1, 6), dtype)]
        generator = partial(made, draw, folder=tmp_path, models=of, pieces=True)
        ours = generator(flags)
    without, most, given = draw.choice([0, 0.3, 0.85]), min(4, flags["max_len_b"]), None
    if "constraints" in flags:
        given = [
            EMPTY if draw.random() < without else drawn_constraints(draw, WORDS, most)
            for _ in range(14)
        ]
    tolerance = 1e-4 if dtype == torch.float32 else 1e-5 if name in MASKED_IN_FLOAT32 else 1e-9
    interleaved(draw, lambda n: generator(flags | {"nbest": n}), given, tolerance)


@drawn(4)
@pytest.mark.skipif(library() is None, reason="there is no compiled library")
@pytest.mark.usefixtures("on_the_cpu")
@pytest.mark.parametrize("stock", [{}, {"max_len_b": 40, "no_repeat_ngram_size": 2}], ids=str)
@pytest.mark.parametrize("flags", COMPILED, ids=str)
def test_the_compiled_search(flags, stock):
    """Slots, the KV cache and its positions grow, and positions that no row needs are given up."""
    draw, given = random.Random(f"{flags}"), None
    of = [build("transformer", draw.randint(1, 9), torch.float32)]
    if "select" in flags:
        given = [
            SentenceConstraints(required_phrases([((WORD + draw.randrange(WORDS),),)] * n))
            for n in draw.choices(range(4), k=14)
        ]
    stock = {"beam": 4, "max_len_b": 12, **stock}
    interleaved(draw, lambda n: generators(of, flags, nbest=n, **stock).ours, given, 0.0, True)


def interleaved(
    draw: random.Random,
    generator: Callable[[int], Any],
    given: list[SentenceConstraints] | None,
    tolerance: float,
    is_compiled: bool = False,
) -> None:
    """Let sentences arrive at random, some of which are cancelled at random; compare the others.
    What is certain of a live sentence is so. generator: by the length of its n-best lists."""
    lengths = [draw.choice(LENGTHS[is_compiled:]) for _ in range(14)]
    sample = batch(lengths, draw.randint(1, 99))

    def alone(nbest: int):
        ours = generator(nbest)
        # one search, not a second one behind it
        ours.driver = ours.driver.search if isinstance(ours.driver, LengthRetry) else ours.driver
        return ours

    def some(numbers: list[int]) -> dict:
        """These sentences as a batch, padded on the left."""
        inputs = {name: value[numbers] for name, value in sample["net_input"].items()}
        inputs["src_tokens"] = inputs["src_tokens"][:, -int(inputs["src_lengths"][0]) :]
        out = {"id": torch.tensor(numbers), "nsentences": len(numbers), "net_input": inputs}
        return out | (
            {} if given is None else {"requests": requests_of([given[i] for i in numbers])}
        )

    ours, places = alone(1), draw.choice([1, 2, 4, 6])
    pool = OpenPool(places, ours.pad, torch.device("cpu"))
    search = CompiledSearch(ours.setup) if is_compiled else LoopSearch(ours.setup, pool)
    waiting, here, got = draw.sample(range(14), 14), {}, []
    while waiting or here:
        room = places - search.live
        if waiting and room and draw.random() < 0.6:
            # longest first
            numbers = sorted(waiting.pop() for _ in range(min(len(waiting), draw.randint(1, room))))
            pool = ours.pool(some(numbers))
            requests = [
                Entry(n, 1 if is_compiled else draw.randint(1, ours.setup.k), pool=pool, sentence=i)
                for i, n in enumerate(numbers)
            ]
            search.admit(requests)
            here |= {request: [] for request in requests}
            assert search.live == len(here)
        if here and draw.random() < 0.04:
            leaves, rows = draw.sample([*here], draw.randint(1, min(2, len(here)))), search.rows
            search.cancel(leaves)
            assert search.rows <= rows - len(leaves), "rows of cancelled sentences are free at once"
            for request in leaves:
                del here[request]
        for request in search.step(*[draw.choice([1, 1, 7])] * is_compiled):
            prefix, hypotheses = here.pop(request), search.take(request)
            if hypotheses is None:  # the compiled search leaves it to the loop
                continue
            answer = ours.answer(request.pool, request.sentence, hypotheses)
            nbest = [dictionary_of(h) for h in answer[: request.nbest]]
            got.append((request.number, nbest, prefix, request.nbest))
        for request, before in here.items():
            prefix = here[request] = search.common_prefix(request)
            assert prefix[: len(before)] == before, "what has been reported stays"
    assert search.live == 0 and search.rows == 0
    assert len(got) > 1
    # subtle: afterwards, as a generator that is made changes BART's model
    for number, found, prefix, nbest in got:
        [expected] = run(alone(nbest), some([number]))
        if tolerance == 1e-4:
            near_ties([expected[:nbest]], [found], tolerance)
        else:
            same([expected[:nbest]], [found], tolerance)
        assert found[0]["tokens"][: len(prefix)].tolist() == prefix


def test_certificates_are_those_of_the_sentence():
    stock = {"beam": 4, "max_len_b": 12, "unnormalized": True}
    ours = generators([build("transformer", 2)], {"stop": "optimal"}, **stock).ours
    pool, gaps = ours.pool(batch([5, 4, 3], 2)), []
    search = LoopSearch(ours.setup, OpenPool(3, 1, pool.length.device))
    search.admit([Entry(i, 1, pool=pool, sentence=i) for i in range(3)])
    while search.live:
        gaps += [search.take(request)[0].ending.gap for request in search.step()]
    run(ours, batch([5, 4, 3], 2))
    counted = ours.stats.as_dict()["certificates"]
    assert (gaps.count(0.0), 3 - gaps.count(0.0)) == (counted["proved"], counted["open"])
    assert all(gap is not None and gap >= 0 for gap in gaps)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [("", ""), ("12", "12"), ("123 12", "12"), ("31 32 311", "3"), ("1 2", ""), (" 4", "")],
)
def test_common_prefix(rows, expected):
    assert common_prefix([list(row) for row in rows.split(" ") if rows]) == list(expected)
