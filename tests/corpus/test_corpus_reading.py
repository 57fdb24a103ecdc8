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
from fairseq_ext.search.request import TextConstraints

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
    write_text(tmp_path / "b.gz", ["zwei"])
    (tmp_path / "c.gz").write_bytes(
        (tmp_path / "a.gz").read_bytes() + (tmp_path / "b.gz").read_bytes()
    )
    assert [s.request.source for s in read(tmp_path / "c.gz")] == ["eins", "zwei"]


@pytest.mark.parametrize("size", [1, 3, 4, 100])
@pytest.mark.parametrize(
    "done", [[], [(0, 4)], [(2, 3), (3, 7)], [(0, 1), (5, 6), (9, 10)], [(0, 10)]]
)
def test_units_leave_out_what_is_done(tmp_path, size, done):
    path = write_text(tmp_path / "a", [str(i) for i in range(10)])
    units = [
        [s.number for s in unit] for unit in ShardReader(Shard(str(path), "a")).units(size, done)
    ]
    kept = [i for i in range(10) if not any(start <= i < end for start, end in done)]
    assert [i for unit in units for i in unit] == kept
    assert all(
        unit == list(range(unit[0], unit[0] + len(unit))) and len(unit) <= size for unit in units
    )


def test_a_bad_line_is_reported_by_its_number_and_costs_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "MAX_LINE", 50)
    (tmp_path / "a").write_bytes(b"eins\nzw\xffei\n" + b"x" * 51 + b"\n" + b"y" * 500 + b"\nvier\n")
    monkeypatch.setattr(reading, "BLOCK", 7)
    found = read(tmp_path / "a")
    assert [s.request.source for s in found] == ["eins", "zw\ufffdei", "", "", "vier"]
    kinds = [s.error and s.error[0] for s in found]
    assert kinds == [None, "invalid UTF-8", "too long", "too long", None]
    assert found[1].error[1] == f"line 2 of {tmp_path / 'a'} is not valid UTF-8 (byte 3)"


