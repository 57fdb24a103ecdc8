"""Sentences that come and go while the loop or the compiled search runs: each gets what the search
gives it alone, whatever is next to it."""

import random

import pytest
import torch
from models import (
    MASKED_IN_FLOAT32,
    batch,
    build,
    dictionary,
    generators,
    requests_of,
    run,
    same,
)
from required_phrases import prefix_of, required_phrases
from sizes import drawn

from fairseq_ext.kernels.library import library
from fairseq_ext.plugin.pools import dictionary_of
from fairseq_ext.search.compiled import CompiledSearch
from fairseq_ext.search.interpreted import LoopSearch, OpenPool
from fairseq_ext.search.phrases.sentence import EMPTY, SentenceConstraints
from fairseq_ext.search.scheduler import Entry, common_prefix
from fairseq_ext.search.strategies.stop.early import LengthRetry

WORD, LAST = dictionary().nspecial, len(dictionary()) - 1
LENGTHS = [0, 1, 2, 3, 4, 5, 7, 9]
PRUNED = {"prune_threshold": 1.0, "prune_children": 3}
STREAM = {"schedule": "stream", "stream_order": "fifo"}
RAW, DBA = {"unnormalized": True}, {"select": "dba"}


def phrases(draw: random.Random, most: int) -> list[tuple[int, ...]]:
    return [
        tuple(draw.randint(WORD, LAST) for _ in range(draw.choice([1, 1, 2, 3])))
        for _ in range(draw.randint(0, most))
    ]


def constraints(draw: random.Random, most: int, without: float, only: bool) -> SentenceConstraints:
    """Phrases with and without alternatives, avoided phrases and a prefix, or nothing at all.
    only: phrases, and at least one."""
    if draw.random() < without:
        return EMPTY
    any_of = [(phrase, *phrases(draw, 1)) for phrase in phrases(draw, most)]
    if only:
        any_of = any_of or [((WORD,),)]
        return SentenceConstraints(required_phrases(any_of, map(str, any_of)))
    words = {token for alternatives in any_of for phrase in alternatives for token in phrase}
    avoid = tuple(p for p in dict.fromkeys(phrases(draw, 2)) if p[0] not in words)
    prefix = tuple(draw.randint(WORD, LAST) for _ in range(draw.choice([0, 0, 1, 2])))
    prefix = () if any(set(p) & set(prefix) for p in avoid) else prefix
    return SentenceConstraints(
        required_phrases(any_of, map(str, any_of)),
        banned={each: str(each) for each in avoid},
        prefix=prefix_of(prefix),
    )


# flags of ours, of fairseq's; how many sentences have no constraints
LOOP: list[tuple[dict, dict, float]] = [
    *(
        (flags, {}, 0)
        for flags in (
            {},
            {"stop": "shrink"},
            {"stop": "ranked"},
            {"stop": "first"},
            {"patience": 2},
            PRUNED,
            PRUNED | {"stop": "ranked"},
            STREAM,
            STREAM | {"stream_rows": 7},
            {"softmax": "top", "shortlist_top": 12, "shortlist_share": "sentence"},
        )
    ),
    ({}, {"beam": 1}, 0),
    ({}, {"no_repeat_ngram_size": 2, "min_len": 3}, 0),
    ({"stop": "optimal", "prune_bound": True}, RAW, 0),
    ({"stop": "optimal", "length_reward": 0.4}, RAW, 0),
    *(
        (DBA | flags, stock, without)
        # 0.85: while no sentence has constraints, the plug of plain search selects; the other one
        # takes over live rows, and gives them back
        for without in (0.3, 0.85)
        for flags, stock in (
            ({}, {}),
            ({}, {"constraints": "ordered"}),
            ({"schedule": "stream", "stream_order": "shortest"}, {}),
            ({"stop": "optimal"}, {}),
            ({"prune_threshold": 2.0}, {}),
            ({"prune_finished": 1.0}, {}),
            ({"prune_children": 2, "stop": "count"}, {}),
            ({"select": "gbs", "gbs_base": 2}, {}),
            ({"select": "cbs", "stop": "count"}, {}),
        )
    ),
]
COMPILED = [
    *({}, {"int8": True}, {"stop": "ranked"}, {"stop": "optimal", "prune_bound": True}),
    {"stop": "ranked", "prune_threshold": 2.5, "prune_children": 3},
    *(DBA, STREAM | {"stream_rows": 9}),
]


