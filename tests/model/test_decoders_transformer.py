"""The transformer backend gives the features of fairseq's teacher forcing, whatever happens to its
rows, or says why it cannot."""

from __future__ import annotations

import pytest
import torch
from model.decoder_rows import EOS, MODELS, TOLERANCE, Graphed, Rows, model_of, run_plain_linears
from models import ARCHITECTURES, batch, build
from sizes import covering

from fairseq_ext.core.errors import UsageError
from fairseq_ext.model.choose import backend_difference, make_decoder
from fairseq_ext.model.stock import FairseqBackend
from fairseq_ext.model.stock_model import StockModel
from fairseq_ext.model.transformer.decoder import TransformerBackend
from fairseq_ext.model.transformer.encoder import fast_encoder
from fairseq_ext.model.transformer.supported import unsupported
from fairseq_ext.model.transformer.weights import read_weights


@pytest.fixture(params=[Rows, Graphed], ids=["eager", "recorded"])
def kind(request, monkeypatch) -> type[Rows]:
    """Rows whose decoder records its steps, and rows whose decoder does not."""
    if request.param is Graphed:
        run_plain_linears(monkeypatch)
    return request.param


def replays(rows: Rows, steps: int) -> bool:
    """Whether as many steps were recorded ones; True where nothing is recorded, or by CUDA."""
    return not isinstance(rows, Graphed) or rows.device.type == "cuda" or rows.replays() == steps


# ---- one token a step


@covering(1)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("widths", ["uniform", "ragged", "mixed"])
@pytest.mark.parametrize("name", MODELS)
def test_steps_equal_teacher_forcing_in_a_reordering_storm(name, widths, dtype, device, kind):
    seed = sorted(MODELS).index(name)
    rows = kind([model_of(seed, dtype, device, **MODELS[name])], [3, 1, 7, 0, 5], seed)
    for _ in rows.storm(widths):
        assert kind is Rows or len(rows.graphs.steps)
    assert replays(rows, 8)


@covering(1)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("sentences", [1, 20])
@pytest.mark.parametrize("width", [1, 5])
def test_long_rows_equal_teacher_forcing_while_the_cache_is_compacted_many_times(
    sentences, width, dtype, device, kind
):
    """20 sentences with 2 heads use batched matrix products, one sentence the fused attention."""
    rows = kind(
        [model_of(3, dtype, device, decoder_layers=1)], [i % 6 for i in range(sentences)], 1
    )
    shapes = set()
    for _ in rows.long_rows(45, width):
        shapes |= {each.shape for each in rows.graphs.buffers} if kind is Graphed else set()
    assert replays(rows, 45)
    if kind is Rows:  # positions that no one needs have been used again
        assert rows.decoder.group.cache.capacity < max(65, 45 * width)
    else:  # buffers are outgrown in mid-sentence
        assert len({positions for _, positions, _ in shapes}) > 1
        assert sentences == 1 or len({S for S, _, _ in shapes}) > 1


def test_learned_positions_work_up_to_the_models_limit_and_not_beyond(device, kind):
    kind(
        [model_of(device=device, decoder_learned_pos=True, max_target_positions=7)], [3, 1]
    ).go_beyond(7)


def test_sinusoidal_positions_go_on_beyond_the_table(device, kind):
    kind([model_of(device=device, max_target_positions=5)], [3]).go_on(16)


# ---- blocks, and rows at different lengths


