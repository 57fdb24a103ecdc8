"""Weights that are not numbers are one sentence, wherever the model is loaded."""

import math

import forked
import pytest
import torch
from models import build, generators
from test_cli import EXT, generate, interactive, sentence

from fairseq_ext.core.errors import UsageError
from fairseq_ext.corpus.worker import CorpusWorker
from fairseq_ext.translator import Translator

KEY_BIAS = "decoder.layers.0.self_attn.k_proj.bias"
SAID = f"the model's weight {KEY_BIAS} holds NaN or infinity: "


@pytest.fixture(scope="module")
def harmed(tiny, tmp_path_factory):
    """The tiny model with a key bias that is NaN: it cancels out of attention."""
    state = torch.load(tiny / "model.pt", weights_only=False)
    state["model"][KEY_BIAS][0] = math.nan
    path = tmp_path_factory.mktemp("harmed") / "model.pt"
    torch.save(state, path)
    return path


def test_the_commands_refuse_a_key_bias_that_is_nan(tiny, harmed):
    for done in (
        generate(tiny, *EXT, "--path", harmed, run=forked.command, check=False),
        interactive(
            tiny, *EXT, "--path", harmed, stdin="de1 de2\n", run=forked.command, check=False
        ),
    ):
        assert sentence(done).startswith("error: " + SAID) and "H-0" not in done.stdout


def test_corpus_workers_and_translators_refuse_it(tiny, harmed):
    flags = {
        "path": str(harmed),
        "data": str(tiny / "data"),
        "source_lang": "de",
        "target_lang": "en",
        "cpu": True,
    }
    with pytest.raises(UsageError) as refused:
        Translator(**flags)
    assert str(refused.value).startswith(SAID)
    assert CorpusWorker(flags, 1, plain=False).load()["error"].startswith(SAID)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["transformer", "lstm"])
def test_any_weight_of_any_architecture_counts(name, value):
    for weight in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"):
        model = build(name)
        dict(model.named_parameters())[weight].data[-1, -1] = value
        with pytest.raises(UsageError, match=f"{weight} holds NaN or infinity"):
            generators([build(name), model], beam=2)


def test_large_weights_whose_sum_overflows_are_no_error():
    model = build("transformer", dtype=torch.float32)
    model.decoder.embed_tokens.weight.data[3:6] = 1e38
    generators([model], beam=2)
