"""Sentences that cannot be translated, in fairseq-generate, fairseq-interactive and the Translator:
their neighbours are."""

import json
import re

import pytest
import torch
from bad_inputs import LANGUAGES, search
from fairseq.data import Dictionary
from forked import generate, interactive
from sizes import drawn

from fairseq_ext import SentenceError, Translator, UsageError

SENTENCES = 11
POISON = "de7"  # the word whose embedding overflows in the NaN model


def lines(done):
    """Kind of line and number -> its fields, P- lines left out."""
    found = {}
    for name, fields in re.findall(r"^([STHDC]-\d+)\t(.*)$", done.stdout, re.MULTILINE):
        found.setdefault(name, []).append(fields.split("\t"))
    return found


@pytest.fixture(scope="module")
def nan(tiny, tmp_path_factory):
    """The tiny model with a source word of finite weights whose sum overflows: a sentence
    that has it gives NaN."""
    path = tmp_path_factory.mktemp("nan") / "model.pt"
    state = torch.load(tiny / "model.pt", weights_only=False)
    word = Dictionary.load(str(tiny / "data" / "dict.de.txt")).index(POISON)
    state["model"]["encoder.embed_tokens.weight"][word] = 3e38
    torch.save(state, path)
    return path


def sources(tiny):
    return [line.split() for line in (tiny / "test.de").read_text().splitlines()]


def constraints(folder, bad):
    path = folder / "constraints.tsv"
    path.write_text("".join(bad.get(i, "") + "\n" for i in range(SENTENCES)))
    return ["--constraints-file", path]


def without(texts, bad):
    """The texts, those of bad sentences being empty."""
    return {i: "" if i in bad else text for i, text in texts.items()}


BAD_LINES = {2: "nowhere", 5: "\ten1", 6: "</s>"}
REASONS = {2: "contains the piece 'nowhere'", 5: "has an empty phrase", 6: "contains '</s>'"}


@drawn(1)
@pytest.mark.parametrize(
    "how",
    [["--batch-size", 1], ["--batch-size", 4], ["--cpu-workers", 2], ["--schedule", "stream"]],
    ids=str,
)
def test_bad_constraints_cost_no_other_sentence_in_generate(tiny, tmp_path, how):
    done = generate(*search(tiny, *how, *constraints(tmp_path, BAD_LINES)))
    right = generate(*search(tiny, *how, *constraints(tmp_path, {})))
    assert (done.status, right.status) == (3, 0) and "error: " not in done.stderr, done.stderr
    reasons = done.reported()
    assert reasons.keys() == BAD_LINES.keys()
    assert all(REASONS[i] in reason for i, reason in reasons.items())
    found, expected = lines(done), lines(right)
    assert found.keys() == expected.keys()
    for name, fields in expected.items():
        if int(name[2:]) in BAD_LINES and name[0] in "HD":
            assert found[name] == [["-inf", ""]]
        else:  # scores differ in float32's rounding
            assert [each[-1] for each in found[name]] == [each[-1] for each in fields]


def test_sentences_that_are_too_long_cost_no_other_in_generate(tiny):
    limit = ["--batch-size", 3, "--max-source-positions", 6, "--max-target-positions", 30]
    skip = "--skip-invalid-size-inputs-valid-test"
    done, right = generate(*search(tiny, *limit)), generate(*search(tiny, *limit[:2]))
    long = {i for i, line in enumerate(sources(tiny)) if len(line) + 1 > 6}
    assert 0 < len(long) < SENTENCES and done.status == 3 and done.reported().keys() == long
    said = "tokens, and the model takes (6, 30)"
    assert all(said in reason for reason in done.reported().values())
    assert done.texts() == without(right.texts(), long)
    typed = [sorted(name for name in lines(each) if name[0] == "S") for each in (done, right)]
    assert typed[0] == typed[1]
    skipped = generate(*search(tiny, *limit, skip))
    assert skipped.status == 0 and not skipped.reported()
    assert skipped.texts().keys() == set(range(SENTENCES)) - long
    stock = generate(*search(tiny, *limit, skip, "--task", "translation"))
    assert stock.texts() == skipped.texts() and lines(stock).keys() == lines(skipped).keys()
    narrow = generate(*search(tiny, "--max-tokens", 6))
    reasons = narrow.reported()
    assert narrow.status == 3 and all("--max-tokens takes 6" in each for each in reasons.values())
    assert narrow.texts() == without(right.texts(), reasons)


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
    stats, results = ["--stats-file", tmp_path / "stats.json"], tmp_path / "results.jsonl"
    results_file = [] if "--cpu-workers" in how else ["--results-file", results]
    done = generate(*search(tiny, *how, *stats, *results_file, model=nan))
    right = generate(*search(tiny, *how))
    assert done.status == 3 and done.reported().keys() == poisoned, done.stderr
    said = "the model gives NaN at target position"
    assert all(reason.startswith(said) for reason in done.reported().values())
    assert done.texts() == without(right.texts(), poisoned)
    good = set(range(SENTENCES)) - poisoned
    assert json.loads((tmp_path / "stats.json").read_text())["sentences"] == len(good)
    if results_file:
        numbers = [json.loads(line)["id"] for line in results.read_text().splitlines()[1:]]
        assert sorted(numbers) == sorted(good)
        again = generate(*search(tiny, *how, *results_file, "--resume", model=nan))
        assert again.status == 3 and again.reported() == done.reported()
        assert again.texts() == done.texts()


