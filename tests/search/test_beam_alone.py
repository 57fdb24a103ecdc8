"""The compiled search (search/compiled.py) gives the loop's hypotheses to the last bit:
to a sentence that is alone, in one call (search/strategies/decoding/beam.py), and to
sentences that come and go."""

import functools
import os
import random

import pytest
import torch
from models import batch, build, generators, run, with_ties
from sizes import covering, drawn, part_of

from fairseq_ext.core.stats import Stats
from fairseq_ext.kernels.library import library
from fairseq_ext.search.compiled import CompiledSearch
from fairseq_ext.search.interpreted import LoopSearch
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.scheduler import BeamSearch, Request
from fairseq_ext.search.strategies.decoding.beam import beam_search
from fairseq_ext.search.strategies.select.topk import TopK
from fairseq_ext.search.strategies.stop.count import Count
from fairseq_ext.search.strategies.stop.first import First
from fairseq_ext.search.strategies.stop.ranked import Ranked
from fairseq_ext.search.strategies.stop.shrink import Shrink

pytestmark = [
    pytest.mark.skipif(library() is None, reason="there is no compiled library"),
    pytest.mark.usefixtures("on_the_cpu"),
]
CASES = int(os.environ.get("ONE_SENTENCE_CASES", "150"))  # 10,000 take some minutes
SEED = int(os.environ.get("ONE_SENTENCE_SEED", "3"))
PLAIN = {"tokens", "positional_scores"}
COUNTS = (
    "decoder_calls",
    "refills",
    "encoder_calls",
    "decoder_rows",
    "decoder_positions",
    "expansions",
    "target_tokens",
    "dropped_rows",
)
ENDINGS: list[dict] = [
    {},
    {"stop": "ranked"},
    {"stop": "first"},
    {"stop": "shrink"},
    {"stop": "optimal"},
    {"stop": "optimal", "prune_bound": True},
    {"stop": "optimal", "stop_expansion": "paper"},
]


@functools.cache
def model(architecture: str, seed: int):
    return build(architecture, seed, dtype=torch.float32)


def both(ours, sample: dict, calls: bool = True) -> tuple[list, list, bool]:
    """What the driver and the loop find, and whether the driver has found it in compiled code; then
    the counts of both must be equal. calls: those of calls, too."""
    driver, searched = ours.driver, []
    assert isinstance(driver, BeamSearch)
    before = ours.stats.copy()
    admit = LoopSearch.admit
    try:

        def watched(self, requests):
            searched.extend(requests)
            return admit(self, requests)

        LoopSearch.admit = watched  # type: ignore
        alone = run(ours, sample)
    finally:
        LoopSearch.admit = admit  # type: ignore[method-assign]
    counts, before = ours.stats.since(before), ours.stats.copy()
    try:
        ours.driver = functools.partial(beam_search, ours.setup)
        loop = run(ours, sample)
    finally:
        ours.driver = driver
    theirs = ours.stats.since(before)
    was_compiled = not searched
    for name in (COUNTS if calls else COUNTS[3:]) if was_compiled else ():
        assert getattr(counts, name) == getattr(theirs, name), name
    if was_compiled and hasattr(counts, "certificates"):
        some, others = counts.certificates, theirs.certificates
        assert (some.proved, some.open, counts.saved) == (others.proved, others.open, theirs.saved)
        # powers are rounded in two ways
        assert some.gap_mean.numerator == pytest.approx(others.gap_mean.numerator, abs=1e-9)
    return alone, loop, was_compiled


def equal_bits(alone: list, loop: list, nbest: int | None = None) -> None:
    """nbest: how many were requested, where the loop keeps others too (--stop optimal)."""
    for found, expected in zip(alone[0], loop[0][:nbest], strict=True):
        assert all(torch.equal(found[name], expected[name]) for name in PLAIN)
        assert float(found["score"]) == float(expected["score"])


