"""--sampling: the noise against its authors' numbers, words against exact distributions, sentences
against stock's, what samples depend on."""

import itertools
import math
import re
from collections import Counter

import forked
import pytest
import torch
from models import alone, batch, build, generators, run, same
from sizes import covering, drawn, part_of
from test_cli import EXT, generate

from fairseq_ext.kernels.library import library
from fairseq_ext.kernels.log_probs import SamplingCut, draw, draw_compiled, philox, uniform, weights

needs_library = pytest.mark.skipif(library() is None, reason="no compiled library")


CUTS = {
    "all words": (SamplingCut(), {}),
    "top 3": (SamplingCut(top_k=3), {"sampling_topk": 3}),
    "mass 0.8": (SamplingCut(top_p=0.8), {"sampling_topp": 0.8}),
    "floor 0.1": (SamplingCut(min_log_prob=float(torch.tensor(0.1).log())), None),
}


each_cut = pytest.mark.parametrize("name", CUTS)


def left(probabilities: dict, name: str) -> dict:
    """What a cut leaves of a distribution, by the definitions of the papers."""
    ranked = sorted(probabilities, key=lambda w: -probabilities[w])
    before = itertools.accumulate([0.0, *(probabilities[w] for w in ranked)])
    kept = {
        "all words": ranked,
        "top 3": ranked[:3],
        "mass 0.8": [w for w, mass in zip(ranked, before, strict=False) if mass < 0.8],
        "floor 0.1": [w for w in ranked if probabilities[w] >= 0.1] or ranked[:1],
    }[name]
    whole = sum(probabilities[w] for w in kept)
    return {w: probabilities[w] / whole for w in kept}


