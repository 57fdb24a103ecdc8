"""Allowed outputs through the commands and from Python: with other constraints, by patterns, built
before, and compiled. test_random_flags.py has them with every strategy."""

import json
import random
import re
from pathlib import Path

import demo_model
import pytest
from demo_model import MODEL, ROOT
from search.constraints.test_constraints_cli import (
    generate,
    hypotheses,
    interactive,
    times,
    write,
)
from sizes import drawn
from test_cli import EXT

from fairseq_ext import Translator, UsageError
from fairseq_ext.allowed import main
from fairseq_ext.search.compiled import CompiledSearch

DEMO = demo_model.FLAGS | dict(beam=4, nbest=2)
SET = [
    "en1",
    "en1 en2 en3",
    "en1 en2 en4 en4",
    "en5 en6",
    "en9 en8 en7 en6 en5",
    "en5 en6 en20",
    "en12 en1 en2",
    "en3 en3 en3",
]
LINES = (ROOT / "data" / "demo" / "test.de").read_text(encoding="utf-8").splitlines()
SENTENCES = 11  # of the tiny corpus


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> str:
    return write(tmp_path_factory.mktemp("allowed") / "set.txt", SET)


# ---- with other constraints


def test_required_and_banned_phrases_choose_among_the_set(tiny, file, tmp_path):
    phrases = ["en2", "en5 en6", "en20", "en2\ten1", "", "en3\ten3", "en8", "en6", "en4", "en1", ""]
    banned = write(tmp_path / "avoid.txt", ["en12"])
    required = write(tmp_path / "c.tsv", phrases)
    done = generate(
        tiny,
        *EXT,
        *("--allowed-file", file, "--constraints-file", required, "--avoid-file", banned),
        *("--beam", 8, "--nbest", 8),
    )
    found = hypotheses(done)
    for number, line in enumerate(phrases):
        wanted = [each for each in line.split("\t") if each]
        expected = {
            text
            for text in SET
            if "en12" not in text.split()
            and all(times(each, text) >= wanted.count(each) for each in wanted)
        }
        assert set(found[number]) == expected, number


def test_a_sentence_without_an_output_is_an_error_of_its_own(tiny, file, tmp_path):
    texts = "de1 de2\ten2\nde3\ten30\nde4\nde5\ten3\ten20\nde1\t<s> en7\nde2\t<s> en5\n"
    done = interactive(
        tiny,
        *EXT,
        "--constraints",
        "--allowed-file",
        file,
        "--buffer-size",
        9,
        stdin=texts,
        check=False,
    )
    found = hypotheses(done)
    errors = dict(re.findall(r"^E-(\d+)\t(.*)$", done.stderr, re.MULTILINE))
    assert sorted(errors) == ["1", "3", "4"]
    assert "en30" in errors["1"] and "together" in errors["3"]
    assert "starts with the prefix 'en7'" in errors["4"]
    assert all("en2" in text for text in found[0])
    assert found[2][0] in SET and found[5][0].startswith("en5")


def test_strings_that_cannot_be_written_are_left_out_in_one_line(tiny, tmp_path):
    path = write(tmp_path / "set.txt", ["", "en1", "ship en2", "en1", "  ", "en2 ", "boat"])
    done = interactive(tiny, *EXT, "--allowed-file", path, stdin="de1\nde2\n")
    assert set(sum(hypotheses(done).values(), [])) <= {"en1", "en2"}
    said = [line for line in done.stderr.splitlines() if "left out" in line]
    assert len(said) == 1 and "2 strings of 4" in said[0] and "'ship en2'" in said[0]
    path = write(tmp_path / "none.txt", ["ship", ""])
    done = interactive(tiny, *EXT, "--allowed-file", path, stdin="de1\n", check=False)
    assert "1 string of 1 cannot be written" in done.stderr and "Traceback" not in done.stderr


@drawn(1)
@pytest.mark.parametrize("kind", ["tabs", "json"])
def test_a_set_of_each_line(tiny, file, tmp_path, kind):
    sets = [[SET[i % len(SET)], SET[(i + 3) % len(SET)]] for i in range(SENTENCES)]
    sets[4] = []
    rows = ["\t".join(each) if kind == "tabs" else json.dumps(each) for each in sets]
    rows[4] = ""
    path = write(tmp_path / "sets", rows)
    done = generate(tiny, *EXT, "--allowed-file-per-line", path, "--allowed-file", file)
    for number, texts in hypotheses(done).items():
        assert set(texts) <= set(sets[number] or SET)
    path = write(tmp_path / "short", rows[:-1])
    done = generate(tiny, *EXT, "--allowed-file-per-line", path, check=False)
    assert f"has {SENTENCES - 1} lines and the input has {SENTENCES} sentences" in done.stderr


def test_a_prefix_of_the_data_set_counts_as_a_part_of_the_output(tiny, tmp_path):
    references = [line.split() for line in (tiny / "test.en").read_text().splitlines()]
    strings = [" ".join(each) for each in references]
    strings += [" ".join([*each[:1], "en1", "en2"]) for each in references]
    path = write(tmp_path / "set.txt", strings)
    done = generate(tiny, *EXT, "--allowed-file", path, "--prefix-size", 1)
    for number, texts in hypotheses(done).items():
        assert set(texts) <= set(strings)
        assert all(text.split()[:1] == references[number][:1] for text in texts)


# ---- patterns


