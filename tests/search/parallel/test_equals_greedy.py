"""Decoding by blocks gives greedy's output: tokens, scores and positional scores of stock fairseq
at --beam 1, whatever the method, the block, the draft and the batch.
"""

import itertools
import random

import numpy as np
import pytest
import torch
from models import WORDS, batch, build, generators, run, same, with_ties
from parallel_decoding import LENGTHS, METHODS, blocks, counts, drafts
from sizes import covering, drawn, part_of
from test_neutral import GRID, MASKED_IN_FLOAT32, arguments_of

from fairseq_ext.kernels.library import library
from fairseq_ext.kernels.parallel import CompiledRow
from fairseq_ext.search.parallel import driver


def drawn_flags(chance, method: str, folder, n: int = 1) -> tuple[dict, dict]:
    """Random flags for n sentences: ours and stock's."""
    flags = blocks(method, draft=chance.choice(["auto", "none", "pad", "repeat"]))
    if method != "jacobi":
        flags["block_size"] = chance.choice([1, 2, 3, 7, 60])
    if method in ("jacobi", "hybrid-jacobi"):
        flags["parallel_length"] = chance.choice([0, 1, 4, 50])
    if method == "window":
        flags["draft_cost"] = chance.choice([0.0, 0.05, 0.3])
    if chance.random() < 0.4:
        lengths = [chance.randint(0, chance.choice([9, 40])) for _ in range(n)]
        lines = [[chance.randrange(4, 25) for _ in range(length)] for length in lengths]
        flags["draft_file"] = drafts(folder, lines)
    longest, raw = chance.choice([1, 3, 20, 50]), chance.random() < 0.5
    min_len = 3 if longest >= 3 and chance.random() < 0.5 else 1
    return flags, {"beam": 1, "max_len_b": longest, "min_len": min_len, "unnormalized": raw}


# a row that is alone is compiled; in single precision on a CPU, the decoder with it
WAYS: dict[str, dict] = {
    "alone": {},
    "batch": {},
    "fairseq's modules": {"decoder_backend": "fairseq"},
    "stream": {"schedule": "stream"},
}


@covering(2)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_equals_greedy_for_random_models_drafts_and_blocks(
    method, way, dtype, tmp_path
):
    """In a stream new sentences join rows that are longer, at every share of the width that is
    left."""
    chance, refills = random.Random(f"{method} {way} {dtype}"), 0
    for seed in part_of(12, 6):
        n = 1 if way == "alone" else chance.randint(2, 9)
        flags, generation = drawn_flags(chance, method, tmp_path, n)
        flags |= WAYS[way]
        if way == "stream":
            flags["stream_width"] = chance.choice([1, 2, 3])
            flags["refill_threshold"] = chance.choice([0.1, 0.5, 0.7])
        name = chance.choice(["transformer", "transformer-pre-norm", "transformer-tied", "bart"])
        pair = generators([build(name, seed, dtype, eos=0.5)], flags, **generation)
        sample = batch([chance.choice(LENGTHS) for _ in range(n)], seed)
        tolerance = 1e-9 if dtype == torch.float64 else 1e-4
        same(run(pair.stock, sample), run(pair.ours, sample), tolerance)
        stats = pair.ours.stats
        if way == "stream":
            refills += stats.refills
            assert stats.refills == stats.encoder_calls - 1 and stats.sentences == n
            assert stats.decoder_rows <= stats.decoder_calls * max(1, flags["stream_width"])
    assert way != "stream" or refills >= 6


def test_a_stream_fills_up_before_a_sentence_has_finished():
    """At a threshold of 0.75 a quarter of the width starts at a time, and goes on starting until
    three quarters are live."""
    flags = blocks("window", draft="none", schedule="stream", stream_width=4, refill_threshold=0.75)
    pair = generators([build("transformer")], flags, beam=1, min_len=20, max_len_b=20)
    sample = batch([5] * 8, 1)
    same(run(pair.stock, sample), run(pair.ours, sample))
    stats = pair.ours.stats
    assert stats.decoder_rows == 8 * 21, "no sentence ends before the limit"
    assert stats.decoder_calls <= 2 * 21 + 3 * 2, (
        "two times four sentences, each one call behind the last"
    )


OF_GRID = [
    name
    for name, case in GRID.items()
    if "lm_weight" not in case and case["flags"]["beam"] in (3, 4, 5)
]


@drawn(8)
@pytest.mark.parametrize("method", ["gs-jacobi", "window"])
@pytest.mark.parametrize("name", OF_GRID)
def test_stock_flags_mean_the_same(name, method):
    """Every architecture, ensembles, limits, prefixes, penalties and normalisations of
    test_neutral.py, at --beam 1."""
    case = GRID[name]
    names, arguments = case["models"], arguments_of(case)
    models = [build(each, seed=i + 1) for i, each in enumerate(names)]
    flags = {"max_len_b": 20} | case["flags"] | {"beam": 1}
    pair, sample = generators(models, blocks(method, block_size=4), **flags), batch(case["lengths"])
    tolerance = 1e-5 if set(names) & set(MASKED_IN_FLOAT32) else 1e-9
    same(run(pair.stock, sample, **arguments), run(pair.ours, sample, **arguments), tolerance)


