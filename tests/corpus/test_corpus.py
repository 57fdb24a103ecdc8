"""Corpus runs without Ray: what is read, what is written, what a second run does. test_corpus_ray.py has the processes."""

import bz2
import gzip
import json
import resource
import tracemalloc
from dataclasses import replace

import pyarrow
import pyarrow.parquet
import pytest
from corpus_jobs import FLAGS, finals, job, one_process, parts, records, source_lines, write_text

from fairseq_ext import UsageError
from fairseq_ext.corpus import cluster, reading, run
from fairseq_ext.corpus.__main__ import job_of, main
from fairseq_ext.corpus.output import Store
from fairseq_ext.corpus.reading import Reader, Unreadable
from fairseq_ext.corpus.run import translate
from fairseq_ext.corpus.shards import CODECS, Shard, shards_of
from fairseq_ext.corpus.unit import Unit
from fairseq_ext.corpus.worker import Result, Worker
from fairseq_ext.files import sealed
from fairseq_ext.loading.arguments import as_keywords
from fairseq_ext.stats import Stats


class Echo:
    """A worker that needs no model: upper case is the translation. It refuses what a Worker refuses for its kind."""

    calls = 0

    def translate(self, shard, sentences):
        self.calls += 1
        errors = [
            {"shard": shard.name, "line": s.number + 1, "id": s.id, "kind": s.error[0], "reason": s.error[1]} for s in sentences if s.error
        ]
        lines = [json.dumps({"id": s.id, "hypotheses": [] if s.error else [s.source.upper()]}) + "\n" for s in sentences]
        good = len(sentences) - len(errors)
        return Result("".join(lines).encode(), errors, Stats(sentences=good), good, good, 0.01, 0.01, 0.0, "echo")


@pytest.fixture
def echo(monkeypatch):
    worker = Echo()
    with one_process(monkeypatch, worker):
        yield worker


@pytest.fixture(scope="module")
def demo():
    """A real worker on the demo model."""
    from corpus_jobs import DEMO

    worker = Worker({**FLAGS, "path": str(DEMO / "checkpoint.pt"), "data": str(DEMO)}, 1, False)
    assert "signature" in worker.load()
    return worker


# ---- reading


def read(path, size=1000, done=(), **how):
    return [s for unit in Reader(Shard(str(path), "x"), **how).units(size, list(done)) for s in unit]


LINES = ["eins", "", "zwei \u2028 und \x85 drei", "vier\u00a0", "  "]


def compress(path, raw):
    codec = CODECS.get(path.suffix)
    if codec:
        with pyarrow.CompressedOutputStream(str(path), codec) as out:
            out.write(raw)
    else:
        path.write_bytes(raw)
    return path


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst", ".bz2", ".lz4"])
@pytest.mark.parametrize("end", ["", "\n"])
def test_text_is_cut_at_line_feeds_alone(tmp_path, suffix, end):
    path = compress(tmp_path / f"a.txt{suffix}", ("\ufeff" + "\n".join([LINES[0] + "\r", *LINES[1:]]) + end).encode())
    assert [(s.number, s.id, s.source) for s in read(path)] == [(i, i + 1, line) for i, line in enumerate(LINES)]


