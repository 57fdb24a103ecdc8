"""The command line of corpus runs: its words, its refusals, its last line and its status."""

import gzip
import json
import sys

import pyarrow
import pyarrow.parquet
import pytest
import ray
from corpus_jobs import Echo, finals, job, one_process, records, write_text

from fairseq_ext import UsageError
from fairseq_ext.core.files import with_digest
from fairseq_ext.corpus.__main__ import job_of, main
from fairseq_ext.corpus.output import OutputFolder
from fairseq_ext.corpus.run import translate
from fairseq_ext.plugin.loading.settings import as_keywords


@pytest.fixture
def echo(monkeypatch):
    worker = Echo()
    with one_process(monkeypatch, worker):
        yield worker


@pytest.mark.parametrize("flag", ["path", "data"])
def test_a_missing_model_is_found_before_ray_starts(tmp_path, monkeypatch, flag):
    monkeypatch.setattr(ray, "init", lambda **flags: pytest.fail("Ray was started"))
    given = job([write_text(tmp_path / "a.txt", ["eins"])], tmp_path / "out")
    setattr(given, flag, str(tmp_path / "absent"))
    with pytest.raises(UsageError, match=f"--{flag} .*absent"):
        translate(given)


def test_a_missing_ray_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "fairseq_ext.corpus.scheduler", raising=False)
    given = job([write_text(tmp_path / "a.txt", ["eins"])], tmp_path / "out")
    with pytest.raises(UsageError, match=r"needs Ray .*: pip install 'fairseq_ext\[cluster\]'"):
        translate(given)


def test_unknown_flags_are_as_keywords():
    words = ["--beam", "5", "--cpu", "--lenpen=-0.5", "--user-paths", "a", "b", "--unkpen", "-1"]
    assert as_keywords(words) == {
        "beam": "5",
        "cpu": True,
        "lenpen": "-0.5",
        "user_paths": ["a", "b"],
        "unkpen": "-1",
    }
    with pytest.raises(UsageError, match="belongs to no flag"):
        as_keywords(["5"])
    made = job_of(
        (
            "translate --path m --data d --input a b --output o -s de -t en --beam 4 "
            "--glossary g --unit 7"
        ).split()
    )
    assert (made.input, made.unit) == (["a", "b"], 7)
    assert made.flags == {"beam": "4", "glossary": "g", "source_lang": "de", "target_lang": "en"}


def words_of(tmp_path, path, *more) -> list[str]:
    return [
        "translate",
        "--path",
        "m",
        "--data",
        "d",
        "--input",
        str(path),
        "--output",
        str(tmp_path / "out"),
        "--cpu",
        *more,
    ]


@pytest.mark.parametrize(
    "content, code, last",
    [(b"x\n", 0, "1 sentence, no errors"), (b"\xff\n", 3, "1 entry in errors.jsonl")],
)
def test_exit_code_and_last_line_say_of_errors(tmp_path, echo, capsys, content, code, last):
    (tmp_path / "a.txt").write_bytes(content)
    words = words_of(tmp_path, tmp_path / "a.txt")
    assert main(words) == code
    assert last in capsys.readouterr().out.splitlines()[-1]
    assert main([*words, "--beam", "3"]) == 1
    assert "--beam (not given there, 3 now)" in capsys.readouterr().err


# one line that has the key is enough: what the others lack is reported line by line
PACKED = gzip.compress(b'Haus\n\xff\n{"german": "eins", "id": 7}\n{"english": "one"}\n')


@pytest.mark.parametrize(
    ("name", "said", "expected"),
    [
        ("a.parquet", ("column", "its columns are german, id"), [["EINS"]]),
        (
            "a.jsonl.gz",
            ("key", "the keys of its first lines are german, id, english"),
            [[], [], ["EINS"], []],
        ),
    ],
)
def test_a_file_without_the_column_or_key_is_refused_with_those_it_has_and_the_folder_stays_free(
    tmp_path, echo, capsys, name, said, expected
):
    path = tmp_path / name
    path.write_bytes(PACKED)
    if name.endswith("parquet"):
        pyarrow.parquet.write_table(pyarrow.table({"german": ["eins"], "id": [7]}), path)
    assert main(words_of(tmp_path, path)) == 1
    lacks = f'{path} has no {said[0]} "source" or "text": name one with --source-field; {said[1]}'
    assert capsys.readouterr().err == f"error: {lacks}\n"
    assert (
        main(words_of(tmp_path, path, "--source-field", "deutsch")) == 1
        and not (tmp_path / "out").exists()
    )
    status = 3 if [] in expected else 0
    assert main(words_of(tmp_path, path, "--source-field", "german")) == status
    found = records(tmp_path / "out/a.jsonl")
    assert [record["hypotheses"] for record in found] == expected
    assert found[expected.index(["EINS"])]["id"] == 7


def test_overwrite_frees_a_folder_for_another_command(tmp_path, echo, capsys):
    """A key without text makes every line of a JSONL file an error; what is not ours stays."""
    (tmp_path / "a.jsonl").write_text('{"text": 1, "german": "eins"}\n')
    assert main(words_of(tmp_path, tmp_path / "a.jsonl")) == 3
    (tmp_path / "out/notes.txt").write_text("mine")
    right = words_of(tmp_path, tmp_path / "a.jsonl", "--source-field", "german")
    assert main(right) == 1 and "--overwrite" in capsys.readouterr().err
    assert main([*right, "--overwrite"]) == 0
    assert finals(tmp_path / "out").keys() == {"a.jsonl", "errors.jsonl", "notes.txt"}
    assert (
        records(tmp_path / "out/a.jsonl")[0]["hypotheses"] == ["EINS"]
        and records(tmp_path / "out/errors.jsonl") == []
    )
    (tmp_path / "out/manifest.json").write_text("{")
    assert main(right) == 1 and "start again with --overwrite" in capsys.readouterr().err
    assert main([*right, "--overwrite"]) == 0


def test_overwrite_removes_nothing_outside_the_folder(tmp_path):
    store = OutputFolder(str(tmp_path / "out"), ".jsonl")
    (tmp_path / "precious").write_text("x")
    with store.locked():
        (tmp_path / "out/manifest.json").write_text(
            json.dumps(with_digest({"shards": {"a": {"output": "../precious"}, "b": {}}}))
        )
        store.clear()
    assert (tmp_path / "precious").exists() and not (tmp_path / "out/manifest.json").exists()


@pytest.mark.parametrize(
    "flags, said",
    [
        (
            ["--threads", "1000000"],
            "--threads (number of CPU threads) must be 1 to 1024, not 1000000",
        ),
        (["--threads", "9" * 200], "..."),
        (["--workers", "1000000"], "--workers (number of workers) must be "),
        (["--workers", "5000", "--threads", "1000"], "far more than this machine's"),
        (["--unit", "99999999"], "--unit (number of sentences) must be "),
        (["--object-store", "20"], "--object-store 20 is less than Ray takes"),
        (["--object-store", "999999999"], "--object-store (number of MiB) must be "),
        (["--progress", "nan"], "--progress (seconds) must be 0 or more, not nan"),
    ],
)
def test_absurd_counts_are_refused(tmp_path, echo, capsys, flags, said):
    assert main(words_of(tmp_path, write_text(tmp_path / "a.txt", ["x"]), *flags)) == 1
    reported = capsys.readouterr().err
    assert said in reported and len(reported) < 300 and not (tmp_path / "out").exists()
