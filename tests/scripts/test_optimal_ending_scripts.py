"""The scripts of scripts/experiments/optimal_ending and scripts/tune_length_reward.py: what they
compute, on made-up searches."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
import warm
from conftest import command
from sizes import drawn

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path[:0] = [
    str(SCRIPTS),
    *(str(SCRIPTS / name) for name in ("experiments/optimal_ending", "experiments", "bench")),
]

import intervals  # noqa: E402
import searches  # noqa: E402
import tune_length_reward as tune  # noqa: E402
from searches import (  # noqa: E402
    Search,
    Wanted,
    bounded,
    measure,
    wanted_lengths,
)

DEMO, DEV, LINES = (
    SCRIPTS.parent / "checkpoints" / "demo",
    SCRIPTS.parent / "data" / "demo" / "test",
    30,
)
REFERENCES = ["the old man reads a long book", "a dog runs over the green grass"]
SHORT = [
    [-2.0, 3, "the man"],
    [-4.0, 8, REFERENCES[0]],
    [-9.0, 12, "the old man reads a long book and then the man"],
]
FOUND = Search(
    "",
    {"decoder_rows": 10, "decoder_calls": 5},
    [6, 6],
    [SHORT, [[-3.0, 8, REFERENCES[1]], [-2.5, 4, "a dog runs"]]],
)


def test_the_dev_set_tunes_the_smallest_of_the_best_rewards():
    wanted = [Wanted(1.4), Wanted(1.0, 3.6)]  # 8.4 and 9.6 tokens
    tried = tune.sweep(lambda r, w: measure(FOUND.answers(bounded(r), w), REFERENCES), wanted, 1.0)
    # the first sentence changes sides at r = 2 / 5, the second at 1 / 8: so .45 is the first of the
    # fine grid that is right in both
    assert tune.best_of(tried) == (0.45, wanted[0])
    assert tried[0.45, wanted[0]].bleu == pytest.approx(100) and tried[0.45, wanted[0]].ratio == 1
    assert {(r, w) for r in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0) for w in wanted} <= set(tried)
    assert tried[0.0, wanted[0]].bleu < 100


@pytest.mark.parametrize("theirs, gains", [("the man", True), (REFERENCES[0], False)])
def test_a_setting_that_is_no_better_than_fairseq_is_not_sold_as_a_gain(
    tmp_path, monkeypatch, capsys, theirs, gains
):
    """The best reward gives both references, 100 BLEU, which fairseq's own
    search can only equal."""
    stock = Search("", {}, [6, 6], [[[-1.0, 8, theirs]], [[-1.0, 8, REFERENCES[1]]]])
    for end, lines in (("de", ["x"] * 2), ("en", REFERENCES)):
        (tmp_path / f"dev.{end}").write_text("".join(line + "\n" for line in lines))
    monkeypatch.setattr(
        tune, "search", lambda sources, **flags: FOUND if flags.get("unnormalized") else stock
    )
    monkeypatch.setattr(tune, "Translator", lambda **flags: Words())
    monkeypatch.setattr(
        sys,
        "argv",
        [
            *"tune --path x --data x --dev".split(),
            str(tmp_path / "dev"),
            "--src",
            "de",
            "--tgt",
            "en",
        ],
    )
    tune.main()
    said = capsys.readouterr().out
    assert "BLEU 100.00, with these flags" in said and ("No gain over fairseq" in said) is not gains


@pytest.fixture(scope="module")
def interactive(tmp_path_factory):
    """BLEU and decoder rows of fairseq-interactive with more flags on the first lines of the
    demo's text, at beam 2."""
    stats = tmp_path_factory.mktemp("stats") / "stats.json"
    sources, references = (
        Path(f"{DEV}.{side}").read_text().split("\n")[:LINES] for side in ("de", "en")
    )
    flags = [
        *"-s de -t en --bpe sentencepiece --sentencepiece-model".split(),
        DEMO / "spm.model",
        "--cpu",
        "--beam",
        2,
    ]
    flags += [
        "--buffer-size",
        LINES,
        "--batch-size",
        LINES,
        "--task",
        "translation_ext",
        "--unnormalized",
        "--stop",
        "optimal",
    ]
    flags += ["--stats-file", stats]

    def run(*more) -> tuple[float, int]:
        said = command(
            "fairseq-interactive",
            DEMO,
            "--path",
            DEMO / "checkpoint.pt",
            *flags,
            *more,
            stdin="\n".join(sources) + "\n",
        ).stdout
        found = [line.split("\t")[2] for line in said.splitlines() if line.startswith("D-")]
        return sacrebleu.corpus_bleu(found, [references]).score, json.loads(stats.read_text())[
            "decoder_rows"
        ]

    return run


