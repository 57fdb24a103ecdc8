"""Text that comes unsegmented to a model of subwords: one warning that says what to add;
silence where all is well."""

import re
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from conftest import command
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq_cli.preprocess import cli_main as preprocess
from forked import forked, generate, generate_forked, succeeded
from sizes import drawn

from fairseq_ext import Translator
from fairseq_ext.plugin.loading.checkpoint import build_as_plain_
from fairseq_ext.plugin.loading.data_folder import SegmentationCheck, advice, kind_of_files
from fairseq_ext.search.phrases.pieces import kind_of

DEMO = Path(__file__).resolve().parents[3] / "checkpoints" / "demo"


RAW, PIECES = "Das ist gut.", "▁Das ▁ist ▁gut ."


SPM = f"--bpe sentencepiece --sentencepiece-model {DEMO / 'spm.model'}"


SAID = re.compile(r"the words of the dictionary are pieces.*")


def dictionary(*words: str) -> Dictionary:
    found = Dictionary()
    for word in words:
        found.add_symbol(word)
    return found


def reported(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if SAID.match(record.getMessage())]


@pytest.mark.parametrize(
    "words, lines, undone, warned",
    [
        (("▁a", "▁b", "c"), ["a b"], False, True),
        (("▁a", "▁b", "c"), ["a b"], True, True),
        (("▁a", "▁b", "c"), ["▁a ▁b c"], False, False),
        (("a@@", "b", "c"), ["a b"], False, True),
        (("a@@", "b", "c"), ["d@@ b"], False, False),
        (("a@@", "b", "c"), ["b c"], True, False),  # whole words that the dictionary has
        (("a@@", "b", "c"), ["b d"], True, True),
        (("a", "b", "c"), ["d e"], False, False),
        (("▁a", "b"), ["", "  "], False, False),
    ],
)
def test_marks_in_the_dictionary_and_none_in_the_lines(
    tmp_path, caplog, words, lines, undone, warned
):
    known = dictionary(*words)
    watch = SegmentationCheck(
        kind_of(known, None), str(tmp_path), known.__contains__ if undone else None
    )
    for _ in range(2):  # reported once
        watch.check(lines)
    assert len(reported(caplog)) == warned
    known.save(str(tmp_path / "dict.xx.txt"))
    assert kind_of_files([str(tmp_path / "dict.xx.txt")]) == kind_of(known, None)


def test_segmented_lines_settle_it(tmp_path, caplog):
    watch = SegmentationCheck("subword-nmt", str(tmp_path), None)
    for lines in (["", " "], ["a@@ b"], ["a b"]):
        watch.check(lines)
    assert not reported(caplog)


def test_the_advice_names_the_folders_file(tmp_path):
    assert advice("sentencepiece", str(DEMO)) == SPM
    assert (
        advice("sentencepiece", str(tmp_path)) == "--bpe sentencepiece --sentencepiece-model FILE"
    )
    (tmp_path / "bpecodes").write_text("e n</w> 77\n")
    assert (
        advice("subword-nmt", str(tmp_path)) == f"--bpe fastbpe --bpe-codes {tmp_path / 'bpecodes'}"
    )


@pytest.mark.parametrize(
    "text, more, count",
    [
        (RAW, [], 1),
        (PIECES, [], 0),
        (RAW, SPM.split(), 0),
        (PIECES, ["--remove-bpe", "sentencepiece"], 0),
    ],
    ids=["raw", "segmented", "with --bpe", "segmented, --remove-bpe"],
)
def test_interactive_warns_once(text, more, count):
    flags = [
        "--path",
        DEMO / "checkpoint.pt",
        "--cpu",
        "--beam",
        1,
        "--task",
        "translation_ext",
        *more,
    ]
    done = command("fairseq-interactive", DEMO, *flags, stdin=f"{text}\n{text}\n")
    assert [line.endswith(f"add {SPM}") for line in SAID.findall(done.stdout + done.stderr)] == [
        True
    ] * count
    assert done.stdout.count("H-") == 2


def test_generate_warns_that_its_output_stays_segmented(tmp_path):
    for language in ("de", "en"):
        (tmp_path / f"test.{language}").write_text(PIECES + "\n")
    dictionaries = [
        f"--{side}dict={DEMO / f'dict.{language}.txt'}"
        for side, language in (("src", "de"), ("tgt", "en"))
    ]
    made = forked(
        preprocess,
        "fairseq-preprocess",
        "-s",
        "de",
        "-t",
        "en",
        "--testpref",
        tmp_path / "test",
        *dictionaries,
        "--destdir",
        tmp_path / "data",
    )
    succeeded(made)
    flags = [
        tmp_path / "data",
        "--path",
        DEMO / "checkpoint.pt",
        "--cpu",
        "--beam",
        "1",
        "--task",
        "translation_ext",
    ]
    out = generate_forked(*flags)
    said = SAID.findall(out.stdout + out.stderr)
    assert (
        len(said) == 1
        and "add --remove-bpe sentencepiece, or --bpe sentencepiece --sentencepiece-model FILE"
        in said[0]
    )
    for more in (["--remove-bpe", "sentencepiece"], SPM.split()):
        out = generate_forked(*flags, *more)
        assert not SAID.findall(out.stdout + out.stderr)


def test_translator_and_corpus_warn_once(tmp_path, caplog, monkeypatch):
    from corpus_jobs import OneProcess

    from fairseq_ext.corpus import run
    from fairseq_ext.corpus.__main__ import job_of

    ours = Translator(str(DEMO / "checkpoint.pt"), str(DEMO), beam=1, cpu=True)
    for _ in range(2):
        ours.translate([RAW])
    assert len(reported(caplog)) == 1 and reported(caplog)[0].endswith(f"add {SPM}")
    caplog.clear()
    monkeypatch.setattr(run, "Run", OneProcess)
    (tmp_path / "in.txt").write_text(f"{RAW}\n" * 3)
    where = [
        "--input",
        str(tmp_path / "in.txt"),
        "--data",
        str(DEMO),
        "--path",
        str(DEMO / "checkpoint.pt"),
        "--progress",
        "0",
    ]
    for flags, count in (([], 1), (SPM.split(), 0)):
        output = str(tmp_path / f"out{count}")
        assert (
            run.translate(
                job_of(
                    [
                        "translate",
                        *where,
                        "--output",
                        output,
                        "--beam",
                        "1",
                        "--cpu",
                        "--unit",
                        "1",
                        *flags,
                    ]
                )
            ).errors
            == 0
        )
        assert len(reported(caplog)) == count
        caplog.clear()


# ---- A checkpoint under an architecture's name that no one knows here:  built as a plain Transf


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
