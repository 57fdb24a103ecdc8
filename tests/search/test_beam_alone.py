"""A sentence that is alone is searched in one compiled call, and gets the loop's hypotheses to the last bit (search/driver.py)."""

import functools
import os
import random

import pytest
import torch
from models import batch, build, generators, run, same

from fairseq_ext.kernels.library import library
from fairseq_ext.search.driver import BeamSearch
from fairseq_ext.search.loop import beam_search

pytestmark = pytest.mark.skipif(library() is None, reason="there is no compiled library")
CASES = int(os.environ.get("ONE_SENTENCE_CASES", "300"))  # 10,000 take some minutes
SEED = int(os.environ.get("ONE_SENTENCE_SEED", "3"))
PLAIN = {"tokens", "positional_scores"}


@functools.cache
def model(architecture: str, seed: int):
    return build(architecture, seed, dtype=torch.float32)


def both(ours, sample: dict) -> tuple[list, list, bool]:
    """What the driver and the loop find, and whether the driver has found it in compiled code; the counts of both must be equal."""
    driver, searched = ours.driver, []
    assert isinstance(driver, BeamSearch)
    search = driver.search
    driver.search = lambda *arguments: searched.append(search(*arguments)) or searched[-1]
    before = ours.stats.copy()
    alone = run(ours, sample)
    counts, before = ours.stats.since(before), ours.stats.copy()
    try:
        ours.driver = functools.partial(beam_search, ours.setup)
        loop = run(ours, sample)
    finally:
        ours.driver = driver
        driver.search = search
    theirs = ours.stats.since(before)
    for name in ("encoder_calls", "decoder_calls", "decoder_rows", "decoder_positions", "expansions", "target_tokens"):
        assert getattr(counts, name) == getattr(theirs, name), name
    return alone, loop, bool(searched) and searched[-1] is not None


def equal_bits(alone: list, loop: list) -> None:
    for found, expected in zip(alone[0], loop[0], strict=True):
        assert all(torch.equal(found[name], expected[name]) for name in PLAIN)
        assert float(found["score"]) == float(expected["score"])


def test_random_searches_give_the_loops_bits():
    draw, compiled = random.Random(SEED), 0
    architectures = ["transformer", "transformer-pre-norm", "transformer-tied", "bart"]  # BART normalises its embeddings
    for case in range(CASES):
        if case % 10 == 0:
            generation = dict(
                beam=draw.choice([1, 1, 2, 3, 5, 8, 12]), max_len_b=draw.randint(3, 20), lenpen=draw.choice([0.0, 0.6, 1.0, 2.0]),
                unnormalized=draw.random() < 0.2, temperature=draw.choice([1.0, 1.0, 0.7, 1.9]),
                no_repeat_ngram_size=draw.choice([0, 0, 1, 2, 3]),
            )  # fmt: skip
            generation["min_len"] = draw.choice([1, 1, 0, draw.randint(1, generation["max_len_b"])])
            generation["nbest"] = draw.randint(1, generation["beam"])
            ours = generators([model(draw.choice(architectures), draw.randint(1, 9))], **generation).ours
        alone, loop, was_compiled = both(ours, batch([draw.randint(1, 12)], seed=case))
        equal_bits(alone, loop)
        compiled += was_compiled
    assert compiled > 0.7 * CASES  # the widest beams want more continuations than the small vocabulary has


@pytest.mark.parametrize("beam", [1, 5])
@pytest.mark.parametrize("length", [1, 9])
def test_a_sentence_alone_gets_stocks_hypotheses(beam, length):
    pair = generators([model("transformer", 2)], beam=beam, max_len_b=20)
    for seed in range(5):
        sample = batch([length], seed=seed)
        same(run(pair.stock, sample), run(pair.ours, sample), 1e-4)


def test_int8_gives_the_loops_bits():
    ours = generators([model("transformer", 4)], strategy={"int8": True}, beam=4, max_len_b=15).ours
    for seed in range(5):
        alone, loop, was_compiled = both(ours, batch([7], seed=seed))
        equal_bits(alone, loop)
        assert was_compiled


FLAGS: list[dict] = [
    {"stop": "first"}, {"patience": 2}, {"prune_threshold": 5.0}, {"prune_children": 2}, {"schedule": "stream"},
    {"decoder_backend": "fairseq"}, {"softmax": "screened"},
]  # fmt: skip
OTHERS = [(flags, {}) for flags in FLAGS] + [({}, {"unkpen": 0.5})]


@pytest.mark.parametrize(("strategy", "generation"), OTHERS, ids=str)
def test_other_searches_go_through_the_loop(strategy, generation):
    ours = generators([model("transformer", 1)], strategy=strategy, beam=3, max_len_b=8, **generation).ours
    sample = batch([5])
    run(ours, sample)
    before = ours.stats.copy()
    alone, loop, was_compiled = both(ours, sample)
    assert not was_compiled
    equal_bits(alone, loop)
    assert ours.stats.since(before).sentences == 2


def test_several_sentences_and_ensembles_go_through_the_loop():
    for models, lengths in (([model("transformer", 1)], [5, 3]), ([model("transformer", 1), model("transformer", 2)], [5])):
        ours = generators(models, beam=3, max_len_b=8).ours
        run(ours, batch(lengths))
        assert not both(ours, batch(lengths))[2]


def test_nan_is_told_as_by_the_loop():
    poisoned = build("transformer", 5, dtype=torch.float32)
    ours = generators([poisoned], beam=3, max_len_b=8).ours
    with torch.no_grad():
        poisoned.decoder.layers[0].final_layer_norm.weight[0] = float("nan")
    with pytest.raises(FloatingPointError, match="the model gives NaN at target position 0 of "):
        run(ours, batch([5]))
