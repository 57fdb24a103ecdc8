"""Sentences that cannot be translated, in fairseq-generate, fairseq-interactive and the Translator:
their neighbours are."""

import json
import random
import re
from pathlib import Path

import pytest
import torch
from fairseq.data import Dictionary
from forked import Done, generate, interactive
from sizes import drawn
from test_lines import reported

from fairseq_ext import SentenceError, Translator, UsageError

SENTENCES = 11
EXT = ["--task", "translation_ext", "--cpu", "--beam", 2, "--max-len-b", 8]
POISON = "de7"  # the word whose embedding overflows in the NaN model


def lines(done: Done) -> dict[str, list[tuple[str, ...]]]:
    """Kind of line and number -> its fields, P- lines left out."""
    found: dict[str, list[tuple[str, ...]]] = {}
    for line in done.stdout.splitlines():
        name, *fields = line.split("\t")
        if name[:2] in ("S-", "T-", "H-", "D-", "C-"):
            found.setdefault(name, []).append(tuple(fields))
    return found


def texts(done: Done) -> dict[int, str]:
    return {
        int(name[2:]): fields[0][1] for name, fields in lines(done).items() if name.startswith("H-")
    }


@pytest.fixture(scope="module")
def nan(tiny, tmp_path_factory) -> Path:
    """The tiny model with a source word of finite weights whose sum overflows: a sentence
    that has it gives NaN."""
    path = tmp_path_factory.mktemp("nan") / "model.pt"
    state = torch.load(tiny / "model.pt", weights_only=False)
    word = Dictionary.load(str(tiny / "data" / "dict.de.txt")).index(POISON)
    state["model"]["encoder.embed_tokens.weight"][word] = 3e38
    torch.save(state, path)
    return path


def sources(tiny) -> list[list[str]]:
    return [line.split() for line in (tiny / "test.de").read_text().splitlines()]


def command(tiny, model: Path, *more: object) -> list[object]:
    return [tiny / "data", "--path", model, *EXT, *more]


def constraints(folder: Path, bad: dict[int, str], count: int = SENTENCES) -> Path:
    path = folder / "constraints.tsv"
    path.write_text("".join(bad.get(i, "") + "\n" for i in range(count)))
    return path


BAD_LINES = {2: "nowhere", 5: "\ten1", 6: "</s>"}
REASONS = {2: "contains the piece 'nowhere'", 5: "has an empty phrase", 6: "contains '</s>'"}


@drawn(1)
@pytest.mark.parametrize(
    "how",
    [["--batch-size", 1], ["--batch-size", 4], ["--cpu-workers", 2], ["--schedule", "stream"]],
    ids=str,
)
def test_bad_constraints_cost_no_other_sentence_in_generate(tiny, tmp_path, how):
    done = generate(
        *command(
            tiny, tiny / "model.pt", *how, "--constraints-file", constraints(tmp_path, BAD_LINES)
        )
    )
    right = generate(
        *command(tiny, tiny / "model.pt", *how, "--constraints-file", constraints(tmp_path, {}))
    )
    assert (
        (done.status, right.status) == (3, 0)
        and "Traceback" not in done.stderr
        and "error: " not in done.stderr
    ), done.stderr
    reasons = reported(done)
    assert reasons.keys() == BAD_LINES.keys() and all(
        REASONS[i] in reason for i, reason in reasons.items()
    )
    found, expected = lines(done), lines(right)
    assert found.keys() == expected.keys()
    for name, fields in expected.items():
        if int(name[2:]) in BAD_LINES and name[0] in "HD":
            assert found[name] == [("-inf", "")]
        else:  # scores differ in float32's rounding
            assert [each[-1] for each in found[name]] == [each[-1] for each in fields]


def test_sentences_that_are_too_long_cost_no_other_in_generate(tiny):
    short = ["--max-source-positions", 6, "--max-target-positions", 30]
    limit = command(tiny, tiny / "model.pt", "--batch-size", 3, *short)
    done, right = generate(*limit), generate(*command(tiny, tiny / "model.pt", "--batch-size", 3))
    long = {i for i, line in enumerate(sources(tiny)) if len(line) + 1 > 6}
    assert 0 < len(long) < SENTENCES and done.status == 3
    assert reported(done).keys() == long and all(
        "tokens, and the model takes (6, 30)" in reason for reason in reported(done).values()
    )
    assert texts(done) == {i: "" if i in long else text for i, text in texts(right).items()}
    assert sorted(name for name in lines(done) if name[0] == "S") == sorted(
        name for name in lines(right) if name[0] == "S"
    )
    skipped = generate(*limit, "--skip-invalid-size-inputs-valid-test")
    assert (
        skipped.status == 0
        and not reported(skipped)
        and texts(skipped).keys() == set(range(SENTENCES)) - long
    )
    stock = generate(
        *[word if word != "translation_ext" else "translation" for word in limit],
        "--skip-invalid-size-inputs-valid-test",
    )
    assert texts(stock) == texts(skipped) and lines(stock).keys() == lines(skipped).keys()
    narrow = generate(*command(tiny, tiny / "model.pt", "--max-tokens", 6))
    assert narrow.status == 3 and all(
        "--max-tokens takes 6" in reason for reason in reported(narrow).values()
    )
    assert {i: text for i, text in texts(narrow).items() if text} == {
        i: texts(right)[i] for i in texts(right) if i not in reported(narrow)
    }


