"""speech_to_text_ext through the real commands, on made-up features: equal to stock, and every
strategy that makes sense."""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary
from fairseq_cli.train import cli_main as train
from forked import forked, generate, inside, interactive_forked, interactive_main, succeeded
from plugin.test_tasks_cli import generated, no_worse, refused, rows, same_rows
from sizes import drawn
from task_models import ONCE, SIZES, WORDS, sharpen

from fairseq_ext import Translator, UsageError

FEATURES = 8


MODEL = [
    *"--arch s2t_transformer --conv-channels=16 --conv-kernel-sizes=5,5".split(),
    *"--max-source-positions=200 --max-target-positions=40".split(),
    *(f"--{side}-{what}={n}" for side in ("encoder", "decoder") for what, n in SIZES.items()),
]
TAG = "<lang:en>"


@dataclass
class Speech:
    """A data set and a checkpoint."""

    root: Path
    tagged: bool  # targets start with the tag of their language

    def arguments(self, end: str = "") -> list[Any]:
        """Of fairseq-generate and fairseq-interactive, without a strategy; end: of the task."""
        model = ["--config-yaml", "config.yaml", "--path", self.root / "saved/checkpoint_last.pt"]
        search = "--cpu --max-len-b 12 --max-source-positions 200".split()
        forced = ["--prefix-size", 1] if self.tagged else []
        return [self.root, "--task", f"speech_to_text{end}", *model, *search, *forced]

    @property
    def stock(self) -> list[Any]:
        return self.arguments()

    @property
    def ours(self) -> list[Any]:
        return self.arguments("_ext")

    def files(self) -> list[str]:
        """Feature files of the test set, as fairseq-interactive reads them."""
        return [str(path) for path in sorted(self.root.glob("test-*.npy"))]


