"""Glossaries that cannot be used: one sentence, nothing printed, status 1.

One that is large and strange is read in no time.
"""

import time

import pytest
from forked import forked, generate
from glossary_rows import OUTSIDE, rows, tbx
from sizes import drawn

from fairseq_ext.terms.__main__ import main

ROWS = list(rows())


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
    (tmp_path / "g.tbx").write_bytes(tbx("&x;", doctype=OUTSIDE.format(path=tmp_path / "secret")))
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
