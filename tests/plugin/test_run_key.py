"""--resume goes on with the same search alone: what a flag names is compared by its content, and
a refusal names the flag."""

import json
import shutil

import pytest
from fairseq_cli import generate
from forked import forked, generate_forked
from sizes import drawn

FLAGS = ["--user-dir", "fairseq_ext", "--task", "translation_ext", "--cpu", "--no-progress-bar"]
COUNTS = "".join(f"en{i} {n}\n" for i, n in enumerate(range(100, 70, -1)))
TABLE = "".join(f"de{i} en{i} 0.5\n" for i in range(30))
LEXICAL = ["--softmax", "lexical", "--shortlist-top", 10, "--shortlist-words", 1]
NAMED = {  # flag -> content, another content, flags next to it
    "--avoid-file": ("en3\n", "en4\n", []),
    "--glossary": ("de3\ten3\n", "de3\ten4\n", []),
    "--constraints-file": ("\n" * 10 + "en1\n", "\n" * 10 + "en2\n", []),
    "--shortlist-counts": (
        COUNTS,
        COUNTS.replace("en1 99", "en1 9"),
        ["--softmax", "top", "--shortlist-top", 10],
    ),
    "--shortlist-file": (TABLE, TABLE.replace("de1 en1", "de1 en2"), LEXICAL),
    "--draft-file": (
        "en1 en2\n" * 11,
        "en1 en3\n" * 11,
        ["--decoding", "jacobi", "--beam", 1, "--nbest", 1],
    ),
}


def arguments(tiny, path, *flags, data=None):
    return [
        data or tiny / "data",
        "--path",
        tiny / "model.pt",
        "--gen-subset",
        "test",
        *FLAGS,
        "--results-file",
        path,
        *flags,
    ]


def refused(tiny, path, *flags, data=None) -> str:
    done = forked(
        generate.cli_main, "fairseq-generate", *arguments(tiny, path, *flags, "--resume", data=data)
    )
    assert done.status != 0 and "H-" not in done.stdout
    return done.stderr


@drawn(1)
@pytest.mark.parametrize("flag", NAMED)
def test_a_file_with_another_content_is_refused_by_its_flag(tiny, tmp_path, flag):
    content, other, next_to = NAMED[flag]
    path, file, copy = tmp_path / "results.jsonl", tmp_path / "named", tmp_path / "copy"
    file.write_text(content)
    generate_forked(*arguments(tiny, path, *next_to, flag, file))
    before = path.read_bytes()
    file.write_text(other)
    said = refused(tiny, path, *next_to, flag, file)
    assert f"has results of another search, which differs in {flag} (" in said
    assert path.read_bytes() == before
    copy.write_text(content)  # the name is nothing
    generate_forked(*arguments(tiny, path, *next_to, flag, copy, "--resume"))
    assert path.read_bytes() == before


def test_another_beam_and_another_dictionary_are_reported(tiny, tmp_path):
    path, data = tmp_path / "results.jsonl", tmp_path / "data"
    generate_forked(*arguments(tiny, path))
    assert "differs in --beam (5 there, 4 now): use" in refused(tiny, path, "--beam", 4)
    shutil.copytree(tiny / "data", data)
    words = (data / "dict.en.txt").read_text().splitlines(keepends=True)
    # as many words, in another order
    (data / "dict.en.txt").write_text("".join([words[1], words[0], *words[2:]]))
    assert "differs in the target dictionary (" in refused(tiny, path, data=data)


@drawn(2)
@pytest.mark.parametrize(
    "line, change, said",
    [
        (3, lambda line: line.replace(b"en", b"eN", 1), "its content is not what was written"),
        (
            2,
            lambda line: b'{"id": 0, "source": "x", "text": "a", "hypotheses": []}\n',
            "its content is not what was written",
        ),
        (4, lambda line: b"[" * 100_000 + b"\n", "its content is not what was written"),
        (1, lambda line: b"a text of mine\n", "its content is not what was written"),
    ],
    ids=["changed", "foreign", "deep", "another file"],
)
def test_a_line_that_was_changed_is_reported_by_its_number(tiny, tmp_path, line, change, said):
    path = tmp_path / "results.jsonl"
    generate_forked(*arguments(tiny, path))
    lines = path.read_bytes().splitlines(keepends=True)
    lines[line - 1] = change(lines[line - 1])
    path.write_bytes(b"".join(lines))
    assert (
        f"{path}, line {line}, is not a line of a results file, because {said}: name "
        "another --results-file"
    ) in refused(tiny, path)
    assert path.read_bytes() == b"".join(lines)


def test_two_runs_do_not_write_to_one_file(tiny, tmp_path):
    import fcntl

    path = tmp_path / "results.jsonl"
    generate_forked(*arguments(tiny, path))
    before = path.read_bytes()
    with open(path, "ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert f"another run is writing to {path}: wait for it" in refused(tiny, path)
    assert path.read_bytes() == before
    assert all(json.loads(line)["sha256"] for line in before.splitlines())
    generate_forked(*arguments(tiny, path, "--resume"))
