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
from forked import Done, forked, generate, interactive
from sizes import drawn

from fairseq_ext.terms.__main__ import main

TYPED, TABS, OBJECTS = (rows("lines.tsv", kind) for kind in ("typed", "tabs", "objects"))
ODD = {name: line for name, (line, _) in rows("lines.tsv", "odd").items()}
DEMO = Path(__file__).parents[2] / "checkpoints" / "demo"
GOOD = b"de1 de2"
SESSION = [*LANGUAGES, "--buffer-size", 16, "--batch-size", 8]


@pytest.fixture(scope="module")
def good(tiny) -> str:
    """What the good line's translation is in a session of its own, constraints on."""
    return interactive(*search(tiny, *SESSION, "--constraints"), stdin=GOOD).texts()[0]


def between(lines: list[bytes]) -> bytes:
    """Each line behind a good one; the good ones have even numbers."""
    return b"".join(GOOD + b"\n" + line + b"\n" for line in lines)


@pytest.fixture(scope="module", params=["standard input", "--input"])
def session(request, tiny, tmp_path_factory) -> Done:
    """All typed lines."""
    text = between([*(line for line, _ in TYPED.values()), *ODD.values()])
    typed = search(tiny, *SESSION, "--constraints")
    if request.param == "standard input":
        return interactive(*typed, stdin=text)
    path = tmp_path_factory.mktemp("lines") / "input"
    path.write_bytes(text)
    return interactive(*typed, "--input", path)


def expect(done: Done, number: int, sentence: str | None, good: str) -> None:
    """The line has this in its E- line and an empty hypothesis, or neither; so have
    not its neighbours."""
    found, reasons = done.texts(), done.reported()
    assert found[number - 1] == good and (number + 1 not in found or found[number + 1] == good)
    assert number - 1 not in reasons and number + 1 not in reasons
    if sentence is None:
        assert number not in reasons and number in found
    else:
        assert sentence in reasons[number] and len(reasons[number]) < 500 and found[number] == ""


def whole(done: Done, rows: int, bad: int) -> None:
    """Every line is answered, in order, and the status says whether any is bad."""
    assert done.status == 3 and "error: " not in done.stderr
    assert list(done.texts()) == list(range(2 * rows)) and len(done.reported()) == bad


def test_the_session_is_whole(session):
    whole(session, len(TYPED) + len(ODD), len(TYPED))


@pytest.mark.parametrize("name", TYPED)
def test_a_bad_line(session, good, name):
    expect(session, 2 * list(TYPED).index(name) + 1, TYPED[name][1], good)


@pytest.mark.parametrize("name", ODD)
def test_an_odd_line(session, good, name):
    expect(session, 2 * (len(TYPED) + list(ODD).index(name)) + 1, None, good)


def test_bytes_in_a_phrase_that_is_segmented():
    """SentencePiece has an error of its own for them, which ended the session."""
    words = [DEMO, "--path", DEMO / "checkpoint.pt", *EXT, *SESSION, "--constraints"]
    words += ["--bpe", "sentencepiece", "--sentencepiece-model", DEMO / "spm.model"]
    done = interactive(*words, stdin=between([b"Ja.\tyes\xff"]) + GOOD)
    assert done.status == 3 and done.reported().keys() == {1}, done.stderr
    assert "the phrase 'yes\\udcff' contains the piece" in done.reported()[1]
    found = done.texts()
    assert found[0] == found[2] != "" and found[1] == ""


BAD = {"c.tsv": TABS, "c.jsonl": OBJECTS}


@pytest.fixture(scope="module")
def of_files(tiny, tmp_path_factory) -> dict[str, Done]:
    """A session for each kind of constraints file, whose every second line is bad."""
    folder = tmp_path_factory.mktemp("files")
    out = {}
    for name, bad in BAD.items():
        (folder / name).write_bytes(b"".join(b"\n" + line + b"\n" for line, _ in bad.values()))
        text = GOOD + b"\n" + b"de1\n" + between([b"de1"] * (len(bad) - 1))
        session = search(tiny, *SESSION, "--constraints-file", folder / name)
        out[name] = interactive(*session, stdin=text)
    return out


@pytest.mark.parametrize("name", BAD)
def test_the_files_are_read_before_the_first_line(of_files, name):
    whole(of_files[name], len(BAD[name]), len(BAD[name]))
    warned = of_files[name].stderr.partition("E-")[0]
    # looked at when its sentence comes
    read = sum(bool(line.strip()) for line, _ in BAD[name].values())
    assert "line 2 of " in warned and f"({read - 1} more such lines in the file)" in warned


@pytest.mark.parametrize(("file", "name"), [(file, name) for file in BAD for name in BAD[file]])
def test_a_bad_line_of_a_file(of_files, good, file, name):
    expect(of_files[file], 2 * list(BAD[file]).index(name) + 1, BAD[file][name][1], good)


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


def expanded(folder: Path, glossary: Path, text: str) -> Done:
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