@drawn(1)
@pytest.mark.parametrize("what", ["constraints", "NaN"])
def test_strict_ends_generate_at_the_first_behind_what_came_before(tiny, nan, tmp_path, what):
    flags, model = ["--batch-size", 3], nan
    if what == "constraints":
        flags, model = [*flags, *constraints(tmp_path, BAD_LINES)], tiny / "model.pt"
    free = generate(*search(tiny, *flags, model=model))
    strict = generate(*search(tiny, *flags, "--strict", model=model))
    order = list(free.texts())
    first = next(i for i in order if i in free.reported())
    assert list(strict.texts()) == order[: order.index(first)]
    said_alone(strict, free.reported()[first])


def said_alone(strict, reason):
    """A --strict command has ended with this sentence, and no E- line."""
    assert strict.status == 1 and not strict.reported()
    said = [line for line in strict.stderr.splitlines() if line.startswith("error: ")]
    assert said == [f"error: {reason}"]


@drawn(1)
@pytest.mark.parametrize("how", [["1"], ["4", "--constraints"], ["8", "--int8"]], ids=str)
def test_nan_in_a_line_costs_no_other_and_strict_prints_all_lines_before_it(
    tiny, nan, tmp_path, how
):
    """fairseq-interactive makes batches of lines of like length, so lines before it may be decoded
    later, and lines behind it earlier."""
    glossary, report = tmp_path / "g.tsv", tmp_path / "report.jsonl"
    glossary.write_text("de1\ten1\n")
    text = f"de1 de2 de3 de4|de1|de2 de3|{POISON} de1|de4 de5 de6|de5|de6 de1|{POISON}|"
    stdin = (text + "de3 " * 50).replace("|", "\n").encode()
    flags = [*LANGUAGES, "--buffer-size", 9, "--batch-size", *how]
    flags += ["--glossary", glossary, "--glossary-report", report]
    strict = interactive(*search(tiny, *flags, "--strict", model=nan), stdin=stdin)
    assert report.stat().st_size
    free, right = (
        interactive(*search(tiny, *flags, model=model), stdin=stdin)
        for model in (nan, tiny / "model.pt")
    )
    assert free.status == 3 and free.reported().keys() == {3, 7, 8} and "NaN" in free.reported()[3]
    assert free.texts() == without(right.texts(), {3, 7})
    assert strict.texts() == {number: line for number, line in free.texts().items() if number < 3}
    said_alone(strict, free.reported()[3])


def test_the_translator_returns_errors_in_their_places(tiny, nan):
    flags = {"source_lang": "de", "target_lang": "en", "cpu": True, "beam": 2, "max_len_b": 8}
    ours, right = (Translator(each, tiny / "data", **flags) for each in (nan, tiny / "model.pt"))
    text = ["de1 de2", POISON, "de3 " * 50, "de4", "de\ud800", 7, "de5"]
    found = ours.translate(text, errors="return")
    bad = {
        1: "NaN",
        2: "line 3 has 51 tokens and the model takes 40",
        4: "line 5 is not valid Unicode",
        5: "line 6 is 7: give text",
    }
    for i, reason in bad.items():
        assert isinstance(found[i], SentenceError) and reason in str(found[i])
        with pytest.raises(UsageError, match=re.sub(r"^line \d", "line 2", reason)):
            ours.translate([text[0], text[i]])
    good = [i for i in range(len(text)) if i not in bad]
    expected = right.translate([text[i] for i in good])
    assert [found[i][0].text for i in good] == [each[0].text for each in expected]


def test_an_empty_line_that_match_source_len_leaves_no_room_costs_no_other(tiny):
    """Stock's own search asserts that there is room, and ends the session."""
    typed = search(tiny, *LANGUAGES, "--match-source-len")
    done = interactive(*typed, stdin=b"de1 de2\n\nde3\n")
    found = done.texts()
    assert done.status == 3 and found[0] and found[2] and found[1] == "", done.stderr
    assert done.reported() == {
        1: "--min-len 1 is above the length limit of a sentence: lower it, or leave "
        "--match-source-len out"
    }


def test_a_sentence_whose_every_word_was_forbidden_says_which_constraints_it_lacks(tiny, tmp_path):
    """No word twice and no end before the 39th, of 36 words: nothing may follow.

    The answer is empty and flagged.
    """
    forbid = ["--min-len", 39, "--max-len-b", 39, "--no-repeat-ngram-size", 1]
    forbid += constraints(tmp_path, dict.fromkeys(range(SENTENCES), "en1"))
    done = generate(*search(tiny, *forbid, "--results-file", tmp_path / "r.jsonl"))
    assert done.status == 0, done.stderr
    records = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()[1:]]
    assert len(records) == SENTENCES
    for hypothesis in (each for record in records for each in record["hypotheses"]):
        assert hypothesis["score"] == -float("inf")
        assert [phrase for phrase, _ in hypothesis["unmet"]] == ["en1"]
    assert f"constraints not met: {SENTENCES} of {SENTENCES}" in done.stderr
