"""scripts/experiments/lsh: shares of a search put together, tables with intervals
and figures from them."""

import importlib.util
import json
import os
import random
import re
import subprocess
from pathlib import Path

import pytest
import sacrebleu
import torch
import warm
from models import batch, build, generators, run, same
from sizes import drawn
from table_model import EOS

LSH = Path(__file__).resolve().parents[2] / "scripts" / "experiments" / "lsh"


def module(name: str):
    """A script of the folder, under a name of its own: other papers' folders have tables.py too."""
    spec = importlib.util.spec_from_file_location(f"lsh_{name}", LSH / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


RUNS = module("runs")
REFERENCES = [
    " ".join(random.Random(i).choices("ein Mann Hund läuft über rotes Gras . , und".split(), k=9))
    for i in range(40)
]


def share(lines: slice, seconds: float, errors: int) -> dict:
    """What one round of a search leaves behind: every `errors`-th line lacks a word."""
    references = REFERENCES[lines]
    texts = [
        " ".join(line.split()[1:]) if i % errors == 0 else line for i, line in enumerate(references)
    ]
    parts = {
        "source side": 0.1,
        "decoder layers": 0.4,
        "softmax": seconds - 1,
        "beam expansion": 0.2,
        "hidden states reorder": 0.1,
    }
    found = {
        "seconds": seconds,
        "parts": parts,
        "calls": 10,
        "signature": "s",
        "words": 300.0,
        "stages": {"hash": 0.1, "probe": None},
    }
    return found | {"texts": texts, "references": references, "recall": [5, 4.0, 3.0]}


@pytest.fixture
def folder(tmp_path):
    """runs.json of three searches, of which two are as good as the references allow: every second
    line with an error, every fifth."""
    found = {}
    for name, seconds, errors in (
        ("full", 4.0, 5),
        ("lsh T=6000 t=2", 2.0, 2),
        ("screened", 3.0, 5),
    ):
        shares = [
            share(slice(i, None, 2), seconds * (1 + 0.5 * i * (name == "full")), errors)
            for i in range(2)
        ]
        found[name] = RUNS.together(shares) | {"flags": {"softmax": "lsh"}}
    (tmp_path / "runs.json").write_text(json.dumps(found))
    return tmp_path


def test_tables_have_bleu_with_intervals_and_ratios_with_rounds_and_figures_are_drawn(folder):
    subprocess.run([warm.python(), str(LSH / "tables.py"), "--out", str(folder)], check=True)
    text = (folder / "tables.md").read_text()
    runs = json.loads((folder / "runs.json").read_text())
    bleu = {
        name: sacrebleu.corpus_bleu(
            run["texts"], [run["references"]], tokenize="none", force=True
        ).score
        for name, run in runs.items()
    }
    row = next(
        line
        for line in text.splitlines()
        if line.startswith("| lsh T=6000 t=2 | ") and "to" in line
    )
    # better outside chance
    assert (
        "| 2.50 (2.00-3.00) |" in row
        and f"| {bleu['full'] - bleu['lsh T=6000 t=2']:+.2f} (+" in row
    )
    assert "| +0.00 (+0.00 to +0.00) |" in next(
        line for line in text.splitlines() if line.startswith("| screened | ") and "to" in line
    )
    assert f"| full | 40 | {bleu['full']:.2f} ±" in text and "| 0.8000 | 0.6000 |" in text

    subprocess.run([warm.python(), str(LSH / "figures.py"), "--out", str(folder)], check=True)
    for name in ("figure6", "figure7", "figure8"):
        assert (folder / f"{name}.svg").stat().st_size > 1000
    assert "LSH, t = 2" in (folder / "figure6.svg").read_text()


def per_row(most: int):
    """A tiny model's search with the baseline of one shortlist a row."""
    flags = {"softmax": "lsh", "lsh_k": 4, "lsh_u": 2, "lsh_bands": 20, "lsh_top": 0}
    ours = generators([build("transformer", 2, torch.float32)], flags, beam=3, max_len_b=8).ours
    softmax = ours.strategies.softmax
    softmax.__class__ = RUNS.PerRow
    softmax.most, softmax.eos = most, EOS
    return ours, softmax


def test_the_baseline_with_all_words_is_the_full_softmax():
    ours, _ = per_row(10**6)
    full = generators([build("transformer", 2, torch.float32)], {}, beam=3, max_len_b=8).ours
    same(run(full, batch([5, 3, 2])), run(ours, batch([5, 3, 2])), 1e-4)


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--sentences", "0"], "--sentences wants 1 or more, not 0"),
        (["--rounds", "-1"], "--rounds wants 1 or more, not -1"),
        (["--few", "0"], "--few wants 1 or more, not 0"),
        (
            ["--rounds", "3", "--few", "2"],
            (
                "--rounds 3 leaves rounds without a sentence: of 3 lines, --sentences "
                "takes 3 and --few 2"
            ),
        ),
        (
            ["--rounds", "4"],
            (
                "--rounds 4 leaves rounds without a sentence: of 3 lines, --sentences "
                "takes 3 and --few 3"
            ),
        ),
        (["--few", "2", "--rounds", "2"], "lexicon is missing"),
    ],
)
def test_what_cannot_be_run_is_said_in_one_sentence(arguments, said, tmp_path):
    for name in ("checkpoint.pt", "test.src", "test.tgt", "lexicon"):
        (tmp_path / name).write_text("a\n" * 3)
    if "missing" in said:
        (tmp_path / "lexicon").unlink()
    command = [
        warm.python(),
        str(LSH / "runs.py"),
        "--model",
        str(tmp_path),
        "--out",
        str(tmp_path / "out"),
        *arguments,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (
        done.returncode == 2
        and said in done.stderr.splitlines()[-1]
        and not (tmp_path / "out").exists()
    )


@drawn(0)  # long
@pytest.mark.parametrize("architecture", ["transformer", "lstm"])
def test_a_model_is_trained_searched_with_and_drawn(architecture, tmp_path):
    raw, work = tmp_path / "raw", tmp_path / "work"
    raw.mkdir()
    for part in ("train", "val", "test_2016_flickr"):
        for language in ("en", "de", "fr", "cs"):
            lines = (f"{language}{i} a dog {language}{i % 5} runs .\n" for i in range(30))
            (raw / f"{part}.{language}").write_text("".join(lines))
    train = ["--raw", raw, "--out", work, "--arch", architecture, "--updates", "3"]
    environment = os.environ | {"PYTHON": warm.python(), "OMP_NUM_THREADS": "1"}

    def ran(script: str, *arguments) -> None:
        command = [str(LSH / script), *map(str, arguments)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    ran("train.sh", *train, "--negatives", "20", "--max-tokens", "200")
    (work / "lexicon").write_text("en1\tde1\t0.9\na\ta\t0.9\n")
    only = ["top T=2000", "lexical N=5", "per row, 500 collisions", "lsh --int8"]
    only = only[: 4 if architecture == "transformer" else 3]
    ran("run.sh", "--work", work, "--out", work, "--sentences", "2", "--few", "1", "--only", *only)
    text = (work / "tables.md").read_text()
    # a T above the number of words is the full softmax
    losses = re.findall(r"^\| (?:lsh|top) T=\d+.* \| ([+-][\d.]+) \(", text, re.MULTILINE)
    assert losses == ["+0.00"] * 2 and (work / "figure6.svg").exists()
