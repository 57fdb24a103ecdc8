"""Corpus runs without Ray: what is written, what a second run does; the command line: its words,
its refusals, its last line and its status.

test_corpus_ray.py has the processes.
"""

import contextlib
import gzip
import hashlib
import json
import sys
import tracemalloc
from dataclasses import replace
from resource import RLIMIT_FSIZE

import pyarrow
import pyarrow.parquet
import pytest
import ray
from conftest import limited
from corpus_jobs import (
    DEMO,
    FLAGS,
    Echo,
    finals,
    job,
    one_process,
    parts,
    ran,
    records,
    source_lines,
    text_shards,
    write_text,
)
from sizes import part_of

from fairseq_ext import UsageError
from fairseq_ext.core.files import with_digest
from fairseq_ext.corpus import output, run, shards
from fairseq_ext.corpus.__main__ import job_of, main
from fairseq_ext.corpus.output import OutputFolder
from fairseq_ext.corpus.run import translate
from fairseq_ext.corpus.worker import CorpusWorker
from fairseq_ext.plugin.loading.settings import as_keywords


@pytest.fixture
def echo(monkeypatch):
    worker = Echo()
    with one_process(monkeypatch, worker):
        yield worker


def test_a_note_of_the_workers_is_reported_once(tmp_path, echo, caplog):
    out = tmp_path / "out"
    done = run.Run(job(text_shards(tmp_path), out), OutputFolder(str(out), ".jsonl"), [])
    done.manifest.path.parent.mkdir()
    for _ in range(2):
        done.sign({"signature": "a", "warnings": ("units are decoded batch by batch",)})
    assert caplog.text.count("batch by batch") == 1


def test_one_output_shard_for_each_input_in_order(tmp_path, echo):
    out, stats = tmp_path / "out", tmp_path / "stats.json"
    done = ran(text_shards(tmp_path), out, stats_file=str(stats))
    assert finals(out).keys() == {"in0.jsonl", "in1.jsonl", "in2.jsonl", "errors.jsonl"}
    found = [r["hypotheses"][0] for r in records(out / "in0.jsonl")]
    assert found == [f"0: {n}" for n in range(25)]
    manifest = json.loads((out / "manifest.json").read_text())
    first, sha256 = manifest["shards"]["in0"], hashlib.sha256((out / "in0.jsonl").read_bytes())
    assert (first["lines"], first["sha256"]) == (25, sha256.hexdigest())
    assert manifest["totals"]["sentences"] == json.loads(stats.read_text())["sentences"] == 32
    assert (done.shards_done, done.errors, done.sentences, parts(out)) == (3, 0, 32, [])


def test_the_same_again_does_nothing_and_something_else_is_refused(tmp_path, echo):
    inputs, out, stats = text_shards(tmp_path), tmp_path / "out", tmp_path / "stats.json"
    ran(inputs, out, stats_file=str(stats))
    before, calls, counts = finals(out), echo.calls, stats.read_text()
    # neither changes what is translated
    again = ran(inputs, out, unit=3, workers=7, stats_file=str(stats))
    assert (echo.calls, finals(out)) == (calls, before)
    assert json.loads(stats.read_text()) == json.loads(counts)
    assert (again.sentences_before, again.sentences) == (32, 0)
    there = "holds the output of other arguments: "
    for of, change, said in [
        (inputs, {"flags": {"beam": "3"}}, rf"{there}--beam \(2 there, 3 now\)"),
        (inputs, {"flags": {"lenpen": "2"}}, rf"{there}--lenpen \(not given there, 2 now\)"),
        (inputs, {"format": "text"}, rf"{there}--format \(jsonl there, text now\)"),
        (inputs[:2], {}, "--input"),
    ]:
        with pytest.raises(UsageError, match=said):
            ran(of, out, **change)
    write_text(inputs[2], ["changed"])
    with pytest.raises(UsageError, match="in2.txt .* there"):
        ran(inputs, out)
    assert finals(out) == before
    write_text(inputs[2], [f"2: {n}" for n in range(7)])
    (out / "in2.jsonl").unlink()  # one that has gone is made again
    assert ran(inputs, out).sentences == 7 and finals(out) == before


