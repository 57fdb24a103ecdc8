"""Constraints through the commands: files, standard input, glossary, banned phrases, the report,
and one sentence for bad input.

Stock's lines are those of a process of its own; ours are of forked children, but for one command
that starts as a user's does.
"""

import json
import re
from functools import partial

import pytest
import test_cli
from forked import command
from sizes import drawn
from test_cli import EXT, lines, sentence

generate, interactive = (
    partial(run, run=command) for run in (test_cli.generate, test_cli.interactive)
)

SENTENCES = 11  # of the tiny corpus
PHRASES = [
    "en5 en7",
    "en3\ten4",
    "",
    "en9",
    "en1\ten1",
    "",
    "en2 en3\ten3 en4",
    "en8",
    "en6",
    "en20\ten21\ten22",
    "en11 en12 en13 en14",
]


def write(path, lines) -> str:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return str(path)


def hypotheses(done) -> dict[int, list[str]]:
    """Text of every H- line, by sentence."""
    out: dict[int, list[str]] = {}
    for line in lines(done):
        if line[0].startswith("H-"):
            out.setdefault(int(line[0][2:]), []).append(line[2])
    return out


def constraint_lines(done) -> dict[int, list[str]]:
    out: dict[int, list[str]] = {}
    for number, text in re.findall(r"^C-(\d+)\t(.*)$", done.stdout, re.MULTILINE):
        out.setdefault(int(number), []).append(text)
    return out


def times(phrase: str, text: str) -> int:
    """How often a phrase stands in a text, word by word, without overlaps."""
    return len(re.findall(rf"(?<!\S){re.escape(phrase)}(?!\S)", text))


def check(found: dict[int, list[str]], wishes: list[list[str]]) -> None:
    assert sorted(found) == list(range(len(wishes)))
    for number, phrases in enumerate(wishes):
        for text in found[number]:
            assert all(times(phrase, text) >= phrases.count(phrase) for phrase in phrases), (
                number,
                phrases,
                text,
            )


WISHES = [line.split("\t") if line else [] for line in PHRASES]
GIVEN = sum(map(len, WISHES))


# ---- where constraints come from


def test_generate_with_a_file_of_tabs(tiny, tmp_path):
    stats = tmp_path / "stats.json"
    file = write(tmp_path / "c.tsv", PHRASES)
    done = test_cli.generate(
        tiny, *EXT, "--constraints-file", file, "--nbest", 2, "--stats-file", stats
    )
    found = hypotheses(done)
    check(found, WISHES)
    assert constraint_lines(done) == {i: phrases for i, phrases in enumerate(WISHES) if phrases}
    record = json.loads(stats.read_text())
    assert record["constraints"] == {"given": GIVEN, "met": GIVEN, "unmet": []}
    assert "select:dba" in record["signature"]
    # sentences without constraints are what stock makes of them
    stock = hypotheses(test_cli.generate(tiny, "--nbest", 2))
    assert {i: found[i] for i, phrases in enumerate(WISHES) if not phrases} == {
        i: stock[i] for i, p in enumerate(WISHES) if not p
    }


JSONL = [
    {"constraints": [["en5", "en7"], "en3"]},
    {"any_of": [["en4", "en2 en9"]], "avoid": ["en7"]},
    {"prefix": "en1 en2"},
    *[{}] * (SENTENCES - 3),
]


def test_typed_phrases_are_ordered_as_in_stock_by_default(tiny):
    text = "de1 de2\ten7\ten5\nde3 de4\nde5\ten5\ten7\n"
    orders = {}
    for flags in ((), ("unordered",)):
        done = interactive(tiny, *EXT, "--constraints", *flags, "--buffer-size", 3, stdin=text)
        found = hypotheses(done)
        check(found, [["en7", "en5"], [], ["en5", "en7"]])
        assert constraint_lines(done) == {0: ["en7", "en5"], 2: ["en5", "en7"]}
        orders[flags] = [found[i][0].split() for i in (0, 2)]
    first, second = orders[()]
    assert first.index("en7") < len(first) - 1 - first[::-1].index("en5")
    assert second.index("en5") < len(second) - 1 - second[::-1].index("en7")