@drawn(8)
@pytest.mark.parametrize(("flags", "stock", "without"), LOOP, ids=str)
def test_each_gets_what_it_gets_alone(flags, stock, without):
    interleaved(f"{flags} {stock}", "transformer", flags, stock, without)


@drawn(4)
@pytest.mark.parametrize("flags", [{}, {"decoder_backend": "fairseq"}, DBA], ids=str)
@pytest.mark.parametrize(
    "architecture", ["transformer, float32", "lstm", "fconv", "bart", "transformer-tied"]
)
def test_each_architecture(architecture, flags):
    """In float32 rows lie in shared slots of one store."""
    interleaved(architecture, architecture, flags, {}, 0.3)


@drawn(4)
@pytest.mark.skipif(library() is None, reason="there is no compiled library")
@pytest.mark.usefixtures("on_the_cpu")
@pytest.mark.parametrize("stock", [{}, {"max_len_b": 40, "no_repeat_ngram_size": 2}], ids=str)
@pytest.mark.parametrize("flags", COMPILED, ids=str)
def test_the_compiled_search(flags, stock):
    """Slots, the KV cache and its positions grow, and positions that no row needs are given up."""
    interleaved(f"{flags}", "transformer, float32", flags, stock, 0.3, is_compiled=True)


def interleaved(
    seed: str, architecture: str, flags: dict, stock: dict, without: float, is_compiled=False
) -> None:
    """Let sentences arrive at random, some of which are cancelled at random; compare the others.
    What is certain of a live sentence is so."""
    draw, (name, *single) = random.Random(seed), architecture.split(", ")
    model = build(name, draw.randint(1, 9), torch.float32 if single else torch.float64)
    lengths = [draw.choice(LENGTHS[is_compiled:]) for _ in range(14)]
    sample, given = batch(lengths, draw.randint(1, 99)), None
    if "select" in flags:
        most = 2 if flags["select"] == "cbs" else 3
        given = [constraints(draw, most, without, is_compiled) for _ in lengths]

    def made(nbest: int):
        search = {"beam": 4, "max_len_b": 12, "nbest": nbest, **stock}
        ours = generators([model], flags, **search).ours
        # one search, not a second one behind it
        ours.driver = ours.driver.search if isinstance(ours.driver, LengthRetry) else ours.driver
        return ours

    def some(numbers: list[int]) -> dict:
        """These sentences as a batch, padded on the left."""
        inputs, longest = sample["net_input"], int(sample["net_input"]["src_lengths"][numbers[0]])
        out = {
            "id": torch.tensor(numbers),
            "nsentences": len(numbers),
            "net_input": {
                "src_tokens": inputs["src_tokens"][numbers][:, -longest:],
                "src_lengths": inputs["src_lengths"][numbers],
            },
        }
        if given is not None:
            out["requests"] = requests_of([given[i] for i in numbers])
        return out

    ours, places = made(1), draw.choice([1, 2, 4, 6])
    search = (
        CompiledSearch(ours.setup)
        if is_compiled
        else LoopSearch(ours.setup, OpenPool(places, ours.pad, torch.device("cpu")))
    )
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
    tolerance = 1e-4 if single else 1e-5 if name in MASKED_IN_FLOAT32 else 1e-9
    # subtle: afterwards, as a generator that is made changes BART's model
    for number, found, prefix, nbest in got:
        [expected] = run(made(nbest), some([number]))
        same([expected[:nbest]], [found], 0.0 if is_compiled else tolerance)
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
    [
        ([], []),
        ([[1, 2]], [1, 2]),
        ([[1, 2, 3], [1, 2]], [1, 2]),
        ([[3, 1], [3, 2], [3, 1, 1]], [3]),
        ([[1], [2]], []),
        ([[], [4]], []),
    ],
)
def test_common_prefix(rows, expected):
    assert common_prefix(rows) == expected
