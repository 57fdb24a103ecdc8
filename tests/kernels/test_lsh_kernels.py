"""The functions of LSH softmax against their definitions: torch's and the compiled ones; with
--device cuda the CUDA twins, which test_cuda_sources.py runs on a CPU."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import drawn, examples

from fairseq_ext.kernels import lsh as lsh_compiled
from fairseq_ext.kernels import lsh_cuda, lsh_torch
from fairseq_ext.kernels import shortlist as gathered
from fairseq_ext.kernels.library import library
from fairseq_ext.kernels.transformer import PackedLinear


def functions(device):
    """torch's, or CUDA's on a GPU."""
    if device.type != "cuda":
        return lsh_torch
    assert lsh_cuda.unavailable_reason() is None, lsh_cuda.unavailable_reason()
    return lsh_cuda


@pytest.fixture
def kernels(device):
    """The functions under test."""
    return functions(device)


@pytest.fixture(params=["torch", "compiled"])
def twins(request, kernels):
    """The same, and the compiled ones on a CPU."""
    if request.param == "torch":
        return kernels
    if kernels is lsh_cuda or library() is None:
        pytest.skip("a GPU" if kernels is lsh_cuda else "no compiler")
    return lsh_compiled


def case(seed: int = 1, V: int = 300, D: int = 12, K: int = 4, u: int = 2, W: int = 9, n: int = 4):
    """Random words and states with their codes, as plain lists of Eq. 5 say."""
    generator = torch.Generator().manual_seed(seed)
    words, rows = torch.randn(V, D, generator=generator), torch.randn(n, D, generator=generator)
    return words, rows, lsh_torch.draw_dimensions(D, K, u, W, seed)


def codes_by_hand(x, dimensions, u):
    """Eq. 5 to 7 in plain Python."""
    bits, out = lsh_torch.bits_of(dimensions.size(1)), []
    for row in x.tolist():
        codes = [0] * (len(dimensions) // u)
        for i, each in enumerate(dimensions.tolist()):
            winner = max(range(len(each)), key=lambda k: row[each[k]])
            codes[i // u] = codes[i // u] << bits | winner
        out.append(codes)
    return torch.tensor(out, dtype=torch.int32)


def test_the_papers_example_of_equation_5(twins, device):
    """H and the permutations of Table 5 with K = 2: places 2, 1, 2, 1 by Eq. 5 (the table as
    printed has 1, 2, 2, 1)."""
    H = torch.tensor([[0.32, 0.48, -0.57, 0.63]], device=device)
    dimensions = torch.tensor([[1, 2], [1, 3], [3, 2], [4, 1]], device=device) - 1
    assert twins.wta_hash(H, dimensions, 1).tolist() == [[1, 0, 1, 0]]
    assert twins.wta_hash(H, dimensions, 2).tolist() == [[0b10, 0b10]]


@pytest.mark.parametrize("K, u", [(2, 1), (3, 2), (4, 3), (8, 3), (12, 2)])
def test_codes_are_those_of_the_definition(twins, device, K, u):
    words, _, dimensions = case(K=K, u=u)
    assert torch.equal(
        twins.wta_hash(words.to(device), dimensions.to(device), u).cpu(),
        codes_by_hand(words, dimensions, u),
    )


def test_the_first_of_equal_dimensions_wins(twins, device):
    x = torch.zeros(3, 12, device=device)
    assert not twins.wta_hash(x, case()[2].to(device), 2).any()


def test_dimensions_are_drawn_without_repetition_and_by_seed():
    drawn = lsh_torch.draw_dimensions(12, 5, 3, 50, seed=3)
    assert drawn.shape == (150, 5) and all(len(set(row)) == 5 for row in drawn.tolist())
    assert torch.equal(drawn, lsh_torch.draw_dimensions(12, 5, 3, 50, seed=3))
    assert not torch.equal(drawn, lsh_torch.draw_dimensions(12, 5, 3, 50, seed=4))


@pytest.mark.parametrize("K, u", [(4, 2), (64, 3)], ids=["4 bits", "18 bits"])
def test_each_code_has_the_words_of_its_band(twins, device, K, u):
    words, _, _ = case(D=80)
    built = lsh_torch.build_index(words.to(device), K, u, 5, 1, twins.wta_hash)
    codes = twins.wta_hash(words.to(device), built.dimensions, u).cpu()
    listed = built.words.cpu()
    for band in range(5):
        of_band = listed[band * 300 : (band + 1) * 300]
        assert sorted(of_band.tolist()) == list(range(300))
        # words of a code are next to each other, in their order
        assert torch.equal(of_band.long(), codes[:, band].argsort(stable=True))
        for code in codes[:, band].unique().tolist():
            at = (band << (u * lsh_torch.bits_of(K))) + code
            start, end = built.offsets[at : at + 2].tolist()
            assert listed[start:end].tolist() == (codes[:, band] == code).nonzero()[:, 0].tolist()
    assert built.offsets.numel() == (5 << (u * lsh_torch.bits_of(K))) + 1


@pytest.mark.parametrize("n", [1, 4])
def test_hits_equal_equation_9(kernels, device, n):
    words, rows, _ = (x.to(device) for x in case(n=n))
    built = lsh_torch.build_index(words, 4, 2, 9, 1, kernels.wta_hash)
    of_words, of_rows = (kernels.wta_hash(x, built.dimensions, 2) for x in (words, rows))
    start, length = kernels.lookup(of_rows, built.offsets)
    expected = (of_rows[:, None] == of_words[None]).sum(-1)
    assert torch.equal(kernels.count_hits(start, length, built.words, 300).long(), expected)
    assert expected.max() > 2 and expected.min() == 0  # there is something to see


@settings(max_examples=examples(60), deadline=None)
@given(n=st.integers(1, 4), V=st.integers(1, 700), t=st.integers(0, 4), seed=st.integers(0, 99))
def test_compaction_equals_a_filter(device, n, V, t, seed):
    kernels = functions(device)
    generator = torch.Generator().manual_seed(seed)
    hits = torch.randint(4, (n, V), generator=generator, dtype=torch.int32).to(device)
    always = (torch.rand(V, generator=generator) < 0.1).to(device)
    expected = [j for j in range(V) if always[j] or any(hits[i, j] >= t for i in range(n))]
    assert kernels.compact(hits, t, always).tolist() == expected


@settings(max_examples=examples(120), deadline=None)
@given(
    n=st.integers(1, 6),
    V=st.integers(1, 900),
    W=st.sampled_from([1, 7, 60, 300]),
    t=st.integers(1, 9) | st.just(256),
    shape=st.sampled_from([(2, 1), (4, 2), (6, 3)]),
    bias=st.booleans(),
    wanted=st.booleans(),
    seed=st.integers(0, 99),
)
def test_the_words_found_in_one_call_are_those_of_the_functions(
    n, V, W, t, shape, bias, wanted, seed
):
    if library() is None:
        pytest.skip("no compiler")
    generator = torch.Generator().manual_seed(seed)
    weight, x = torch.randn(V, 12, generator=generator), torch.randn(n, 12, generator=generator)
    x[0] = weight[0]  # in all bands, be they 300, where there is no bias
    shift = torch.randn(V, generator=generator) if bias else None
    always, never = torch.rand(2, V, generator=generator) < 0.1
    words = weight if shift is None else torch.cat([weight, shift[:, None]], 1)
    index = lsh_torch.build_index(words, *shape, W, seed)
    of_words = lsh_torch.wta_hash(words, index.dimensions, index.u)
    finder = lsh_compiled.CompiledLookup(index, never, int(bias))
    for rows in (x, -x):  # what it counts with is clean again
        padded = rows if shift is None else torch.cat([rows, torch.ones(n, 1)], 1)
        # Eq. 9 by brute force
        hits = (
            (lsh_torch.wta_hash(padded, index.dimensions, index.u)[:, None] == of_words)
            .sum(-1)
            .amax(0)
        )
        listed = (hits >= t) | (always if wanted else torch.zeros_like(always))
        assert finder(rows, t, always if wanted else None, 1).tolist() == [
            j for j in range(V) if listed[j] and not never[j]
        ]


@drawn(36)
@pytest.mark.parametrize(
    "found", [[], [0], [9], [30, 31, 32, 33, 34], [0, 5, 6, 7, 20, 29, 33, 69]], ids=str
)
@pytest.mark.parametrize("n", [1, 2, 5, 6, 7, 19])
@pytest.mark.parametrize(
    "d, bias, temperature", [(7, False, 1.0), (16, True, 1.0), (53, True, 2.5)]
)
def test_log_probabilities_over_a_list_equal_double_precision(n, d, bias, temperature, found):
    weight, x = torch.randn(70, d), torch.randn(n, d)
    if not gathered.is_supported(weight):
        pytest.skip("no compiler")
    shift = torch.randn(70) if bias else None
    base = torch.tensor([2, 3, *range(10, 20), 40, 68])
    linear = PackedLinear(weight[base], None if shift is None else shift[base])
    ids, value = gathered.ShortlistLinear(linear, base, weight, shift, temperature)(
        x, torch.tensor(found, dtype=torch.long), 1
    )
    assert ids.tolist() == sorted([*base.tolist(), *found])
    logits = torch.nn.functional.linear(
        x.double(), weight.double(), None if shift is None else shift.double()
    )
    expected = (logits[:, ids] / temperature).log_softmax(-1)
    torch.testing.assert_close(value.double(), expected, atol=1e-5, rtol=1e-5)
