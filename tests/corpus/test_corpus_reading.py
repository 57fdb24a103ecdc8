"""What a run reads, line by line, from shards of every kind, and which lines are reported instead;
and units of sentences through a loaded model: what is translated, what is refused, and whose fault
an error is."""

import bz2
import json
import sys

import pyarrow
import pyarrow.parquet
import pytest
from corpus_jobs import DEMO, FLAGS, one_process, read, records, source_lines, write_text

from fairseq_ext import UsageError
from fairseq_ext.corpus import shards as reading
from fairseq_ext.corpus.__main__ import main
from fairseq_ext.corpus.shards import (
    CODECS,
    Shard,
    ShardReader,
    UnreadableShard,
    names_in,
    shards_of,
)
from fairseq_ext.corpus.worker import CorpusWorker, UnitTranslation
from fairseq_ext.plugin.loading.settings import as_arguments
from fairseq_ext.search.request import TextConstraints

MODEL = {**FLAGS, "path": str(DEMO / "checkpoint.pt"), "data": str(DEMO)}
LINES = ["eins", "", "zwei \u2028 und \x85 drei", "vier\u00a0", "  "]


def compress(path, raw):
    codec = CODECS.get(path.suffix)
    if codec:
        with pyarrow.CompressedOutputStream(str(path), codec) as out:
            out.write(raw)
    else:
        path.write_bytes(raw)
    return path


def test_only_packed_shards_need_pyarrow(tmp_path, monkeypatch):
    """Which refuses numpy 1, and unbabel-comet wants numpy 1."""
    packed = compress(tmp_path / "a.gz", b"eins\n")
    pyarrow.parquet.write_table(pyarrow.table({"source": ["eins"]}), tmp_path / "a.parquet")
    (tmp_path / "a").write_text("eins\n")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert [s.request.source for s in read(tmp_path / "a")] == ["eins"]
    assert names_in(Shard(str(tmp_path / "a.parquet"), "a")) == {}
    for path in (packed, tmp_path / "a.parquet"):
        said = rf"^{path} is read through pyarrow, which .*: pip install -U pyarrow"
        with pytest.raises(UsageError, match=said):
            read(path)


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst", ".bz2", ".lz4"])
@pytest.mark.parametrize("end", ["", "\n"])
def test_text_is_cut_at_line_feeds_alone(tmp_path, suffix, end):
    path = compress(
        tmp_path / f"a.txt{suffix}",
        ("\ufeff" + "\n".join([LINES[0] + "\r", *LINES[1:]]) + end).encode(),
    )
    reader = ShardReader(Shard(str(path), "a"))
    found = [(s.number, s.id, s.request.source) for unit in reader.units(2, []) for s in unit]
    assert found == [(i, i + 1, line) for i, line in enumerate(LINES)]
    assert reader.position == reader.size
    assert read(compress(tmp_path / f"mark{suffix}", "\ufeff".encode())) == []


def test_several_gzip_members_are_one_file(tmp_path):
    write_text(tmp_path / "a.gz", ["eins"])
    (tmp_path / "c.gz").write_bytes((tmp_path / "a.gz").read_bytes() * 2)
    assert [s.request.source for s in read(tmp_path / "c.gz")] == ["eins", "eins"]


@pytest.mark.parametrize("size", [1, 3, 4, 100])
@pytest.mark.parametrize(
    "done", [[], [(0, 4)], [(2, 3), (3, 7)], [(0, 1), (5, 6), (9, 10)], [(0, 10)]]
)
def test_units_leave_out_what_is_done(tmp_path, size, done):
    path = write_text(tmp_path / "a", [str(i) for i in range(10)])
    found = ShardReader(Shard(str(path), "a")).units(size, done)
    units = [[s.number for s in unit] for unit in found]
    kept = [i for i in range(10) if not any(start <= i < end for start, end in done)]
    assert sum(units, []) == kept
    assert all(unit == [*range(unit[0], unit[0] + len(unit))] for unit in units)
    assert all(len(unit) <= size for unit in units)


