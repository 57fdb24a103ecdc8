"""Decoding by blocks gives greedy's output: tokens, scores and positional scores of stock fairseq at --beam 1, whatever the method, the
block, the draft and the batch, in fewer calls."""

import itertools
import random

import numpy as np
import pytest
import torch
from models import ARCHITECTURES, alone, batch, build, dictionary, generators, run, same
from test_neutral import GRID, MASKED_IN_FLOAT32

from fairseq_ext import UsageError
from fairseq_ext.constraints.files import SentenceConstraints
from fairseq_ext.decoders.fairseq.uncached import UncachedDecoder
from fairseq_ext.decoders.transformer.decoder import TransformerBackend
from fairseq_ext.kernels.library import library
from fairseq_ext.kernels.row import CompiledRow
from fairseq_ext.parallel import one_sentence
from fairseq_ext.parallel.drafts.estimate import estimate
from fairseq_ext.search.pool import Pool

METHODS = ["jacobi", "gs-jacobi", "hybrid-jacobi", "window"]
LENGTHS = [7, 5, 3, 1, 0, 12]
EOS, PAD = dictionary().eos(), dictionary().pad()


def blocks(method: str, **flags) -> dict:
    """Flags of a method that tries its drafts whether they have been any good or not."""
    return {"decoding": method, "draft": "repeat"} | ({"draft_cost": 0.0} if method == "window" else {}) | flags


def drafts(tmp_path, lines: list[list[int]]) -> str:
    """A --draft-file of token ids, EOS left out."""
    file = tmp_path / "drafts.txt"
    file.write_text("".join(" ".join(dictionary()[t] for t in line) + "\n" for line in lines))
    return str(file)


def counts(generator) -> dict:
    return generator.stats.as_dict()["parallel"]


