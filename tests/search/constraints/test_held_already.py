"""Required words that the unconstrained hypothesis holds already change nothing: the demo model's
best hypotheses are those of fairseq's own unconstrained search, which runs in the same test."""

import random
import re
from pathlib import Path

import pytest
from demo_model import STOCK
from demo_text import raw_demo
from forked import generate_forked
from sizes import drawn

LINES = 9


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> Path:
    """The messages of the handbook, which the model translates well, as raw data."""
    return raw_demo(tmp_path_factory.mktemp("demo"), LINES, first=129)


def best(demo: Path, task: str, *flags: object) -> dict[int, tuple[str, float]]:
    """Text and score of each sentence's best hypothesis."""
    how = [*STOCK, "--dataset-impl", "raw", "--beam", 10, "--task", task, *flags]
    found = re.findall(r"^D-(\d+)\t(\S+)\t(.*)$", generate_forked(demo, *how).stdout, re.MULTILINE)
    assert len(found) == LINES
    return {int(number): (text, float(score)) for number, score, text in found}


@pytest.fixture(scope="module")
def stock(demo) -> dict[int, tuple[str, float]]:
    """What fairseq's own search finds."""
    return best(demo, "translation")


@drawn(1)
@pytest.mark.parametrize(
    "words, flags",
    [
        (1, []),
        (3, []),
        (3, ["--constraint-boundary", "none"]),
        (2, ["--constraint-case", "any", "--constraint-end"]),
        (2, ["--stop", "count"]),
    ],
    ids=str,
)
def test_the_best_hypotheses_stay(demo, stock, tmp_path, words, flags):
    draw = random.Random(words)
    held = [sorted(set(re.findall(r"\b[a-z]{3,}\b", stock[i][0]))) for i in range(LINES)]
    lines = [draw.sample(each, min(words, len(each))) for each in held]
    assert sum(map(len, lines)) >= 0.9 * words * LINES
    file = tmp_path / "held.tsv"
    file.write_text("".join("\t".join(line) + "\n" for line in lines), encoding="utf-8")
    got = best(demo, "translation_ext", "--constraints-file", file, *flags)
    assert {i: text for i, (text, _) in got.items()} == {i: text for i, (text, _) in stock.items()}
    assert all(got[i][1] == pytest.approx(stock[i][1], abs=1e-4) for i in got)
