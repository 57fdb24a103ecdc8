"""A checkpoint under an architecture's name that no one knows here: built as a plain Transformer
where its settings say so."""

import re
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from conftest import command
from fairseq.models import ARCH_MODEL_REGISTRY
from forked import generate, generate_forked
from sizes import drawn

from fairseq_ext.plugin.loading.checkpoint import build_as_plain_

LINE = (
    "the checkpoint's architecture somebodys_sizes is not registered here: built as a plain "
    "Transformer, 1 + 1 layers of width 16"
)


def hypotheses(out: str) -> list[str]:
    return sorted(re.findall(r"^[HP]-.*", out, re.M))


def renamed(tiny: Path, path: Path, change=None, old: bool = False) -> Path:
    """The tiny checkpoint under another architecture's name; old: with its settings as fairseq
    before 0.10 saved them."""
    state = torch.load(tiny / "model.pt", weights_only=False)
    model = state["cfg"]["model"]
    model.arch = model._name = "somebodys_sizes"
    if old:
        settings = Namespace(**vars(model))
        settings.task, settings.criterion, settings.min_lr = (
            "somebodys_task",
            "somebodys_loss",
            1e-9,
        )
        del settings._name
        state |= {"args": settings, "cfg": None}
    if change is not None:
        change(state["args"] if old else model, state["model"])
    torch.save(state, path)
    return path


def flags(tiny: Path, path: Path) -> list:
    return [
        tiny / "data",
        "--path",
        path,
        "--cpu",
        "--beam",
        "3",
        "--max-len-b",
        "12",
        "-s",
        "de",
        "-t",
        "en",
    ]


@pytest.mark.parametrize("old", [False, True], ids=["cfg", "args"])
def test_it_translates_as_the_same_weights_do_under_fairseqs_name(tiny, tmp_path, old):
    path = renamed(tiny, tmp_path / "model.pt", old=old)
    ours = generate_forked(*flags(tiny, path), "--task", "translation_ext")
    known = generate_forked(*flags(tiny, tiny / "model.pt"), "--task", "translation_ext")
    assert (
        hypotheses(ours.stdout) == hypotheses(known.stdout) and len(hypotheses(ours.stdout)) == 22
    )
    assert (ours.stdout + ours.stderr).count(
        LINE
    ) == 1 and "not registered here" not in known.stdout + known.stderr


def test_the_command_without_our_task_stays_as_it_is(tiny, tmp_path):
    """Stock fairseq knows no such architecture; a user directory that registers
    it is requested first."""
    path = renamed(tiny, tmp_path / "model.pt")
    stock = command("fairseq-generate", *flags(tiny, path), check=False, cold=True)
    assert stock.returncode and LINE not in stock.stdout + stock.stderr
    folder = tmp_path / "somebodys_models"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from fairseq.models import register_model_architecture\n"
        "from fairseq.models.transformer import base_architecture\n"
        "register_model_architecture('transformer', 'somebodys_sizes')(base_architecture)\n"
    )
    done = command(
        "fairseq-generate",
        *flags(tiny, path),
        "--user-dir",
        folder,
        "--task",
        "translation_ext",
    )
    assert LINE not in done.stdout + done.stderr and "H-0\t" in done.stdout


def lacks(settings, weights):
    del settings.decoder_layers


def has_more(settings, weights):
    settings.rotary_positions = True


def other_weights(settings, weights):
    weights["decoder.layers.0.gate.weight"] = torch.zeros(2)


def other_size(settings, weights):
    settings.encoder_ffn_embed_dim = 32


@drawn(4)
@pytest.mark.parametrize(
    "change, message",
    [
        (
            lacks,
            (
                "architecture somebodys_sizes is not registered here, and its settings lack "
                "decoder_layers: name its --user-dir"
            ),
        ),
        (
            has_more,
            (
                "its settings have rotary_positions=True, which a plain Transformer does not have: "
                "name its --user-dir"
            ),
        ),
        (
            other_weights,
            r"not those of its architecture \(Unexpected: decoder.layers.0.gate.weight\)",
        ),
        (other_size, "does not fit"),
    ],
)
@pytest.mark.parametrize("old", [False, True], ids=["cfg", "args"])
def test_what_is_no_plain_transformer_is_refused_in_one_sentence(
    tiny, tmp_path, change, message, old
):
    path = renamed(tiny, tmp_path / "model.pt", change, old)
    done = generate(*flags(tiny, path), "--task", "translation_ext")
    said = done.stderr.strip().splitlines()[-1]
    assert done.status and said.startswith("error: ") and re.search(message, said), done.stderr
    assert "Traceback" not in done.stderr


def test_what_fairseq_registers_is_left_alone():
    for name in ("transformer", "lstm", "fconv"):
        assert name in ARCH_MODEL_REGISTRY
        state = {"cfg": {"model": Namespace(arch=name)}}
        build_as_plain_(state)
        assert vars(state["cfg"]["model"]) == {"arch": name}
    for state in ({}, {"cfg": None}, {"cfg": {}}, {"args": None, "cfg": {"model": None}}):
        build_as_plain_(dict(state))