def test_a_bad_line_is_reported_by_its_number_and_costs_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "MAX_LINE", 50)
    (tmp_path / "a").write_bytes(b"eins\nzw\xffei\n" + b"x" * 51 + b"\n" + b"y" * 500 + b"\nvier\n")
    monkeypatch.setattr(reading, "BLOCK", 7)
    found = read(tmp_path / "a")
    assert [s.request.source for s in found] == ["eins", "zw\ufffdei", "", "", "vier"]
    kinds = [s.error and s.error[0] for s in found]
    assert kinds == [None, "invalid UTF-8", "too long", "too long", None]
    assert found[1].error[1] == f"line 2 of {tmp_path / 'a'} is not valid UTF-8 (byte 3)"


def write_objects(path, *objects):
    """A shard of JSONL."""
    return write_text(path, [json.dumps(each) for each in objects])


def test_jsonl_carries_ids_and_constraints(tmp_path):
    first = {"source": "eins", "id": "a7", "constraints": [["two", "words"], "one"], "prefix": "p"}
    first |= {"any_of": [["x", "y"]], "avoid": ["w"], "allowed": ["p q", ["p", "r"]]}
    others = {"text": "zwei", "domain": "x"}, {"source": "x", "allowed": []}
    path = write_objects(tmp_path / "a.jsonl", first, *others)
    found = read(path)
    request = found[0].request
    assert (request.number, request.source, found[0].id) == (0, "eins", "a7")
    assert request.own_constraints == TextConstraints(
        ("two words", "one"), (("x", "y"),), ("w",), ("p",), ("p q", "p r")
    )
    assert (found[1].request.source, *found[1][1:]) == ("zwei", 2, None)
    assert not found[1].request.own_constraints
    assert found[2].error[0] == "invalid line"
    assert 'no string in "allowed", so no output would be allowed' in found[2].error[1]
    assert read(path, source_field="domain")[1].request.source == "x"


def test_parquet_has_the_same_as_columns(tmp_path):
    rows = {"source": ["a", "b", None], "id": [7, 8, 9], "constraints": [["x"], None, []]}
    pyarrow.parquet.write_table(pyarrow.table(rows), tmp_path / "a.parquet", row_group_size=2)
    found = read(tmp_path / "a.parquet")
    assert [(s.request.source, s.id) for s in found] == [("a", 7), ("b", 8), ("", 9)]
    assert found[0].request.own_constraints.constraints == ("x",)
    assert not found[1].request.own_constraints
    assert found[2].error[0] == "invalid line"


def test_a_constraints_file_goes_line_by_line(tmp_path):
    path = write_text(tmp_path / "a", ["eins", "zwei", "drei"])
    (tmp_path / "c.tsv").write_text("one\ttwo words\n\nthree\t\t\n")
    first, second, third = read(path, tmp_path / "c.tsv")
    assert first.request.own_constraints.constraints == ("one", "two words")
    assert not second.request.own_constraints
    assert third.error[0] == "invalid line" and "has an empty phrase" in third.error[1]
    (tmp_path / "c.tsv").write_text("one\n")
    with pytest.raises(UsageError, match="has 1 line and .* has 3 sentences"):
        read(path, tmp_path / "c.tsv")


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
    with pytest.raises(UnreadableShard):
        read(path)


def test_shards_keep_their_place_below_the_common_folder(tmp_path):
    for name in ("a/x.txt", "b/x.de.gz", "b/c/y.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert [s.name for s in shards_of([str(tmp_path / "a"), f"{tmp_path}/b/**/*.*"], None)] == [
        "a/x",
        "b/c/y",
        "b/x.de",
    ]


# ---- Units through a loaded model


@pytest.fixture(scope="module")
def demo():
    """A real worker on the demo model."""
    worker = CorpusWorker(MODEL, 1, False)
    assert "signature" in worker.load()
    return worker


def translated(worker, path):
    """The records of a unit, and what else there is of it."""
    result = worker.translate(Shard(str(path), "a"), read(path))
    return [json.loads(line) for line in result.payload.splitlines()], result