@drawn(3)
@pytest.mark.parametrize("method, n", list(itertools.product(METHODS, (1, 2, 3))))
def test_repeated_ngrams_are_blocked_as_in_our_beam_search(method, n):
    """Stock 0.12.2 ignores the flag, so the beam search of this package is the reference;
    test_neutral.py proves that one."""
    sample, changed = batch(LENGTHS), 0
    for seed in range(3):
        models = [build("transformer", seed, eos=0.5)]

        def found(flags=None, n=n, models=models):
            how = {"beam": 1, "max_len_b": 20, "no_repeat_ngram_size": n}
            return run(generators(models, flags, **how).ours, sample)

        expected = found()
        same(expected, found(blocks(method)))
        changed += any(
            a[0]["tokens"].tolist() != b[0]["tokens"].tolist()
            for a, b in zip(found(n=0), expected, strict=True)
        )
    assert changed


@drawn(1)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_equals_one_token_at_a_time(dtype):
    """One sentence at a time: in a batch whose rows stand at different lengths the one-token path
    rounds differently itself."""
    redone = 0
    for seed in part_of(5, 3):
        models, sample = [build("transformer", seed, dtype)], batch([LENGTHS[seed]], seed)
        single = generators(models, blocks("window", block_size=1), beam=1, max_len_b=20).ours
        expected = run(single, sample)
        for method in METHODS:
            ours = generators(models, blocks(method), beam=1, max_len_b=20).ours
            tokens = [
                [h[0]["tokens"].tolist() for h in each] for each in (run(ours, sample), expected)
            ]
            assert tokens[0] == tokens[1]
            guard = counts(ours)["guard"]
            assert guard["checked"] >= guard["redone"]
            assert guard["rate"] == guard["redone"] / max(guard["checked"], 1)
            redone += guard["redone"]
    assert redone


def test_a_margin_that_nothing_reaches_reads_every_token_alone():
    models, sample = [build("transformer")], batch(LENGTHS)
    pair = generators(models, blocks("gs-jacobi", parallel_margin=1e6), beam=1, max_len_b=20)
    same(run(pair.stock, sample), run(pair.ours, sample))
    assert counts(pair.ours)["guard"]["redone"] > 0


# ---- a sentence that is alone: the calls of the definition


@drawn(2)
@pytest.mark.usefixtures("on_the_cpu")
@pytest.mark.skipif(library() is None, reason="no compiler")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("method", METHODS)
def test_the_compiled_row_makes_the_calls_of_the_definition(method, dtype, tmp_path, monkeypatch):
    """Every draft, every output with its score, and every verified length, over several sentences
    that share what the method has learnt. Without a trace the compiled way computes
    log-probabilities of what is kept alone: the same."""
    chance, offered, compiled = random.Random(f"twin {method} {dtype}"), 0, [0, 0]

    def counted(kind, function):
        def inner(*arguments):
            compiled[kind] += 1
            return function(*arguments)

        return inner

    for kind, name in enumerate(("commit", "call")):
        monkeypatch.setattr(CompiledRow, name, counted(kind, getattr(CompiledRow, name)))
    for seed in part_of(15, 8):
        flags, generation = drawn_flags(chance, method, tmp_path)
        generation["no_repeat_ngram_size"] = chance.choice([0, 0, 1, 2, 3])
        if chance.random() < 0.3:
            flags["parallel_margin"] = chance.choice([0.05, 0.5])
        # BART normalises its embeddings
        name = chance.choice(["transformer", "transformer-pre-norm", "bart"])
        words = 150 if seed % 2 else WORDS  # more than the compiled row looks at in one go
        model, found = build(name, seed, dtype, words=words, eos=0.5), []
        samples = [batch([chance.choice(LENGTHS)], seed + i, words=words) for i in range(3)]
        for twin in (True, False):
            ours, calls = generators([model], flags, words=words, **generation).ours, []
            ours.driver.trace = calls.append
            with monkeypatch.context() as patch:
                if not twin:
                    patch.setattr(driver, "library", lambda: None)
                before = list(compiled)
                hypotheses = [run(ours, sample) for sample in samples]
                assert (compiled != before) == twin
                assert (compiled[1] > before[1]) == (
                    twin and dtype == torch.float32 and not flags.get("parallel_margin")
                ), name
            found.append((hypotheses, calls, counts(ours)))
        (a, calls, count), (b, expected, expected_count) = found
        for x, y in zip(a, b, strict=True):
            same(y, x, 1e-12 if dtype == torch.float64 else 1e-4)
        one, other = (
            [(c.length, c.draft.tolist(), c.out.tolist(), c.verified) for c in of]
            for of in (calls, expected)
        )
        assert one == other
        for c, like in zip(calls, expected, strict=True):
            np.testing.assert_allclose(c.score, like.score, atol=1e-4)
        untraced = generators([model], flags, words=words, **generation).ours
        for hypotheses, sample in zip(a, samples, strict=True):
            same(hypotheses, run(untraced, sample), 0.0)
        assert count == expected_count
        offered += count["drafts_offered"]
    assert offered > 30
    assert compiled[0] and (compiled[1] > 0) == (dtype == torch.float32)


@pytest.mark.parametrize("method", METHODS)
def test_of_equal_words_the_first_is_chosen(method):
    for seed in range(4):
        model = with_ties(build("transformer", seed, torch.float32, words=60, eos=0.5))
        ours = generators([model], blocks(method), words=60, beam=1, max_len_b=20).ours
        [[found]] = run(ours, batch([7], seed, words=60))
        assert all(token % 2 == 0 or token < 4 for token in found["tokens"].tolist())