@drawn(0)  # long
def test_each_reward_that_the_script_tries_is_a_search_of_its_own(interactive):
    """The hypotheses that the search with the largest reward keeps lack answers of smaller ones."""
    script = [
        warm.python(),
        SCRIPTS / "tune_length_reward.py",
        "--dev",
        DEV,
        "--limit",
        LINES,
        "--beam",
        2,
        "--max-reward",
        1.2,
    ]
    done = subprocess.run(
        [*map(str, script), "--no-line", "--no-stock", "--cpu"],
        capture_output=True,
        text=True,
        check=True,
    )
    tried = {
        r: float(bleu)
        for r, bleu in re.findall(r"^ +(\d\.\d\d) +[\d.]+ x +([\d.]+)", done.stdout, re.MULTILINE)
    }
    assert {"0.00", "0.20", "0.40", "0.60", "0.80", "1.00", "1.20"} <= set(tried)
    assert tried["0.00"] == pytest.approx(interactive()[0], abs=0.006)
    *_, best = done.stdout.splitlines()
    assert max(tried.values()) == pytest.approx(
        interactive(*best.split()[best.split().index("--prune-bound") :])[0], abs=0.006
    )


@drawn(0)  # long
def test_a_sweep_searches_again_for_each_reward_and_counts_what_a_command_does(
    interactive, tmp_path
):
    script = [
        warm.python(),
        SCRIPTS / "experiments" / "optimal_ending" / "sweep.py",
        "--out",
        tmp_path,
        "--dev",
        DEV,
        "--text",
        DEV,
    ]
    script += ["--limit", LINES, "--beams", 2, "--rewards", 0, 1.2, "--cpu"]
    subprocess.run([*map(str, script)], capture_output=True, text=True, check=True)
    found = json.loads((tmp_path / "sweep.json").read_text())
    plain = next(choice for choice in found["choices"] if choice["decoder"] == "optimal, no reward")
    bleu, rows = interactive()
    assert plain["dev"]["bleu"] == pytest.approx(bleu)
    # of a command that prints the best hypothesis alone
    assert found["costs"]["optimal, unnormalised scores"]["2"]["decoder_rows"] == rows
    # Theorem 2 of the paper: no later than first
    assert found["steps"]["optimal"]["2"] <= found["steps"]["first"]["2"]
    rewarded = next(
        choice for choice in found["choices"] if choice["decoder"] == "optimal, bounded reward"
    )
    ratio = found["ratio"].removesuffix(" x")
    assert rewarded["dev"]["bleu"] == pytest.approx(
        interactive("--length-reward", 1.2, "--length-ratio", ratio)[0]
    )


class Words:
    """A translator that takes text as it is."""

    tokenizer = bpe = None


def test_wanted_lengths_are_the_ratio_of_the_sums_and_the_least_squares_line():
    # |y| = 2.5 + |x| / 2, and EOS
    sources, references = ["a", "a a a", "a a a a a"], ["b b b", "b b b b", "b b b b b"]
    assert wanted_lengths(Words(), sources, references) == (
        Wanted(round(12 / 9, 3)),
        Wanted(0.5, 3.5),
    )
    # no line through one length
    assert wanted_lengths(Words(), ["a a"] * 3, references) == (Wanted(2.0), Wanted(2.0))


