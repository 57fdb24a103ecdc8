"""Weights that are not numbers are one sentence, wherever the model is loaded; weights that a
decoder holds packed are held once by a command, and its results stay the same."""

import math
import sys

import forked
import pytest
import torch
from models import batch, build, generators, run, same
from test_cli import EXT, generate, interactive, sentence

from fairseq_ext.core import command_line
from fairseq_ext.core.errors import UsageError
from fairseq_ext.corpus.worker import CorpusWorker
from fairseq_ext.kernels.library import library
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


needs_library = pytest.mark.skipif(library() is None, reason="there is no C++ compiler")


def matrices(model) -> list[int]:
    """The number of weights of each linear layer's matrix, output layer included."""
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    return [layer.weight.numel() for layer in layers]


@needs_library
@pytest.mark.parametrize(
    "architecture", ["transformer", "transformer-pre-norm", "transformer-tied"]
)
@pytest.mark.parametrize("int8", [False, True])
def test_a_released_model_decodes_as_before(architecture, int8, on_the_cpu):
    model = build(architecture, dtype=torch.float32)
    ours = generators([model], {"int8": int8}, beam=3, max_len_b=10).ours
    sample = batch([5, 3, 1])
    before = run(ours, sample)
    assert ours.release_models()
    copies = [
        layer._parameters[name]
        for layer in model.encoder.layers
        for name in ("in_proj_weight", "fc1_weight", "fc2_weight")
    ]
    # which fairseq 0.12 holds of its encoder's matrices
    assert sum(copy.numel() for copy in copies) == 0
    assert sum(matrices(model)) == (
        model.decoder.embed_tokens.weight.numel() if architecture == "transformer-tied" else 0
    )
    same(before, run(ours, sample), tolerance=0.0)
    same(before, run(ours, sample), tolerance=0.0)


@pytest.mark.parametrize(
    ("dtype", "flags", "strategies"),
    [
        (torch.float64, {}, ""),
        (torch.float32, {"softmax": "lsh"}, ""),
        (torch.float32, {}, "mine.py"),
    ],
    ids=["not compiled", "--softmax lsh", "a strategy of one's own"],
)
def test_what_may_read_the_modules_keeps_them(dtype, flags, strategies, monkeypatch):
    model = build("transformer", dtype=dtype)
    before = matrices(model)
    ours = generators([model], flags, beam=2).ours
    if strategies:
        monkeypatch.setenv("FAIRSEQ_EXT_STRATEGIES", strategies)
    assert not ours.release_models() and matrices(model) == before


WORDS = ["--task", "translation_ext"]
PROGRAMS = [  # what python was started with, and the command that it is
    (["/usr/bin/fairseq-generate", *WORDS], "fairseq_cli.generate"),
    (["fairseq-interactive", *WORDS], "fairseq_cli.interactive"),
    (["lib/fairseq_cli/generate.py", *WORDS], "fairseq_cli.generate"),
    (["-m", "fairseq_cli.generate", *WORDS], "fairseq_cli.generate"),
    (["fairseq-generate", "--task", "translation"], ""),
    (["fairseq-train", *WORDS], ""),
    (["generate.py", *WORDS], ""),
    ([""], ""),
    (["-m", "fairseq_ext.corpus", "translate"], "fairseq_ext.corpus"),
    (["-m", "fairseq_ext"], "fairseq_ext"),
    (["-m", "fairseq_extras"], ""),
    (["fairseq_ext.py"], ""),
    (["-m", "pytest", "fairseq_ext.corpus"], ""),
    (["-c", "import fairseq_ext", "fairseq-generate", *WORDS], ""),
    (["fairseq_ext/doctor.py"], "fairseq_ext.doctor"),
]


@pytest.mark.parametrize(
    ("words", "module"),
    PROGRAMS,
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_process_is_a_commands_own_or_another_programs(words, module, monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["python", "-u", *words])
    monkeypatch.setattr(sys, "argv", [words[0], *words[2:]] if words[0] in ("-m", "-c") else words)
    assert command_line.command() == module
    monkeypatch.setattr(command_line, "own_command", module)
    assert command_line.is_fairseq_command() == module.startswith("fairseq_cli.")
    # a program that calls fairseq-generate's main function
    monkeypatch.setattr(sys, "argv", ["fairseq-generate", "data", *WORDS])
    assert not command_line.command()