@pytest.mark.parametrize(
    "counter, key, words",
    [  # kat_vectors of Random123, the library of the paper's authors
        ([0] * 4, (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ([0xFFFFFFFF] * 4, (0xFFFFFFFF, 0xFFFFFFFF), "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_gives_its_authors_numbers(counter, key, words):
    assert [f"{word:08x}" for word in philox(counter, key)] == words.split()
    as_tensors = philox(
        [torch.tensor([word]) for word in counter], (key[0], torch.tensor([key[1]]))
    )
    assert [f"{int(word):08x}" for word in as_tensors] == words.split()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_noise_has_53_bits_whatever_the_default_dtype(dtype):
    torch.set_default_dtype(dtype)
    try:
        found = uniform(3, *torch.tensor([[5, 2, 7], [2**33 + 1, 0, 1]]).T).tolist()
    finally:
        torch.set_default_dtype(torch.float32)
    for u, (number, sample, step) in zip(found, [(5, 2, 7), (2**33 + 1, 0, 1)], strict=True):
        a, b, *_ = philox([step, sample, 0, number >> 32], (3, number & 0xFFFFFFFF))
        assert u == ((a >> 5) * 2**26 + (b >> 6)) / 2**53


@covering(1)
@each_cut
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=needs_library)])
@pytest.mark.parametrize("V", [5, 2048])
def test_numbers_spread_evenly_draw_each_word_as_often_as_it_is_likely(V, compiled, name):
    """Of n numbers spread over [0, 1), a word of probability p gets pn, give or take one."""
    torch.manual_seed(V)
    n, lines = 4_000, (3 * torch.randn(3, V)).log_softmax(1)
    lines[1, 2:] = -torch.inf  # two words, and one
    lines[2, [0, *range(2, V)]] = -torch.inf
    row, u = torch.arange(3).repeat_interleave(n), ((torch.arange(n) + 0.5) / n).double().repeat(3)
    words = (draw_compiled if compiled else draw)(lines, row, u, CUTS[name][0]).view(3, n)
    for line, found in zip(lines, words, strict=True):
        exact = left({w: math.exp(x) for w, x in enumerate(line.tolist()) if x > -math.inf}, name)
        counts = Counter(found.tolist())
        assert set(counts) <= set(exact)
        assert all(abs(counts[w] - n * p) <= 1.02 for w, p in exact.items())


@needs_library
@pytest.mark.parametrize("V", [9, 300])
@pytest.mark.parametrize(
    ("cut", "words"),
    [
        (SamplingCut(), [0, 0, 1, 1, 2, 2, 3, 3]),
        (SamplingCut(top_k=2), [0, 0, 0, 0, 1, 1, 1, 1]),
        (SamplingCut(top_p=0.5), [0, 0, 0, 0, 1, 1, 1, 1]),
        (SamplingCut(min_log_prob=-2.0), [0, 0, 1, 1, 2, 2, 3, 3]),
    ],
)
def test_draws_at_the_edges_of_equal_words(cut, words, V):
    """Four words of the chance that -2 has; a draw at the edge of two gets the second."""
    value, u = torch.full((1, V), -2.0), torch.arange(8, dtype=torch.float64) / 8
    value[0, 4:] = -torch.inf
    if cut.top_p < 1:
        cut = SamplingCut(top_p=float(2 * weights(value)[0, 0]) / 2.0**50)
    row = torch.zeros(8, dtype=torch.long)
    for draws in (draw, draw_compiled):
        assert draws(value, row, u, cut).tolist() == words


@pytest.mark.parametrize("function", [draw, pytest.param(draw_compiled, marks=needs_library)])
@each_cut
def test_words_too_unlikely_to_have_a_chance_give_way_to_the_best_and_nothing_to_nothing(
    function, name
):
    lines = torch.full((2, 40), -torch.inf)
    lines[0, 7], lines[0, 9] = -80.0, -70.0
    row, u = torch.tensor([0, 0, 1]), torch.tensor([0.0, 0.999, 0.5]).double()
    assert function(lines, row, u, CUTS[name][0]).tolist() == [9, 9, -1]


@drawn(2)
@pytest.mark.parametrize(
    "stock",
    [{}, {"sampling_topk": 3}, {"sampling_topp": 0.8}, {"temperature": 0.7, "min_len": 3}],
    ids=str,
)
def test_samples_are_distributed_as_stocks_and_scored_alike(stock):
    pair = generators(
        [build("transformer", 2, peak=5.0)], beam=20, nbest=20, max_len_b=3, sampling=True, **stock
    )
    for i in range(2):
        sample = alone(batch([4, 2]), i)
        sample = {
            "id": torch.arange(100),
            "net_input": {n: x.repeat_interleave(100, 0) for n, x in sample["net_input"].items()},
        }
        theirs, ours = (
            [(tuple(h["tokens"].tolist()), h) for found in run(generator, sample) for h in found]
            for generator in (pair.stock, pair.ours)
        )
        assert len(ours) == len(theirs) == 2_000
        one, other = (Counter(tokens for tokens, _ in found) for found in (theirs, ours))
        common = [w for w in one | other if one[w] + other[w] >= 20]
        assert len(common) >= 5
        # chi-square of two samples
        distance = sum((one[w] - other[w]) ** 2 / (one[w] + other[w]) for w in common)
        assert distance < len(common) + 4 * math.sqrt(2 * len(common))
        of = dict(theirs), dict(ours)
        shared = of[0].keys() & of[1].keys()
        same(*([[each[w] for w in shared]] for each in of))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_samples_noise_is_its_sentences_own(dtype, device):
    """Alone, in another order, in a stream: the same samples. Another number or seed: others."""
    model = build("transformer", 2, dtype)
    flags = {"beam": 6, "nbest": 6, "max_len_a": 2.0, "max_len_b": 3}  # each its own limit
    sample, float32 = batch([3, 1, 7, 5, 2]), dtype == torch.float32
    # a GPU's products depend on the rows next to
    next_to = 1e-12 if not float32 else 0.0 if device.type == "cpu" else 1e-5
    expected = run(generators([model], {"select": "sampling"}, **flags).ours, sample)
    # sentences at different steps are stepped together
    fifo = {"stream_width": 3, "stream_order": "fifo", "refill_threshold": 0.9}
    for more in (None, {"stream_width": 2}, {"stream_rows": 13}, fifo):
        stream = {} if more is None else {"schedule": "stream", **more}
        ours = generators([model], {"select": "sampling", **stream}, **flags).ours
        same(expected, run(ours, sample, seed=99), next_to)
        for i in range(5):
            same(expected[i : i + 1], run(ours, alone(sample, i)), 1e-5 if float32 else 1e-9)
    ours = generators([model], {"select": "sampling"}, **flags).ours
    others = run(ours, {**sample, "id": sample["id"] + 5})
    for one, other in zip(expected, others, strict=True):
        assert [h["tokens"].tolist() for h in one] != [h["tokens"].tolist() for h in other]


def test_samples_of_the_command_depend_on_the_seed_and_the_lines_alone(tiny, tmp_path):
    """Whatever the batches, the processes, the stream and the run that wrote a part before."""
    results, part = tmp_path / "results.jsonl", tmp_path / "part.jsonl"
    given = ("--nbest", 4, "--sampling", "--sampling-topk", 20)

    def samples(*flags) -> list[str]:
        out = generate(tiny, *EXT, *given, *flags, run=forked.command).stdout
        return sorted(re.findall(r"^[HP]-.*", out, re.MULTILINE))

    expected = samples("--seed", 5, "--results-file", results)
    assert len(expected) == 2 * 4 * 11
    part.write_text("".join(results.read_text("utf-8").splitlines(keepends=True)[:5]), "utf-8")
    ways = [["--results-file", part, "--resume"], ["--schedule", "stream", "--stream-rows", 7]]
    ways += [["--cpu-workers", 2], ["--batch-size", 1]]
    for flags in ways[: len(part_of(4, 2))]:
        assert samples("--seed", 5, *flags) == expected, flags
    assert samples("--seed", 6) != expected


# ---- --diverse-beam-groups in our search


@covering(1)
@pytest.mark.parametrize("strategy", [{}, {"schedule": "stream", "stream_width": 2}], ids=str)
@pytest.mark.parametrize(
    "stock", [{}, {"unnormalized": True, "min_len": 3}, {"diverse_beam_strength": 2.0}], ids=str
)
@pytest.mark.parametrize("k, groups", [(4, 2), (4, 4), (6, 3), (24, 4)])
def test_diverse_lists_equal_stocks(k, groups, stock, strategy):
    """Groups may find one sentence with equal scores, by other steps: which is first then hangs on
    rounding."""
    flags = dict(beam=k, nbest=k, max_len_b=12, diverse_beam_groups=groups, **stock)
    names = ("tokens", "positional_scores")
    for seed in range(2):
        pair = generators([build("transformer", seed)], strategy, **flags)
        assert "select:diverse" in pair.ours.stats.signature
        expected, got = (run(each, batch([3, 1, 7, 5, 0])) for each in (pair.stock, pair.ours))
        for nbest in expected + got:
            nbest.sort(key=lambda h: [*map(torch.Tensor.tolist, map(h.get, names))])
            nbest.sort(key=lambda h: -round(float(h["score"]), 9))
        same(expected, got)