def test_random_searches_give_the_loops_bits():
    draw, compiled = random.Random(SEED), 0
    # BART normalises its embeddings
    architectures = ["transformer", "transformer-pre-norm", "transformer-tied", "bart"]
    for case in range(CASES):
        if case % 10 == 0:
            generation = dict(
                beam=draw.choice([1, 1, 2, 3, 5, 8, 12]),
                max_len_b=draw.randint(3, 20),
                lenpen=draw.choice([0.0, 0.6, 1.0, 2.0]),
                unnormalized=draw.random() < 0.2,
                temperature=draw.choice([1.0, 1.0, 0.7, 1.9]),
                no_repeat_ngram_size=draw.choice([0, 0, 1, 2, 3]),
            )
            generation["min_len"] = draw.choice([1, 1, 0, draw.randint(1, generation["max_len_b"])])
            generation["nbest"] = draw.randint(1, generation["beam"])
            strategy = other_width(draw, generation["unnormalized"]) if case % 20 else {}
            ours = generators(
                [model(draw.choice(architectures), draw.randint(1, 9))],
                strategy=strategy,
                **generation,
            ).ours
        lengths = [draw.randint(1, 12) for _ in range(draw.choice([1, 1, 2, 5]))]
        alone, loop, was_compiled = both(ours, batch(lengths, seed=case))
        for found, expected in zip(alone, loop, strict=True):
            equal_bits(
                [found],
                [expected],
                generation["nbest"] if strategy.get("stop") == "optimal" else None,
            )
        compiled += was_compiled
    # the widest beams want more continuations than the small vocabulary has
    assert compiled > 0.7 * CASES


@pytest.mark.parametrize("ending", ENDINGS, ids=str)
def test_equal_scores_have_the_loops_order(ending):
    for seed in range(4):
        model = with_ties(build("transformer", seed, torch.float32), read_alike=True)
        ours = generators([model], ending, beam=4, nbest=1 + seed % 4, max_len_b=12).ours
        alone, loop, _ = both(ours, batch([1, 5, 9], seed))
        for found, expected in zip(alone, loop, strict=True):
            equal_bits([found], [expected[: len(found)]])
            assert found


def other_width(draw: random.Random, unnormalized: bool) -> dict:
    """A stopping criterion, and what prunes next to it."""
    strategy = dict(draw.choice(ENDINGS))
    if draw.random() < 0.5:
        strategy["prune_threshold"] = draw.choice([0.0, 0.5, 2.5, 10.0])
    if draw.random() < 0.3:
        strategy["prune_children"] = draw.choice([1, 2, 3])
    if draw.random() < 0.3:
        strategy["prune_finished"] = draw.choice([1.0, 20.0])
    if unnormalized and draw.random() < 0.7:
        strategy |= {
            "length_reward": draw.choice([0.3, 1.2]),
            "length_ratio": draw.choice([0.7, 1.0]),
        }
        strategy["length_offset"] = draw.choice([0.0, 2.5])
    return strategy


VARIABLE = [
    {"stop": "ranked", "prune_threshold": 2.5, "prune_children": 3},
    {"stop": "optimal", "prune_bound": True},
]


@drawn(1)
@pytest.mark.parametrize("strategy", [{}, {"int8": True}, {"stop": "ranked"}, *VARIABLE], ids=str)
def test_sentences_that_come_and_go_get_the_loops_bits(strategy):
    """Some are cancelled; slots, the KV cache and its positions grow, and positions that no row
    needs are given up. What is certain of a live sentence is so."""
    draw, ended, unsuitable = random.Random(SEED), 0, 0
    for turn in part_of(12, 6):
        architecture = draw.choice(["transformer", "transformer-pre-norm", "bart"])
        settings = dict(
            beam=draw.choice([1, 2, 5]),
            max_len_b=draw.choice([10, 40]),
            no_repeat_ngram_size=draw.choice([0, 2]),
        )
        ours = generators(
            [model(architecture, draw.randint(1, 9))], strategy=strategy, **settings
        ).ours
        ours.driver = functools.partial(beam_search, ours.setup)
        search, expected, waiting, steps = CompiledSearch(ours.setup), {}, list(range(15)), []
        most = draw.choice([2, 5])
        reported: dict[Request, list[int]] = {}  # its latest common prefix
        while waiting or expected:
            room = min(most - search.live, len(waiting), draw.choice([0, 1, 3]))
            if room:
                samples = [
                    batch([draw.randint(1, 12)], seed=100 * turn + waiting.pop(0))
                    for _ in range(room)
                ]
                pool = make_pool(
                    [sample["net_input"]["src_tokens"][0] for sample in samples],
                    ours,
                    settings["max_len_b"],
                )
                requests = [
                    Request(i, ours.setup.nbest, pool=pool, sentence=i) for i in range(room)
                ]
                search.admit(requests)
                for place, sample in zip(requests, samples, strict=True):
                    expected[place], reported[place] = sample, []
            for place in search.step(draw.choice([1, 1, 7])):
                found, sample = search.take(place), expected.pop(place)
                if found is None:
                    unsuitable += 1
                    continue
                ended += 1
                assert found[0].tokens[: len(reported[place])].tolist() == reported[place]
                for h, e in zip(found, run(ours, sample)[0][: len(found)], strict=True):
                    assert torch.equal(h.tokens, e["tokens"]) and torch.equal(
                        h.positional_scores, e["positional_scores"]
                    )
                    assert h.score == float(e["score"])
            if expected and draw.random() < 0.05:
                place = draw.choice(list(expected))
                search.cancel([place])
                del expected[place]
            reported = {place: search.common_prefix(place) for place in expected}
            steps.append(len(expected))
        assert max(steps) > 1 and search.live == 0 and search.reader is None
    assert ended > len(part_of(100, 50)) and ended > 5 * unsuitable