@covering(1)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("sentences", [1, 3, 20])
@pytest.mark.parametrize("name", ["pre-norm", "learned positions, all tied", "no positions"])
def test_blocks_equal_teacher_forcing_though_drafts_are_taken_in_part(
    name, sentences, width, dtype, device, kind
):
    rows = kind([model_of(4, dtype, device, **MODELS[name])], [i % 6 for i in range(sentences)], 2)
    rows.read_blocks(8, width)
    assert kind is Rows or rows.device.type == "cuda" or rows.replays() >= 8


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_single_row_forgets_drafts_without_using_more_positions(dtype):
    """What greedy parallel decoding of one sentence does: the cache must not grow by
    what is thrown away."""
    rows = Rows([model_of(dtype=dtype)], [4])
    rows.start([0])
    for length in range(0, 40, 2):
        rows.rows = {0: [[*rows.rows[0][0], *[rows.token() for _ in range(3)]]]}
        rows.step(new=4, length=torch.tensor([length]))
        rows.rows = {0: [[*rows.rows[0][0][: length + 2], rows.token()]]}
    assert rows.decoder.group.cache.positions <= 42


# ---- groups of rows


@covering(1)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("seed", range(4))
def test_groups_that_take_turns_and_merge_go_on_as_if_they_had_been_alone(
    seed, dtype, device, kind
):
    """Groups of different source widths, at different lengths, uniform and ragged."""
    rows = kind(
        [model_of(6, dtype, device), model_of(7, dtype, device, **MODELS["pre-norm"])],
        [9, 7, 2, 1, 0],
        seed,
    )
    groups = rows.groups(seed % 2 == 0, ([3, 4], 3), ([0, 2], seed), ([1], 0))
    for i in (0, 1, 2) * 2:
        group, rows.rows = groups[i]
        rows.decoder.resume(group)
        rows.step()
        rows.select(uniform=seed < 2, may_drop=False)
        groups[i] = (rows.decoder.set_aside(), rows.rows)
    rows.merge(groups, uniform=seed < 2, may_drop=seed == 3)


# ---- the encoder


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    "flags",
    [
        {},
        dict(encoder_normalize_before=True, encoder_layers=3),
        dict(encoder_learned_pos=True, layernorm_embedding=True, activation_fn="gelu"),
        dict(no_token_positional_embeddings=True, no_scale_embedding=True),
        dict(encoder_attention_heads=4, max_source_positions=4, encoder_layerdrop=0.5),
    ],
)
def test_the_fast_encoder_gives_what_fairseqs_gives_wherever_there_is_a_word(flags, dtype, device):
    model = model_of(3, dtype, device, **flags)
    for lengths in ([3, 1, 7, 0], [4, 4], [9] * 20):
        net_input = {name: value.to(device) for name, value in batch(lengths)["net_input"].items()}
        with torch.no_grad():
            expected = model.encoder.forward_torchscript(net_input)["encoder_out"][0]
        got = fast_encoder(model)(net_input["src_tokens"])
        is_word = ~got["encoder_padding_mask"][0].t()
        torch.testing.assert_close(
            got["encoder_out"][0][is_word], expected[is_word], rtol=0, atol=TOLERANCE[dtype]
        )


def test_other_encoders_run_as_fairseqs_own_modules():
    model = model_of()
    model.encoder.layers[0].register_forward_hook(lambda *_: None)
    assert fast_encoder(model) is None and unsupported(model) is None
    rows = Rows([model], [3, 1])
    rows.start([0, 1])
    rows.step()


# ---- what the search sees


def test_an_ensemble_averages_probabilities(device):
    rows = Rows([model_of(seed, device=device) for seed in (1, 2)], [3, 5])
    rows.start([0, 1])
    features = rows.decoder.step(rows.tensor([[EOS], [EOS]]))
    pairs = zip(rows.models, features, strict=True)
    with torch.no_grad():
        both = [model.decoder.output_layer(x).view(2, -1).softmax(-1) for model, x in pairs]
    found = rows.decoder.log_probs(features, 1.0).view(2, -1)
    torch.testing.assert_close(found, (sum(both) / 2).log())


