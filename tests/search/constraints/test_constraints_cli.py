"""Constraints through the commands: files, standard input, glossary, banned phrases, the report,
and one sentence for bad input.

What each entry point makes of the same phrases: contract/.
"""

import json
import random
import re
from functools import partial
from pathlib import Path

import pytest
import test_cli
from demo_model import OURS, ROOT, STOCK, raw_demo
from forked import command, generate_forked
from sizes import drawn
from test_cli import EXT, sentence

generate, interactive = (
    partial(run, run=command) for run in (test_cli.generate, test_cli.interactive)
)
# of the tiny corpus' sentences
PHRASES = [
    *("en5 en7", "en3\ten4", "", "en9", "en1\ten1", "", "en2 en3\ten3 en4", "en8", "en6"),
    *("en20\ten21\ten22", "en11 en12 en13 en14"),
]


def write(path, lines) -> str:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return str(path)


def hypotheses(done, kind: str = "H") -> dict[int, list[str]]:
    """Text of every H- line (or C- line), by sentence."""
    out: dict[int, list[str]] = {}
    for number, text in re.findall(rf"^{kind}-(\d+)\t(?:.*\t)?(.*)$", done.stdout, re.MULTILINE):
        out.setdefault(int(number), []).append(text)
    return out


def check(found: dict[int, list[str]], lines: list[str]) -> int:
    """Each hypothesis has its line's phrases, word by word, equal ones without overlaps; how many
    phrases there are."""
    wishes = [line.split("\t") if line else [] for line in lines]
    assert sorted(found) == list(range(len(wishes)))
    for number, phrases in enumerate(wishes):
        for text, phrase in ((text, phrase) for text in found[number] for phrase in phrases):
            there = re.findall(rf"(?<!\S){re.escape(phrase)}(?!\S)", text)
            assert len(there) >= phrases.count(phrase), (number, phrase, text)
    return sum(map(len, wishes))


# ---- where constraints come from


def test_generate_with_a_file_of_tabs(tiny, tmp_path):
    stats, file = tmp_path / "stats.json", write(tmp_path / "c.tsv", PHRASES)
    done = generate(tiny, *EXT, "--constraints-file", file, "--nbest", 2, "--stats-file", stats)
    given = check(hypotheses(done), PHRASES)
    printed = {i: line.split("\t") for i, line in enumerate(PHRASES) if line}
    assert hypotheses(done, "C") == printed
    record = json.loads(stats.read_text())
    assert record["constraints"] == {"given": given, "met": given, "unmet": []}
    assert "select:dba" in record["signature"]


def test_typed_phrases_and_a_file_add_up(tiny, tmp_path):
    file = write(tmp_path / "c.tsv", ["en9", ""])
    flags = ("--constraints", "unordered", "--constraints-file", file)
    done = interactive(tiny, *EXT, *flags, stdin="de1\ten5\nde2\ten6 en7\n")
    check(hypotheses(done), ["en5\ten9", "en6 en7"])


@drawn(2)
@pytest.mark.parametrize(
    "how",
    [
        "--buffer-size 100 --batch-size 3",
        "--buffer-size 100 --max-tokens 20 --data-buffer-size 50",
        "--buffer-size 100 --batch-size 2 --schedule stream",
        "--buffer-size 4 --batch-size 4 --data-buffer-size 0",
    ],
)
def test_equal_lines_have_the_phrases_that_are_typed_after_each(tiny, how):
    """Lines go into batches by length; one of them cannot be used."""
    typed = ["de1 de2\ten7", "de1 de2\ten5", "de3", "de1 de2\ten1\t\ten2", "de1 de2"]
    typed += ["de4 de5 de6\ten8", "de3\ten9"]
    flags = (*EXT, "--constraints", *how.split())
    done = interactive(tiny, *flags, stdin="\n".join(typed) + "\n", check=False)
    assert done.returncode == 3 and re.findall(r"^E-(\d+)\t(.*)", done.stderr, re.M) == [
        ("3", "line 4 of the input has an empty phrase: remove one of the tabs around it")
    ]
    expected = [
        [""]
        if "\t\t" in line
        else hypotheses(interactive(tiny, *EXT, "--constraints", stdin=line + "\n"))[0]
        for line in typed
    ]
    assert hypotheses(done) == dict(enumerate(expected))
    phrases = [line.split("\t")[1:] for line in typed]
    assert hypotheses(done, "C") == {i: p for i, p in enumerate(phrases) if p and all(p)}