def make_pool(sources: list[torch.Tensor], ours, limit: int) -> Pool:
    """Sentences as a batch of them is padded."""
    rows = torch.nn.utils.rnn.pad_sequence(
        sources, batch_first=True, padding_value=ours.pad, padding_side="left"
    )
    length = rows.ne(ours.pad).sum(1)
    inputs, ids = {"src_tokens": rows, "src_lengths": length}, torch.arange(len(rows))
    return Pool(inputs, length, [limit] * len(rows), ids, bos=ours.eos, pad=ours.pad)


def test_int8_gives_the_loops_bits():
    ours = generators([model("transformer", 4)], strategy={"int8": True}, beam=4, max_len_b=15).ours
    for seed in range(5):
        alone, loop, was_compiled = both(ours, batch([7], seed=seed))
        equal_bits(alone, loop)
        assert was_compiled


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("ending", [*ENDINGS, {"prune_threshold": 2.0}], ids=str)
def test_lists_of_words_give_the_loops_bits(ending, int8, tmp_path):
    """Lists of a few of the vocabulary's words, and of most of them."""
    table = tmp_path / "table"
    table.write_text("".join(f"w{i} w{j * i % 60} 0.5\n" for i in range(60) for j in (2, 3)))
    compiled, draw = 0, random.Random(SEED)
    for seed in range(6):
        lists = {"softmax": "lexical", "shortlist_file": str(table), "shortlist_top": 10}
        if seed % 3 == 0:
            lists = {"softmax": "top", "shortlist_top": draw.choice([14, 45])}
        ours = generators(
            [build("transformer", 1 + seed, words=60, dtype=torch.float32)],
            strategy={**ending, **lists, "int8": int8}
            | {"shortlist_share": "sentence", "shortlist_recall_every": 5},
            words=60,
            beam=draw.choice([1, 3, 4]),
            max_len_b=12,
            temperature=draw.choice([1.0, 0.7]),
            no_repeat_ngram_size=draw.choice([0, 1, 2]),
            min_len=draw.choice([1, 3]),
        ).ours
        lengths = [draw.randint(2, 12) for _ in range(draw.choice([1, 3, 8]))]
        alone, loop, was_compiled = both(ours, batch(lengths, words=60, seed=seed))
        for found, expected in zip(alone, loop, strict=True):
            equal_bits([found], [expected], 1 if ending.get("stop") == "optimal" else None)
        compiled += was_compiled
    assert compiled > 3


@pytest.mark.parametrize("prune", [False, True])
def test_a_reward_for_every_token_up_to_the_limit_gives_the_loops_bits(prune):
    """What a live hypothesis can still get counts </s>, which comes behind the last word."""
    late = 0
    for seed in part_of(200, 20):
        reward = {"length_reward": 1.5, "length_ratio": 3.0, "stop": "optimal"}
        ours = generators(
            [model("transformer", 1 + seed % 9)],
            strategy=reward | {"prune_bound": prune},
            beam=2 + seed % 3,
            max_len_b=3 + seed % 4,
            unnormalized=True,
        ).ours
        alone, loop, was_compiled = both(ours, batch([9], seed=seed))
        equal_bits(alone, loop, 1)
        late += len(loop[0][0]["tokens"]) == 4 + seed % 4
        assert was_compiled
    assert late > 5


FLAGS: list[dict] = [{"patience": 2}, {"decoder_backend": "fairseq"}, {"softmax": "screened"}]
UNBOUNDED = ({"length_reward": 0.5, "length_reward_unbounded": True}, {"unnormalized": True})
OTHERS = [(flags, {}) for flags in FLAGS] + [
    ({}, {"unkpen": 0.5}),
    ({"stop": "optimal"}, {"lenpen": -0.5}),
    UNBOUNDED,
]