def test_a_unit_is_translated_as_the_translator_does_and_refuses_sentence_by_sentence(
    tmp_path, demo
):
    outputs = ["The house was red.", "A green boat was red."]
    lines = [{"source": s} for s in source_lines(10, 17)]
    lines[1]["constraints"] = ["hospital"]
    lines[2]["constraints"] = ["</s>"]  # which no translation holds
    lines[3]["source"] = "und " * 2000
    lines[4] |= {"constraints": ["hospital"], "avoid": ["hospital"], "prefix": "Today"}
    lines[5] |= {"allowed": outputs, "constraints": ["green"]}
    lines[6] |= {"allowed": outputs, "avoid": ["red"]}
    path = write_objects(tmp_path / "a.jsonl", *lines)
    found, result = translated(demo, path)
    texts = [r["hypotheses"] for r in found]
    (free,) = demo.translator.translate([lines[0]["source"]])
    assert texts[0] == [h.text for h in free] and "hospital" in texts[1][0]
    assert texts[4][0].startswith("Today") and texts[2:] == [[], [], texts[4], outputs[1:], []]
    # the report of each, as an engine answers it
    reports = [[(c["phrase"], c["met"]) for c in r.get("constraints", ())] for r in found]
    assert reports[1] == [("hospital", True)]
    assert reports[4] == [("Today", True), ("hospital", False)]
    kinds = {e["line"]: (e["kind"], e["reason"]) for e in result.errors}
    assert [*kinds] == [3, 4, 5, 7] and kinds[4][0] == "too long"
    assert kinds[3][0] == "constraint" and "line 3 of" in kinds[3][1]
    assert kinds[5][0] == "constraint not met" and "conflicts with the banned phrase" in kinds[5][1]
    assert "every allowed output has a banned phrase" in kinds[7][1]
    assert result.stats.sentences == 4
    assert result.stats.as_dict()["constraints"] == {"given": 4, "met": 3}
    # the statistics are each unit's own
    again = demo.translate(Shard(str(path), "a"), read(path)[1:2]).stats
    assert again.sentences == 1 and again.as_dict()["constraints"] == {"given": 1, "met": 1}


@pytest.mark.parametrize(("more", "status"), [([], 0), ([{"source": "hund " * 1025}], 3)])
def test_an_unmet_constraint_is_an_entry_and_no_error(tmp_path, demo, monkeypatch, more, status):
    """The status of the command is that of the others: 3 only if a line is not translated."""
    unmet = {"source": source_lines(10, 11)[0], "constraints": ["hospital"], "avoid": ["hospital"]}
    path = write_objects(tmp_path / "a.jsonl", unmet, *more)
    words = ["translate", "--path", "m", "--data", "d", "--input", str(path)]
    with one_process(monkeypatch, demo):
        assert main([*words, "--output", str(tmp_path / "out"), "--cpu"]) == status
    kinds = [each["kind"] for each in records(tmp_path / "out" / "errors.jsonl")]
    assert kinds == ["constraint not met", *["too long"] * len(more)]


class Faulty:
    """A translator that raises an error for certain lines: before the search that has them, after
    it, or in their segmentation; without lines, in every search."""

    def __init__(self, demo, error, lines=None, at="search"):
        self.demo, self.error, self.lines, self.at = demo, error, lines, at
        self.bad = [demo.encode(line).tolist() for line in lines or ()]

    def __getattr__(self, name):
        return getattr(self.demo, name)

    def fail(self, at, fails):
        if fails and self.at == at:
            raise self.error

    def prepared(self, request, where):
        self.fail("encode", request.source in (self.lines or ()))
        return self.demo.prepared(request, where)

    def search(self, requests):
        fails = self.lines is None or any(r.tokens.tolist() in self.bad for r in requests)
        self.fail("search", fails)
        found = self.demo.search(requests)
        self.fail("after", fails)
        return found


def decoded(translator, path):
    """The unit of a file's sentences, decoded."""
    unit = UnitTranslation(translator, Shard(str(path), "a"), read(path))
    unit.decode()
    return unit