WAYS = [
    [],
    ["--schedule", "stream"],
    ["--cpu-workers", 2],
    ["--beam", 1, "--decoding", "window"],
    ["--decoder-backend", "fairseq"],
]


@drawn(1)
@pytest.mark.parametrize("how", WAYS, ids=str)
def test_nan_in_some_sentences_costs_no_other_in_generate(tiny, nan, tmp_path, how):
    """Their statistics and results are those of the sentences that were translated, once each."""
    poisoned = {i for i, line in enumerate(sources(tiny)) if POISON in line}
    assert 0 < len(poisoned) < SENTENCES
    files = ["--stats-file", tmp_path / "stats.json"]
    files += [] if "--cpu-workers" in how else ["--results-file", tmp_path / "results.jsonl"]
    done = generate(*command(tiny, nan, *how, *files))
    right = generate(*command(tiny, tiny / "model.pt", *how))
    assert done.status == 3 and reported(done).keys() == poisoned, done.stderr
    assert all(
        reason.startswith("the model gives NaN at target position")
        for reason in reported(done).values()
    )
    assert texts(done) == {i: "" if i in poisoned else text for i, text in texts(right).items()}
    assert json.loads((tmp_path / "stats.json").read_text())["sentences"] == SENTENCES - len(
        poisoned
    )
    if "--cpu-workers" not in how:
        numbers = [
            json.loads(line)["id"]
            for line in (tmp_path / "results.jsonl").read_text().splitlines()[1:]
        ]
        assert sorted(numbers) == sorted(set(range(SENTENCES)) - poisoned)
        again = generate(
            *command(tiny, nan, *how, "--results-file", tmp_path / "results.jsonl", "--resume")
        )
        assert (
            again.status == 3 and reported(again) == reported(done) and texts(again) == texts(done)
        )


@drawn(1)
@pytest.mark.parametrize("what", ["constraints", "NaN"])
def test_strict_ends_generate_at_the_first_behind_what_came_before(tiny, nan, tmp_path, what):
    flags, model = ["--batch-size", 3], tiny / "model.pt"
    if what == "constraints":
        flags += ["--constraints-file", constraints(tmp_path, BAD_LINES)]
    else:
        model = nan
    free, strict = (
        generate(*command(tiny, model, *flags)),
        generate(*command(tiny, model, *flags, "--strict")),
    )
    order = [
        int(line[2:].split("\t")[0]) for line in free.stdout.splitlines() if line.startswith("H-")
    ]
    first = next(i for i in order if i in reported(free))
    printed = [
        int(line[2:].split("\t")[0]) for line in strict.stdout.splitlines() if line.startswith("H-")
    ]
    assert strict.status == 1 and printed == order[: order.index(first)] and not reported(strict)
    said = [line for line in strict.stderr.splitlines() if line.startswith("error: ")]
    assert said == [f"error: {reported(free)[first]}"]


def test_nan_in_a_line_costs_no_other_in_interactive(tiny, nan):
    chance = random.Random(2)
    text = [
        " ".join(f"de{chance.randrange(20)}" for _ in range(chance.randint(1, 5)))
        for _ in range(20)
    ]
    text[3] = text[9] = POISON
    for how in ([], ["--constraints"], ["--int8"]):
        flags = ["-s", "de", "-t", "en", "--buffer-size", 8, "--batch-size", 8, *how]
        done, right = (
            interactive(*command(tiny, model, *flags), stdin="\n".join(text).encode())
            for model in (nan, tiny / "model.pt")
        )
        poisoned = {i for i, line in enumerate(text) if POISON in line.split()}
        assert done.status == 3 and reported(done).keys() == poisoned and "NaN" in reported(done)[3]
        assert texts(done) == {i: "" if i in poisoned else line for i, line in texts(right).items()}