def test_a_glossary_is_checked_before_the_first_line_is_requested(tiny, tmp_path):
    """Lines that cannot be used are left out; with --strict, and where none is left, refused."""
    some = write(tmp_path / "g.tsv", ["de1 de2\ten20 en21", "de3"])
    none = write(tmp_path / "n.tsv", ["de3", "de4"])
    for flags in (("--glossary", none), ("--glossary", some, "--strict")):
        done = interactive(tiny, *EXT, *flags, stdin="", check=False)
        assert "has 1 column and needs 2" in sentence(done) and "Type the input" not in done.stderr
    done = interactive(tiny, *EXT, "--glossary", some, stdin="de1 de2 de5\n")
    check(hypotheses(done), ["en20 en21"])
    assert done.stderr.count("line 2 of ") == 1 and "The line is left out" in done.stderr


@drawn(1)
@pytest.mark.parametrize("buffer", [3, 4, 11])
def test_sentences_before_the_end_of_the_constraints_file_are_printed_before_the_error(
    tiny, tmp_path, buffer
):
    """The file ends at the start, in the middle and in the middle of the last buffer; one sentence
    describes it, after the output."""
    source, stats = (tiny / "test.de").read_text(), tmp_path / "stats.json"

    def of_file(phrases: list[str], *flags, **how):
        file = ("--constraints-file", write(tmp_path / "short.tsv", phrases))
        return interactive(tiny, *EXT, *file, *flags, stdin=source, **how)

    whole = hypotheses(of_file(PHRASES))
    flags = ("--strict", "--buffer-size", buffer, "--batch-size", 2, "--stats-file", stats)
    done = of_file(PHRASES[:6], *flags, check=False)
    assert "short.tsv has 6 lines and the input has at least 7 sentences" in sentence(done)
    assert hypotheses(done) == {number: whole[number] for number in range(6)}
    assert json.loads(stats.read_text())["sentences"] == 6


# ---- required words that the unconstrained hypothesis holds already change nothing


LINES = 9


def best(demo: Path, task: str, *flags: object) -> dict[int, tuple[str, float]]:
    """Text and score of each sentence's best hypothesis."""
    how = [*STOCK, "--dataset-impl", "raw", "--beam", 10, "--task", task, *flags]
    found = re.findall(r"^D-(\d+)\t(\S+)\t(.*)$", generate_forked(demo, *how).stdout, re.MULTILINE)
    assert len(found) == LINES
    return {int(number): (text, float(score)) for number, score, text in found}


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The messages of the handbook, which the model translates well, as raw data, and what
    fairseq's own search finds."""
    folder = raw_demo(tmp_path_factory.mktemp("demo"), LINES, first=129)
    return folder, best(folder, "translation")


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
def test_the_best_hypotheses_stay(demo, tmp_path, words, flags):
    draw, (folder, stock) = random.Random(words), demo
    held = [sorted(set(re.findall(r"\b[a-z]{3,}\b", stock[i][0]))) for i in range(LINES)]
    lines = [draw.sample(each, min(words, len(each))) for each in held]
    assert sum(map(len, lines)) >= 0.9 * words * LINES
    file = write(tmp_path / "held.tsv", map("\t".join, lines))
    got = best(folder, "translation_ext", "--constraints-file", file, *flags)
    for i, (text, score) in stock.items():
        assert got[i] == (text, pytest.approx(score, abs=1e-4))


def test_grid_beam_search_with_the_papers_stop_has_its_phrases(tmp_path):
    """Finished hypotheses behind live ones were lost, and pruning left nothing: an empty output."""
    text = (ROOT / "data" / "demo" / "test.en").read_text(encoding="utf-8").split("\n")[:11]
    phrases = [" ".join(line.split()[1:5]) for line in text]
    file = write(tmp_path / "phrases.tsv", phrases)
    how = ["--dataset-impl", "raw", "--constraints-file", file, "--select", "gbs", "--gbs-base", 2]
    how += ["--stop", "ranked", "--prune-finished", 5]
    done = generate_forked(raw_demo(tmp_path, len(text)), *OURS, *how)
    found = dict(re.findall(r"^D-(\d+)\t\S+\t(.*)$", done.stdout, re.MULTILINE))
    assert len(found) == len(text)
    assert all(phrase in found[str(i)] for i, phrase in enumerate(phrases))
