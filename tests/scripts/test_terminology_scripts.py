"""The scripts of scripts/experiments/terminology and scripts/bench/against_stock.py: what they
compute, on made-up text and searches."""

import json
import os
import subprocess
import sys
from pathlib import Path

import sacrebleu
import warm

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path[:0] = [
    str(SCRIPTS / name)
    for name in ("experiments/terminology", "experiments/dba", "experiments", "bench")
]

import make_glossary  # noqa: E402
from against_stock import StockFailed  # noqa: E402
from constrained_stock import Cells, row  # noqa: E402
from make_glossary import Words, entries  # noqa: E402

DEMO = SCRIPTS.parent / "checkpoints" / "demo"


def test_an_entry_is_another_translation_than_the_usual_one(tmp_path, monkeypatch):
    """ "Hund" is "hound" in one line of four and else "doggy"; "Katze" is always "kitten"."""
    pairs = [("Hund", "hound"), *[("Hund", "doggy")] * 3] * 10 + [("Katze", "kitten")] * 40
    verbs = [("schläft", "sleeps"), ("rennt", "runs"), ("isst", "eats")] * 27
    for side, name in enumerate(("de", "en")):
        lines = (
            f"{'the' if side else 'der'} {noun[side]} {verb[side]}\n"
            for noun, verb in zip(pairs, verbs, strict=False)
        )
        (tmp_path / name).write_text("".join(lines), encoding="utf-8")
    text = Words(tmp_path / "de"), Words(tmp_path / "en")
    monkeypatch.setattr(make_glossary, "LEAST", 5)
    assert entries(*text, 5, of_usual=False) == [("Hund", "hound")]
    assert entries(*text, 5, of_usual=True) == [("Hund", "doggy"), ("Katze", "kitten")]


def test_a_cell_is_measured_once_and_its_row_says_who_wins(tmp_path):
    def facts(better: int, worse: int, fast: float) -> dict:
        each = {
            "rows": 1.04,
            "mean": -1.0,
            "better": better,
            "worse": worse,
            "accepted": better >= worse,
        }
        each |= {"fast": [fast, 1.0, 9.0], "more": 1.1}
        return {"mean": -1.1, "inside": each, "whole": each, "load": 1.0}

    times = []

    def measured(answer: dict):
        return lambda: times.append(1) or answer

    def fails() -> dict:
        raise StockFailed("it stopped")

    cells = Cells.read("quality", ["text"], tmp_path / "cells")
    cells.measure("rand2", 10, measured(facts(3, 1, 6.0)))
    cells.measure("rand1", 5, measured(facts(0, 2, 4.0)))
    cells.measure("rand4", 5, fails)
    again = Cells.read("quality", ["text"], tmp_path / "cells")
    again.measure("rand4", 5, fails)  # what failed is tried again
    again.measure("rand1", 5, measured(facts(9, 0, 9.0)))
    assert len(times) == 2 and not Cells.read("quality", ["another text"], tmp_path / "cells").found
    assert [row("speed", "rand1", 5, facts(0, 0, fast))[3] for fast in (4.99, 5.0)] == ["no", "yes"]


def test_run_sh_searches_scores_draws_and_compares_with_published_scores(tmp_path):
    """On two sentences of the demo; the published scores are sacrebleu's and, for the
    terms, counted by hand."""
    task, out = tmp_path / "task", tmp_path / "out"
    task.mkdir()
    line = {
        "en": "The dogs bark in the yard.",
        "de": "Die Hunde bellen laut im Hof.",
        "proper": {"dog": "Hund"},
    }
    line["random"] = {"bark": "bellen", "yard": "Hof"}
    said = "Die Hunde bellen laut."
    bleu = sacrebleu.corpus_bleu([said], [[line["de"]]]).score
    chrf = sacrebleu.corpus_chrf([said], [[line["de"]]], word_order=2).score
    (task / "references.ende.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    (task / "team.ende.proper.txt").write_text(said + "\n", encoding="utf-8")
    rows = [
        ["file", "BLEU", "chrF2++", "proper_success", "random_success"],
        ["team.ende.proper.txt", bleu, chrf, 1, 0.25],
    ]
    (task / "official_scores.tsv").write_text(
        "".join("\t".join(map(str, row)) + "\n" for row in rows), encoding="utf-8"
    )

    small = [
        "--text",
        SCRIPTS.parent / "data" / "demo" / "test",
        "--model",
        DEMO,
        *"--limit 2 --beam 2 --draws 2".split(),
    ]
    small += "--sets rand1 --methods none end fairseq".split()
    command = [SCRIPTS / "experiments" / "terminology" / "run.sh", "--out", out, *small]
    environment = os.environ | {"PYTHON": warm.python()}
    done = subprocess.run(
        list(map(str, [*command, "--published", task])),
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    # half of the random terms are met, and a quarter was published
    assert done.returncode == 1, done.stderr
    lines = (out / "published.md").read_text(encoding="utf-8").splitlines()
    assert (
        f"| team.ende.proper | {bleu:.4f} | {chrf:.4f} | 100.00 | 100.00 | +0.00 | 50.00 "
        "| 25.00 | +25.00 |"
    ) in lines
    assert "- **not all within their bounds**" in lines and "(at most 1.0)" in done.stdout
    tables = (out / "tables.md").read_text(encoding="utf-8")
    assert "### rand1: 2 terms in 2 sentences, beam 2" in tables
    assert [
        row.split("|")[4].strip()
        for row in tables.splitlines()
        if row.startswith(("| end |", "| fairseq |"))
    ] == ["100.0%"] * 2
    assert (out / "success.svg").stat().st_size > 1000
