"""The scripts of scripts/experiments/terminology and scripts/bench/against_stock.py: what they compute, on made-up text and searches."""

import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path[:0] = [str(SCRIPTS / "experiments" / "terminology"), str(SCRIPTS / "bench")]

import make_glossary  # noqa: E402
from against_stock import compare_scores  # noqa: E402
from make_glossary import Model1, Words, entries  # noqa: E402


def words(folder: Path, name: str, lines: list[str]) -> Words:
    (folder / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return Words(folder / name)


@pytest.fixture
def pair(tmp_path) -> tuple[Words, Words]:
    """"Hund" is "hound" in one line of four and else "dog"; "Katze" is always "kitten"."""
    nouns = [("Hund", "hound" if i % 4 == 0 else "doggy") for i in range(40)] + [("Katze", "kitten")] * 40
    verbs = [("schläft", "sleeps"), ("rennt", "runs"), ("isst", "eats")]
    lines = [(f"der {n} {v}", f"the {m} {w}") for i, (n, m) in enumerate(nouns) for v, w in [verbs[i % 3]]]
    return words(tmp_path, "de", [a for a, _ in lines]), words(tmp_path, "en", [b for _, b in lines])


def test_model_1_finds_the_translations(pair):
    source, target = pair
    model = Model1(source, target)
    found = [target.words[i] for _, i in model.translations(source.number["Hund"])]
    assert found.index("doggy") < found.index("hound") < min(found.index(word) for word in ("runs", "eats"))
    assert sum(p for p, _ in model.translations(source.number["Hund"])) == pytest.approx(1)
    likeliest, word = model.translations(source.number["Katze"])[0]
    assert target.words[word] == "kitten" and likeliest == model.probability(source.number["Katze"], word)
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
    assert found.mean == pytest.approx(-4.20001 / 4) and found.mean_of_other == pytest.approx(-4.6 / 4)
    assert not compare_scores(theirs[:1], ours[:1]).accepted
