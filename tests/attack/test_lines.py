"""Lines that cannot be used, and lines that look as if: in one session or one run, a row
a line (lines.tsv).

Each bad line gets its E- line and an empty hypothesis; its neighbours are translated
as they are without it.
"""

import json
import time
from pathlib import Path

import pytest
from bad_inputs import EXT, LANGUAGES, rows, search
from forked import forked, generate, interactive
from sizes import drawn

from fairseq_ext.terms.__main__ import main

TYPED, TABS, OBJECTS = (rows("lines.tsv", kind) for kind in ("typed", "tabs", "objects"))
ODD = rows("lines.tsv", "odd")
DEMO = Path(__file__).parents[2] / "checkpoints" / "demo"
GOOD = b"de1 de2"
SESSION = [*LANGUAGES, "--buffer-size", 16, "--batch-size", 8]


@pytest.fixture(scope="module")
def good(tiny):
    """What the good line's translation is in a session of its own, constraints on."""
    return interactive(*search(tiny, *SESSION, "--constraints"), stdin=GOOD).texts()[0]


def between(lines):
    """Each line behind a good one; the good ones have even numbers."""
    return b"".join(GOOD + b"\n" + line + b"\n" for line in lines)


def check(done, expected, good):
    """Every line is answered, in order: each second one as the good line that it is; the others,
    name -> (line, sentence), have the sentence in their E- line and an empty hypothesis, or
    neither where there is no sentence."""
    found, reasons = done.texts(), done.reported()
    assert done.status == 3 and "error: " not in done.stderr
    assert list(found) == list(range(2 * len(expected)))
    assert {*list(found.values())[::2]} == {good}
    lines = {2 * i + 1: (name, said) for i, (name, (_, said)) in enumerate(expected.items())}
    assert reasons.keys() == {number for number, (_, said) in lines.items() if said}
    for number, reason in reasons.items():
        name, said = lines[number]
        assert said in reason and len(reason) < 500 and found[number] == "", name


@pytest.mark.parametrize("where", ["standard input", "--input"])
def test_bad_lines_and_odd_ones(tiny, tmp_path, good, where):
    text = between([line for line, _ in (TYPED | ODD).values()])
    typed = search(tiny, *SESSION, "--constraints")
    if where == "--input":
        (tmp_path / "input").write_bytes(text)
        typed += ["--input", tmp_path / "input"]
    check(interactive(*typed, stdin=text if where != "--input" else b""), TYPED | ODD, good)


def test_bytes_in_a_phrase_that_is_segmented():
    """SentencePiece has an error of its own for them, which ended the session."""
    words = [DEMO, "--path", DEMO / "checkpoint.pt", *EXT, *SESSION, "--constraints"]
    words += ["--bpe", "sentencepiece", "--sentencepiece-model", DEMO / "spm.model"]
    done = interactive(*words, stdin=between([b"Ja.\tyes\xff"]) + GOOD)
    assert done.status == 3 and done.reported().keys() == {1}, done.stderr
    assert "the phrase 'yes\\udcff' contains the piece" in done.reported()[1]
    found = done.texts()
    assert found[0] == found[2] != "" and found[1] == ""


@pytest.mark.parametrize(("file", "bad"), [("c.tsv", TABS), ("c.jsonl", OBJECTS)], ids=len)
def test_bad_lines_of_a_file_of_constraints(tiny, tmp_path, good, file, bad):
    """Every second line is bad; the file is read before the first line."""
    (tmp_path / file).write_bytes(b"".join(b"\n" + line + b"\n" for line, _ in bad.values()))
    session = search(tiny, *SESSION, "--constraints-file", tmp_path / file)
    done = interactive(*session, stdin=between([b"de1"] * len(bad)))
    check(done, bad, good)
    warned = done.stderr.partition("E-")[0]
    # one of spaces is looked at when its sentence comes
    read = sum(bool(line.strip()) for line, _ in bad.values())
    assert "line 2 of " in warned and f"({read - 1} more such lines in the file)" in warned


def test_null_in_a_line_of_a_file_is_as_no_key(tiny, good, tmp_path):
    """For each key."""
    keys = ("constraints", "any_of", "prefix", "avoid")
    lines = [dict.fromkeys(keys), *({key: None} for key in keys)]
    (tmp_path / "c.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    session = search(tiny, *SESSION, "--constraints-file", tmp_path / "c.jsonl")
    done = interactive(*session, stdin=(GOOD + b"\n") * len(lines))
    assert done.status == 0 and not done.reported(), done.stderr
    assert done.texts() == dict.fromkeys(range(len(lines)), good) and good


# ---- Glossaries that cannot be used: one sentence, nothing printed, status 1


def expanded(folder, glossary, text):
    """How `expand` ends over a text of one line."""
    (folder / "text").write_text(text)
    flags = ["--glossary", glossary, "--text", folder / "text", "--lang", "en"]
    return forked(main, "fairseq_ext.terms", "expand", *flags, "--source-lang", "de")


ROWS = [
    (suffix, name, content, sentence)
    for suffix in (".tsv", ".csv", ".jsonl", ".tbx")
    for name, (content, sentence) in rows("lines.tsv", suffix).items()
]


@drawn(16)
@pytest.mark.parametrize(
    "suffix, name, content, sentence",
    ROWS,
    ids=[f"{suffix[1:]}: {name}" for suffix, name, _, _ in ROWS],
)
def test_a_glossary_that_cannot_be_used(tmp_path, suffix, name, content, sentence):
    path = tmp_path / f"g{suffix}"
    path.write_bytes(content)
    begun = time.monotonic()
    done = expanded(tmp_path, path, "houses and homes\n")
    said = done.error()
    assert done.stdout == "" and "root:" not in done.stderr and time.monotonic() - begun < 30
    # fairseq, which this process has imported, has what a command of its own does not say
    lines = [line for line in done.stderr.splitlines() if not line.startswith("INFO:")]
    assert lines == [said] and len(said) < 500 and sentence.format(path=path) in said


def test_nothing_is_fetched_for_a_glossary(tmp_path):
    (tmp_path / "secret").write_text("root password")
    content, _ = rows("lines.tsv", ".tbx")["a stray ampersand"]
    outside = f'<!DOCTYPE t [<!ENTITY x SYSTEM "file://{tmp_path / "secret"}">]><tbx>'
    content = content.replace(b"Haus & Hof", b"&x;").replace(b"<tbx>", outside.encode())
    (tmp_path / "g.tbx").write_bytes(content)
    done = expanded(tmp_path, tmp_path / "g.tbx", "houses\n")
    assert "password" not in done.stdout + done.stderr


LARGE = {  # what grew with the lines before it took minutes
    "--glossary": "".join(
        f"de{i % 5}\ten{i % 29} en{i // 29 % 29} en{i // 841}\n" for i in range(20_000)
    ),
    # they begin alike
    "--avoid-file": "".join(f"en{i % 29} en{i // 29 % 29} en{i // 841}\n" for i in range(10_000)),
}


@pytest.mark.parametrize("flag", LARGE)
def test_thousands_of_lines_are_read_in_linear_time(tiny, tmp_path, flag):
    (tmp_path / "large.tsv").write_text(LARGE[flag])
    begun = time.monotonic()
    done = generate(*search(tiny, flag, tmp_path / "large.tsv"))
    assert done.status == 0 and time.monotonic() - begun < 60, done.stderr
    if flag == "--glossary":
        assert "5 source terms, 19995 lines merged with earlier ones" in done.stderr
        warned = [line for line in done.stderr.splitlines() if "constraints not met" in line]
        assert len(warned) <= 1 and all(len(line) < 400 for line in warned)
