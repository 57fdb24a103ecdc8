"""Wrong commands and wrong lines of the corpus command (bad_inputs.py): one sentence each, and
one line never costs another."""

import datetime
import decimal
import os

import pyarrow
import pyarrow.parquet
import pytest
from bad_inputs import commands, rows
from corpus_jobs import Echo, OneProcess, records
from forked import forked
from sizes import drawn

from fairseq_ext.corpus import run
from fairseq_ext.corpus.__main__ import main
from fairseq_ext.corpus.job import check_model

COMMANDS, USAGE = commands("corpus"), commands("corpus usage")
# lines of JSONL input, of 20 tokens at most, by the kind of entry in errors.jsonl
OBJECTS = {
    name: (line, kind, reason)
    for kind in ("invalid line", "invalid UTF-8", "too long")
    for name, (line, reason) in rows("lines.tsv", f"corpus: {kind}").items()
}


class Checked(OneProcess):
    """Looks for the model, as a run with Ray does."""

    worker = Echo()

    def work(self, todo):
        check_model(self.job)
        super().work(todo)


def corpus():
    """The command in a forked child, its work done by one process without a model."""
    run.Run = Checked
    return main()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    names = {"input": "a.txt", "other": "b.txt", "tsv": "c.tsv", "model": "m.pt", "empty": "empty"}
    names |= {"jsonl": "a.jsonl", "parquet": "a.parquet", "pipe": "empty.pipe"}
    found = {"folder": folder} | {name: folder / file for name, file in names.items()}
    found["empty"].mkdir()
    os.mkfifo(found["pipe"])
    for name in ("input", "other", "tsv", "model"):
        found[name].write_text("eins\n")
    found["jsonl"].write_text('{"source": "eins"}\n')
    pyarrow.parquet.write_table(pyarrow.table({"german": ["eins"]}), found["parquet"])
    return found


def command(files, out, more):
    right = "translate --path {model} --data {folder} --input {input} --cpu --output".split()
    words = (word.format(**files) for word in [*right, str(out), *more])
    return forked(corpus, "fairseq_ext.corpus", *words)


def test_the_command_that_the_rows_change_works(files, tmp_path):
    assert command(files, tmp_path / "out", []).status == 0


@drawn(16)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_wrong_command_gets_one_sentence_and_translates_nothing(files, tmp_path, name):
    more, sentence = COMMANDS[name]
    said = command(files, tmp_path / "out", more).error()
    assert sentence.format(**files) in said and len(said) < 500
    assert not [path for path in (tmp_path / "out").rglob("*.jsonl") if path.stat().st_size]


@pytest.mark.parametrize("name", USAGE)
def test_what_argparse_refuses(files, tmp_path, name):
    more, sentence = USAGE[name]
    done = command(files, tmp_path / "out", more)
    assert done.status == 2 and "Traceback" not in done.stderr and sentence in done.stderr


def test_bad_lines_cost_no_other_and_are_reported(files, tmp_path):
    """One run over a good line, and a bad and a good one in turns."""
    good, out, count = b'{"source": "haus"}\n', tmp_path / "out", len(OBJECTS)
    lines = (line + b"\n" + good for line, _, _ in OBJECTS.values())
    (tmp_path / "in.jsonl").write_bytes(good + b"".join(lines))
    done = command(files, out, ["--input", str(tmp_path / "in.jsonl"), "--unit", "7"])
    said = f"{2 * count + 1} sentences, {count} entries in errors.jsonl"
    assert done.status == 3 and said in done.stdout
    found = [record["hypotheses"] for record in records(out / "in.jsonl")]
    assert found == [["HAUS"], *[[], ["HAUS"]] * count]
    entries = zip(records(out / "errors.jsonl"), OBJECTS.values(), strict=True)
    for i, (entry, (_, kind, reason)) in enumerate(entries):
        said, number = entry["reason"], 2 * i + 2
        assert (entry["line"], entry["kind"]) == (number, kind), said
        assert reason in said and f"line {number} of " in said and len(said) < 500


def test_ids_of_parquet_are_written_as_json_has_them(files, tmp_path):
    """Dates and decimals as text; what is missing is the number of the line."""
    ids = {  # of the first line, and what is written of it
        "dates": (datetime.date(2020, 2, 29), "2020-02-29"),
        "decimals": (decimal.Decimal("1.50"), "1.50"),
        "bytes": (b"ab", "b'ab'"),
        "floats": (0.5, 0.5),
        "lists": ([1, 2], [1, 2]),
    }
    for name, (first, _) in ids.items():
        column = [first, float("nan") if name == "floats" else None]
        table = pyarrow.table({"source": ["haus", "hof"], "id": column})
        pyarrow.parquet.write_table(table, tmp_path / f"{name}.parquet")
    inputs = [str(tmp_path / f"{name}.parquet") for name in ids]
    done = command(files, tmp_path / "out", ["--input", *inputs])
    assert done.status == 0, done.stderr
    for name, (_, written) in ids.items():
        found = records(tmp_path / "out" / f"{name}.jsonl")
        expected = [(written, ["HAUS"]), (2, ["HOF"])]
        assert [(record["id"], record["hypotheses"]) for record in found] == expected


def test_the_command_sees_a_changed_byte_in_the_middle_of_input_and_output(files, tmp_path):
    """Of the same size, far from both ends."""
    path, out = tmp_path / "in.txt", tmp_path / "out"
    path.write_text("haus\n" * 60_000)
    more = ["--input", str(path), "--unit", "30000"]
    assert command(files, out, more).status == 0
    right = (out / "in.jsonl").read_bytes()
    path.write_bytes(path.read_bytes()[:150_000] + b"maus\n" + path.read_bytes()[150_005:])
    said = command(files, out, more).error()
    assert f"{out} holds the output of other arguments" in said and str(path) in said
    path.write_text("haus\n" * 60_000)
    middle = right.index(b"HAUS", len(right) // 2)
    (out / "in.jsonl").write_bytes(right[:middle] + b"MAUS" + right[middle + 4 :])
    done = command(files, out, more)
    assert (
        done.status == 0
        and "does not have the SHA-256 that the manifest gives: it is made again" in done.stderr
    )
    assert (out / "in.jsonl").read_bytes() == right
