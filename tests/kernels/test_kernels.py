"""The compiled step, and `--no-repeat-ngram-size`, compute what torch computes, and nothing depends
on their being there."""

from __future__ import annotations

import logging
import shutil
import sys

import pytest
import torch
import torch.nn.functional as F
from conftest import ran
from model.decoder_rows import Rows, model_of
from models import batch, build, generators, run
from sizes import covering

from fairseq_ext.core.errors import UsageError
from fairseq_ext.kernels import library as building
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
needs_library = pytest.mark.skipif(building.library() is None, reason="there is no C++ compiler")
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
@pytest.mark.parametrize("shape", [*SHAPES, LARGE])
def test_linear_layers_equal_torchs(shape, with_bias, after, two_threads):
    lines, inputs, out = shape
    x, weight = numbers(lines, inputs), numbers(out, inputs, seed=1) / inputs**0.5
    bias = numbers(out, seed=2) if with_bias else None
    expected = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    expected = expected if after == "none" else getattr(F, after)(expected)
    found = step.PackedLinear(weight, bias)(x, after).double()
    torch.testing.assert_close(found, expected, rtol=0, atol=5e-6)


@needs_library
@pytest.mark.parametrize("shape", [s for s in [*SHAPES, LARGE] if s[1] % 4 == 0])
def test_int8_linear_layers_are_those_of_the_rounded_numbers(shape, two_threads):
    lines, inputs, out = shape
    x, weight, bias = numbers(lines, inputs), numbers(out, inputs, seed=1), numbers(out, seed=2)
    x[0] = 0.0  # nothing to take a scale from
    scale_x = x.abs().amax(1, keepdim=True) / 127
    whole_x = torch.where(scale_x > 0, x * (1 / scale_x), 0).round().double()
    scale_w = weight.abs().amax(1) / 127
    whole_w = (weight / scale_w[:, None]).round().double()
    expected = whole_x @ whole_w.t() * scale_x.double() * scale_w.double() + bias.double()
    found = step.PackedLinear(weight, bias, bits=8)(x).double()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)


@needs_library
@pytest.mark.parametrize("shape", [*SHAPES, LARGE])
def test_16_bit_linear_layers_are_those_of_the_rounded_weights(shape, two_threads):
    lines, inputs, out = shape
    x, weight, bias = numbers(lines, inputs), numbers(out, inputs, seed=1), numbers(out, seed=2)
    weight[0] = 0.0  # nothing to take a scale from
    scale = weight.abs().amax(1) / 32767
    whole = torch.where(scale[:, None] > 0, (weight / scale[:, None]).round(), 0).double()
    expected = x.double() @ (whole * scale[:, None]).t() + bias.double()
    found = step.PackedLinear(weight, bias, bits=16)(x).double()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-4)


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
    draw = torch.Generator().manual_seed(chosen)
    weight, bias = torch.randn(300, 48, generator=draw), torch.randn(300, generator=draw)
    outputs = torch.randperm(300, generator=draw)[:chosen].sort().values
    x = torch.randn(7, 48, generator=draw)
    for shift in (bias, None):
        whole = step.PackedLinear(weight, shift, bits)
        assert torch.equal(whole.select_outputs(outputs)(x), whole(x)[:, outputs])


def test_int8_linear_layers_whose_inputs_do_not_come_in_fours_stay_float32():
    x, weight = numbers(3, 7), numbers(5, 7, seed=1)
    torch.testing.assert_close(step.PackedLinear(weight, None, bits=8)(x), x @ weight.t())


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
@pytest.mark.parametrize("c", [1, 2, 10, 60])
@pytest.mark.parametrize("columns", [3, 64, 1000, 7801])
def test_the_best_of_sentences_are_torchs_over_their_rows(columns, c, two_threads):
    first = torch.tensor([0, 1, 4, 9, 9, 17])  # the fourth sentence has no row
    x, before = numbers(17, columns), numbers(17, seed=1)
    x[2, 1:] = -torch.inf
    before[6] = -torch.inf
    before[9:] = -torch.inf  # nothing of the last sentence is possible
    row, column, score = topk.best_of_sentences(x, before, first, c)
    for s in range(5):
        rows = slice(first[s], first[s + 1])
        all_scores = (x[rows] + before[rows, None]).flatten()
        expected = all_scores[all_scores > -torch.inf].sort(descending=True).values[:c]
        found = score[s, : len(expected)]
        assert torch.equal(found, expected) and (score[s, len(expected) :] == -torch.inf).all()
        assert torch.equal((x[row[s], column[s]] + before[row[s]])[: len(expected)], expected)
        assert (
            len(set(zip(row[s].tolist(), column[s].tolist(), strict=True)) - {(int(first[s]), 0)})
            >= len(expected) - 1
        )
        assert len(expected) == 0 or ((first[s] <= row[s]) & (row[s] < first[s + 1])).all()


@needs_library
def test_of_equal_continuations_the_first_come_first():
    x = torch.zeros(4, 300)
    row, column, _ = topk.best_of_sentences(x, torch.zeros(4), torch.tensor([0, 2, 4]), 5)
    assert row.tolist() == [[0] * 5, [2] * 5] and column.tolist() == [[0, 1, 2, 3, 4]] * 2