@pytest.mark.parametrize(("strategy", "generation"), OTHERS, ids=str)
def test_other_searches_go_through_the_loop(strategy, generation):
    ours = generators(
        [model("transformer", 1)], strategy=strategy, beam=3, max_len_b=8, **generation
    ).ours
    sample = batch([5])
    run(ours, sample)
    before = ours.stats.copy()
    alone, loop, was_compiled = both(ours, sample)
    assert not was_compiled
    equal_bits(alone, loop)
    assert ours.stats.since(before).sentences == 2


@covering(1)
@pytest.mark.parametrize("width", [2, 5])
@pytest.mark.parametrize("order", ["fifo", "shortest"])
@pytest.mark.parametrize("ending", [{}, *VARIABLE], ids=str)
def test_streams_give_the_loops_bits_in_the_same_calls(order, width, ending):
    strategy = {
        "schedule": "stream",
        "stream_order": order,
        "stream_width": width,
        "refill_threshold": 0.5,
        **ending,
    }
    draw, compiled = random.Random(SEED), 0
    for seed in (seeds := part_of(8, 2)):
        ours = generators(
            [model("transformer", draw.randint(1, 9))],
            strategy=strategy,
            beam=draw.choice([1, 3]),
            max_len_b=12,
        ).ours
        found, expected, was_compiled = both(
            ours, batch([draw.randint(1, 12) for _ in range(9)], seed=seed)
        )
        for some, others in zip(found, expected, strict=True):
            equal_bits([some], [others], 1 if ending.get("stop") == "optimal" else None)
        compiled += was_compiled
        assert ours.stats.refills
    assert compiled > len(seeds) / 2


@covering(1)
@pytest.mark.parametrize("order", ["fifo", "shortest"])
@pytest.mark.parametrize("ending", [{}, *VARIABLE], ids=str)
def test_a_limit_on_rows_holds_and_changes_no_result(order, ending, monkeypatch):
    strategy = {
        "schedule": "stream",
        "stream_order": order,
        "stream_rows": 10,
        "refill_threshold": 0.6,
        **ending,
    }
    count, widest = Stats.count_steps, []
    monkeypatch.setattr(
        Stats,
        "count_steps",
        lambda self, calls, rows: widest.append(rows / calls) or count(self, calls, rows),
    )
    draw, compiled = random.Random(SEED), 0
    for seed in (seeds := part_of(8, 2)):
        ours = generators(
            [model("transformer", draw.randint(1, 9))], strategy=strategy, beam=4, max_len_b=12
        ).ours
        found, expected, was_compiled = both(
            ours, batch([draw.randint(1, 12) for _ in range(9)], seed=seed), calls=False
        )
        for some, others in zip(found, expected, strict=True):
            equal_bits([some], [others], 1 if ending.get("stop") == "optimal" else None)
        compiled += was_compiled
    assert compiled > len(seeds) / 2 and 7 < max(widest) <= 10


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [(TopK, (5,)), (Count, (2,)), (First, (2,)), (Shrink, (5, 2)), (Ranked, (5, 2))],
    ids=str,
)
def test_who_derives_from_a_strategy_is_called_itself(kind, arguments):
    derived = type("Mine", (kind,), {"__call__": kind.__call__})
    assert kind(*arguments).rules is not None and derived(*arguments).rules is None


def test_ensembles_go_through_the_loop():
    ours = generators([model("transformer", 1), model("transformer", 2)], beam=3, max_len_b=8).ours
    run(ours, batch([5]))
    assert not both(ours, batch([5]))[2]


def test_sentences_that_the_compiled_search_cannot_decode_are_left_to_the_loop(monkeypatch):
    ours, taken = generators([model("transformer", 1)], beam=3, max_len_b=12).ours, []
    take = CompiledSearch.take

    def every_second(self: CompiledSearch, request: Request) -> list | None:
        taken.append(request)
        return take(self, request) if len(taken) % 2 else self.cancel([request])

    monkeypatch.setattr(CompiledSearch, "take", every_second)
    sample = batch([9, 7, 5, 3, 2])
    found, expected, was_compiled = both(ours, sample)
    assert not was_compiled and len(taken) == 5
    for some, others in zip(found, expected, strict=True):
        equal_bits([some], [others])


def test_nan_is_reported_as_by_the_loop():
    poisoned = build("transformer", 5, dtype=torch.float32)
    ours = generators([poisoned], beam=3, max_len_b=8).ours
    with torch.no_grad():
        poisoned.decoder.layers[0].final_layer_norm.weight[0] = float("nan")
    with pytest.raises(FloatingPointError, match="the model gives NaN at target position 0 of "):
        run(ours, batch([5]))
