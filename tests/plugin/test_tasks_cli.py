"""Every task that has a twin, those of fairseq's examples/ too once their --user-dir registers
them, through the real commands: equal to stock without our flags, and with constraints that are
met; and speech_to_text_ext, on made-up features.
"""

import functools
import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import task_models
import torch
from corpus_jobs import one_process, records
from fairseq.data import Dictionary
from fairseq_cli.train import cli_main as train
from forked import (
    forked,
    generate,
    generate_forked,
    inside,
    interactive_forked,
    interactive_main,
    succeeded,
)
from json_counts import close
from sizes import drawn
from task_models import ONCE, SIZES, WORDS, Made, sharpen

from fairseq_ext import Translator, UsageError
from fairseq_ext.corpus.job import CorpusJob
from fairseq_ext.corpus.run import translate
from fairseq_ext.engine.decoding import Decoding
from fairseq_ext.engine.worker import description, load
from fairseq_ext.search.report import Report
from fairseq_ext.search.request import Request

LINES = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9", "w10 w11"]
TEXT = "".join(line + "\n" for line in LINES)
# what no folder says
GIVEN = "source_lang target_lang add_data_source_prefix_tags max_len_b cpu".split()
# for what differs little from task to task
FEW = (
    "translation_multi_simple_epoch translation_from_pretrained_bart multilingual_translation "
    "language_modeling"
).split()


@pytest.fixture(scope="module")
def make(tmp_path_factory) -> Callable[[str], Made]:
    return functools.cache(lambda name: task_models.make(name, tmp_path_factory.mktemp("task")))


@pytest.fixture(params=task_models.CASES)
def made(request, make) -> Made:
    return make(request.param)


@pytest.fixture(params=FEW)
def one_of_few(request, make) -> Made:
    return make(request.param)


def rows(out: str, kinds: str = "SHDP") -> list[list[str]]:
    return sorted(
        line.split("\t") for line in out.splitlines() if re.match(rf"[{kinds}]-\d+\t", line)
    )


def same_rows(expected: str, got: str) -> None:
    theirs, ours = (
        [
            [name, [*map(float, first.split())] if name[0] in "HDP" else first, *others]
            for name, first, *others in rows(out)
        ]
        for out in (expected, got)
    )
    assert len(theirs) > 10 and close(theirs, ours, 2e-4)


def generated(arguments: list, *flags: object, **files: object) -> str:
    """What fairseq-generate prints; files: flags that name one."""
    named = [word for name, path in files.items() for word in (f"--{name}-file", path)]
    return generate_forked(*arguments, *flags, *named).stdout


def meets_what_is_typed(arguments: list, lines: list[str], *search: object) -> None:
    """fairseq-interactive, with two words for each line."""
    typed = "".join(f"{line}\tw{20 + i} w3\n" for i, line in enumerate(lines))
    out = interactive_forked(typed, *arguments, *search, "--constraints", "unordered").stdout
    found = rows(out, "H")
    assert len(found) == len(lines)
    assert all(f"w{20 + i} w3" in words for i, (*_, words) in enumerate(found))


@drawn(3)
@pytest.mark.parametrize("beam", [1, 5])
def test_generate_equals_stock(made, beam):
    same_rows(generated(made.stock, "--beam", beam), generated(made.ours, "--beam", beam))


@drawn(1)
def test_a_stream_equals_the_batch(made):
    stream = "--beam 3 --schedule stream --stream-width 3".split()
    same_rows(generated(made.stock, "--beam", 3), generated(made.ours, *stream))


@drawn(1)
@pytest.mark.parametrize("flags", ["--beam 1 --decoding window", "--beam 3 --cpu-workers 2"])
def test_parallel_decoding_and_workers_equal_stock(one_of_few, flags):
    stock = generated(one_of_few.stock, *flags.split()[:2])
    same_rows(stock, generated(one_of_few.ours, *flags.split()))


@drawn(1)
def test_optimal_ending_finds_scores_no_worse(one_of_few, tmp_path):
    search, stats = "--beam 3 --unnormalized".split(), tmp_path / "stats.json"
    theirs = rows(generated(one_of_few.stock, *search), "H")
    ours = rows(generated(one_of_few.ours, *search, "--stop", "optimal", stats=stats), "H")
    assert all(float(b[1]) >= float(a[1]) - 2e-4 for a, b in zip(theirs, ours, strict=True))
    found = json.loads(stats.read_text())["certificates"]
    assert found["proved"] + found["open"] == len(ours)


@drawn(1)
@pytest.mark.parametrize("name", task_models.EXAMPLES)
def test_the_twin_of_an_example_equals_stock_and_meets_constraints(name, tmp_path):
    made = task_models.make(name, tmp_path)
    same_rows(generated(made.stock, "--beam", 5), generated(made.ours, "--beam", 5))
    meets_what_is_typed(made.ours, LINES, "--buffer-size", 4)