def test_flags_of_any_kind_become_keywords():
    text = "--bpe subword_nmt --bpe-codes 'my codes' --fp16 --lenpen=0.6 --wildcard a b"
    assert tune.as_keywords(text) == {
        "bpe": "subword_nmt",
        "bpe_codes": "my codes",
        "fp16": True,
        "lenpen": "0.6",
        "wildcard": ["a", "b"],
    }
    with pytest.raises(searches.BenchError):
        tune.as_keywords("bpe subword_nmt")


def test_a_search_that_is_there_is_not_repeated(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(searches, "search", lambda sources, **flags: calls.append(flags) or FOUND)
    for beam in (5, 5, 6, 5):
        searches.cached(tmp_path / "file.json", ["a b"], beam=beam)
    assert [flags["beam"] for flags in calls] == [5, 6, 5]
    assert searches.cached(tmp_path / "file.json", ["a b"], beam=5) == FOUND


def test_a_difference_is_taken_on_the_same_resamples():
    right = [(-1.0, 6, line) for line in REFERENCES]
    wrong = [right[0], (-1.0, 3, "a dog runs")]
    middle, low, high = searches.difference(wrong, right, REFERENCES)
    # 0: the first, twice
    assert (
        middle == pytest.approx(measure(wrong, REFERENCES).bleu - 100) and low <= middle < 0 == high
    )
    assert searches.difference(right, right, REFERENCES) == (0, 0, 0)


def test_an_interval_holds_sacrebleu_of_resampled_sentences():
    texts = [
        REFERENCES[0],
        "a dog runs over the grass",
        "the old man reads a book",
        "a green dog runs over the grass",
    ]
    references = [*REFERENCES, *REFERENCES]
    found = intervals.resampled(intervals.counts_of(texts, references), resamples=40)
    times = np.random.default_rng(intervals.SEED).multinomial(4, [1 / 4] * 4, size=40)
    for score, chosen in zip(found, times, strict=True):
        lines = [
            (text, line)
            for n, text, line in zip(chosen, texts, references, strict=True)
            for _ in range(n)
        ]
        expected = sacrebleu.corpus_bleu(
            [text for text, _ in lines], [[line for _, line in lines]], smooth_method="none"
        ).score
        assert score == pytest.approx(expected)
    quality = measure([(-1.0, 5, text) for text in texts], references)
    assert quality.low < quality.bleu < quality.high


@drawn(0)  # long
def test_times_are_of_searches_that_find_no_worse_scores_with_fewer_rows(tmp_path):
    script = SCRIPTS / "experiments" / "optimal_ending" / "times.py"
    tuned = {"reward": 0.5, "ratio": 1.2, "offset": -1.5}
    (tmp_path / "sweep.json").write_text(json.dumps({"tuned": tuned}))
    flags = [
        "--out",
        str(tmp_path),
        *"--limit 8 --beams 3 --repeats 2 --sweep".split(),
        str(tmp_path / "sweep.json"),
    ]
    done = subprocess.run([warm.python(), str(script), *flags], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [
        line.strip("| ").split(" | ")
        for line in done.stdout.splitlines()
        if line.startswith("| ") and "---" not in line
    ][1:]
    by_name = {cells[0]: cells for cells in rows}
    stock, optimal = (by_name[f"{name}, unnormalised scores"] for name in ("fairseq", "optimal"))
    pruned = by_name["optimal, unnormalised scores, pruned"]
    assert (
        int(pruned[5])
        <= int(optimal[5])
        < int(by_name["count, unnormalised scores"][5])
        < int(stock[5])
    )
    assert float(stock[6]) - 2e-3 <= float(optimal[6]) == float(pruned[6])
    assert (
        optimal[8].startswith("8 of 8")
        and len(rows) == 9
        and all(cells[1].endswith(")") for cells in rows)
    )