def test_typed_phrases_and_a_file_add_up(tiny, tmp_path):
    file = write(tmp_path / "c.tsv", ["en9", ""])
    done = interactive(
        tiny,
        *EXT,
        "--constraints",
        "unordered",
        "--constraints-file",
        file,
        stdin="de1\ten5\nde2\ten6 en7\n",
    )
    check(hypotheses(done), [["en5", "en9"], ["en6 en7"]])


@pytest.mark.parametrize(
    "how",
    [
        ["--buffer-size", 100, "--batch-size", 3],
        ["--buffer-size", 100, "--max-tokens", 20, "--data-buffer-size", 50],
        ["--buffer-size", 100, "--batch-size", 2, "--schedule", "stream"],
        ["--buffer-size", 4, "--batch-size", 4, "--data-buffer-size", 0],
    ],
    ids=lambda how: " ".join(map(str, how)),
)
def test_equal_lines_have_the_phrases_that_are_typed_after_each(tiny, tmp_path, how):
    """Lines go into batches by length; one of them cannot be used."""
    typed = ["de1 de2\ten7", "de1 de2\ten5", "de3", "de1 de2", "de4 de5 de6\ten8", "de3\ten9"]
    typed.insert(3, "de1 de2\ten1\t\ten2")
    text = "".join(line + "\n" for line in typed)
    done = interactive(tiny, *EXT, "--constraints", *how, stdin=text, check=False)
    assert done.returncode == 3 and re.findall(r"^E-(\d+)\t(.*)", done.stderr, re.M) == [
        ("3", "line 4 of the input has an empty phrase: remove one of the tabs around it")
    ]
    alone = [
        interactive(tiny, *EXT, "--constraints", stdin=line + "\n")
        for line in typed
        if "\t\t" not in line
    ]
    expected = [hypotheses(each)[0] for each in alone]
    expected.insert(3, [""])
    assert hypotheses(done) == dict(enumerate(expected))
    phrases = [line.split("\t")[1:] for line in typed]
    assert constraint_lines(done) == {i: p for i, p in enumerate(phrases) if p and all(p)}


def test_glossary_report_says_what_fired_and_where_the_form_stands(tiny, tmp_path):
    entries = [("DE1", "en20 en21"), ("de3 de2", ["en22", "en23"]), ("dE1", "en5")]
    file = write(
        tmp_path / "g.jsonl",
        [json.dumps({"source": source, "target": target}) for source, target in entries],
    )
    flags = [
        "--glossary",
        file,
        "--glossary-match",
        "casefold",
        "--glossary-repeat",
        "each",
        "--constraints",
        "ordered",
    ]
    report = tmp_path / "report.jsonl"
    done = interactive(
        tiny, *EXT, *flags, "--glossary-report", report, stdin="de1 de5 de1\nde6\nde3 de2 de4\n"
    )
    found = hypotheses(done)
    records = {record["id"]: record for record in map(json.loads, report.read_text().splitlines())}
    assert [records[i]["translation"] for i in range(3)] == [found[i][0] for i in range(3)]
    first, second = records[0]["terms"]
    assert (first["term"], first["line"], first["targets"]) == ("DE1", 1, ["en20 en21", "en5"])
    assert (first["source_at"], second["source_at"]) == ([[0, 3]], [[8, 11]])
    for each in (first, second, *records[2]["terms"]):
        start, end = each["at"]
        assert (
            records[0 if each["term"] == "DE1" else 2]["translation"][start:end] == each["form"]
            and each["form"] in each["targets"]
        )
    assert first["at"] != second["at"] and records[1]["terms"] == []
    assert (
        records[2]["terms"][0]["source_at"] == [[0, 7]]
        and "|constraints:ordered|" in done.stdout + done.stderr
    )
    assert "2 source terms, 1 line merged with earlier ones" in done.stdout + done.stderr