@drawn(1)
def test_interactive_equals_stock_and_meets_what_is_typed(made):
    search = "--beam 5 --buffer-size 4".split()
    both = (interactive_forked(TEXT, *of, *search).stdout for of in (made.stock, made.ours))
    same_rows(*both)
    meets_what_is_typed(made.ours, LINES, *search)


@drawn(2)
def test_a_prefix_stands_behind_what_the_task_forces(made, tmp_path):
    """A language token, or the prompt of a language model, comes first; then the user's prefix;
    then what else must be there."""
    lines = [{"prefix": "w7", "constraints": [f"w{20 + i % 10}"]} for i in range(made.sentences)]
    (tmp_path / "wanted.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    stats = tmp_path / "stats.json"
    out = generated(made.ours, "--beam", 3, constraints=tmp_path / "wanted.jsonl", stats=stats)
    source = {number[2:]: f"{words} " for number, words in rows(out, "S")}
    for number, _, words in rows(out, "H"):
        forced = "" if made.case.pair else source[number[2:]]
        wanted = f"w{20 + int(number[2:]) % 10}"
        assert words.startswith(f"{forced}w7 ") and wanted in words.split()
    given = 2 * made.sentences
    met = {"given": given, "met": given, "unmet": []}
    assert json.loads(stats.read_text())["constraints"] == met


def answers(engine: Decoding, jobs: list[Request]) -> list[Report]:
    """What the engine's worker makes of these requests, in this process."""
    for number, job in enumerate(jobs):
        engine.add(number, job)
    while engine.busy:
        engine.work()
    found = dict(engine.events)
    return [found[number] for number in range(len(jobs))]


@drawn(1)
def test_a_folder_in_python_an_engine_and_the_corpus_command_give_what_the_command_gives(
    made, tmp_path, monkeypatch
):
    """At beam 1, as the interactive command does.

    The folder and the checkpoint say what the task must know of its languages.
    """
    out = interactive_forked(TEXT, *made.stock, *"--beam 1 --buffer-size 4".split()).stdout
    expected = [row[2] for row in rows(out, "D")]
    flags = made.keywords() | {"beam": "1"}
    given = {name: flags[name] for name in GIVEN if name in flags}
    translator = Translator.from_folder(made.folder(tmp_path / "model"), beam=1, **given)
    assert translator.cfg.task._name == flags["task"]
    assert [nbest[0].text for nbest in translator.translate(LINES)] == expected
    for nbest in translator.translate(LINES, constraints=[["w25"]] * len(LINES), beam=3):
        assert "w25" in nbest[0].text.split()
    engine = load(flags | {"path": str(made.checkpoint), "data": str(made.data)})
    assert description(engine).source == given.get("source_lang", "")
    assert [each.text for each in answers(engine, [Request(0, x) for x in LINES])] == expected
    (tmp_path / "lines.txt").write_text(TEXT)
    with one_process(monkeypatch, None):
        files = [str(tmp_path / "lines.txt")], str(tmp_path / "out")
        translate(CorpusJob(str(made.checkpoint), str(made.data), *files, flags, progress=0.0))
    (found,) = (tmp_path / "out").rglob("lines*.jsonl")
    assert [record["hypotheses"][0] for record in records(found)] == expected


@pytest.mark.parametrize(
    "name, flags, sentence",
    [
        (
            "multilingual_translation",
            "--lang-pairs de-en",
            "was trained with other languages: --lang-pairs should include",
        ),
        (
            "multilingual_language_modeling",
            "--langs xx,zz",
            "has no folder zz, which --langs names: correct --langs",
        ),
        (
            "translation_multi_simple_epoch",
            "--gen-subset other",
            "has no such subset of de-en: binarise it with fairseq-preprocess",
        ),
        (
            "translation_multi_simple_epoch",
            "--langs de,en,fr",
            "use the dictionaries it was trained with, and its --langs",
        ),
    ],
)
def test_other_languages_or_data_than_those_of_the_training_are_one_sentence(
    make, name, flags, sentence
):
    assert sentence in generate(*make(name).ours, *flags.split()).error()


# ---- Speech

FEATURES = 8


MODEL = [
    *"--arch s2t_transformer --conv-channels=16 --conv-kernel-sizes=5,5".split(),
    *"--max-source-positions=200 --max-target-positions=40".split(),
    *(f"--{side}-{what}={n}" for side in ("encoder", "decoder") for what, n in SIZES.items()),
]
TAG, PREFIX = "<lang:en>", " --ignore-prefix-size=1"


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


def make_speech(root: Path, tagged: bool) -> Speech:
    """Write features, dictionary and configuration; train and sharpen. The source matters, as it
    hardly would with initial weights, and some hypotheses end: EOS is like a word that comes
    often."""
    chance, noise = random.Random(2), np.random.default_rng(2)
    words = Dictionary()
    for word in (*[f"w{i}" for i in range(WORDS)], *[TAG] * tagged):
        words.add_symbol(word)
    words.save(str(root / "dict.txt"))
    (root / "config.yaml").write_text(
        f"vocab_filename: dict.txt\ninput_channels: 1\ninput_feat_per_channel: {FEATURES}\n"
        "sampling_alpha: 1.0\n" + "prepend_tgt_lang_tag: true\n" * tagged
    )
    for split, count in (("train", 12), ("dev", 2), ("test", 6)):
        lines = ["id\taudio\tn_frames\ttgt_text\tspeaker\ttgt_lang\n"]
        for i in range(count):
            frames = chance.randint(9, 60)
            features = noise.standard_normal((frames, FEATURES)).astype(np.float32)
            np.save(root / f"{split}-{i}.npy", features)
            text = " ".join(f"w{chance.randrange(WORDS)}" for _ in range(chance.randint(1, 6)))
            lines.append(f"{i}\t{root}/{split}-{i}.npy\t{frames}\t{text}\tme\ten\n")
        (root / f"{split}.tsv").write_text("".join(lines))
    flags = "--criterion label_smoothed_cross_entropy --task speech_to_text --config-yaml"
    flags += " config.yaml --train-subset train --valid-subset dev" + PREFIX * tagged
    path = root / "saved" / "checkpoint_last.pt"
    with inside(root):
        words = [root, *MODEL, *flags.split(), *ONCE, "--save-dir", root / "saved"]
        succeeded(forked(train, "fairseq-train", *words))
    sharpen(path)
    state = torch.load(path, weights_only=False)
    for name, weight in state["model"].items():
        weight *= 4 if "encoder_attn" in name and weight.dim() > 1 else 1
    output = state["model"]["decoder.output_projection.weight"]
    output[2] = 0.9 * output[17]
    torch.save(state, path)
    return Speech(root, tagged)


@pytest.fixture(scope="module")
def speeches(tmp_path_factory) -> Callable[[bool], Speech]:
    return functools.cache(lambda tagged: make_speech(tmp_path_factory.mktemp("speech"), tagged))


@pytest.fixture
def plain(speeches) -> Speech:
    return speeches(False)


@pytest.fixture
def tagged(speeches) -> Speech:
    return speeches(True)


@pytest.fixture(params=[False, True], ids=["plain", "tagged"])
def speech(request, speeches) -> Speech:
    return speeches(request.param)


@drawn(1)
@pytest.mark.parametrize("beam", [1, 5])
def test_generate_of_speech_equals_stock(speech, beam):
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


def test_interactive_of_speech_equals_stock_and_meets_what_is_typed(plain):
    search = "--beam 5 --buffer-size 6 --batch-size 6".split()
    files = [str(path) for path in sorted(plain.root.glob("test-*.npy"))]
    text = "\n".join(files) + "\n"
    both = (interactive_forked(text, *of, *search).stdout for of in (plain.stock, plain.ours))
    same_rows(*both)
    meets_what_is_typed(plain.ours, files, *search)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--softmax lexical --shortlist-file none", "--softmax lexical.*leave one of the two out"),
        ("--glossary none", "--glossary.*leave one of the two out"),
        ("--print-alignment hard", "--print-alignment.*leave one of the two out"),
        ("--cpu-workers 2", "--cpu-workers.*leave one of the two out"),
        ("--beam 1 --decoding window --schedule stream", "--schedule stream.*leave one of the two"),
        ("--prefix-size 0", r"begin with the tag of their language \(pre.*: add --prefix-size 1"),
    ],
)
def test_what_needs_words_of_the_source_or_no_tag_is_refused(plain, tagged, flags, said):
    of = tagged if "prefix" in flags else plain
    assert re.search(said, generate(*of.ours, *flags.split()).error())


def test_a_line_that_names_no_file_is_one_sentence(plain):
    done = forked(interactive_main, "fairseq-interactive", *plain.ours, stdin="nowhere.npy\n")
    assert "'nowhere.npy' of the input is not a file" in done.error()


def test_constraints_hold_behind_the_language_tag(tagged, tmp_path):
    phrases, stats = tmp_path / "phrases", tmp_path / "stats.json"
    phrases.write_text("".join(f"w{10 + i} w2\n" for i in range(6)))
    search = "--beam 5 --batch-size 4".split()
    out = generated(tagged.ours, *search, constraints=phrases, stats=stats)
    for number, (_, _, words) in enumerate(rows(out, "H")):
        assert f"w{10 + number} w2" in words and TAG not in words
    met = {"given": 6, "met": 6, "unmet": []}
    assert json.loads(stats.read_text())["constraints"] == met


def test_the_python_api_says_that_it_takes_text(plain):
    said = "takes lines of text, and --task speech_to_text_ext reads speech"
    path, flags = str(plain.root / "saved/checkpoint_last.pt"), {"config_yaml": "config.yaml"}
    with pytest.raises(UsageError, match=said):
        Translator(path, str(plain.root), task="speech_to_text_ext", cpu=True, **flags)
