"""The scripts of scripts/experiments/terminology and scripts/bench/against_stock.py: what they
compute, on made-up text and searches."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import sacrebleu
import warm

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path[:0] = [
    str(SCRIPTS / name)
    for name in ("experiments/terminology", "experiments/dba", "experiments", "bench")
]

import make_glossary  # noqa: E402
from against_stock import StockFailed, compare_scores, ramblers  # noqa: E402
from constrained_stock import Cells, against, row  # noqa: E402
from make_glossary import Model1, Words, entries  # noqa: E402

from fairseq_ext.terms.cases import Term  # noqa: E402

DEMO = SCRIPTS.parent / "checkpoints" / "demo"


def words(folder: Path, name: str, lines: list[str]) -> Words:
    (folder / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return Words(folder / name)


@pytest.fixture
def pair(tmp_path) -> tuple[Words, Words]:
    """ "Hund" is "hound" in one line of four and else "dog"; "Katze" is always "kitten"."""
    nouns = [("Hund", "hound" if i % 4 == 0 else "doggy") for i in range(40)] + [
        ("Katze", "kitten")
    ] * 40
    verbs = [("schläft", "sleeps"), ("rennt", "runs"), ("isst", "eats")]
    lines = [
        (f"der {n} {v}", f"the {m} {w}")
        for i, (n, m) in enumerate(nouns)
        for v, w in [verbs[i % 3]]
    ]
    return words(tmp_path, "de", [a for a, _ in lines]), words(
        tmp_path, "en", [b for _, b in lines]
    )


def test_model_1_finds_the_translations(pair):
    source, target = pair
    model = Model1(source, target)
    found = [target.words[i] for _, i in model.translations(source.number["Hund"])]
    assert (
        found.index("doggy")
        < found.index("hound")
        < min(found.index(word) for word in ("runs", "eats"))
    )
    assert sum(p for p, _ in model.translations(source.number["Hund"])) == pytest.approx(1)
    likeliest, word = model.translations(source.number["Katze"])[0]
    assert target.words[word] == "kitten" and likeliest == model.probability(
        source.number["Katze"], word
    )
    assert model.probability(source.number["Katze"], target.number["hound"]) == 0


def test_an_entry_is_another_translation_than_the_usual_one(pair, monkeypatch):
    monkeypatch.setattr(make_glossary, "LEAST", 5)
    assert entries(*pair, 5, of_usual=False) == [("Hund", "hound")]
    assert entries(*pair, 5, of_usual=True) == [("Hund", "doggy"), ("Katze", "kitten")]


def test_scores_are_compared_sentence_by_sentence():
    ours = [[([4], -1.0)], [([4], -0.5)], [([5], -0.70001)], [([6], -2.0)]]
    theirs = [[([4], -1.5)], [([4], -0.4)], [([5], -0.7)], [([6], -2.0)]]
    found = compare_scores(ours, theirs)
    assert (found.better, found.worse, found.sentences) == (1, 1, 4) and found.accepted
    assert found.mean == pytest.approx(-4.20001 / 4) and found.mean_of_other == pytest.approx(
        -4.6 / 4
    )
    assert not compare_scores(theirs[:1], ours[:1]).accepted


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
    title, rows = again.table("title")
    assert (
        title.startswith("title\n\n")
        and "commit " in title
        and title.endswith(" Without rand4 at beam 5: it stopped.")
    )
    assert [line[:2] for line in rows] == [["rand1", "5"], ["rand2", "10"]] and [
        line[7] for line in rows
    ] == ["no", "yes"]
    assert [row("speed", "rand1", 5, facts(0, 0, fast))[3] for fast in (4.99, 5.0)] == ["no", "yes"]


def test_bleu_next_to_fairseqs_is_sacrebleus_and_has_an_interval():
    references = [
        f"the {colour} dog runs over the green field of number {i}"
        for i, colour in enumerate(["red", "old", "big"] * 4)
    ]
    worse = [
        line.replace("green field", "grass") if i % 2 else line for i, line in enumerate(references)
    ]
    facts = against(
        references, {"theirs": references, "free": worse, "inside": worse, "whole": references}
    )
    assert facts["inside"]["BLEU"] == pytest.approx(
        sacrebleu.corpus_bleu(worse, [references]).score
    )
    # a word less in every other line
    assert facts["inside"]["ratio"] == pytest.approx((12 * 11 - 6) / (12 * 11))
    middle, low, high = facts["inside"]["over"]["theirs"]
    assert low < middle < high < 0 and middle == pytest.approx(facts["inside"]["BLEU"] - 100)
    assert facts["inside"]["over"]["free"] == [0, 0, 0]  # equal lines, whatever is drawn
    shown = row(
        "bleu",
        "rand1",
        5,
        {name: {**each, "long": 3, "repeats": 1} for name, each in facts.items()},
    )
    assert (
        shown[4] == f"{middle:+.2f} ({low:+.2f} to {high:+.2f})"
        and shown[5] == "+0.00 (+0.00 to +0.00)"
    )
    assert shown[-7:] == ["0.955", "1.000", "1.000", "3", "3", "1", "1"]


def test_ramblers_are_long_or_repeat_a_bigram_three_times_that_reference_and_draft_do_not():
    lines = {"a b a b a b": 9, "x y": 3, "ha ha ha ha": 4, "no no no no no": 5}
    text = SimpleNamespace(
        references=["a b", "x y", "ha ha ha ha", "no"],
        lines=lambda outputs: [best[0][2] for best in outputs],
    )
    outputs = [[([0] * (n + 1), 0.0, line)] for line, n in lines.items()]
    # three tokens each
    free = [[([0] * 4, 0.0, line)] for line in ("a b a b", "x y", "ha", "no no no no")]
    # 9 > 2 * 3 + 2; "a b", and "no no", a fourth time
    assert ramblers(text, outputs, free, [2, 0, 0, 0]) == (1, 2)
    assert ramblers(text, outputs, free, [3, 0, 0, 0]) == (0, 2)


SOURCES = [
    "Das Angebot wird morgen geprüft.",
    "Die Ärztin öffnet den Ordner.",
    "Zwei Angebote werden morgen geprüft.",
]
TERMS = [
    (Term("Angebot", ("quotation",)),),
    (Term("Ärztin", ("physician",)), Term("ordner", ("binder",))),
    (Term("Angebot", ("quotations",)),),
]
FLAGS = {
    "path": str(DEMO / "checkpoint.pt"),
    "data": str(DEMO),
    "source_lang": "de",
    "target_lang": "en",
    "cpu": True,
    "beam": 5,
}
FLAGS |= {"bpe": "sentencepiece", "sentencepiece_model": str(DEMO / "spm.model")}


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