def test_blocks_may_end_anywhere(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("".join(line + "\n" for line in LINES), encoding="utf-8")
    for size in range(1, 12):
        monkeypatch.setattr(reading, "BLOCK", size)
        reader = Reader(Shard(str(tmp_path / "a"), "a"))
        assert [s.source for unit in reader.units(2, []) for s in unit] == LINES
        assert reader.position == pytest.approx(reader.size, abs=1.5)


def test_several_gzip_members_are_one_file(tmp_path):
    write_text(tmp_path / "a.gz", ["eins"])
    write_text(tmp_path / "b.gz", ["zwei"])
    (tmp_path / "c.gz").write_bytes((tmp_path / "a.gz").read_bytes() + (tmp_path / "b.gz").read_bytes())
    assert [s.source for s in read(tmp_path / "c.gz")] == ["eins", "zwei"]


@pytest.mark.parametrize("size", [1, 3, 4, 100])
@pytest.mark.parametrize("done", [[], [(0, 4)], [(2, 3), (3, 7)], [(0, 1), (5, 6), (9, 10)], [(0, 10)]])
def test_units_leave_out_what_is_done(tmp_path, size, done):
    path = write_text(tmp_path / "a", [str(i) for i in range(10)])
    units = [[s.number for s in unit] for unit in Reader(Shard(str(path), "a")).units(size, done)]
    kept = [i for i in range(10) if not any(start <= i < end for start, end in done)]
    assert [i for unit in units for i in unit] == kept
    assert all(unit == list(range(unit[0], unit[0] + len(unit))) and len(unit) <= size for unit in units)


def test_a_bad_line_is_told_by_its_number_and_costs_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "MAX_LINE", 50)
    (tmp_path / "a").write_bytes(b"eins\nzw\xffei\n" + b"x" * 51 + b"\n" + b"y" * 500 + b"\nvier\n")
    for block in (7, 1 << 20):
        monkeypatch.setattr(reading, "BLOCK", block)
        found = read(tmp_path / "a")
        assert [s.source for s in found] == ["eins", "zw\ufffdei", "", "", "vier"]
        assert [s.error and s.error[0] for s in found] == [None, "invalid UTF-8", "too long", "too long", None]
        assert found[1].error[1] == f"line 2 of {tmp_path / 'a'} is not valid UTF-8 (byte 3)"


def test_jsonl_carries_ids_and_constraints(tmp_path):
    lines = [
        {"source": "eins", "id": "a7", "constraints": [["two", "words"], "one"], "any_of": [["x", "y"]], "avoid": ["w"], "prefix": "p"},
        {"text": "zwei", "domain": "x"},
        {"source": 3},
        {"source": "x", "constraints": "one"},
        {"source": "\ud800"},
    ]
    (tmp_path / "a.jsonl").write_text("\n".join([*map(json.dumps, lines), "{", "[1]"]) + "\n")
    found = read(tmp_path / "a.jsonl")
    assert found[0][1:4] == ("eins", "a7", {"constraints": ["two words", "one"], "any_of": [["x", "y"]], "avoid": ["w"], "prefix": ["p"]})
    assert found[1][1:] == ("zwei", 2, None, None)
    assert [s.error[0] for s in found[2:]] == ["invalid line", "invalid line", "invalid UTF-8", "invalid line", "invalid line"]
    assert 'has no text in "source"' in found[2].error[1] and "line 3 of" in found[2].error[1]
    assert read(tmp_path / "a.jsonl", source_field="domain")[1].source == "x"


@pytest.mark.parametrize(
    "field",
    [
        '"constraints": ["\\ud800"]', '"any_of": [["a", "\\udfff"]]', '"avoid": ["\\ud800"]', '"prefix": "\\ud800"',
        '"id": "\\ud800"', '"id": {"\\ud800": 1}',
    ],
)  # fmt: skip
def test_half_a_character_in_any_field_costs_no_other_line(tmp_path, echo, field):
    path = write_text(tmp_path / "a.jsonl", ['{"source": "eins"}', f'{{"source": "zwei", {field}}}', '{"source": "drei"}'])
    done = translate(job([path], tmp_path / "out"))
    [entry] = records(tmp_path / "out" / "errors.jsonl")
    assert (done.errors, entry["line"], entry["kind"]) == (1, 2, "invalid UTF-8")
    assert [r["hypotheses"] for r in records(tmp_path / "out" / "a.jsonl")] == [["EINS"], [], ["DREI"]]


def test_parquet_has_the_same_as_columns(tmp_path):
    rows = {"source": ["a", "b", None], "id": [7, 8, 9], "constraints": [["x"], None, []], "other": [1, 2, 3]}
    pyarrow.parquet.write_table(pyarrow.table(rows), tmp_path / "a.parquet", row_group_size=2)
    found = read(tmp_path / "a.parquet")
    assert [(s.source, s.id) for s in found] == [("a", 7), ("b", 8), ("", 9)]
    assert found[0].fields["constraints"] == ["x"] and found[1].fields is None and found[2].error[0] == "invalid line"


