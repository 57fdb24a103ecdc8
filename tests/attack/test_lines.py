"""Lines that cannot be used, and lines that look as if: in one session or one run, a row
a line (line_rows.py).

Each bad line gets its E- line and an empty hypothesis; its neighbours are translated
as they are without it.
"""

from pathlib import Path

import pytest
from forked import Done, interactive
from line_rows import OBJECTS, ODD, TABS, TYPED

DEMO = Path(__file__).parents[2] / "checkpoints" / "demo"
GOOD = b"de1 de2"
EXT = ["--task", "translation_ext", "--cpu", "--beam", 2, "--max-len-b", 8]
SESSION = ["-s", "de", "-t", "en", "--buffer-size", 16, "--batch-size", 8]


def texts(done: Done) -> dict[int, str]:
    """number -> text of each H- line."""
    found = (line.split("\t") for line in done.stdout.splitlines() if line.startswith("H-"))
    return {int(name[2:]): text for name, _, text in found}


def reported(done: Done) -> dict[int, str]:
    """number -> reason of each E- line."""
    lines = [line.split("\t", 1) for line in done.stderr.splitlines() if line.startswith("E-")]
    assert len({name for name, _ in lines}) == len(lines)
    return {int(name[2:]): reason for name, reason in lines}


def model(tiny) -> list:
    return [tiny / "data", "--path", tiny / "model.pt", *EXT]


@pytest.fixture(scope="module")
def good(tiny) -> str:
    """What the good line's translation is in a session of its own, constraints on."""
    return texts(interactive(*model(tiny), *SESSION, "--constraints", stdin=GOOD))[0]


def between(lines: list[bytes]) -> bytes:
    """Each line behind a good one; the good ones have even numbers."""
    return b"".join(GOOD + b"\n" + line + b"\n" for line in lines)


@pytest.fixture(scope="module", params=["standard input", "--input"])
def session(request, tiny, tmp_path_factory) -> Done:
    """All typed lines."""
    text = between([*(line for line, _ in TYPED.values()), *ODD.values()])
    if request.param == "standard input":
        return interactive(*model(tiny), *SESSION, "--constraints", stdin=text)
    path = tmp_path_factory.mktemp("lines") / "input"
    path.write_bytes(text)
    return interactive(*model(tiny), *SESSION, "--constraints", "--input", path)


def expect(done: Done, number: int, sentence: str | None, good: str) -> None:
    """The line has this in its E- line and an empty hypothesis, or neither; so have
    not its neighbours."""
    found, reasons = texts(done), reported(done)
    assert found[number - 1] == good and (number + 1 not in found or found[number + 1] == good)
    assert number - 1 not in reasons and number + 1 not in reasons
    if sentence is None:
        assert number not in reasons and number in found
    else:
        assert sentence in reasons[number] and len(reasons[number]) < 500 and found[number] == ""


def whole(done: Done, rows: int, bad: int) -> None:
    """Every line is answered, in order, and the status says whether any is bad."""
    assert done.status == 3 and "Traceback" not in done.stderr and "error: " not in done.stderr
    assert list(texts(done)) == list(range(2 * rows)) and len(reported(done)) == bad


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
    words = [
        DEMO,
        "--path",
        DEMO / "checkpoint.pt",
        *EXT,
        *SESSION,
        "--bpe",
        "sentencepiece",
        "--sentencepiece-model",
        DEMO / "spm.model",
    ]
    done = interactive(*words, "--constraints", stdin=between([b"Ja.\tyes\xff"]) + GOOD)
    assert done.status == 3 and "Traceback" not in done.stderr, done.stderr
    assert (
        reported(done).keys() == {1}
        and "the phrase 'yes\\udcff' contains the piece" in reported(done)[1]
    )
    assert texts(done)[0] == texts(done)[2] != "" and texts(done)[1] == ""


def file_of(folder, name: str, rows: dict[str, tuple[bytes, str]]) -> str:
    path = folder / name
    path.write_bytes(b"".join(b"\n" + line + b"\n" for line, _ in rows.values()))
    return str(path)


@pytest.fixture(scope="module")
def of_files(tiny, tmp_path_factory) -> dict[str, Done]:
    """A session for each kind of constraints file, whose every second line is bad."""
    folder = tmp_path_factory.mktemp("files")
    out = {}
    for name, rows in (("c.tsv", TABS), ("c.jsonl", OBJECTS)):
        text = GOOD + b"\n" + b"de1\n" + between([b"de1"] * (len(rows) - 1))
        out[name] = interactive(
            *model(tiny), *SESSION, "--constraints-file", file_of(folder, name, rows), stdin=text
        )
    return out


def test_the_files_are_read_before_the_first_line(of_files):
    for name, rows in (("c.tsv", TABS), ("c.jsonl", OBJECTS)):
        whole(of_files[name], len(rows), len(rows))
        warned = of_files[name].stderr.partition("E-")[0]
        # looked at when its sentence comes
        blank = sum(not line.strip() for line, _ in rows.values())
        assert (
            "line 2 of " in warned
            and f"({len(rows) - 1 - blank} more such lines in the file)" in warned
        )


@pytest.mark.parametrize("name", TABS)
def test_a_bad_line_of_a_file_of_tabs(of_files, good, name):
    expect(of_files["c.tsv"], 2 * list(TABS).index(name) + 1, TABS[name][1], good)


@pytest.mark.parametrize("name", OBJECTS)
def test_a_bad_line_of_a_jsonl_file(of_files, good, name):
    expect(of_files["c.jsonl"], 2 * list(OBJECTS).index(name) + 1, OBJECTS[name][1], good)
