"""Every task that has a twin, through the real commands: equal to stock without our flags, and with constraints that are met."""

import re

import pytest
import task_models
from forked import generate_forked, interactive_forked
from task_models import Made

LINES = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9", "w10 w11"]


@pytest.fixture(scope="module", params=task_models.CASES)
def made(request, tmp_path_factory) -> Made:
    return task_models.make(request.param, tmp_path_factory.mktemp("task"))


def rows(out: str, kinds: str = "SHDP") -> list[list[str]]:
    return sorted(line.split("\t") for line in out.splitlines() if re.match(rf"[{kinds}]-\d+\t", line))


def same_rows(expected: str, got: str) -> None:
    theirs, ours = rows(expected), rows(got)
    assert len(theirs) > 10 and [r[0] for r in ours] == [r[0] for r in theirs]
    for a, b in zip(theirs, ours, strict=True):
        assert b[2:] == a[2:]
        if a[0][0] in "HDP":
            assert [float(x) for x in b[1].split()] == pytest.approx([float(x) for x in a[1].split()], abs=2e-4)


@pytest.mark.parametrize("beam", [1, 5])
def test_generate_equals_stock(made, beam):
    stock = generate_forked(*made.stock, "--beam", beam).stdout
    same_rows(stock, generate_forked(*made.ours, "--beam", beam).stdout)


def test_a_stream_equals_the_batch(made):
    stock = generate_forked(*made.stock, "--beam", 3).stdout
    same_rows(stock, generate_forked(*made.ours, "--beam", 3, "--schedule", "stream", "--stream-width", 3).stdout)


def test_parallel_decoding_equals_greedy(made):
    stock = generate_forked(*made.stock, "--beam", 1).stdout
    same_rows(stock, generate_forked(*made.ours, "--beam", 1, "--decoding", "window").stdout)


def test_interactive_equals_stock_and_meets_what_is_typed(made):
    search = ["--beam", 5, "--buffer-size", 4]
    text = "".join(line + "\n" for line in LINES)
    stock = interactive_forked(text, *made.stock, *search).stdout
    same_rows(stock, interactive_forked(text, *made.ours, *search).stdout)
    typed = "".join(f"{line}\tw{20 + i}\n" for i, line in enumerate(LINES))
    out = interactive_forked(typed, *made.ours, *search, "--constraints", "unordered").stdout
    found = rows(out, "H")
    assert len(found) == 4
    for number, (_, _, words) in enumerate(found):
        assert f"w{20 + number}" in words.split()