def test_a_glossary_is_checked_before_the_first_line_is_requested(tiny, tmp_path):
    """Lines that cannot be used are left out; with --strict, and where none is left, refused."""
    some = write(tmp_path / "g.tsv", ["de1 de2\ten20 en21", "de3"])
    none = write(tmp_path / "n.tsv", ["de3", "de4"])
    for flags in (("--glossary", none), ("--glossary", some, "--strict")):
        done = interactive(tiny, *EXT, *flags, stdin="", check=False)
        assert "has 1 column and needs 2" in sentence(done) and "Type the input" not in done.stderr
    done = interactive(tiny, *EXT, "--glossary", some, stdin="de1 de2 de5\n")
    assert times("en20 en21", hypotheses(done)[0][0])
    assert done.stderr.count("line 2 of ") == 1 and "The line is left out" in done.stderr


def test_flags_of_the_glossary_need_one(tiny, tmp_path):
    file = write(tmp_path / "c.tsv", PHRASES)
    said = sentence(
        generate(tiny, *EXT, "--constraints-file", file, "--glossary-match", "lemma", check=False)
    )
    assert "--glossary-match needs a glossary: add --glossary" in said
    said = sentence(
        generate(tiny, *EXT, "--constraints-file", file, "--glossary-report", "r", check=False)
    )
    assert "--glossary-report needs a glossary" in said


def test_c_lines_show_all_alternatives(tiny, tmp_path):
    lines = [json.dumps(entry) if entry else "" for entry in JSONL]
    done = interactive(
        tiny,
        *EXT,
        "--constraints-file",
        write(tmp_path / "c.jsonl", lines[:3]),
        stdin="de1 de2\nde3\nde4 de5\n",
    )
    assert constraint_lines(done) == {0: ["en5 en7", "en3"], 1: ["en4|en2 en9"]}
    done = generate(tiny, *EXT, "--constraints-file", write(tmp_path / "c.jsonl", lines))
    assert constraint_lines(done) == {0: ["en5 en7", "en3"], 1: ["en4|en2 en9"]}


# ---- the report


def test_what_cannot_be_met_is_reported_and_the_rest_goes_on(tiny, tmp_path):
    """Too long for max_len (20), in conflict with the banned phrases, and a sentence
    that meets everything."""
    long = "\t".join(f"en{i} en{i + 1} en{i + 2}" for i in range(0, 24, 3))
    file = write(tmp_path / "c.tsv", [long, "en25 en26\ten3", "en4 en4", *[""] * (SENTENCES - 3)])
    banned, stats = write(tmp_path / "banned", ["en26"]), tmp_path / "stats.json"
    done = generate(
        tiny, *EXT, "--constraints-file", file, "--avoid-file", banned, "--stats-file", stats
    )
    found = hypotheses(done)
    assert (
        len(found) == SENTENCES
        and times("en3", found[1][0])
        and not times("en26", found[1][0])
        and times("en4 en4", found[2][0])
    )
    record = json.loads(stats.read_text())["constraints"]
    reasons = {number: reason for number, _, reason in record["unmet"]}
    assert record["given"] == 8 + 2 + 1 and record["given"] == record["met"] + len(record["unmet"])
    assert reasons[0] == "the constraints take 24 tokens and the sentence may have 20"
    assert [1, "en25 en26", "conflicts with the banned phrase 'en26'"] in record[
        "unmet"
    ] and 2 not in reasons


# ---- bad input: one sentence, and earlier output is kept


@drawn(1)
@pytest.mark.parametrize("buffer", [3, 4, 11])
def test_sentences_before_the_end_of_the_constraints_file_are_printed_before_the_error(
    tiny, tmp_path, buffer
):
    """The file ends at the start, in the middle and in the middle of the last buffer; one sentence
    describes it, after the output."""
    source = (tiny / "test.de").read_text()
    stats = tmp_path / "stats.json"
    whole = hypotheses(
        interactive(
            tiny, *EXT, "--constraints-file", write(tmp_path / "c.tsv", PHRASES), stdin=source
        )
    )
    file = write(tmp_path / "short.tsv", PHRASES[:6])
    flags = (
        "--strict",
        "--constraints-file",
        file,
        "--buffer-size",
        buffer,
        "--batch-size",
        2,
        "--stats-file",
        stats,
    )
    done = interactive(tiny, *EXT, *flags, stdin=source, check=False)
    assert "short.tsv has 6 lines and the input has at least 7 sentences" in sentence(done)
    assert hypotheses(done) == {number: whole[number] for number in range(6)}
    assert json.loads(stats.read_text())["sentences"] == 6