@pytest.mark.parametrize(
    ("at", "error", "reason"),
    [
        ("search", RuntimeError("odd"), "RuntimeError: odd"),
        ("encode", ValueError("half a \ud800"), "ValueError: half a ?"),
        ("after", RuntimeError("odd"), "RuntimeError: odd"),
    ],
)
def test_what_is_wrong_with_a_sentence_is_its_own_and_is_counted_once(
    tmp_path, demo, at, error, reason
):
    lines = source_lines(0, 9)
    given = [{"source": s, "constraints": ["hospital"]} for s in lines]
    path = write_objects(tmp_path / "a.jsonl", *given)
    stats = demo.translator.stats
    before = stats.copy()
    unit = decoded(Faulty(demo.translator, error, [lines[2], lines[7]], at), path)
    found = stats.since(before).as_dict()
    assert sorted(unit.hypotheses) == [0, 1, 3, 4, 5, 6, 8] and found["sentences"] == 7
    entries = [(e["line"], e["reason"]) for e in unit.errors if e["kind"] == "failed"]
    assert entries == [(3, reason), (8, reason)]
    counts = found["constraints"]
    assert counts["given"] == 7 and counts["met"] + len(counts["unmet"]) == 7
    if at == "after":
        assert found["encoder_calls"] > 7  # the work of the failed searches is work


def test_a_unit_that_fails_altogether_is_the_process_s_fault_unless_it_translates_a_word(
    tmp_path, demo
):
    lines = source_lines(0, 3)
    path, first = write_text(tmp_path / "a", lines), write_text(tmp_path / "b", lines[:1])
    with pytest.raises(RuntimeError, match="device-side assert"):
        decoded(Faulty(demo.translator, RuntimeError("device-side assert")), path)
    before = demo.translator.stats.sentences
    for bad, error in (
        (lines, RuntimeError("odd")),
        (lines, RuntimeError("CUDA out of memory")),
        (None, RuntimeError("out of memory")),
    ):
        for part, count in ((path, 3), (first, 1)):
            unit = decoded(Faulty(demo.translator, error, bad), part)
            reasons = [e["reason"] for e in unit.errors]
            assert reasons == [f"RuntimeError: {error}"] * count and not unit.hypotheses
    assert demo.translator.stats.sentences == before


def test_a_schedule_that_does_not_fit_is_reported_and_the_model_is_loaded_once(monkeypatch):
    from fairseq import checkpoint_utils

    loads, load = [], checkpoint_utils.load_model_ensemble
    monkeypatch.setattr(
        checkpoint_utils,
        "load_model_ensemble",
        lambda *given, **named: loads.append(given) or load(*given, **named),
    )

    def loaded(**more):
        return CorpusWorker({**MODEL, **more}, 1, False).load()

    found = loaded()
    assert "schedule:stream" in found["signature"] and not found["warnings"]
    found = loaded(match_source_len=True)
    assert "schedule:batch" in found["signature"]
    assert "does not fit: --match-source-len" in found["warnings"][0]
    # what is no fault of the schedule's
    assert "--unkpen" in loaded(stop="optimal", unkpen="-1")["error"]
    assert len(loads) == 3


def test_warnings_of_a_worker_reach_the_run_once(tmp_path, monkeypatch, caplog):
    """Ray shows nothing of what a worker prints."""
    terms = ["hospital\tKrankenhaus", "house\tHaus", "doctor\tArzt", "day\tTag", "man\tMann"]
    glossary, path = write_text(tmp_path / "terms.tsv", terms), tmp_path / "a.txt"
    write_text(path, ["Das Haus, der Arzt, ein Tag, der Mann, das Krankenhaus."] * 201)
    given = ["translate", *as_arguments(MODEL), "--input", str(path), "--glossary", str(glossary)]
    with one_process(monkeypatch, None):
        main([*given, "--output", str(tmp_path / "out")])
    said = [each.getMessage() for each in caplog.records if each.name == "fairseq_ext.corpus"]
    assert ["name its columns in a header, or swap them" in each for each in said] == [True]