def test_a_constraints_file_goes_line_by_line(tmp_path):
    path = write_text(tmp_path / "a", ["eins", "zwei", "drei"])
    (tmp_path / "c.tsv").write_text("one\ttwo words\n\nthree\t\t\n")
    first, second, third = read_with(path, tmp_path / "c.tsv")
    assert first.fields["constraints"] == ["one", "two words"] and second.fields is None
    assert third.error[0] == "invalid line" and "has an empty phrase" in third.error[1]
    (tmp_path / "c.tsv").write_text("one\n")
    with pytest.raises(UsageError, match="has 1 line and .* has 3 sentences"):
        read_with(path, tmp_path / "c.tsv")


def read_with(path, constraints):
    return [s for unit in Reader(Shard(str(path), "x", str(constraints))).units(10, []) for s in unit]


@pytest.mark.parametrize("name", ["cut.gz", "cut.zst", "text.gz", "text.parquet", "cut.bz2"])
def test_a_broken_file_is_unreadable_not_empty(tmp_path, name):
    path = tmp_path / name
    if name.startswith("text"):
        path.write_text("this is something else\n" * 100)
    elif name.endswith("bz2"):
        path.write_bytes(bz2.compress(b"eins\n" * 1000)[:-20])
    else:
        compress(path, "".join(source_lines(0, 200)).encode())
        path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(Unreadable):
        read(path)