def test_samples_of_a_run_cut_short_and_resumed_are_the_same_bytes(tmp_path, monkeypatch):
    flags = {"beam": "4", "nbest": "4", "seed": "5", "sampling": True, "mbr": "chrf"}
    flags["sampling_epsilon"] = 0.02
    model = {"path": str(DEMO / "checkpoint.pt"), "data": str(DEMO)}
    worker = CorpusWorker({**FLAGS, **flags, **model}, 1, False)
    inputs = [write_text(tmp_path / f"{i}.txt", source_lines(0, 9)) for i in range(2)]
    with one_process(monkeypatch, worker):
        ran(inputs, tmp_path / "whole", flags)
        calls, of_worker = [], worker.translate

        def cut_short(shard, sentences):
            calls.append(len(sentences))
            if len(calls) == 3:
                raise KeyboardInterrupt
            return of_worker(shard, sentences)

        monkeypatch.setattr(worker, "translate", cut_short)
        with pytest.raises(KeyboardInterrupt):
            ran(inputs, tmp_path / "out", flags, unit=4)
        again = ran(inputs, tmp_path / "out", flags, unit=5)
    assert again.sentences_before == 8 and finals(tmp_path / "out") == finals(tmp_path / "whole")


def test_a_change_in_the_middle_of_a_large_dictionary_is_seen(tmp_path, echo):
    """Of the same size, more than 64 KiB from either end."""
    large = write_text(tmp_path / "dict.de.txt", [f"word{i} 1" for i in range(20_000)])
    todo = replace(job(text_shards(tmp_path), tmp_path / "out"), data=str(tmp_path), unit=1000)
    translate(todo)
    large.write_bytes(large.read_bytes().replace(b"word10000", b"word1000X"))
    with pytest.raises(UsageError, match="the dictionary dict.de.txt .* there"):
        translate(todo)


def test_bad_lines_and_an_unreadable_shard_stop_nothing(tmp_path, echo):
    inputs, out = text_shards(tmp_path, (25,)), tmp_path / "out"
    (tmp_path / "bad.txt").write_bytes(b"eins\n\xff\ndrei\n")
    numbers = [str(n * 7919) for n in range(5000)]
    packed = write_text(tmp_path / "cut.gz", numbers)
    whole = packed.read_bytes()
    packed.write_bytes(whole[:-2000])
    todo = job([packed, tmp_path / "bad.txt", *inputs], out, unit=100)
    done = translate(todo)
    assert finals(out).keys() == {"bad.jsonl", "in0.jsonl", "errors.jsonl"}
    cut, bad = records(out / "errors.jsonl")
    assert (bad["shard"], bad["line"], bad["kind"]) == ("bad", 2, "invalid UTF-8")
    assert cut["kind"] == "unreadable" and 0 < cut["line"] <= 5000
    assert (done.errors, len(done.unreadable)) == (2, 1)
    # mended, the same command makes what is missing, and only that
    packed.write_bytes(whole)
    done = translate(todo)
    assert [r["hypotheses"] for r in records(out / "cut.jsonl")] == [[n] for n in numbers]
    assert (done.errors, done.unreadable, done.sentences, parts(out)) == (1, [], 5000, [])


def test_a_finished_shard_that_cannot_be_read_in_one_run_stays_finished(
    tmp_path, echo, monkeypatch
):
    """As on a network disk that is away for a while."""
    inputs, out = text_shards(tmp_path, (25, 7)), tmp_path / "out"
    ran(inputs, out)
    before, whole = finals(out), run.fingerprint

    def away(path):
        if path.endswith("in0.txt"):
            raise OSError(5, "Input/output error")
        return whole(path)

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(run, "fingerprint", away)
            done = ran(inputs, out)
        assert done.unreadable and done.sentences == 0
    calls = echo.calls
    done = ran(inputs, out)
    assert (done.unreadable, done.sentences, echo.calls) == ([], 0, calls)
    assert finals(out) == before
    with pytest.raises(UsageError, match="holds the output of other arguments"):
        ran(inputs, out, flags={**FLAGS, "beam": 7})