def make(root: Path, tagged: bool) -> Speech:
    """Write features, dictionary and configuration; train and sharpen."""
    chance, noise = random.Random(2), np.random.default_rng(2)
    words = Dictionary()
    for word in (*[f"w{i}" for i in range(WORDS)], *[TAG] * tagged):
        words.add_symbol(word)
    words.save(str(root / "dict.txt"))
    settings = [
        "vocab_filename: dict.txt",
        "input_channels: 1",
        f"input_feat_per_channel: {FEATURES}",
        "sampling_alpha: 1.0",
    ]
    (root / "config.yaml").write_text(
        "\n".join(settings + ["prepend_tgt_lang_tag: true"] * tagged) + "\n"
    )
    for split, count in (("train", 12), ("dev", 2), ("test", 6)):
        lines = ["id\taudio\tn_frames\ttgt_text\tspeaker\ttgt_lang"]
        for i in range(count):
            frames = chance.randint(9, 60)
            features = noise.standard_normal((frames, FEATURES)).astype(np.float32)
            np.save(root / f"{split}-{i}.npy", features)
            text = " ".join(f"w{chance.randrange(WORDS)}" for _ in range(chance.randint(1, 6)))
            lines.append(f"{i}\t{root}/{split}-{i}.npy\t{frames}\t{text}\tme\ten")
        (root / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    loss = ["--criterion", "label_smoothed_cross_entropy", *["--ignore-prefix-size=1"] * tagged]
    task = "--task speech_to_text --config-yaml config.yaml".split()
    task += "--train-subset train --valid-subset dev --save-dir".split()
    arguments = ["fairseq-train", root, *MODEL, *loss, *ONCE, *task, root / "saved"]
    with inside(root):
        succeeded(forked(train, *arguments))
    sharpen(root / "saved" / "checkpoint_last.pt")
    louder(root / "saved" / "checkpoint_last.pt")
    return Speech(root, tagged)


def louder(checkpoint: Path) -> None:
    """Let the source matter, as it hardly would with initial weights, and some hypotheses end: EOS
    is like a word that comes often."""
    state = torch.load(checkpoint, weights_only=False)
    for name, weight in state["model"].items():
        if "encoder_attn" in name and weight.dim() > 1:
            weight *= 4
        if name == "decoder.output_projection.weight":
            weight[2] = 0.9 * weight[17]
    torch.save(state, checkpoint)


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Speech:
    return make(tmp_path_factory.mktemp("speech"), tagged=False)


@pytest.fixture(scope="module")
def tagged(tmp_path_factory) -> Speech:
    return make(tmp_path_factory.mktemp("tagged"), tagged=True)


@pytest.fixture(params=["plain", "tagged"])
def speech(request) -> Speech:
    return request.getfixturevalue(request.param)


@drawn(1)
@pytest.mark.parametrize("beam", [1, 5])
def test_generate_equals_stock(speech, beam):
    search = ["--beam", beam, "--batch-size", 4]
    stock = generated(speech.stock, *search)
    assert len({tuple(row[2:]) for row in rows(stock, "H")}) > 1  # the speech matters
    same_rows(stock, generated(speech.ours, *search))


@drawn(1)
def test_a_stream_equals_one_sentence_at_a_time(speech):
    """Its encoder's convolutions see padding, so a stream encodes each sentence as it is."""
    stock = generated(speech.stock, *"--beam 3 --batch-size 1".split())
    for backend in ("transformer", "fairseq"):
        search = "--beam 3 --schedule stream --stream-width 3 --decoder-backend".split()
        same_rows(stock, generated(speech.ours, *search, backend))


def test_a_run_that_goes_on_gives_what_one_run_gives(plain, tmp_path):
    path = tmp_path / "results.jsonl"
    search = [*"--beam 3 --batch-size 4 --results-file".split(), path]
    whole = generated(plain.ours, *search)
    lines = path.read_text().splitlines(keepends=True)
    assert len(lines) == 7
    path.write_text("".join(lines[:3]))  # two sentences are done
    same_rows(whole, generated(plain.ours, *search, "--resume"))
    assert len(path.read_text().splitlines()) == 7


def test_interactive_equals_stock_and_meets_what_is_typed(plain):
    search = "--beam 5 --buffer-size 6 --batch-size 6".split()
    files = plain.files()
    text = "\n".join(files) + "\n"
    stock, ours = (
        interactive_forked(text, *arguments, *search).stdout
        for arguments in (plain.stock, plain.ours)
    )
    same_rows(stock, ours)
    typed = "".join(f"{file}\tw{20 + i} w3\n" for i, file in enumerate(files))
    search += ["--constraints", "unordered"]
    found = rows(interactive_forked(typed, *plain.ours, *search).stdout, "H")
    assert len(found) == len(files)
    for number, (_, _, words) in enumerate(found):
        assert f"w{20 + number} w3" in words


def test_constraints_hold_behind_the_language_tag(tagged, tmp_path):
    phrases, stats = tmp_path / "phrases", tmp_path / "stats.json"
    phrases.write_text("".join(f"w{10 + i} w2\n" for i in range(6)))
    search = "--beam 5 --batch-size 4".split()
    out = generated(tagged.ours, *search, constraints=phrases, stats=stats)
    for number, (_, _, words) in enumerate(rows(out, "H")):
        assert f"w{10 + number} w2" in words and TAG not in words
    met = {"given": 6, "met": 6, "unmet": []}
    assert json.loads(stats.read_text())["constraints"] == met


def test_optimal_ending_finds_scores_no_worse_and_proves_them(plain, tmp_path):
    search = "--beam 3 --batch-size 4 --unnormalized".split()
    stock = generated(plain.stock, *search)
    assert no_worse(stock, plain.ours, search, tmp_path / "stats.json")["proved"] >= 1


@drawn(3)
@pytest.mark.parametrize(
    "flags, named",
    [
        ("--softmax lexical --shortlist-file none", "--softmax lexical"),
        ("--glossary none", "--glossary"),
        ("--print-alignment hard", "--print-alignment"),
        ("--cpu-workers 2", "--cpu-workers"),
        ("--beam 1 --decoding window --schedule stream", "--schedule stream"),
    ],
)
def test_what_needs_words_of_the_source_is_refused(plain, flags, named):
    said = refused(generate(*plain.ours, *flags.split()))
    assert named in said and "leave one of the two out" in said


def test_a_line_that_names_no_file_is_one_sentence(plain):
    words = ["fairseq-interactive", *plain.ours]
    done = forked(interactive_main, *words, stdin="nowhere.npy\n")
    assert "'nowhere.npy' of the input is not a file" in refused(done)


def test_a_model_whose_translations_begin_with_a_tag_requests_it(tagged):
    said = "begin with the tag of their language (prepend_tgt_lang_tag): add --prefix-size 1"
    assert said in refused(generate(*tagged.ours, "--prefix-size", 0))


def test_the_python_api_says_that_it_takes_text(plain):
    said = "takes lines of text, and --task speech_to_text_ext reads speech"
    path, flags = str(plain.root / "saved/checkpoint_last.pt"), {"config_yaml": "config.yaml"}
    with pytest.raises(UsageError, match=said):
        Translator(path, str(plain.root), task="speech_to_text_ext", cpu=True, **flags)