def test_a_regular_expression(tiny):
    pattern = r"(en[1-3] ){2,3}en(7|8)+"
    done = generate(tiny, *EXT, "--allowed-regex", pattern)
    found = sum(hypotheses(done).values(), [])
    assert found and all(re.fullmatch(pattern, text) for text in found)
    for wrong in ("(en1", r"(en1)\1", "xx"):
        done = generate(tiny, *EXT, "--allowed-regex", wrong, check=False)
        assert "--allowed-regex" in done.stderr and "Traceback" not in done.stderr


def test_an_automaton_of_words(tiny, tmp_path):
    given = {
        "start": "a",
        "final": ["c"],
        "arcs": [["a", "en1 en2", "b"], ["a", "en1", "b"], ["b", "en3", "b"], ["b", "en4", "c"]],
    }
    path = write(tmp_path / "a.json", [json.dumps(given)])
    found = sum(hypotheses(generate(tiny, *EXT, "--allowed-automaton", path)).values(), [])
    assert found and all(re.fullmatch(r"en1( en2)?( en3)* en4", text) for text in found)
    for wrong in (
        "[]",
        "{",
        '{"start": 0, "final": [0], "arcs": []}',
        json.dumps(given | {"x": 1}),
    ):
        path = write(tmp_path / "wrong.json", [wrong])
        done = generate(tiny, *EXT, "--allowed-automaton", path, check=False)
        assert "wrong.json" in done.stderr and "Traceback" not in done.stderr


@drawn(1)
@pytest.mark.parametrize("seed", range(3))
def test_any_segmentation_allows_the_same_texts_and_scores_no_less(seed):
    strings = ["The house was red.", "A brother called.", "We go around the lake again."]
    both = [
        Translator(**(DEMO | {"beam": 40}), allowed_segmentation=kind)
        for kind in ("canonical", "any")
    ]
    source = ["Mein Bruder hat gestern angerufen.", "Das Haus war rot.", "Wir gehen um den See."]
    canonical, free = (each.translate([source[seed]], allowed=strings)[0] for each in both)
    assert {h.text for h in canonical} <= set(strings) and {h.text for h in free} <= set(strings)
    assert free[0].score >= canonical[0].score - 1e-4


# ---- from Python


def test_calls_of_a_translator():
    translator, source = Translator(**DEMO), "Das Haus war rot."
    plain = translator.translate([source])
    strings = ["The house was red.", "My brother called.", "Yes."]
    found = translator.translate([source], allowed=strings)
    assert [h.text for h in found[0]] != [h.text for h in plain[0]] or len(found[0]) == 2
    assert found[0][0].text == strings[0]
    assert translator.translate([source])[0][0].text == plain[0][0].text
    with pytest.raises(UsageError, match="empty"):
        translator.translate([source], allowed=[[]])
    (failed, good) = translator.translate(
        [source] * 2, allowed=strings, constraints=[["port"], ["brother"]], errors="return"
    )
    assert "no allowed output has the required phrase 'port'" in str(failed)
    assert good[0].text == strings[1]


# ---- the command


def test_a_built_set_is_the_same_set(tiny, tmp_path, capsys):
    strings = write(
        tmp_path / "set.txt", ["The house was red.", "My brother called.", "Yes.", "Yes."]
    )
    out = str(tmp_path / "set.allowed")
    flags = ["--data", str(MODEL), "--path", str(MODEL / "checkpoint.pt"), "-s", "de", "-t", "en"]
    flags += ["--bpe", "sentencepiece", "--sentencepiece-model", str(MODEL / "spm.model"), "--cpu"]
    assert main(["build", out, *flags, "--allowed-file", strings]) == 0
    assert "3 strings" in capsys.readouterr().err
    sources = ["Das Haus war rot.", "Mein Bruder hat gestern angerufen."]
    plain, built = (
        Translator(**DEMO, allowed_file=file).translate(sources) for file in (strings, out)
    )
    assert [[(h.text, h.score) for h in each] for each in plain] == [
        [(h.text, h.score) for h in each] for each in built
    ]
    assert main(["build", out, *flags]) == 1
    assert main(["build", strings, *flags, "--allowed-file", strings]) == 1
    assert Path(strings).read_text().startswith("The house")
    done = generate(tiny, *EXT, "--allowed-file", out, check=False)
    assert done.returncode and "built for another target dictionary" in done.stderr
    content = Path(out).read_bytes()
    for damaged in (content[:-9], content[:-9] + b"?" + content[-8:], content[:40]):
        Path(out).write_bytes(damaged)
        with pytest.raises(UsageError, match="damaged: build it again"):
            Translator(**DEMO, allowed_file=out).translate(sources)


# ---- the compiled search


def test_the_compiled_search_reads_no_output_that_cannot_win_to_its_end(monkeypatch):
    """Its hypotheses are the loop's (test_compiled.py)."""
    words = "The house was red brother called around lake again . Yes no is a my your".split()
    chance = random.Random(2)
    strings = [" ".join(chance.choices(words, k=chance.randint(1, 7))) for _ in range(200)]
    rows = []
    for supports in (CompiledSearch.supports, lambda setup: False):
        monkeypatch.setattr(CompiledSearch, "supports", staticmethod(supports))
        made = Translator(**DEMO)
        made.translate(LINES[:7], allowed=[strings[i::3] for i in range(7)])
        rows.append(made.stats.as_dict()["decoder_rows"])
    assert rows[0] < 0.8 * rows[1]
