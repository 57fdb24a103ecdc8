"""The compiled step, and `--no-repeat-ngram-size`, compute what torch computes, and nothing depends
on their being there."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from model.decoder_rows import Rows, model_of
from models import batch, build, generators, run, separated
from sizes import covering

from fairseq_ext.core.errors import UsageError
from fairseq_ext.kernels import log_probs as topk
from fairseq_ext.kernels import transformer as step
from fairseq_ext.kernels.library import library
from fairseq_ext.model import choose
from fairseq_ext.model.transformer import weights
from fairseq_ext.model.transformer.decoder import TransformerBackend
from fairseq_ext.search import log_probs
from fairseq_ext.search.beam import NOT_YET
from fairseq_ext.search.log_probs import LogProbs

pytestmark = pytest.mark.usefixtures("on_the_cpu")
needs_library = pytest.mark.skipif(library() is None, reason="there is no C++ compiler")
# lines, in, out
SHAPES = [(1, 4, 1), (2, 7, 63), (3, 64, 64), (4, 20, 65), (5, 16, 130), (7, 12, 200), (13, 32, 96)]
SHAPES += [(1, 36, 161), (2, 8, 300)]  # odd numbers of panels, several of which run side by side
LARGE = (50, 256, 1024)  # worth several threads


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# ---- linear maps, softmax, top-k


@covering(2)
@needs_library
@pytest.mark.parametrize("after", ["none", "relu", "gelu", "silu"])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("bits", [32, 16, 8])
@pytest.mark.parametrize("shape", [*SHAPES, LARGE])
def test_linear_layers_are_those_of_the_rounded_numbers(shape, bits, with_bias, after, two_threads):
    """Each row has a scale of its own. Of 8 bits, those whose inputs do not come in fours stay
    float32."""
    lines, inputs, out = shape
    x, weight = numbers(lines, inputs), numbers(out, inputs, seed=1) / inputs**0.5
    x[0] = weight[0] = 0.0  # nothing to take a scale from
    bias = numbers(out, seed=2) if with_bias else None
    found = step.PackedLinear(weight, bias, bits=bits)(x, after).double()
    if bits == 8 and inputs % 4 == 0:
        scale = x.abs().amax(1, keepdim=True) / 127
        x = torch.where(scale > 0, x * (1 / scale), 0).round() * scale.double()
    if bits == 16 or bits == 8 and inputs % 4 == 0:
        scale = weight.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
        weight = torch.where(scale > 0, weight / scale, 0).round() * scale.double()
    expected = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    expected = expected if after == "none" else getattr(F, after)(expected)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=5e-6)


@needs_library
@pytest.mark.parametrize("bits", [32, 16, 8])
def test_a_line_has_the_same_bits_among_any_number_of_lines(bits):
    layer = step.PackedLinear(numbers(330, 52, seed=1), numbers(330, seed=2), bits=bits)
    x = numbers(14, 52)
    alone = torch.cat([layer(line[None]) for line in x])
    for lines in range(2, 15):
        assert layer(x[:lines]).equal(alone[:lines])


@needs_library
@pytest.mark.parametrize("bits", [32, 8])
@pytest.mark.parametrize("chosen", [1, 5, 200])
def test_chosen_outputs_have_the_bits_that_they_have_among_all(chosen, bits):
    weight, x = numbers(300, 48), numbers(7, 48, seed=1)
    outputs = numbers(300).argsort()[:chosen].sort().values
    for bias in (numbers(300, seed=2), None):
        whole = step.PackedLinear(weight, bias, bits)
        assert torch.equal(whole.select_outputs(outputs)(x), whole(x)[:, outputs])


@needs_library
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("spread", [0.01, 3.0, 200.0])
def test_log_softmax_equals_torchs(spread, temperature, two_threads):
    x = numbers(9, 20_000) * spread
    x[0, 3] = -torch.inf
    expected = (x.double() / temperature).log_softmax(-1)
    atol = 2e-6 * max(1.0, spread / temperature)  # of the rounding of x itself
    torch.testing.assert_close(
        topk.log_softmax_(x.clone(), temperature).double(), expected, rtol=1e-6, atol=atol
    )


@needs_library
@pytest.mark.parametrize("k", [1, 2, 10, 40])
@pytest.mark.parametrize("columns", [40, 64, 1000, 7801])
def test_topk_equals_torchs(columns, k):
    x = numbers(17, columns)
    x[1] = x[1].sort().values
    x[2] = x[2].sort(descending=True).values
    x[3, k - 1 :] = -torch.inf
    score, column = topk.topk(x, k)
    assert torch.equal(score, x.topk(k).values)
    assert torch.equal(x.gather(1, column), score)
    assert all(len(set(line)) == k for line in column.tolist())


@needs_library
@pytest.mark.parametrize("has_ties", [False, True])
@pytest.mark.parametrize("c", [1, 2, 10, 60])
@pytest.mark.parametrize("columns", [3, 64, 1000, 7801])
def test_the_best_of_sentences_are_torchs_over_their_rows(columns, c, has_ties, two_threads):
    """Of equal ones the first come first; what is not possible is the first row and column."""
    first = torch.tensor([0, 1, 4, 9, 9, 17])  # the fourth sentence has no row
    x, before = numbers(17, columns), numbers(17, seed=1)
    x, before = (x.round(), before.round()) if has_ties else (x, before)
    x[2, 1:] = -torch.inf
    before[6] = -torch.inf
    before[9:] = -torch.inf  # nothing of the last sentence is possible
    found = topk.best_of_sentences(x, before, first, c)
    for s, (start, end) in enumerate(pairwise(first.tolist())):
        value, place = (x + before[:, None])[start:end].flatten().sort(descending=True, stable=True)
        place = place[value > -torch.inf][:c]
        rest = (0, c - len(place))
        assert found[0][s].equal(F.pad(start + place // columns, rest, value=start))
        assert found[1][s].equal(F.pad(place % columns, rest))
        assert found[2][s].equal(F.pad(value[: len(place)], rest, value=-torch.inf))


# ---- layers


@needs_library
@pytest.mark.parametrize("far", [0.0, 1000.0])
@pytest.mark.parametrize("d", [3, 48, 130])
def test_layer_norms_equal_torchs(d, far):
    x, norm = numbers(9, d) + far, torch.nn.LayerNorm(d, eps=1e-3)
    with torch.no_grad():
        norm.weight.copy_(numbers(d, seed=1))
        norm.bias.copy_(numbers(d, seed=2))
    found = step.CompiledNorm(weights.Norm(norm))(x)
    expected = norm.double()(x.double()).detach()
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-3 if far else 1e-5)


@covering(1)
@needs_library
@pytest.mark.parametrize("h", [16, 32, 48, 64, 128])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_heads_of_whole_vectors_equal_teacher_forcing(h, activation):
    width = {f"{side}_embed_dim": 2 * h for side in ("encoder", "decoder")}
    flags = dict(activation_fn=activation, decoder_normalize_before=True, **width)
    rows = Rows([model_of(h, torch.float32, **flags)], [3, 1, 7, 5], h)
    assert rows.decoder.weights[0].compiled is not None
    rows.start([0, 1, 2, 3])
    for turn in range(6):
        rows.step()
        rows.select(uniform=turn % 2 == 0, may_drop=False)


@needs_library
@pytest.mark.parametrize("width", [8, 32, 256])
def test_attention_of_scores_far_from_each_other_is_finite(width):
    widths = {f"{side}_embed_dim": width for side in ("encoder", "decoder")}
    model = model_of(2, torch.float32, **widths)
    with torch.no_grad():
        for layer in model.decoder.layers:
            layer.encoder_attn.q_proj.weight *= 1000
    rows = Rows([model], [3, 40])
    rows.start([0, 1])
    assert rows.decoder.weights[0].compiled is not None
    assert all(found.isfinite().all() for found in rows.decoder.step(torch.tensor([[2], [2]])))


@needs_library
def test_sentences_may_leave_one_after_another_and_rows_go_on_in_blocks():
    """Slots with gaps, compacted when half are empty, under steps of one token and of several."""
    rows = Rows([model_of(2, torch.float32)], [i % 5 for i in range(12)], 4)
    rows.start(list(range(12)))
    rows.step()
    gaps = 0
    while len(rows.rows) > 1:
        rows.select(uniform=True, may_drop=True, width=2)
        rows.step()
        gaps += rows.decoder.group.cache.slot is not None
        rows.become([[*row, rows.token(), rows.token()] for row in rows.all_rows()])
        rows.step(new=2)
    assert gaps > 2


@needs_library
def test_several_threads_compute_what_one_does(two_threads):
    model = model_of(
        1, torch.float32, encoder_embed_dim=128, decoder_embed_dim=128, decoder_ffn_embed_dim=512
    )
    rows = Rows([model], [20] * 30)
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        rows.start(list(range(30)))
        rows.decoder.step(torch.full((30, 1), 2))
        sentence = torch.arange(30).repeat_interleave(4)
        rows.decoder.select(sentence, None, 4, sentence)
        found.append(rows.decoder.step(torch.arange(120)[:, None] % 20 + 4)[0])
    assert torch.equal(*found)


@needs_library
def test_activations_it_does_not_know_run_as_torch_operations():
    for model in (model_of(1, torch.float32, activation_fn="tanh"), model_of(1, torch.float64)):
        assert TransformerBackend([model]).weights[0].compiled is None


# ---- --int8


@needs_library
def test_int8_finds_nearly_the_same_translations_and_says_so():
    models, found = [build("transformer", 2, torch.float32)], []
    for int8 in (False, True):
        ours = generators(models, {"int8": int8}, beam=3, max_len_b=8).ours
        assert ("backend:transformer,int8" in ours.stats.signature) == int8
        found.append([float(nbest[0]["score"]) for nbest in run(ours, batch([6, 3, 9, 4]))])
    assert found[0] == pytest.approx(found[1], abs=0.1) and found[0] != found[1]


FLOAT = {"dtype": torch.float32}


@pytest.mark.parametrize(
    ("model", "more", "flags", "said"),
    [
        ("transformer", {}, {}, "float32"),
        ("lstm", FLOAT, {}, "LSTMModel"),
        ("transformer", FLOAT, {"decoder_backend": "fairseq"}, "--decoder-backend fairseq"),
        ("transformer", FLOAT, {"match_source_len": True}, "--match-source-len"),
        ("transformer", FLOAT, {"print_alignment": "hard"}, "--print-alignment"),
        ("transformer", FLOAT, {}, "python -m fairseq_ext.kernels"),
    ],
)
def test_int8_is_refused_in_one_sentence_where_it_cannot_be(model, more, flags, said, monkeypatch):
    if "kernels" in said:
        monkeypatch.setattr(choose, "library", lambda: None)
    ours, stock = separated(flags)
    with pytest.raises(UsageError, match=said):
        generators([build(model, **more)], {"int8": True, **ours}, **stock)


WORDS = 13  # so few that n-grams repeat


@needs_library
@pytest.mark.parametrize("ids", [None, torch.arange(0, WORDS, 2)], ids=["all words", "shortlist"])
def test_compiled_ngrams_equal_torchs(ids, monkeypatch):
    """Over histories of all lengths, behind a first token, as a beam keeps them."""
    torch.manual_seed(3)
    changed = 0
    for size in (1, 2, 3, 4):
        for rows, longest in ((1, size), (5, 9), (8, 40)):
            tokens = torch.randint(0, WORDS - 4, (rows, longest))
            tokens[torch.arange(longest) < torch.randint(0, longest + 1, (rows, 1)) - 1] = NOT_YET
            value = torch.randn(rows, WORDS if ids is None else ids.numel())
            compiled, torchs = (LogProbs(value.clone(), ids, WORDS) for _ in range(2))
            before = compiled.dense().clone()
            compiled.ban_repeated_(tokens, size)
            with monkeypatch.context() as patch:
                patch.setattr(log_probs, "library", lambda: None)
                torchs.ban_repeated_(tokens, size)
            assert torch.equal(compiled.dense(), torchs.dense())
            changed += int((compiled.dense() != before).sum())
    assert changed > 20
