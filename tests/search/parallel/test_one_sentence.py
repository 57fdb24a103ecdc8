"""A sentence that is alone: greedy's output, and the calls of the definition."""

import random

import numpy as np
import pytest
import torch
from models import batch, build, generators, run, same, with_ties
from parallel_decoding import EOS, LENGTHS, METHODS, PAD, blocks, counts, drafts
from sizes import covering, drawn, part_of

from fairseq_ext.kernels.library import library
from fairseq_ext.kernels.parallel import CompiledRow
from fairseq_ext.search.parallel import driver


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
        model, found = build(name, seed, dtype, eos=0.5), []
        samples = [batch([chance.choice(LENGTHS)], seed + i) for i in range(3)]
        for twin in (True, False):
            ours, calls = generators([model], flags, **generation).ours, []
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