def test_shards_keep_their_place_below_the_common_folder(tmp_path):
    for name in ("a/x.txt", "b/x.de.gz", "b/c/y.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert [s.name for s in shards_of([str(tmp_path / "a"), f"{tmp_path}/b/**/*.*"], None)] == ["a/x", "b/c/y", "b/x.de"]
    (tmp_path / "a/x.jsonl").touch()
    for paths, constraints, said in [
        (["a/x.txt", "a/x.jsonl"], None, "would have the same name"),
        (["missing"], None, "does not exist"),
        (["a/x.txt"], ["1", "2"], "names 2 files and the input has 1: give one"),
    ]:
        with pytest.raises(UsageError, match=said):
            shards_of([str(tmp_path / path) for path in paths], constraints)


@pytest.mark.parametrize("flag", ["path", "data"])
def test_a_missing_model_is_found_before_ray_starts(tmp_path, monkeypatch, flag):
    monkeypatch.setattr(cluster, "ray_for", lambda job: pytest.fail("Ray was started"))
    given = job([write_text(tmp_path / "a.txt", ["eins"])], tmp_path / "out")
    setattr(given, flag, str(tmp_path / "absent"))
    with pytest.raises(UsageError, match=f"--{flag} .*absent"):
        translate(given)


# ---- translating a unit


def test_a_unit_is_translated_as_the_translator_does_and_refuses_sentence_by_sentence(tmp_path, demo):
    lines = [{"source": s} for s in source_lines(10, 15)]
    lines[1]["constraints"] = ["hospital"]
    lines[2]["constraints"] = ["\u4e2d"]  # not in the dictionary
    lines[3]["source"] = "und " * 2000
    lines[4] |= {"constraints": ["hospital"], "avoid": ["hospital"], "prefix": "Today"}
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shard = Shard(str(tmp_path / "a.jsonl"), "a")
    result = demo.translate(shard, read(tmp_path / "a.jsonl"))
    found = [json.loads(line) for line in result.payload.splitlines()]
    expected = demo.translator.translate([lines[0]["source"], lines[1]["source"]], constraints=[[], ["hospital"]])
    assert [r["hypotheses"] for r in found[:2]] == [[h.text for h in nbest] for nbest in expected]
    assert [r["scores"][0] for r in found[:2]] == pytest.approx([nbest[0].score for nbest in expected], abs=1e-4)
    met, unmet = ({"phrase": "hospital", "met": value} for value in (True, False))
    assert [r.get("constraints") for r in found] == [[], [met], None, None, [{"phrase": "Today", "met": True}, unmet]]
    assert found[4]["hypotheses"][0].startswith("Today")
    assert [bool(r["hypotheses"]) for r in found] == [True, True, False, False, True]
    assert [(e["line"], e["kind"]) for e in result.errors] == [(3, "constraint"), (4, "too long"), (5, "constraint not met")]
    assert "line 3 of" in result.errors[0]["reason"] and "conflicts with the banned phrase" in result.errors[2]["reason"]
    assert result.translated == result.stats.sentences == 3
    assert result.tokens == result.stats.target_tokens
    assert result.stats.as_dict()["constraints"] == {"given": 3, "met": 2}
    # the statistics are each unit's own
    again = demo.translate(shard, read(tmp_path / "a.jsonl")[1:2]).stats
    assert again.sentences == 1 and again.as_dict()["constraints"] == {"given": 1, "met": 1}


class Picky:
    """A translator's search that fails on batches with certain sentences."""

    def __init__(self, demo, error, bad):
        self.demo, self.error, self.bad = demo, error, bad

    def __getattr__(self, name):
        return getattr(self.demo, name)

    def search(self, tokens, wanted, nbest):
        if any(self.demo.task.source_dictionary.string(line) in self.bad for line in tokens):
            raise self.error
        return self.demo.search(tokens, wanted, nbest)


def test_what_only_the_search_finds_out_is_cornered(tmp_path, demo):
    path = write_text(tmp_path / "a", source_lines(0, 9))
    sentences = read(path)
    bad = [demo.translator.task.source_dictionary.string(demo.translator.encode(sentences[i].source)) for i in (2, 7)]
    unit = Unit(Picky(demo.translator, RuntimeError("odd"), bad), Shard(str(path), "a"), sentences)
    unit.decode()
    assert sorted(unit.hypotheses) == [0, 1, 3, 4, 5, 6, 8]
    assert [(e["line"], e["reason"]) for e in unit.errors] == [(3, "RuntimeError: odd"), (8, "RuntimeError: odd")]


class Broken(Picky):
    """One that fails at everything."""

    def search(self, tokens, wanted, nbest):
        raise self.error


def test_a_unit_that_fails_altogether_is_the_process_s_fault_unless_it_translates_a_word(tmp_path, demo):
    path = write_text(tmp_path / "a", source_lines(0, 3))
    bad = [demo.translator.task.source_dictionary.string(demo.translator.encode(s.source)) for s in read(path)]
    with pytest.raises(RuntimeError, match="device-side assert"):
        Unit(Broken(demo.translator, RuntimeError("device-side assert"), bad), Shard(str(path), "a"), read(path)).decode()
    before = demo.translator.stats.sentences
    for kind, error in ((Picky, RuntimeError("odd")), (Picky, RuntimeError("CUDA out of memory")), (Broken, RuntimeError("out of memory"))):
        for sentences in (read(path), read(path)[:1]):
            unit = Unit(kind(demo.translator, error, bad), Shard(str(path), "a"), sentences)
            unit.decode()
            assert [e["reason"] for e in unit.errors] == [f"RuntimeError: {error}"] * len(sentences) and not unit.hypotheses
    assert demo.translator.stats.sentences == before


class Spelled(Picky):
    """One whose segmentation fails on certain lines."""

    def encode(self, line):
        if line in self.bad:
            raise self.error
        return self.demo.encode(line)


def test_an_error_of_the_segmentation_is_its_sentence_s(tmp_path, demo):
    sentences = read(write_text(tmp_path / "a", source_lines(0, 3)))
    unit = Unit(Spelled(demo.translator, ValueError("half a \ud800"), [sentences[1].source]), Shard("a", "a"), sentences)
    unit.decode()
    assert sorted(unit.hypotheses) == [0, 2] and [(e["line"], e["kind"], e["reason"]) for e in unit.errors] == [
        (2, "failed", "ValueError: half a ?")
    ]


class Late(Picky):
    """The same, failing only when the batch has been searched and counted."""

    def search(self, tokens, wanted, nbest):
        found = self.demo.search(tokens, wanted, nbest)
        if any(self.demo.task.source_dictionary.string(line) in self.bad for line in tokens):
            raise self.error
        return found


def test_answers_of_a_search_that_fails_are_counted_once(tmp_path, demo):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"source": s, "constraints": ["hospital"]}) + "\n" for s in source_lines(0, 5)))
    sentences = read(tmp_path / "a.jsonl")
    bad = [demo.translator.task.source_dictionary.string(demo.translator.encode(sentences[3].source))]
    stats = demo.translator.stats
    before = stats.copy()
    unit = Unit(Late(demo.translator, RuntimeError("odd"), bad), Shard(str(tmp_path / "a.jsonl"), "a"), sentences)
    unit.decode()
    found = stats.since(before).as_dict()
    assert sorted(unit.hypotheses) == [0, 1, 2, 4] and found["sentences"] == 4
    assert found["constraints"]["given"] == 4 and found["constraints"]["met"] + len(found["constraints"]["unmet"]) == 4
    assert found["encoder_calls"] > 4  # the work of the failed searches is work