def test_half_precision_models_get_a_float32_softmax(device):
    model = model_of(dtype=torch.float16, device=device)
    assert backend_difference(model, read_weights(model.decoder)) is None
    decoder = TransformerBackend([model])
    net_input = {name: value.to(device) for name, value in batch([3, 5])["net_input"].items()}
    decoder.admit({name: net_input[name] for name in ("src_tokens", "src_lengths")})
    features = decoder.step(torch.tensor([[EOS], [EOS]], device=device))
    assert features[0].dtype == torch.float16
    assert decoder.log_probs(features, 1.0).dtype == torch.float32
    with torch.no_grad():  # the temperature divides what is in float32 already
        logits = model.decoder.output_layer(features[0]).view(2, -1).float()
    expected = (logits / 0.3).log_softmax(-1)
    assert torch.equal(decoder.log_probs(features, 0.3).view(2, -1), expected)
    stock = StockModel(model)
    assert torch.equal(stock.log_probs(features[0].view(2, -1), 0.3), expected)


# ---- which models


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (dict(adaptive_softmax_cutoff="8,16"), "adaptive softmax"),
        (dict(cross_self_attention=True), "--cross-self-attention"),
        (dict(scale_fc=True), "NormFormer"),
        (dict(scale_heads=True), "NormFormer"),
        (dict(scale_resids=True), "NormFormer"),
        (dict(quant_noise_pq=0.1, quant_noise_pq_block_size=4), "quantisation noise"),
    ],
)
def test_what_it_cannot_run_goes_to_fairseqs_modules_with_the_reason(flags, reason):
    model = model_of(**flags)
    decoder, why = make_decoder([model], "auto")
    assert isinstance(decoder, FairseqBackend)
    assert reason in why
    with pytest.raises(UsageError, match="--decoder-backend transformer cannot run this model"):
        make_decoder([model], "transformer")


@pytest.mark.parametrize("architecture", ["lstm", "fconv", "lightconv"])
def test_other_architectures_go_to_fairseqs_modules(architecture):
    assert "not an encoder-decoder with a plain Transformer decoder" in unsupported(
        build(architecture)
    )


def test_one_foreign_model_sends_the_ensemble_to_fairseqs_modules():
    decoder, why = make_decoder([build("transformer"), build("lstm")])
    assert isinstance(decoder, FairseqBackend) and "LSTMModel" in why


def test_replaced_modules_are_noticed():
    def quantised(model):
        model.decoder.layers[0].fc1 = torch.nn.Sequential(model.decoder.layers[0].fc1)

    def hooked(model):
        model.decoder.layers[0].register_forward_hook(lambda *_: None)

    def pruned(model):
        model.decoder.layers[1].encoder_attn.num_heads = 1

    for change, reason in ((quantised, "Sequential"), (hooked, "hooks"), (pruned, "heads")):
        model = model_of()
        change(model)
        assert reason in unsupported(model)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_plain_transformers_pass_the_self_check(name, dtype):
    model = model_of(2, dtype, **MODELS[name])
    decoder, why = make_decoder([model], "auto")
    assert isinstance(decoder, TransformerBackend) and why is None
    assert decoder.name == "transformer"


def test_the_self_check_leaves_a_model_in_training_as_it_was():
    model = build("bart").train()
    model.decoder.layers[0].encoder_attn.set_beam_size(5)
    seed = torch.get_rng_state()
    decoder, _ = make_decoder([model])
    assert isinstance(decoder, TransformerBackend)
    assert model.decoder.training and model.decoder.layers[0].encoder_attn.beam_size == 5
    assert torch.equal(seed, torch.get_rng_state())


def test_a_failed_self_check_falls_back_with_a_warning(caplog):
    model = model_of()
    # its parts do not say so
    model.decoder.layers[1].residual_connection = lambda x, residual: x + 2 * residual
    decoder, why = make_decoder([model])
    assert isinstance(decoder, FairseqBackend) and "differ from fairseq's" in why
    assert "self-check" in caplog.text


def test_the_table_of_architectures_is_served_where_it_is_a_plain_transformer():
    served = {name for name in ARCHITECTURES if unsupported(build(name)) is None}
    assert served == {
        "transformer",
        "transformer-pre-norm",
        "transformer-tied",
        "transformer-align",
        "bart",
    }