TYPED = [
    ("de3\t\ten1", "empty phrase"),
    ("de3\ten1 nosuchword", "the phrase 'en1 nosuchword' contains the piece 'nosuchword'"),
    ("de3\t</s>", "'</s>'"),
]


@drawn(1)
@pytest.mark.parametrize("typed, message", TYPED)
def test_a_bad_field_is_refused_by_number_and_earlier_output_is_kept(tiny, typed, message):
    text = f"de1\ten1\nde2\n{typed}\nde4\n"
    done = interactive(
        tiny,
        *EXT,
        "--strict",
        "--constraints",
        "--buffer-size",
        2,
        "--batch-size",
        2,
        stdin=text,
        check=False,
    )
    said = sentence(done)
    assert message in said and "line 3 of the input" in said
    assert sorted(hypotheses(done)) == [0, 1]
    assert hypotheses(
        interactive(
            tiny, *EXT, "--strict", "--constraints", "--buffer-size", 4, stdin=text, check=False
        )
    ) == hypotheses(done)


@drawn(1)
@pytest.mark.parametrize("count", [SENTENCES - 1, SENTENCES + 1])
def test_a_file_of_another_length_than_the_corpus_is_refused(tiny, tmp_path, count):
    file = write(tmp_path / "c.tsv", ["en1"] * count)
    said = sentence(generate(tiny, *EXT, "--constraints-file", file, check=False))
    assert re.search(rf"has {count} lines? and the input has {SENTENCES} sentences", said)


def test_the_stock_flag_alone_gives_generate_no_phrases(tiny):
    assert "--constraints alone" in sentence(generate(tiny, *EXT, "--constraints", check=False))


def test_more_phrases_than_cbs_can_hold_are_refused(tiny, tmp_path):
    file = write(tmp_path / "c.tsv", ["\t".join(f"en{i}" for i in range(7))] * SENTENCES)
    done = generate(tiny, *EXT, "--select", "cbs", "--constraints-file", file, check=False)
    said = [line for line in done.stderr.splitlines() if line.startswith("E-")]
    assert (
        done.returncode == 3
        and len(said) == SENTENCES
        and all("--select cbs" in line and "at most 6" in line for line in said)
    )


def test_constraints_next_to_a_search_that_knows_none_are_refused(tiny, tmp_path):
    file = write(tmp_path / "c.tsv", PHRASES)
    for flags in (("--constraints-file", file), ("--avoid-file", file)):
        said = sentence(generate(tiny, *EXT, "--select", "topk", *flags, check=False))
        assert flags[0] in said and "--select dba" in said
    said = sentence(
        interactive(
            tiny, *EXT, "--select", "topk", "--constraints", stdin="de1\ten1\n", check=False
        )
    )
    assert "--select topk takes no constraints" in said
    assert len(hypotheses(generate(tiny, *EXT, "--select", "topk"))) == SENTENCES


def test_a_stock_search_of_another_kind_is_refused(tiny, tmp_path):
    file = write(tmp_path / "c.tsv", PHRASES)
    said = sentence(
        generate(tiny, *EXT, "--constraints-file", file, "--diverse-beam-groups", 2, check=False)
    )
    assert "--diverse-beam-groups" in said and "--constraints-file" in said


@drawn(1)
@pytest.mark.parametrize(
    "flags",
    [("--decoding", "window", "--beam", 1), ("--sampling", "--nbest", 4), ("--match-source-len",)],
)
def test_a_refusal_next_to_constraints_names_the_flags_that_were_given(tiny, flags):
    said = sentence(
        interactive(tiny, *EXT, "--constraints", *flags, stdin="de1\ten1\n", check=False)
    )
    assert "--constraints " in said and flags[0] in said