def test_a_schedule_that_does_not_fit_is_told_and_the_model_is_loaded_once(monkeypatch):
    from corpus_jobs import DEMO
    from fairseq import checkpoint_utils

    loads, load = [], checkpoint_utils.load_model_ensemble
    monkeypatch.setattr(checkpoint_utils, "load_model_ensemble", lambda *given, **named: loads.append(given) or load(*given, **named))
    flags = {**FLAGS, "path": str(DEMO / "checkpoint.pt"), "data": str(DEMO)}
    found = Worker(flags, 1, False).load()
    assert "schedule:stream" in found["signature"] and not found["note"]
    found = Worker({**flags, "sampling": True}, 1, False).load()
    assert "schedule:batch" in found["signature"] and "does not fit: --sampling" in found["note"]
    # what is no fault of the schedule's
    assert "--unkpen" in Worker({**flags, "stop": "optimal", "unkpen": "-1"}, 1, False).load()["error"]
    assert len(loads) == 3


def test_a_note_of_the_workers_is_told_once(tmp_path, echo, caplog):
    done = run.Run(job(shards(tmp_path), tmp_path / "out"), Store(str(tmp_path / "out"), ".jsonl"), [])
    for _ in range(2):
        done.manifest.path.parent.mkdir(exist_ok=True)
        done.sign({"signature": "a", "note": "units are decoded batch by batch"})
    assert caplog.text.count("batch by batch") == 1


# ---- runs


def shards(tmp_path, sizes=(25, 0, 7)):
    return [write_text(tmp_path / f"in{i}.txt", [f"{i}: {n}" for n in range(size)]) for i, size in enumerate(sizes)]


def test_one_output_shard_for_each_input_in_order(tmp_path, echo):
    done = translate(job(shards(tmp_path), tmp_path / "out", stats_file=str(tmp_path / "stats.json")))
    assert finals(tmp_path / "out").keys() == {"in0.jsonl", "in1.jsonl", "in2.jsonl", "errors.jsonl"}
    assert [r["hypotheses"][0] for r in records(tmp_path / "out/in0.jsonl")] == [f"0: {n}" for n in range(25)]
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert manifest["shards"]["in0"]["lines"] == 25 and manifest["totals"]["sentences"] == 32
    import hashlib

    assert manifest["shards"]["in0"]["sha256"] == hashlib.sha256((tmp_path / "out/in0.jsonl").read_bytes()).hexdigest()
    assert json.loads((tmp_path / "stats.json").read_text())["sentences"] == 32
    assert (done.done, done.errors, done.sentences, parts(tmp_path / "out")) == (3, 0, 32, [])


def test_the_same_again_does_nothing_and_something_else_is_refused(tmp_path, echo):
    inputs, out = shards(tmp_path), tmp_path / "out"
    translate(job(inputs, out))
    before, calls = finals(out), echo.calls
    again = translate(job(inputs, out, unit=3, workers=7))  # neither changes what is translated
    assert (echo.calls, finals(out), again.before, again.sentences) == (calls, before, 32, 0)
    for change, said in [
        ({"flags": {"beam": "3"}}, r"--beam \(2 there, 3 now\)"),
        ({"flags": {"lenpen": "2"}}, r"--lenpen \(not given there, 2 now\)"),
        ({"format": "text"}, r"--format \(jsonl there, text now\)"),
    ]:
        with pytest.raises(UsageError, match=f"holds the output of other arguments: {said}"):
            translate(job(inputs, out, **change))
    with pytest.raises(UsageError, match="--input"):
        translate(job(inputs[:2], out))
    write_text(inputs[2], ["changed"])
    with pytest.raises(UsageError, match="in2.txt .* there"):
        translate(job(inputs, out))
    assert finals(out) == before


def test_a_finished_file_that_has_gone_is_made_again(tmp_path, echo):
    inputs, out = shards(tmp_path), tmp_path / "out"
    translate(job(inputs, out))
    before = finals(out)
    (out / "in2.jsonl").unlink()
    assert translate(job(inputs, out)).sentences == 7
    assert finals(out) == before


