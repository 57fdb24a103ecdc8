"""Lines that cannot be used, and lines that look as if: in one session or one run, a row
a line (lines.tsv).

Each bad line gets its E- line and an empty hypothesis; its neighbours are translated
as they are without it.
"""

import time
from pathlib import Path

import pytest
from bad_inputs import rows
from forked import Done, forked, generate, interactive
from sizes import drawn

from fairseq_ext.terms.__main__ import main

TYPED, TABS, OBJECTS = (rows("lines.tsv", kind) for kind in ("typed", "tabs", "objects"))


ODD = {name: line for name, (line, _) in rows("lines.tsv", "odd").items()}


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
    for name, bad in (("c.tsv", TABS), ("c.jsonl", OBJECTS)):
        text = GOOD + b"\n" + b"de1\n" + between([b"de1"] * (len(bad) - 1))
        out[name] = interactive(
            *model(tiny), *SESSION, "--constraints-file", file_of(folder, name, bad), stdin=text
        )
    return out


def test_the_files_are_read_before_the_first_line(of_files):
    for name, bad in (("c.tsv", TABS), ("c.jsonl", OBJECTS)):
        whole(of_files[name], len(bad), len(bad))
        warned = of_files[name].stderr.partition("E-")[0]
        # looked at when its sentence comes
        blank = sum(not line.strip() for line, _ in bad.values())
        assert (
            "line 2 of " in warned
            and f"({len(bad) - 1 - blank} more such lines in the file)" in warned
        )


@pytest.mark.parametrize("name", TABS)
def test_a_bad_line_of_a_file_of_tabs(of_files, good, name):
    expect(of_files["c.tsv"], 2 * list(TABS).index(name) + 1, TABS[name][1], good)


@pytest.mark.parametrize("name", OBJECTS)
def test_a_bad_line_of_a_jsonl_file(of_files, good, name):
    expect(of_files["c.jsonl"], 2 * list(OBJECTS).index(name) + 1, OBJECTS[name][1], good)


# ---- Glossaries that cannot be used:  one sentence, nothing printed, status 1


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
    path, text = tmp_path / f"g{suffix}", tmp_path / "text"
    path.write_bytes(content)
    text.write_text("houses and homes\n")
    begun = time.monotonic()
    done = forked(
        main,
        "fairseq_ext.terms",
        "expand",
        "--glossary",
        path,
        "--lang",
        "en",
        "--source-lang",
        "de",
        "--text",
        text,
    )
    assert (
        done.status == 1
        and done.stdout == ""
        and "root:" not in done.stderr
        and time.monotonic() - begun < 30
    )
    # fairseq, which this process has imported, has what a command of its own does not say
    reported = "".join(
        line for line in done.stderr.splitlines(keepends=True) if not line.startswith("INFO:")
    )
    assert reported.startswith("error: ") and reported.count("\n") == 1 and len(reported) < 500
    assert sentence.format(path=path) in reported


def test_nothing_is_fetched_for_a_glossary(tmp_path):
    (tmp_path / "secret").write_text("root password")
    content, _ = rows("lines.tsv", ".tbx")["a stray ampersand"]
    outside = f'<!DOCTYPE t [<!ENTITY x SYSTEM "file://{tmp_path / "secret"}">]><tbx>'
    content = content.replace(b"Haus & Hof", b"&x;").replace(b"<tbx>", outside.encode())
    (tmp_path / "g.tbx").write_bytes(content)
    (tmp_path / "text").write_text("houses\n")
    flags = [
        "--glossary",
        tmp_path / "g.tbx",
        "--lang",
        "en",
        "--source-lang",
        "de",
        "--text",
        tmp_path / "text",
    ]
    done = forked(main, "fairseq_ext.terms", "expand", *flags)
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
    flags = ["--task", "translation_ext", "--cpu", "--beam", 2, "--max-len-b", 8]
    begun = time.monotonic()
    done = generate(
        tiny / "data", "--path", tiny / "model.pt", *flags, flag, tmp_path / "large.tsv"
    )
    assert done.status == 0 and time.monotonic() - begun < 60, done.stderr
    if flag == "--glossary":
        assert "5 source terms, 19995 lines merged with earlier ones" in done.stderr
        warned = [line for line in done.stderr.splitlines() if "constraints not met" in line]
        assert len(warned) <= 1 and all(len(line) < 400 for line in warned)
