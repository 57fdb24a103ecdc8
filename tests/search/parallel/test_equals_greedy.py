"""Decoding by blocks gives greedy's output: tokens, scores and positional scores of stock fairseq
at --beam 1, whatever the method, the block, the draft and the batch.
"""

import itertools
import random

import models
import numpy as np
import pytest
import torch
from models import WORDS, batch, build, generators, run, same, with_ties
from parallel_decoding import EOS, LENGTHS, METHODS, PAD, blocks, counts, drafts
from sizes import covering, drawn, part_of
from test_neutral import GRID, MASKED_IN_FLOAT32

from fairseq_ext.kernels.library import library
from fairseq_ext.kernels.parallel import CompiledRow
from fairseq_ext.model.stock import FairseqBackend
from fairseq_ext.model.transformer.decoder import TransformerBackend
from fairseq_ext.search.parallel import driver
from fairseq_ext.search.pool import Pool


@covering(1)
@pytest.mark.parametrize("backend", ["transformer", "fairseq"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_equals_greedy_for_random_models_drafts_and_blocks(method, backend, tmp_path):
    chance = random.Random(f"{method} {backend}")
    for seed in part_of(8, 4):
        name = chance.choice(["transformer", "transformer-pre-norm", "transformer-tied"])
        flags = blocks(
            method, decoder_backend=backend, draft=chance.choice(["auto", "none", "pad", "repeat"])
        )
        if method != "jacobi":
            flags["block_size"] = chance.choice([1, 2, 3, 5, 30])
        if method in ("jacobi", "hybrid-jacobi"):
            flags["parallel_length"] = chance.choice([0, 1, 4, 50])
        sample = batch(chance.sample(LENGTHS, chance.randint(1, 6)), seed)
        n = sample["nsentences"]
        if seed % 3 == 0:
            flags["draft_file"] = drafts(
                tmp_path,
                [[chance.randrange(4, 25) for _ in range(chance.randint(0, 9))] for _ in range(n)],
            )
        pair = generators(
            [build(name, seed)],
            flags,
            beam=1,
            max_len_b=chance.choice([1, 3, 20]),
            unnormalized=seed % 2 == 0,
        )
        same(run(pair.stock, sample), run(pair.ours, sample))
        assert pair.ours.decoder.name == backend


@drawn(2)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("method", METHODS)
def test_a_stream_of_rows_equals_greedy(method, dtype, tmp_path):
    """New sentences join rows that are longer, at every share of the width that is left."""
    chance, refills = random.Random(f"stream {method} {dtype}"), 0
    for seed in part_of(8, 4):
        flags = blocks(method, draft=chance.choice(["none", "pad", "repeat"]), schedule="stream")
        flags |= {
            "stream_width": chance.choice([1, 2, 3]),
            "refill_threshold": chance.choice([0.1, 0.5, 0.7]),
        }
        if method != "jacobi":
            flags["block_size"] = chance.choice([1, 2, 3, 7])
        lengths = [chance.choice(LENGTHS) for _ in range(chance.randint(2, 9))]
        sample = batch(lengths, seed)
        if seed % 3 == 0:
            lines = [
                [chance.randrange(4, 25) for _ in range(chance.randint(0, 9))] for _ in lengths
            ]
            flags["draft_file"] = drafts(tmp_path, lines)
        model = build(chance.choice(["transformer", "transformer-pre-norm"]), seed, dtype, eos=0.5)
        pair = generators([model], flags, beam=1, max_len_b=chance.choice([3, 20]))
        same(
            run(pair.stock, sample),
            run(pair.ours, sample),
            1e-9 if dtype == torch.float64 else 1e-4,
        )
        stats = pair.ours.stats
        refills += stats.refills
        assert stats.refills == stats.encoder_calls - 1 and stats.sentences == len(lengths)
        assert stats.decoder_rows <= stats.decoder_calls * max(1, flags["stream_width"])
    assert refills >= len(part_of(8, 4))


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


OF_GRID = {
    name: case for name, case in GRID.items() if case.lm is None and case.flags["beam"] in (3, 4, 5)
}


@drawn(8)
@pytest.mark.parametrize("method", ["gs-jacobi", "window"])
@pytest.mark.parametrize("case", OF_GRID.values(), ids=OF_GRID.keys())
def test_stock_flags_mean_the_same(case, method):
    """Every architecture, ensembles, limits, prefixes, penalties and normalisations of
    test_neutral.py, at --beam 1."""
    models = [build(name, seed=i + 1) for i, name in enumerate(case.models)]
    pair = generators(
        models, blocks(method, block_size=4), **({"max_len_b": 20} | case.flags | {"beam": 1})
    )
    sample = batch(case.lengths)
    tolerance = 1e-5 if set(case.models) & set(MASKED_IN_FLOAT32) else 1e-9
    same(
        run(pair.stock, sample, **case.arguments),
        run(pair.ours, sample, **case.arguments),
        tolerance,
    )


@drawn(3)
@pytest.mark.parametrize("method, n", list(itertools.product(METHODS, (1, 2, 3))))
def test_repeated_ngrams_are_blocked_as_in_our_beam_search(method, n):
    """Stock 0.12.2 ignores the flag, so the beam search of this package is the reference;
    test_loop.py proves that one."""
    sample, changed = batch(LENGTHS), 0
    for seed in range(3):
        models = [build("transformer", seed, eos=0.5)]
        flags = {"beam": 1, "max_len_b": 20, "no_repeat_ngram_size": n}
        expected = run(generators(models, **flags).ours, sample)
        same(expected, run(generators(models, blocks(method), **flags).ours, sample))
        free = run(generators(models, **(flags | {"no_repeat_ngram_size": 0})).ours, sample)
        changed += sum(
            a[0]["tokens"].tolist() != b[0]["tokens"].tolist()
            for a, b in zip(free, expected, strict=True)
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
            found = run(ours, sample)
            assert [h[0]["tokens"].tolist() for h in found] == [
                h[0]["tokens"].tolist() for h in expected
            ]
            guard = counts(ours)["guard"]
            assert guard["checked"] >= guard["redone"] and guard["rate"] == guard["redone"] / max(
                guard["checked"], 1
            )
            redone += guard["redone"]
    assert redone


def test_a_margin_that_nothing_reaches_reads_every_token_alone():
    models, sample = [build("transformer")], batch(LENGTHS)
    pair = generators(models, blocks("gs-jacobi", parallel_margin=1e6), beam=1, max_len_b=20)
    same(run(pair.stock, sample), run(pair.ours, sample))
    assert counts(pair.ours)["guard"]["redone"] > 0


def test_the_block_step_equals_the_cache_and_teacher_forcing():
    """Features of blocks after truncation to lengths of each row's own: the fast decoder against
    re-reading everything."""
    model, sample, chance = build("transformer"), batch([6, 4, 2]), np.random.default_rng(3)
    pool = Pool(
        sample["net_input"], sample["net_input"]["src_lengths"], [60] * 3, torch.arange(3), EOS
    )
    pair = [TransformerBackend([model]), FairseqBackend([model], cached=False)]
    for decoder in pair:
        decoder.admit(pool.inputs([0, 1, 2]))
    read = np.zeros(3, np.int64)
    for turn in range(12):
        w = int(chance.integers(1, 6))
        tokens = torch.from_numpy(chance.integers(4, 25, (len(read), w)))
        length = np.minimum(read, chance.integers(0, 4, len(read)) + np.maximum(read - 2, 0))
        fast, plain = (
            decoder.step(tokens.to(models.DEVICE), w, torch.from_numpy(length).to(models.DEVICE))[0]
            for decoder in pair
        )
        torch.testing.assert_close(fast, plain, rtol=0, atol=1e-10)
        read = length + w
        if turn == 6:
            kept = torch.tensor([0, 2], device=models.DEVICE)
            for decoder in pair:
                decoder.select(kept, kept, 1, torch.arange(2, device=models.DEVICE))
            read = read[[0, 2]]


# ---- A sentence that is alone:  greedy's output, and the calls of the definition


def lone_sentence(chance, method, tmp_path) -> tuple[dict, dict]:
    """Random flags for one sentence: ours and stock's."""
    flags = blocks(method, draft=chance.choice(["none", "pad", "repeat"]))
    if method != "jacobi":
        flags["block_size"] = chance.choice([1, 2, 3, 7, 60])
    if method in ("jacobi", "hybrid-jacobi"):
        flags["parallel_length"] = chance.choice([0, 1, 4, 50])
    if method == "window":
        flags["draft_cost"] = chance.choice([0.0, 0.05, 0.3])
    if chance.random() < 0.4:
        flags["draft_file"] = drafts(
            tmp_path, [[chance.randrange(4, 25) for _ in range(chance.randint(0, 40))]]
        )
    longest = chance.choice([1, 3, 50])
    min_len = 3 if longest >= 3 and chance.random() < 0.5 else 1
    return flags, {
        "beam": 1,
        "max_len_b": longest,
        "min_len": min_len,
        "unnormalized": chance.random() < 0.5,
    }


@covering(1)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("method", METHODS)
def test_a_sentence_alone_equals_greedy(method, dtype, tmp_path):
    """A row that is alone is compiled; in single precision on a CPU, the decoder with it."""
    chance = random.Random(f"{method} {dtype}")
    for seed in part_of(12, 6):
        name = chance.choice(["transformer", "transformer-pre-norm", "transformer-tied", "bart"])
        flags, generation = lone_sentence(chance, method, tmp_path)
        pair = generators([build(name, seed, dtype, eos=0.5)], flags, **generation)
        sample = batch([chance.choice(LENGTHS)], seed)
        same(
            run(pair.stock, sample),
            run(pair.ours, sample),
            1e-9 if dtype == torch.float64 else 1e-4,
        )


@drawn(2)
@pytest.mark.usefixtures("on_the_cpu")
@pytest.mark.skipif(library() is None, reason="no compiler")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("method", METHODS)
def test_the_compiled_row_makes_the_calls_of_the_definition(method, dtype, tmp_path, monkeypatch):
    """Every draft, every output and every verified length, over several sentences that share
    what the method has learnt."""
    chance, offered, compiled, commit, call = (
        random.Random(f"twin {method} {dtype}"),
        0,
        [0, 0],
        CompiledRow.commit,
        CompiledRow.call,
    )

    def counted(kind, function):
        def inner(*arguments):
            compiled[kind] += 1
            return function(*arguments)

        return inner

    monkeypatch.setattr(CompiledRow, "commit", counted(0, commit))
    monkeypatch.setattr(CompiledRow, "call", counted(1, call))
    for seed in part_of(15, 8):
        flags, generation = lone_sentence(chance, method, tmp_path)
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
        assert [(c.length, c.draft.tolist(), c.out.tolist(), c.verified) for c in calls] == [
            (c.length, c.draft.tolist(), c.out.tolist(), c.verified) for c in expected
        ]
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


@pytest.mark.usefixtures("on_the_cpu")
def test_a_sentence_alone_has_the_scores_of_its_verified_tokens_and_of_all_when_they_are_traced():
    """The compiled way computes log-probabilities of what is kept; a trace shows
    every position's."""
    model, sample = build("transformer", 3, torch.float32, eos=0.5), batch([9])
    traced = generators([model], blocks("jacobi", draft="pad"), beam=1, max_len_b=20).ours
    calls: list = []
    traced.driver.trace = calls.append
    same(
        run(traced, sample),
        run(generators([model], blocks("jacobi", draft="pad"), beam=1, max_len_b=20).ours, sample),
        0.0,
    )
    [[found]] = run(traced, sample)
    tokens = [EOS, *found["tokens"].tolist()]
    source = {name: sample["net_input"][name] for name in ("src_tokens", "src_lengths")}
    for call in calls:
        block = [PAD if t < 0 else t for t in call.draft.tolist()]
        with torch.no_grad():  # what fairseq's own model gives for this history and draft
            logits, _ = model(
                **source, prev_output_tokens=torch.tensor([tokens[: call.length + 1] + block])
            )
        log_probs = logits[0, call.length :].log_softmax(-1)
        expected = log_probs.gather(1, torch.from_numpy(call.out)[:, None])[:, 0].numpy()
        if PAD not in block:  # fairseq masks padding in a history
            np.testing.assert_allclose(call.score, expected, atol=1e-4)
    assert any(PAD not in call.draft.tolist() and len(call.draft) for call in calls)