def test_a_finished_file_that_was_changed_is_made_again(tmp_path, echo):
    """Of the same size: its digest tells."""
    inputs, out = shards(tmp_path), tmp_path / "out"
    translate(job(inputs, out))
    before = finals(out)
    content = before["in2.jsonl"]
    (out / "in2.jsonl").write_bytes(content.replace(b'["', b'["x', 1)[: len(content) - 1] + b"\n")
    assert (out / "in2.jsonl").stat().st_size == len(content)
    assert translate(job(inputs, out)).sentences == 7
    assert finals(out) == before


@pytest.mark.parametrize("place", ["input", "dictionary"])
def test_a_change_in_the_middle_of_a_large_file_is_seen(tmp_path, echo, place):
    """Of the same size, more than 64 KiB from either end."""
    inputs, out, data = shards(tmp_path), tmp_path / "out", tmp_path / "data"
    data.mkdir()
    large = inputs[0] if place == "input" else data / "dict.de.txt"
    write_text(large, [f"word{i} 1" for i in range(20_000)])
    todo = replace(job(inputs, out), data=str(data))
    translate(todo)
    raw = large.read_bytes()
    large.write_bytes(raw.replace(b"word10000", b"word1000X"))
    with pytest.raises(UsageError, match="in0.txt .* there" if place == "input" else "the dictionary dict.de.txt .* there"):
        translate(todo)


def test_bad_lines_and_an_unreadable_shard_stop_nothing(tmp_path, echo):
    inputs, out = shards(tmp_path, (25,)), tmp_path / "out"
    (tmp_path / "bad.txt").write_bytes(b"eins\n\xff\ndrei\n")
    write_text(tmp_path / "cut.gz", [str(n * 7919) for n in range(5000)])
    whole = (tmp_path / "cut.gz").read_bytes()
    (tmp_path / "cut.gz").write_bytes(whole[:-2000])
    todo = job([tmp_path / "cut.gz", tmp_path / "bad.txt", *inputs], out, unit=100)
    done = translate(todo)
    assert finals(out).keys() == {"bad.jsonl", "in0.jsonl", "errors.jsonl"}
    assert [(e["shard"], e["line"], e["kind"]) for e in records(out / "errors.jsonl")][1:] == [("bad", 2, "invalid UTF-8")]
    cut = records(out / "errors.jsonl")[0]
    assert cut["kind"] == "unreadable" and 0 < cut["line"] <= 5000
    assert (done.errors, len(done.unreadable)) == (2, 1)
    # mended, the same command makes what is missing, and only that
    (tmp_path / "cut.gz").write_bytes(whole)
    done = translate(todo)
    assert [r["hypotheses"] for r in records(out / "cut.jsonl")] == [[str(n * 7919)] for n in range(5000)]
    assert (done.errors, done.unreadable, done.sentences) == (1, [], 5000)
    assert parts(out) == []