@drawn(1)
@pytest.mark.parametrize("size", [1, 4, 8])
def test_strict_prints_all_lines_before_one_with_nan_and_none_behind_it(tiny, nan, tmp_path, size):
    """fairseq-interactive makes batches of lines of like length, so lines before it may be decoded
    later, and lines behind it earlier."""
    (tmp_path / "g.tsv").write_text("de1\ten1\n")
    text = [
        "de1 de2 de3 de4",
        "de1",
        "de2 de3",
        f"{POISON} de1",
        "de4 de5 de6",
        "de5",
        "de6 de1",
        POISON,
        "de3 " * 50,
    ]
    flags = [
        "-s",
        "de",
        "-t",
        "en",
        "--buffer-size",
        9,
        "--batch-size",
        size,
        "--glossary",
        tmp_path / "g.tsv",
    ]
    flags += ["--glossary-report", tmp_path / "report.jsonl"]
    strict = interactive(*command(tiny, nan, *flags, "--strict"), stdin="\n".join(text).encode())
    free = interactive(*command(tiny, nan, *flags), stdin="\n".join(text).encode())
    assert (
        strict.status == 1
        and not reported(strict)
        and free.status == 3
        and reported(free).keys() == {3, 7, 8}
    )
    assert texts(strict) == {number: line for number, line in texts(free).items() if number < 3}
    assert [line for line in strict.stderr.splitlines() if line.startswith("error: ")] == [
        f"error: {reported(free)[3]}"
    ]
    assert "Traceback" not in strict.stderr and (tmp_path / "report.jsonl").stat().st_size


def test_the_translator_returns_errors_in_their_places(tiny, nan):
    flags = {"source_lang": "de", "target_lang": "en", "cpu": True, "beam": 2, "max_len_b": 8}
    ours, right = (
        Translator(str(model), str(tiny / "data"), **flags) for model in (nan, tiny / "model.pt")
    )
    text = ["de1 de2", POISON, "de3 " * 50, "de4", "de\ud800", 7, "de5"]
    found = ours.translate(text, errors="return")
    bad = {
        1: "NaN",
        2: "line 3 has 51 tokens and the model takes 40",
        4: "line 5 is not valid Unicode",
        5: "line 6 is 7: give text",
    }
    assert all(
        isinstance(found[i], SentenceError) and reason in str(found[i]) for i, reason in bad.items()
    )
    good = [i for i in range(len(text)) if i not in bad]
    expected = right.translate([text[i] for i in good])
    assert [found[i][0].text for i in good] == [each[0].text for each in expected]
    for i, reason in bad.items():
        with pytest.raises(UsageError, match=re.sub(r"^line \d", "line 2", reason)):
            ours.translate([text[0], text[i]])
    found = ours.translate(
        ["de1", "de2", "de3"], constraints=[["en1"], ["nowhere"], []], errors="return"
    )
    assert "en1" in found[0][0].tokens and "'nowhere'" in str(found[1]) and found[2][0].tokens
    with pytest.raises(UsageError, match="'nowhere'"):
        ours.translate(["de1", "de2"], constraints=[["en1"], ["nowhere"]])
    with pytest.raises(UsageError, match="errors is 'ignore'"):
        ours.translate(["de1"], errors="ignore")
    with pytest.raises(UsageError, match="constraints has 1 entry for 2 lines"):
        ours.translate(["de1", "de2"], constraints=[["en1"]], errors="return")


def test_an_empty_line_that_match_source_len_leaves_no_room_costs_no_other(tiny):
    """Stock's own search asserts that there is room, and ends the session."""
    typed = ["-s", "de", "-t", "en", "--match-source-len"]
    done = interactive(*command(tiny, tiny / "model.pt", *typed), stdin=b"de1 de2\n\nde3\n")
    assert done.status == 3 and texts(done)[0] and texts(done)[2] and texts(done)[1] == "", (
        done.stderr
    )
    assert reported(done) == {
        1: "--min-len 1 is above the length limit of a sentence: lower it, or leave "
        "--match-source-len out"
    }


def test_a_sentence_whose_every_word_was_forbidden_says_which_constraints_it_lacks(tiny, tmp_path):
    """No word twice and no end before the 39th, of 36 words: nothing may follow.

    The answer is empty and flagged.
    """
    forbid = ["--min-len", 39, "--max-len-b", 39, "--no-repeat-ngram-size", 1]
    file = constraints(tmp_path, dict.fromkeys(range(SENTENCES), "en1"))
    done = generate(
        *command(
            tiny,
            tiny / "model.pt",
            *forbid,
            "--constraints-file",
            file,
            "--results-file",
            tmp_path / "r.jsonl",
        )
    )
    assert done.status == 0, done.stderr
    records = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()[1:]]
    assert len(records) == SENTENCES
    for record in records:
        for hypothesis in record["hypotheses"]:
            assert hypothesis["score"] == -float("inf") and [
                phrase for phrase, _ in hypothesis["unmet"]
            ] == ["en1"]
    assert f"constraints not met: {SENTENCES} of {SENTENCES}" in done.stderr
