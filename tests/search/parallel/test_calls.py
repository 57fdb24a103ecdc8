"""What parallel decoding reads and commits: how many calls, how many tokens, which positions."""

import pytest
from models import batch, build, generators, run, same
from parallel_decoding import LENGTHS, blocks, counts, drafts
from sizes import part_of


@pytest.mark.parametrize("method", ["gs-jacobi", "hybrid-jacobi", "window"])
def test_a_block_of_one_makes_greedys_calls(method):
    models, sample = [build("transformer")], batch(LENGTHS)
    pair = generators(models, blocks(method, block_size=1), beam=1, max_len_b=20)
    greedy = generators(models, beam=1, max_len_b=20).ours
    run(greedy, sample), run(pair.ours, sample)
    for name in (
        "decoder_calls",
        "decoder_rows",
        "decoder_positions",
        "encoder_calls",
        "target_tokens",
    ):
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
    """One token of the old output changed, one missing, one too many: two or three calls, not
    as many as tokens are left."""
    checked, most = 0, len(part_of(9, 3))
    for seed in range(30):
        if checked >= most:
            break
        models, sample = [build("transformer", seed, eos=0.5)], batch([8], seed)
        stock = generators(models, beam=1, max_len_b=20).stock
        gold = run(stock, sample)[0][0]["tokens"].tolist()[:-1]
        if len(gold) < 12 or len(set(gold)) < 8:
            continue
        other = next(t for t in range(4, 25) if t not in gold)
        for old in (
            gold[:4] + [other] + gold[5:],
            gold[:4] + gold[5:],
            gold[:4] + [other] + gold[4:],
        ):
            flags = {
                "decoding": "window",
                "draft_file": drafts(tmp_path, [old]),
                "draft_cost": 0.0,
                "draft": "none",
            }
            pair = generators(models, flags, beam=1, max_len_b=20)
            same(run(pair.stock, sample), run(pair.ours, sample))
            assert counts(pair.ours)["calls"] <= 5
            checked += 1
    assert checked >= min(most, 6)


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
        assert all(agree[: call.verified]) and call.verified >= min(
            iteration[call.length], len(agree)
        )
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
    assert len(lengths) > 2 and max(lengths) < 50, (
        "sentences end at different places, all inside the block"
    )
    same(expected, run(pair.ours, sample))


def test_behind_a_parallel_length_that_is_too_small_hybrid_is_autoregressive():
    models, sample = [build("transformer", 2, eos=0.5)], batch([9])
    pair = generators(
        models, blocks("hybrid-jacobi", block_size=3, parallel_length=3), beam=1, max_len_b=30
    )
    calls: list = []
    pair.ours.driver.trace = calls.append
    same(run(pair.stock, sample), run(pair.ours, sample))
    length = pair.ours.stats.target_tokens
    assert length > 6
    assert [len(c.out) for c in calls if c.length >= 3] == [1] * (length - 3)


def test_rows_progress_at_their_own_pace(tmp_path):
    """In a batch, a sentence with a good draft is finished while one with a bad
    draft has hardly begun."""
    models, sample = [build("transformer", 3, eos=1.0)], batch([7, 6, 5])
    stock = generators(models, beam=1, max_len_b=60).stock
    gold = [h[0]["tokens"].tolist()[:-1] for h in run(stock, sample)]
    assert min(map(len, gold[1:])) > 1
    flags = {
        "decoding": "window",
        "draft_file": drafts(tmp_path, [gold[0], [], []]),
        "draft_cost": 0.0,
        "draft": "none",
    }
    pair = generators(models, flags, beam=1, max_len_b=60)
    same(run(pair.stock, sample), run(pair.ours, sample))
    rest = [len(g) + 1 for g in gold[1:]]
    assert pair.ours.stats.decoder_rows == 1 + sum(rest)


def test_statistics_count_the_work_done():
    pair = generators(
        [build("transformer", 1)], blocks("gs-jacobi", block_size=3), beam=1, max_len_b=20
    )
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