def test_a_full_disk_is_one_sentence_and_the_next_run_goes_on(tmp_path, echo):
    inputs, out = shards(tmp_path, (300, 40)), tmp_path / "out"
    translate(job(inputs, tmp_path / "undisturbed"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit, kept in ((300, 0), (4000, 30)):  # bytes a file: too little for any part, for the joined file
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            with pytest.raises(UsageError, match="cannot write .*make room or mend it"):
                translate(job(inputs, out))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert len(parts(out)) >= kept and not list(out.rglob("*.part")) and "in0.jsonl" not in finals(out)
    calls = echo.calls
    translate(job(inputs, out))
    assert finals(out) == finals(tmp_path / "undisturbed")
    assert echo.calls - calls <= 4  # nothing that was there is translated again


def test_a_run_that_breaks_off_anywhere_is_completed(tmp_path, echo, monkeypatch):
    """Every write in turn is the last one that the first run makes."""
    from fairseq_ext.corpus import output

    inputs = shards(tmp_path, (25, 0, 7))
    translate(job(inputs, tmp_path / "undisturbed"))
    whole = output.replace
    for last in range(14):
        out, left = tmp_path / f"out{last}", [last]

        def replace(path, chunks, left=left):
            left[0] -= 1
            if left[0] < 0:
                path.with_name(f".{path.name}.abc.part").write_bytes(b"unfinished")
                raise KeyboardInterrupt
            whole(path, chunks)

        for module in ("output", "manifest", "run_stats"):
            monkeypatch.setattr(f"fairseq_ext.corpus.{module}.replace", replace)
        with pytest.raises(KeyboardInterrupt):
            translate(job(inputs, out))
        for module in ("output", "manifest", "run_stats"):
            monkeypatch.setattr(f"fairseq_ext.corpus.{module}.replace", whole)
        translate(job(inputs, out))
        assert finals(out) == finals(tmp_path / "undisturbed")
        shown = [json.loads((folder / "manifest.json").read_text()) for folder in (out, tmp_path / "undisturbed")]
        assert shown[0]["shards"] == shown[1]["shards"] and shown[0]["totals"] == shown[1]["totals"]


def test_a_command_that_was_wrong_binds_no_later_one(tmp_path, echo):
    inputs, out = shards(tmp_path), tmp_path / "out"
    with pytest.raises(UsageError, match="unrecognized arguments: --beem 5"):
        translate(job(inputs, out, {"beem": "5"}))
    assert not out.exists()

    def refuse(shard, sentences):
        raise UsageError("no such model")

    echo.translate, known = refuse, echo.translate
    with pytest.raises(UsageError, match="no such model"):
        translate(job(inputs, out, {"lenpen": "2"}))
    echo.translate = known
    assert translate(job(inputs, out)).sentences == 32


def test_two_runs_do_not_write_to_one_folder(tmp_path, echo):
    inputs, out = shards(tmp_path), tmp_path / "out"

    def second(shard, sentences):
        with pytest.raises(UsageError, match="another run is writing"):
            translate(job(inputs, out))
        return Echo().translate(shard, sentences)

    echo.translate = second
    assert translate(job(inputs, out)).sentences == 32


def test_outputs_never_replace_inputs(tmp_path, echo):
    (tmp_path / "a.jsonl").write_text('{"source": "x"}\n')
    with pytest.raises(UsageError, match="would be"):
        translate(job([tmp_path / "a.jsonl"], tmp_path))


def test_memory_does_not_grow_with_the_corpus(tmp_path, echo, monkeypatch):
    monkeypatch.setattr(reading, "BLOCK", 1 << 13)
    peaks = []
    for size in (3_000, 24_000):
        path = write_text(tmp_path / f"{size}.txt", [f"line {n}" for n in range(size)])
        tracemalloc.start()
        translate(job([path], tmp_path / f"out{size}", unit=500))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


# ---- the command line


def test_unknown_flags_are_as_keywords():
    words = ["--beam", "5", "--cpu", "--lenpen=-0.5", "--user-paths", "a", "b", "--unkpen", "-1"]
    assert as_keywords(words) == {"beam": "5", "cpu": True, "lenpen": "-0.5", "user_paths": ["a", "b"], "unkpen": "-1"}
    with pytest.raises(UsageError, match="belongs to no flag"):
        as_keywords(["5"])
    made = job_of("translate --path m --data d --input a b --output o -s de -t en --beam 4 --glossary g --unit 7".split())
    assert (made.input, made.unit) == (["a", "b"], 7)
    assert made.flags == {"beam": "4", "glossary": "g", "source_lang": "de", "target_lang": "en"}


@pytest.mark.parametrize("content, code, last", [(b"x\n", 0, "1 sentence, no errors"), (b"\xff\n", 3, "1 entry in errors.jsonl")])
def test_exit_code_and_last_line_tell_of_errors(tmp_path, echo, capsys, content, code, last):
    (tmp_path / "a.txt").write_bytes(content)
    words = ["translate", "--path", "m", "--data", "d", "--input", str(tmp_path / "a.txt"), "--output", str(tmp_path / "out"), "--cpu"]
    assert main(words) == code
    assert last in capsys.readouterr().out.splitlines()[-1]
    assert main([*words, "--beam", "3"]) == 1
    assert "--beam (not given there, 3 now)" in capsys.readouterr().err


def words_of(tmp_path, path, *more) -> list[str]:
    return ["translate", "--path", "m", "--data", "d", "--input", str(path), "--output", str(tmp_path / "out"), "--cpu", *more]


def test_a_parquet_file_without_the_column_is_refused_with_those_it_has_and_the_folder_stays_free(tmp_path, echo, capsys):
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"german": ["eins"], "id": [7]}), path)
    assert main(words_of(tmp_path, path)) == 1
    said = f'{path} has no column "source" or "text": name one with --source-field; its columns are german, id'
    assert capsys.readouterr().err == f"error: {said}\n"
    assert main(words_of(tmp_path, path, "--source-field", "deutsch")) == 1 and not (tmp_path / "out").exists()
    assert main(words_of(tmp_path, path, "--source-field", "german")) == 0
    assert records(tmp_path / "out/a.jsonl") == [{"id": 7, "hypotheses": ["EINS"]}]