@pytest.mark.parametrize("backend", ["transformer", "fairseq"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_equals_greedy_for_random_models_drafts_and_blocks(method, backend, tmp_path):
    chance = random.Random(f"{method} {backend}")
    for seed in range(8):
        name = chance.choice(["transformer", "transformer-pre-norm", "transformer-tied"])
        flags = blocks(method, decoder_backend=backend, draft=chance.choice(["auto", "none", "pad", "repeat", "copy"]))
        if method != "jacobi":
            flags["block_size"] = chance.choice([1, 2, 3, 5, 30])
        if method in ("jacobi", "hybrid-jacobi"):
            flags["parallel_length"] = chance.choice([0, 1, 4, 50])
        sample = batch(chance.sample(LENGTHS, chance.randint(1, 6)), seed)
        n = sample["nsentences"]
        if seed % 3 == 0:
            flags["draft_file"] = drafts(tmp_path, [[chance.randrange(4, 25) for _ in range(chance.randint(0, 9))] for _ in range(n)])
        pair = generators([build(name, seed)], flags, beam=1, max_len_b=chance.choice([1, 3, 20]), unnormalized=seed % 2 == 0)
        same(run(pair.stock, sample), run(pair.ours, sample))
        assert pair.ours.decoder.name == backend


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("method", METHODS)
def test_a_stream_of_rows_equals_greedy(method, dtype, tmp_path):
    """New sentences join rows that are longer, at every share of the width that is left."""
    chance, refills = random.Random(f"stream {method} {dtype}"), 0
    for seed in range(8):
        flags = blocks(method, draft=chance.choice(["none", "pad", "repeat", "copy"]), schedule="stream")
        flags |= {"stream_width": chance.choice([1, 2, 3]), "refill_threshold": chance.choice([0.1, 0.5, 0.7])}
        if method != "jacobi":
            flags["block_size"] = chance.choice([1, 2, 3, 7])
        lengths = [chance.choice(LENGTHS) for _ in range(chance.randint(2, 9))]
        sample = batch(lengths, seed)
        if seed % 3 == 0:
            lines = [[chance.randrange(4, 25) for _ in range(chance.randint(0, 9))] for _ in lengths]
            flags["draft_file"] = drafts(tmp_path, lines)
        model = build(chance.choice(["transformer", "transformer-pre-norm"]), seed, dtype, eos=0.5)
        pair = generators([model], flags, beam=1, max_len_b=chance.choice([3, 20]))
        same(run(pair.stock, sample), run(pair.ours, sample), 1e-9 if dtype == torch.float64 else 1e-4)
        stats = pair.ours.stats
        refills += stats.refills
        assert stats.refills == stats.encoder_calls - 1 and stats.sentences == len(lengths)
        assert stats.decoder_rows <= stats.decoder_calls * max(1, flags["stream_width"])
    assert refills >= 8


def test_a_stream_fills_up_before_a_sentence_has_finished():
    """At a threshold of 0.75 a quarter of the width starts at a time, and goes on starting until three quarters are live."""
    flags = blocks("window", draft="none", schedule="stream", stream_width=4, refill_threshold=0.75)
    pair = generators([build("transformer")], flags, beam=1, min_len=20, max_len_b=20)
    sample = batch([5] * 8, 1)
    same(run(pair.stock, sample), run(pair.ours, sample))
    stats = pair.ours.stats
    assert stats.decoder_rows == 8 * 21, "no sentence ends before the limit"
    assert stats.decoder_calls <= 2 * 21 + 3 * 2, "two times four sentences, each one call behind the last"


def test_a_stream_is_refused_where_rows_of_different_lengths_cannot_be_read_together():
    with pytest.raises(UsageError, match="--schedule stream with --decoding window needs"):
        generators([build("transformer")], blocks("window", decoder_backend="fairseq", schedule="stream"), beam=1)


def lone_sentence(chance, method, tmp_path) -> tuple[dict, dict]:
    """Random flags for one sentence: ours and stock's."""
    flags = blocks(method, draft=chance.choice(["none", "pad", "repeat", "copy", "ngram", "ngram"]))
    if method != "jacobi":
        flags["block_size"] = chance.choice([1, 2, 3, 7, 60])
    if method in ("jacobi", "hybrid-jacobi"):
        flags["parallel_length"] = chance.choice([0, 1, 4, 50])
    if method == "window":
        flags["draft_cost"] = chance.choice([0.0, 0.05, 0.3])
    if chance.random() < 0.4:
        flags["draft_file"] = drafts(tmp_path, [[chance.randrange(4, 25) for _ in range(chance.randint(0, 40))]])
    if flags["draft"] == "ngram":
        lines = [[chance.randrange(4, 25) for _ in range(chance.randint(1, 9))] + [EOS] for _ in range(30)]
        flags["draft_table"] = str(tmp_path / "table.npz")
        estimate(lines, [line[::-1] for line in lines] if chance.random() < 0.6 else None, dictionary(), dictionary()).save(
            flags["draft_table"]
        )
    longest = chance.choice([1, 3, 50])
    min_len = 3 if longest >= 3 and chance.random() < 0.5 else 1
    return flags, {"beam": 1, "max_len_b": longest, "min_len": min_len, "unnormalized": chance.random() < 0.5}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("method", METHODS)
def test_a_sentence_alone_equals_greedy(method, dtype, tmp_path):
    """A row that is alone is compiled; in single precision on a CPU, the decoder with it."""
    chance = random.Random(f"{method} {dtype}")
    for seed in range(12):
        name = chance.choice(["transformer", "transformer-pre-norm", "transformer-tied"])
        flags, generation = lone_sentence(chance, method, tmp_path)
        pair = generators([build(name, seed, dtype, eos=0.5)], flags, **generation)
        sample = batch([chance.choice(LENGTHS)], seed)
        same(run(pair.stock, sample), run(pair.ours, sample), 1e-9 if dtype == torch.float64 else 1e-4)


@pytest.mark.skipif(library() is None, reason="no compiler")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("method", METHODS)
def test_the_compiled_row_makes_the_calls_of_the_definition(method, dtype, tmp_path, monkeypatch):
    """Every draft, every output and every verified length, over several sentences that share what the method has learnt."""
    chance, offered, compiled, commit, call = random.Random(f"twin {method} {dtype}"), 0, [0, 0], CompiledRow.commit, CompiledRow.call

    def counted(kind, function):
        def inner(*arguments):
            compiled[kind] += 1
            return function(*arguments)

        return inner

    monkeypatch.setattr(CompiledRow, "commit", counted(0, commit))
    monkeypatch.setattr(CompiledRow, "call", counted(1, call))
    for seed in range(15):
        flags, generation = lone_sentence(chance, method, tmp_path)
        if chance.random() < 0.3:
            flags["parallel_margin"] = chance.choice([0.05, 0.5])
        model, found = build(chance.choice(["transformer", "transformer-pre-norm"]), seed, dtype, eos=0.5), []
        samples = [batch([chance.choice(LENGTHS)], seed + i) for i in range(3)]
        for twin in (True, False):
            ours, calls = generators([model], flags, **generation).ours, []
            ours.driver.trace = calls.append
            with monkeypatch.context() as patch:
                if not twin:
                    patch.setattr(one_sentence, "library", lambda: None)
                before = list(compiled)
                hypotheses = [run(ours, sample) for sample in samples]
                assert (compiled != before) == twin
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


def test_a_sentence_alone_has_the_scores_of_its_verified_tokens_and_of_all_when_they_are_traced():
    """The compiled way computes log-probabilities of what is kept; a trace shows every position's."""
    model, sample = build("transformer", 3, torch.float32, eos=0.5), batch([9])
    traced = generators([model], blocks("jacobi", draft="pad"), beam=1, max_len_b=20).ours
    calls: list = []
    traced.driver.trace = calls.append
    same(run(traced, sample), run(generators([model], blocks("jacobi", draft="pad"), beam=1, max_len_b=20).ours, sample), 0.0)
    [[found]] = run(traced, sample)
    tokens = [EOS, *found["tokens"].tolist()]
    source = {name: sample["net_input"][name] for name in ("src_tokens", "src_lengths")}
    for call in calls:
        block = [PAD if t < 0 else t for t in call.draft.tolist()]
        with torch.no_grad():  # what fairseq's own model gives for this history and draft
            logits, _ = model(**source, prev_output_tokens=torch.tensor([tokens[: call.length + 1] + block]))
        log_probs = logits[0, call.length :].log_softmax(-1)
        expected = log_probs.gather(1, torch.from_numpy(call.out)[:, None])[:, 0].numpy()
        if PAD not in block:  # fairseq masks padding in a history
            np.testing.assert_allclose(call.score, expected, atol=1e-4)
    assert any(PAD not in call.draft.tolist() and len(call.draft) for call in calls)


OF_GRID = {name: case for name, case in GRID.items() if case.lm is None and case.flags["beam"] in (3, 4, 5)}


@pytest.mark.parametrize("method", ["gs-jacobi", "window"])
@pytest.mark.parametrize("case", OF_GRID.values(), ids=OF_GRID.keys())
def test_stock_flags_mean_the_same(case, method):
    """Every architecture, ensembles, limits, prefixes, penalties and normalisations of test_neutral.py, at --beam 1."""
    models = [build(name, seed=i + 1) for i, name in enumerate(case.models)]
    pair = generators(models, blocks(method, block_size=4), **({"max_len_b": 20} | case.flags | {"beam": 1}))
    sample = batch(case.lengths)
    tolerance = 1e-5 if set(case.models) & set(MASKED_IN_FLOAT32) else 1e-9
    same(run(pair.stock, sample, **case.arguments), run(pair.ours, sample, **case.arguments), tolerance)


@pytest.mark.parametrize("method, n", list(itertools.product(METHODS, (1, 2, 3))))
def test_repeated_ngrams_are_blocked_as_in_our_beam_search(method, n):
    """Stock 0.12.2 ignores the flag, so the beam search of this package is the reference; test_loop.py proves that one."""
    sample, changed = batch(LENGTHS), 0
    for seed in range(3):
        models = [build("transformer", seed, eos=0.5)]
        flags = {"beam": 1, "max_len_b": 20, "no_repeat_ngram_size": n}
        expected = run(generators(models, **flags).ours, sample)
        same(expected, run(generators(models, blocks(method), **flags).ours, sample))
        free = run(generators(models, **(flags | {"no_repeat_ngram_size": 0})).ours, sample)
        changed += sum(a[0]["tokens"].tolist() != b[0]["tokens"].tolist() for a, b in zip(free, expected, strict=True))
    assert changed


@pytest.mark.parametrize("method", ["gs-jacobi", "hybrid-jacobi", "window"])
def test_a_block_of_one_makes_greedys_calls(method):
    models, sample = [build("transformer")], batch(LENGTHS)
    pair = generators(models, blocks(method, block_size=1), beam=1, max_len_b=20)
    greedy = generators(models, beam=1, max_len_b=20).ours
    run(greedy, sample), run(pair.ours, sample)
    for name in ("decoder_calls", "decoder_rows", "decoder_positions", "encoder_calls", "target_tokens"):
        assert getattr(pair.ours.stats, name) == getattr(greedy.stats, name)
    assert counts(pair.ours)["drafts_offered"] == 0


@pytest.mark.parametrize("seed", range(4))
def test_the_gold_output_as_draft_takes_one_verifying_pass(tmp_path, seed):
    models, sample = [build("transformer", seed)], batch(LENGTHS, seed)
    stock = generators(models, beam=1, max_len_b=20).stock
    gold = [h[0]["tokens"].tolist()[:-1] for h in run(stock, sample)]
    flags = {"decoding": "window", "draft_file": drafts(tmp_path, gold), "draft_cost": 0.0}
    pair = generators(models, flags, beam=1, max_len_b=20)
    same(run(pair.stock, sample), run(pair.ours, sample))
    assert counts(pair.ours)["calls"] == 1
    assert counts(pair.ours)["tokens"] == pair.ours.stats.target_tokens


def test_an_edit_in_the_middle_of_the_old_output_does_not_spoil_the_rest(tmp_path):
    """One token of the old output changed, one missing, one too many: two or three calls, not as many as tokens are left."""
    checked = 0
    for seed in range(30):
        models, sample = [build("transformer", seed, eos=0.5)], batch([8], seed)
        stock = generators(models, beam=1, max_len_b=20).stock
        gold = run(stock, sample)[0][0]["tokens"].tolist()[:-1]
        if len(gold) < 12 or len(set(gold)) < 8 or checked >= 9:
            continue
        other = next(t for t in range(4, 25) if t not in gold)
        for old in (gold[:4] + [other] + gold[5:], gold[:4] + gold[5:], gold[:4] + [other] + gold[4:]):
            flags = {"decoding": "window", "draft_file": drafts(tmp_path, [old]), "draft_cost": 0.0, "draft": "none"}
            pair = generators(models, flags, beam=1, max_len_b=20)
            same(run(pair.stock, sample), run(pair.ours, sample))
            assert counts(pair.ours)["calls"] <= 5
            checked += 1
    assert checked >= 6


@pytest.mark.parametrize("method", ["jacobi", "gs-jacobi"])
def test_after_i_iterations_of_a_block_at_least_i_tokens_are_final(method):
    models = [build("transformer", 2, eos=0.5)]
    pair = generators(models, blocks(method, draft="pad"), beam=1, max_len_b=30)
    seen: list = []
    pair.ours.driver.trace = seen.append
    [[found]] = run(pair.ours, batch([9]))
    gold = found["tokens"].tolist()
    iteration = {}
    for call in seen:
        iteration[call.length] = iteration.get(call.length, 0) + 1
        ahead = gold[call.length : call.length + len(call.out)]
        agree = [a == b for a, b in zip(ahead, call.out.tolist(), strict=False)]
        assert all(agree[: min(iteration[call.length], len(agree))])
        assert all(agree[: call.verified]) and call.verified >= min(iteration[call.length], len(agree))
    assert max(iteration.values()) > 1


def test_wide_gauss_seidel_blocks_are_jacobi():
    """b >= length is PJ: the same calls."""
    models, sample = [build("transformer", 3)], batch([6])
    whole = generators(models, blocks("jacobi", parallel_length=40), beam=1, max_len_b=20).ours
    wide = generators(models, blocks("gs-jacobi", block_size=40), beam=1, max_len_b=20).ours
    same(run(whole, sample), run(wide, sample), 0.0)
    assert counts(whole) == counts(wide)


def test_eos_inside_a_block_ends_the_sentence():
    models, sample = [build("transformer", 3, eos=1.0)], batch(LENGTHS)
    pair = generators(models, blocks("gs-jacobi", block_size=50), beam=1, max_len_b=60)
    expected = run(pair.stock, sample)
    lengths = {len(h[0]["tokens"]) for h in expected}
    assert len(lengths) > 2 and max(lengths) < 50, "sentences end at different places, all inside the block"
    same(expected, run(pair.ours, sample))


def test_behind_a_parallel_length_that_is_too_small_hybrid_is_autoregressive():
    models, sample = [build("transformer", 2, eos=0.5)], batch([9])
    pair = generators(models, blocks("hybrid-jacobi", block_size=3, parallel_length=3), beam=1, max_len_b=30)
    calls: list = []
    pair.ours.driver.trace = calls.append
    same(run(pair.stock, sample), run(pair.ours, sample))
    length = pair.ours.stats.target_tokens
    assert length > 6
    assert [len(c.out) for c in calls if c.length >= 3] == [1] * (length - 3)


def test_rows_progress_at_their_own_pace(tmp_path):
    """In a batch, a sentence with a good draft is finished while one with a bad draft has hardly begun."""
    models, sample = [build("transformer", 3, eos=1.0)], batch([7, 6, 5])
    stock = generators(models, beam=1, max_len_b=60).stock
    gold = [h[0]["tokens"].tolist()[:-1] for h in run(stock, sample)]
    assert min(map(len, gold[1:])) > 1
    flags = {"decoding": "window", "draft_file": drafts(tmp_path, [gold[0], [], []]), "draft_cost": 0.0, "draft": "none"}
    pair = generators(models, flags, beam=1, max_len_b=60)
    same(run(pair.stock, sample), run(pair.ours, sample))
    rest = [len(g) + 1 for g in gold[1:]]
    assert pair.ours.stats.decoder_rows == 1 + sum(rest)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_equals_one_token_at_a_time(dtype):
    """One sentence at a time: in a batch whose rows stand at different lengths the one-token path rounds differently itself."""
    redone = 0
    for seed in range(5):
        models, sample = [build("transformer", seed, dtype)], batch([LENGTHS[seed]], seed)
        single = generators(models, blocks("window", block_size=1), beam=1, max_len_b=20).ours
        expected = run(single, sample)
        for method in METHODS:
            ours = generators(models, blocks(method), beam=1, max_len_b=20).ours
            found = run(ours, sample)
            assert [h[0]["tokens"].tolist() for h in found] == [h[0]["tokens"].tolist() for h in expected]
            guard = counts(ours)["guard"]
            assert guard["checked"] >= guard["redone"] and guard["rate"] == guard["redone"] / max(guard["checked"], 1)
            redone += guard["redone"]
    assert redone


def test_a_margin_that_nothing_reaches_reads_every_token_alone():
    models, sample = [build("transformer")], batch(LENGTHS)
    pair = generators(models, blocks("gs-jacobi", parallel_margin=1e6), beam=1, max_len_b=20)
    same(run(pair.stock, sample), run(pair.ours, sample))
    assert counts(pair.ours)["guard"]["redone"] > 0


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_equals_stock_in_single_precision(architecture):
    sample = batch(LENGTHS)
    for method in METHODS:
        pair = generators([build(architecture, 11, torch.float32)], blocks(method), beam=1, max_len_b=15)
        same(run(pair.stock, sample), run(pair.ours, sample), 1e-4)


def test_sentences_do_not_depend_on_those_beside_them():
    pair = generators([build("transformer", 5)], blocks("window"), beam=1, max_len_b=20)
    sample = batch(LENGTHS)
    together = run(pair.ours, sample)
    for i in range(len(LENGTHS)):
        same([together[i]], run(pair.ours, alone(sample, i)))


def test_statistics_count_the_work_done():
    pair = generators([build("transformer", 1)], blocks("gs-jacobi", block_size=3), beam=1, max_len_b=20)
    calls: list = []
    pair.ours.driver.trace = calls.append
    run(pair.ours, batch(LENGTHS))
    stats, parallel = pair.ours.stats, counts(pair.ours)
    assert parallel["calls"] == stats.decoder_calls
    assert parallel["tokens"] == stats.target_tokens
    assert stats.decoder_rows == len(calls)
    assert stats.decoder_positions == sum(len(c.out) for c in calls)
    assert parallel["drafts_offered"] == stats.decoder_positions - stats.decoder_rows
    assert parallel["tokens_per_call"] == pytest.approx(parallel["tokens"] / len(calls))


def test_nan_is_an_error():
    model = build("transformer", dtype=torch.float32)
    with torch.no_grad():
        model.decoder.layers[0].fc2.weight[0, 0] = float("nan")
    with pytest.raises(FloatingPointError, match="target position 0"):
        run(generators([model], blocks("window"), beam=1).ours, batch([3]))


# ---- refusals


@pytest.mark.parametrize(
    "flags, generation, said",
    [
        ({}, {"beam": 5}, "--beam 1"),
        ({}, {"nbest": 2}, "--nbest 1"),
        ({"stop": "optimal"}, {"unnormalized": True}, "--stop optimal"),
        ({"select": "dba"}, {}, "--select dba"),
        ({"prune_finished": 3.0}, {}, "--prune-finished"),
        ({"patience": 2}, {}, "--patience"),
        ({}, {"print_alignment": "hard"}, "--print-alignment"),
        ({"block_size": -1}, {}, "--block-size"),
        ({"draft_cost": -0.5}, {}, "--draft-cost -0.5"),
        ({"parallel_margin": -0.2}, {}, "--parallel-margin -0.2"),
        ({"parallel_margin": float("nan")}, {}, "--parallel-margin is not a number"),
        ({}, {"retain_dropout": True}, "--retain-dropout"),
        ({"decoding": "beam", "block_size": 4}, {}, "--decoding gs-jacobi or .*--decoding jacobi or .*--decoding window"),
        ({"parallel_length": 5}, {}, "--parallel-length"),
        ({"decoding": "jacobi", "block_size": 5}, {}, "--parallel-length"),
        ({"draft": "ngram"}, {}, "build_drafts.py"),
        ({"draft_table": "/nowhere.npz"}, {}, "/nowhere.npz"),
        ({"draft_file": "/nowhere.txt"}, {}, "/nowhere.txt"),
        ({"decoding": "beam", "draft": "copy"}, {}, "--draft"),
        ({}, {"sampling": True}, "--sampling"),
    ],
)
def test_what_cannot_work_is_refused(flags, generation, said):
    with pytest.raises(UsageError, match=said):
        generators([build("transformer")], {"decoding": "window", **flags}, **({"beam": 1} | generation))


def test_constraints_of_a_call_are_refused():
    ours = generators([build("transformer")], {"decoding": "window"}, beam=1).ours
    given = [SentenceConstraints((((5,),),), ("w1",))]
    with pytest.raises(UsageError, match="--decoding"):
        run(ours, {**batch([3]), "sentence_constraints": given})


def test_the_block_step_equals_the_cache_and_teacher_forcing():
    """Features of blocks after truncation to lengths of each row's own: the fast decoder against re-reading everything."""
    model, sample, chance = build("transformer"), batch([6, 4, 2]), np.random.default_rng(3)
    pool = Pool(sample["net_input"], sample["net_input"]["src_lengths"], [60] * 3, torch.arange(3), EOS)
    pair = [TransformerBackend([model]), UncachedDecoder([model])]
    for decoder in pair:
        decoder.admit(pool.inputs([0, 1, 2]))
    read = np.zeros(3, np.int64)
    for turn in range(12):
        w = int(chance.integers(1, 6))
        tokens = torch.from_numpy(chance.integers(4, 25, (len(read), w)))
        length = np.minimum(read, chance.integers(0, 4, len(read)) + np.maximum(read - 2, 0))
        fast, plain = (decoder.step(tokens, w, torch.from_numpy(length))[0] for decoder in pair)
        torch.testing.assert_close(fast, plain, rtol=0, atol=1e-10)
        read = length + w
        if turn == 6:
            kept = torch.tensor([0, 2])
            for decoder in pair:
                decoder.select(kept, kept, 1, torch.arange(2))
            read = read[[0, 2]]