def test_parts_without_the_manifest_are_not_joined_to_others(tmp_path, echo, monkeypatch):
    inputs, out = text_shards(tmp_path, (300,)), tmp_path / "out"
    with limited(RLIMIT_FSIZE, 4000), pytest.raises(UsageError, match="cannot write"):
        ran(inputs, out)
    assert parts(out)
    (out / "manifest.json").unlink()
    with pytest.raises(UsageError, match="has parts of an earlier run, and no manifest.json"):
        ran(inputs, out, flags={**FLAGS, "beam": 7})
    ran(inputs, out, flags={**FLAGS, "beam": 7}, overwrite=True)
    assert len(records(out / "in0.jsonl")) == 300


def test_a_full_disk_is_one_sentence_and_the_next_run_goes_on(tmp_path, echo):
    inputs, out = text_shards(tmp_path, (300, 40)), tmp_path / "out"
    ran(inputs, tmp_path / "undisturbed")
    said = "cannot write .*free disk space or fix"
    # too little for any part, for the joined file
    for limit, kept in ((300, 0), (4000, 30)):
        with limited(RLIMIT_FSIZE, limit), pytest.raises(UsageError, match=said):
            ran(inputs, out)
        assert len(parts(out)) >= kept and not list(out.rglob("*.part"))
        assert "in0.jsonl" not in finals(out)
    calls = echo.calls
    ran(inputs, out)
    assert finals(out) == finals(tmp_path / "undisturbed")
    assert echo.calls - calls <= 4  # nothing that was there is translated again


def test_a_run_that_breaks_off_anywhere_is_completed(tmp_path, echo, monkeypatch):
    """Every write in turn is the last one that the first run makes."""
    inputs, whole, found = text_shards(tmp_path), output.replace, []
    for last in (100, *range(14)):
        out, left = tmp_path / f"out{last}", [None] * last

        def replace(path, chunks, left=left):
            if not left:
                path.with_name(f".{path.name}.abcdefgh.part").write_bytes(b"unfinished")
                raise KeyboardInterrupt
            left.pop()
            whole(path, chunks)

        with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
            for module in ("output", "job"):
                patch.setattr(f"fairseq_ext.corpus.{module}.replace", replace)
            ran(inputs, out)
        assert (left == []) == (last < 100)
        ran(inputs, out)
        manifest = json.loads((out / "manifest.json").read_text())
        found.append((finals(out), manifest["shards"], manifest["totals"]))
    assert all(each == found[0] for each in found)


def test_a_command_that_was_wrong_binds_no_later_one(tmp_path, echo):
    inputs, out = text_shards(tmp_path), tmp_path / "out"
    with pytest.raises(UsageError, match="unrecognized arguments: --beem 5"):
        ran(inputs, out, {"beem": "5"})
    assert not out.exists()

    def refuse(shard, sentences):
        raise UsageError("no such model")

    echo.translate, known = refuse, echo.translate
    with pytest.raises(UsageError, match="no such model"):
        ran(inputs, out, {"lenpen": "2"})
    echo.translate = known
    assert ran(inputs, out).sentences == 32


def test_two_runs_do_not_write_to_one_folder(tmp_path, echo):
    inputs, out = text_shards(tmp_path), tmp_path / "out"

    def second(shard, sentences):
        with pytest.raises(UsageError, match="another run is writing"):
            ran(inputs, out)
        return Echo().translate(shard, sentences)

    echo.translate = second
    assert ran(inputs, out).sentences == 32


def test_memory_does_not_grow_with_the_corpus(tmp_path, echo, monkeypatch):
    monkeypatch.setattr(shards, "BLOCK", 1 << 13)
    peaks = []
    for size in (3_000, len(part_of(24, 12)) * 1_000):
        path = write_text(tmp_path / f"{size}.txt", [f"line {n}" for n in range(size)])
        tracemalloc.start()
        ran([path], tmp_path / f"out{size}", unit=500)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


# ---- The command line