def test_jsonl_carries_ids_and_constraints(tmp_path):
    lines = [
        {
            "source": "eins",
            "id": "a7",
            "constraints": [["two", "words"], "one"],
            "any_of": [["x", "y"]],
            "avoid": ["w"],
            "prefix": "p",
            "allowed": ["p q", ["p", "r"]],
        },
        {"text": "zwei", "domain": "x"},
        {"source": "x", "allowed": []},
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    found = read(tmp_path / "a.jsonl")
    request = found[0].request
    assert (request.number, request.source, found[0].id) == (0, "eins", "a7")
    assert request.own_constraints == TextConstraints(
        ("two words", "one"), (("x", "y"),), ("w",), ("p",), ("p q", "p r")
    )
    assert (found[1].request.source, *found[1][1:]) == ("zwei", 2, None)
    assert not found[1].request.own_constraints
    assert found[2].error[0] == "invalid line"
    assert 'no string in "allowed", so no output would be allowed' in found[2].error[1]
    assert read(tmp_path / "a.jsonl", source_field="domain")[1].request.source == "x"


def test_parquet_has_the_same_as_columns(tmp_path):
    rows = {
        "source": ["a", "b", None],
        "id": [7, 8, 9],
        "constraints": [["x"], None, []],
        "other": [1, 2, 3],
    }
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
    worker = CorpusWorker(
        {**FLAGS, "path": str(DEMO / "checkpoint.pt"), "data": str(DEMO)}, 1, False
    )
    assert "signature" in worker.load()
    return worker


def test_a_unit_is_translated_as_the_translator_does_and_refuses_sentence_by_sentence(
    tmp_path, demo
):
    lines = [{"source": s} for s in source_lines(10, 15)]
    lines[1]["constraints"] = ["hospital"]
    lines[2]["constraints"] = ["</s>"]  # which no translation holds
    lines[3]["source"] = "und " * 2000
    lines[4] |= {"constraints": ["hospital"], "avoid": ["hospital"], "prefix": "Today"}
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shard = Shard(str(tmp_path / "a.jsonl"), "a")
    result = demo.translate(shard, read(tmp_path / "a.jsonl"))
    found = [json.loads(line) for line in result.payload.splitlines()]
    expected = demo.translator.translate(
        [lines[0]["source"], lines[1]["source"]], constraints=[[], ["hospital"]]
    )
    assert [r["hypotheses"] for r in found[:2]] == [[h.text for h in nbest] for nbest in expected]
    assert [r["scores"][0] for r in found[:2]] == pytest.approx(
        [nbest[0].score for nbest in expected], abs=1e-4
    )
    # the report of each, as an engine answers it
    assert [
        r.get("constraints") and [(c["phrase"], c.get("reason")) for c in r["constraints"]]
        for r in found
    ] == [
        [],
        [("hospital", None)],
        None,
        None,
        [("Today", None), ("hospital", "conflicts with the banned phrase 'hospital'")],
    ]
    for record in found:
        for each in record.get("constraints", ()):
            where = [record["hypotheses"][0][slice(*span)] for span in each["spans"]]
            assert where == [each["phrase"]] * each["met"]
    assert found[4]["hypotheses"][0].startswith("Today")
    assert [bool(r["hypotheses"]) for r in found] == [True, True, False, False, True]
    entries = [(e["line"], e["kind"]) for e in result.errors]
    assert entries == [(3, "constraint"), (4, "too long"), (5, "constraint not met")]
    assert "line 3 of" in result.errors[0]["reason"]
    assert "conflicts with the banned phrase" in result.errors[2]["reason"]
    assert result.stats.sentences == 3
    assert result.stats.as_dict()["constraints"] == {"given": 3, "met": 2}
    # the statistics are each unit's own
    again = demo.translate(shard, read(tmp_path / "a.jsonl")[1:2]).stats
    assert again.sentences == 1 and again.as_dict()["constraints"] == {"given": 1, "met": 1}


@pytest.mark.parametrize(("more", "status"), [([], 0), ([{"source": "hund " * 1025}], 3)])
def test_an_unmet_constraint_is_an_entry_and_no_error(tmp_path, demo, monkeypatch, more, status):
    """The status of the command is that of the others: 3 only if a line is not translated."""
    unmet = {"source": source_lines(10, 11)[0], "constraints": ["hospital"], "avoid": ["hospital"]}
    lines = "".join(json.dumps(line) + "\n" for line in (unmet, *more))
    (tmp_path / "a.jsonl").write_text(lines)
    words = ["translate", "--path", "m", "--data", "d", "--input", str(tmp_path / "a.jsonl")]
    with one_process(monkeypatch, demo):
        assert main([*words, "--output", str(tmp_path / "out"), "--cpu"]) == status
    kinds = [each["kind"] for each in records(tmp_path / "out" / "errors.jsonl")]
    assert kinds == ["constraint not met", *["too long"] * len(more)]


def test_a_record_has_its_own_allowed_outputs(tmp_path, demo):
    lines: list[dict] = [{"source": s} for s in source_lines(10, 13)]
    outputs = ["The house was red.", "A green boat was red."]
    lines[0] |= {"allowed": outputs, "constraints": ["green"]}
    lines[1] |= {"allowed": outputs, "avoid": ["red"]}
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = demo.translate(Shard(str(tmp_path / "a.jsonl"), "a"), read(tmp_path / "a.jsonl"))
    found = [json.loads(line) for line in result.payload.splitlines()]
    assert [r["hypotheses"] for r in found[:2]] == [outputs[1:], []]
    (free,) = demo.translator.translate([lines[2]["source"]])
    assert found[2]["hypotheses"] == [h.text for h in free]
    (error,) = result.errors
    assert error["line"] == 2 and "every allowed output has a banned phrase" in error["reason"]


class Faulty:
    """A translator that raises an error for certain lines: before the search that has them, after
    it, or in their segmentation; without lines, in every search."""

    def __init__(self, demo, error, lines=None, at="search"):
        self.demo, self.error, self.lines, self.at = demo, error, lines, at
        self.bad = [self.words(demo.encode(line)) for line in lines or ()]

    def __getattr__(self, name):
        return getattr(self.demo, name)

    def words(self, tokens):
        return self.demo.task.source_dictionary.string(tokens)

    def prepared(self, request, where):
        if self.at == "encode" and request.source in self.lines:
            raise self.error
        return self.demo.prepared(request, where)

    def search(self, requests):
        fails = self.lines is None or any(self.words(r.tokens) in self.bad for r in requests)
        fails = fails and self.at != "encode"
        if fails and self.at == "search":
            raise self.error
        found = self.demo.search(requests)
        if fails:
            raise self.error
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
    given = [json.dumps({"source": s, "constraints": ["hospital"]}) for s in lines]
    path = write_text(tmp_path / "a.jsonl", given)
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
    flags = {**FLAGS, "path": str(DEMO / "checkpoint.pt"), "data": str(DEMO)}
    found = CorpusWorker(flags, 1, False).load()
    assert "schedule:stream" in found["signature"] and not found["warnings"]
    found = CorpusWorker({**flags, "match_source_len": True}, 1, False).load()
    assert (
        "schedule:batch" in found["signature"]
        and "does not fit: --match-source-len" in found["warnings"][0]
    )
    # what is no fault of the schedule's
    assert (
        "--unkpen"
        in CorpusWorker({**flags, "stop": "optimal", "unkpen": "-1"}, 1, False).load()["error"]
    )
    assert len(loads) == 3


def test_warnings_of_a_worker_reach_the_run_once(tmp_path, monkeypatch, caplog):
    """Ray shows nothing of what a worker prints."""
    terms = ["hospital\tKrankenhaus", "house\tHaus", "doctor\tArzt", "day\tTag", "man\tMann"]
    glossary, path = write_text(tmp_path / "terms.tsv", terms), tmp_path / "a.txt"
    write_text(path, ["Das Haus, der Arzt, ein Tag, der Mann, das Krankenhaus."] * 201)
    given = ["translate", "--data", str(DEMO), "--path", str(DEMO / "checkpoint.pt"), "--cpu"]
    given += ["--input", str(path)]
    more = [f"--{name.replace('_', '-')}={value}" for name, value in FLAGS.items() if name != "cpu"]
    with one_process(monkeypatch, None):
        main([*given, *more, "--output", str(tmp_path / "out"), "--glossary", str(glossary)])
    said = [each.getMessage() for each in caplog.records if each.name == "fairseq_ext.corpus"]
    assert ["name its columns in a header, or swap them" in each for each in said] == [True]