@needs_library
def test_what_is_not_possible_is_the_first_row_and_column():
    x = torch.full((4, 7), -torch.inf)
    x[3, 5] = 0.0
    row, column, score = topk.best_of_sentences(x, torch.zeros(4), torch.tensor([0, 2, 4]), 3)
    assert row.tolist() == [[0, 0, 0], [3, 2, 2]] and column.tolist() == [[0, 0, 0], [5, 0, 0]]
    assert score.tolist() == [[-torch.inf] * 3, [0.0, *[-torch.inf] * 2]]


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


# ---- without the library


@pytest.mark.parametrize(
    ("compiler", "said"),
    [("no-such-compiler", "no C++ compiler"), ("false", "false could not compile ")],
)
def test_no_compiler_or_one_that_fails_is_said_and_is_no_error(
    monkeypatch, caplog, tmp_path, compiler, said
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", compiler)
    with caplog.at_level(logging.INFO, "fairseq_ext"):
        assert building.library.__wrapped__() is None
    assert said in caplog.text and not [*tmp_path.glob("fairseq_ext/*")]


def test_the_library_can_be_switched_off_and_the_log_says_so(monkeypatch, caplog):
    monkeypatch.setenv("FAIRSEQ_EXT_KERNELS", "off")
    with caplog.at_level(logging.INFO, "fairseq_ext"):
        assert building.library.__wrapped__() is None
    assert "FAIRSEQ_EXT_KERNELS=off" in caplog.text


@needs_library
def test_the_command_that_builds_it_says_when_it_is_switched_off(monkeypatch):
    monkeypatch.setenv("FAIRSEQ_EXT_KERNELS", "off")
    done = ran(sys.executable, "-m", "fairseq_ext.kernels")
    assert done.stdout.strip().endswith(".so")
    assert "FAIRSEQ_EXT_KERNELS=off" in done.stderr


@pytest.mark.skipif(shutil.which("env") is None, reason="there is no env command")
def test_a_compiler_may_be_named_with_what_is_to_come_before_it_or_behind(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "env no-such-compiler -O2")
    assert building.compiler() == [shutil.which("env"), "no-such-compiler", "-O2"]
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    assert building.compiler() is None


# ---- --int8


@needs_library
def test_int8_finds_nearly_the_same_translations_and_says_so():
    models = [build("transformer", 2, torch.float32)]
    exact = generators(models, beam=3, max_len_b=8).ours
    rounded = generators(models, strategy={"int8": True}, beam=3, max_len_b=8).ours
    assert "backend:transformer,int8" in rounded.stats.signature
    assert rounded.decoder.weights[0].layers[0].ffn_in.pack().scale is not None
    pairs = zip(run(exact, batch([6, 3, 9, 4])), run(rounded, batch([6, 3, 9, 4])), strict=True)
    assert all(abs(float(a[0]["score"]) - float(b[0]["score"])) < 0.1 for a, b in pairs)


def test_int8_is_refused_in_one_sentence_where_it_cannot_be(monkeypatch):
    def refused(models, **flags):
        with pytest.raises(UsageError) as error:
            generators(models, strategy={"int8": True, **flags.pop("strategy", {})}, **flags)
        return str(error.value)

    assert "float32" in refused([build("transformer")])
    assert "LSTMModel" in refused([build("lstm", dtype=torch.float32)])
    model = [build("transformer", dtype=torch.float32)]
    assert "--decoder-backend fairseq" in refused(model, strategy={"decoder_backend": "fairseq"})
    assert "--match-source-len" in refused(model, match_source_len=True)
    assert "--print-alignment" in refused(model, print_alignment="hard")
    monkeypatch.setattr(choose, "library", lambda: None)
    assert "python -m fairseq_ext.kernels" in refused(model)


WORDS = 13  # so few that n-grams repeat


def histories(rows: int, longest: int, chance: torch.Generator) -> torch.Tensor:
    """Histories of all lengths, behind a first token, as a beam keeps them."""
    tokens = torch.randint(0, WORDS - 4, (rows, longest + 1), generator=chance)
    shorter = torch.randint(0, longest + 1, (rows, 1), generator=chance)
    return tokens.masked_fill_(torch.arange(longest + 1) < shorter, NOT_YET)[:, 1:]


@pytest.mark.skipif(library() is None, reason="there is no C++ compiler")
@pytest.mark.parametrize("ids", [None, torch.arange(0, WORDS, 2)], ids=["all words", "shortlist"])
def test_compiled_ngrams_equal_torchs(ids, monkeypatch):
    chance = torch.Generator().manual_seed(3)
    changed = 0
    for size in (1, 2, 3, 4):
        for rows, longest in ((1, size), (5, 9), (8, 40)):
            tokens = histories(rows, longest, chance)
            value = torch.randn(rows, WORDS if ids is None else ids.numel(), generator=chance)
            compiled, torchs = (LogProbs(value.clone(), ids, WORDS) for _ in range(2))
            before = compiled.dense().clone()
            compiled.ban_repeated_(tokens, size)
            with monkeypatch.context() as patch:
                patch.setattr(log_probs, "library", lambda: None)
                torchs.ban_repeated_(tokens, size)
            assert torch.equal(compiled.dense(), torchs.dense())
            changed += int((compiled.dense() != before).sum())
    assert changed > 20