@pytest.mark.parametrize("flag", ["path", "data"])
def test_a_missing_model_is_found_before_ray_starts(tmp_path, monkeypatch, flag):
    monkeypatch.setattr(ray, "init", lambda **flags: pytest.fail("Ray was started"))
    given = replace(job(text_shards(tmp_path), tmp_path / "out"), **{flag: str(tmp_path / "none")})
    with pytest.raises(UsageError, match=f"--{flag} .*none"):
        translate(given)


def test_a_missing_ray_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "fairseq_ext.corpus.scheduler", raising=False)
    with pytest.raises(UsageError, match=r"needs Ray .*: pip install 'fairseq_ext\[cluster\]'"):
        ran(text_shards(tmp_path), tmp_path / "out")


def test_unknown_flags_are_as_keywords():
    words = "--beam 5 --cpu --lenpen=-0.5 --user-paths a b --unkpen -1".split()
    expected = {"beam": "5", "cpu": True, "lenpen": "-0.5", "unkpen": "-1"}
    assert as_keywords(words) == expected | {"user_paths": ["a", "b"]}
    with pytest.raises(UsageError, match="belongs to no flag"):
        as_keywords(["5"])
    words = "translate --path m --data d --input a b --output o -s de -t en --glossary g --unit 7"
    made = job_of(words.split())
    assert (made.input, made.unit) == (["a", "b"], 7)
    assert made.flags == {"glossary": "g", "source_lang": "de", "target_lang": "en"}


def words_of(tmp_path, path, *more):
    given = ["--input", str(path), "--output", str(tmp_path / "out")]
    return [*"translate --path m --data d --cpu".split(), *given, *more]


# one line that has the key is enough: what the others lack is reported line by line
PACKED = gzip.compress(b'Haus\n\xff\n{"german": "eins", "id": 7}\n{"english": "one"}\n')


@pytest.mark.parametrize(
    ("name", "said", "expected"),
    [
        ("a.parquet", "its columns are german, id", [["EINS"]]),
        (
            "a.jsonl.gz",
            "the keys of its first lines are german, id, english",
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
    for wrong in ([], ["--source-field", "deutsch"]):
        assert main(words_of(tmp_path, path, *wrong)) == 1 and not (tmp_path / "out").exists()
        assert capsys.readouterr().err.endswith(f"name one with --source-field; {said}\n")
    status = 3 if [] in expected else 0
    assert main(words_of(tmp_path, path, "--source-field", "german")) == status
    found = records(tmp_path / "out/a.jsonl")
    assert [record["hypotheses"] for record in found] == expected
    assert found[expected.index(["EINS"])]["id"] == 7


def test_overwrite_frees_a_folder_for_another_command(tmp_path, echo, capsys):
    """A key without text makes every line of a JSONL file an error; what is not ours stays."""
    path, out = tmp_path / "a.jsonl", tmp_path / "out"
    path.write_text('{"text": 1, "german": "eins"}\n')
    assert main(words_of(tmp_path, path)) == 3
    (out / "notes.txt").write_text("mine")
    right = words_of(tmp_path, path, "--source-field", "german")
    assert main(right) == 1 and "--overwrite" in capsys.readouterr().err
    assert main([*right, "--overwrite"]) == 0
    assert finals(out).keys() == {"a.jsonl", "errors.jsonl", "notes.txt"}
    assert records(out / "a.jsonl")[0]["hypotheses"] == ["EINS"]
    assert records(out / "errors.jsonl") == []
    (out / "manifest.json").write_text("{")
    assert main(right) == 1 and "start again with --overwrite" in capsys.readouterr().err
    assert main([*right, "--overwrite"]) == 0


def test_overwrite_removes_nothing_outside_the_folder(tmp_path):
    store, manifest = OutputFolder(str(tmp_path / "out"), ".jsonl"), tmp_path / "out/manifest.json"
    (tmp_path / "precious").write_text("x")
    with store.locked():
        shards = {"shards": {"a": {"output": "../precious"}, "b": {}}}
        manifest.write_text(json.dumps(with_digest(shards)))
        store.clear()
    assert (tmp_path / "precious").exists() and not manifest.exists()