def test_a_jsonl_file_without_the_key_is_refused_with_those_it_has_and_the_folder_stays_free(tmp_path, echo, capsys):
    """One line that has the key is enough: what the others lack is told line by line."""
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'Haus\n\xff\n{"german": "eins", "id": 7}\n{"english": "one"}\n'))
    assert main(words_of(tmp_path, path)) == 1
    said = f'{path} has no key "source" or "text": name one with --source-field; the keys of its first lines are german, id, english'
    assert capsys.readouterr().err == f"error: {said}\n"
    assert main(words_of(tmp_path, path, "--source-field", "deutsch")) == 1 and not (tmp_path / "out").exists()
    assert main(words_of(tmp_path, path, "--source-field", "german")) == 3
    assert [record["hypotheses"] for record in records(tmp_path / "out/a.jsonl")] == [[], [], ["EINS"], []]


def test_overwrite_frees_a_folder_for_another_command(tmp_path, echo, capsys):
    """A key without text makes every line of a JSONL file an error; what is not ours stays."""
    (tmp_path / "a.jsonl").write_text('{"text": 1, "german": "eins"}\n')
    assert main(words_of(tmp_path, tmp_path / "a.jsonl")) == 3
    (tmp_path / "out/notes.txt").write_text("mine")
    right = words_of(tmp_path, tmp_path / "a.jsonl", "--source-field", "german")
    assert main(right) == 1 and "--overwrite" in capsys.readouterr().err
    assert main([*right, "--overwrite"]) == 0
    assert finals(tmp_path / "out").keys() == {"a.jsonl", "errors.jsonl", "notes.txt"}
    assert records(tmp_path / "out/a.jsonl")[0]["hypotheses"] == ["EINS"] and records(tmp_path / "out/errors.jsonl") == []
    (tmp_path / "out/manifest.json").write_text("{")
    assert main(right) == 1 and "start anew with --overwrite" in capsys.readouterr().err
    assert main([*right, "--overwrite"]) == 0


def test_overwrite_removes_nothing_outside_the_folder(tmp_path):
    store = Store(str(tmp_path / "out"), ".jsonl")
    store.lock()
    (tmp_path / "precious").write_text("x")
    (tmp_path / "out/manifest.json").write_text(json.dumps(sealed({"shards": {"a": {"output": "../precious"}, "b": 3}})))
    store.clear()
    assert (tmp_path / "precious").exists() and not (tmp_path / "out/manifest.json").exists()
    store.unlock()


@pytest.mark.parametrize(
    "flags, said",
    [
        (["--threads", "1000000"], "--threads 1000000 is no number of CPU threads: use 1 to 1024"),
        (["--threads", "9" * 200], "..."),
        (["--workers", "1000000"], "--workers 1000000 is no number of workers"),
        (["--workers", "5000", "--threads", "1000"], "far more than the"),
        (["--unit", "99999999"], "--unit 99999999 is no number of sentences"),
        (["--object-store", "20"], "--object-store 20 is less than Ray takes"),
        (["--object-store", "999999999"], "--object-store 999999999 is no number of MiB"),
        (["--progress", "nan"], "--progress nan is no number of seconds"),
    ],
)
def test_absurd_counts_are_refused(tmp_path, echo, capsys, flags, said):
    assert main(words_of(tmp_path, write_text(tmp_path / "a.txt", ["x"]), *flags)) == 1
    told = capsys.readouterr().err
    assert said in told and len(told) < 300 and not (tmp_path / "out").exists()
