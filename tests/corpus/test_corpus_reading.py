"""What a run reads: shards of every kind, line by line, and which lines are reported instead."""

import bz2
import json
import sys

import pyarrow
import pyarrow.parquet
import pytest
from corpus_jobs import Echo, one_process, read, source_lines, write_text

from fairseq_ext import UsageError
from fairseq_ext.corpus import shards as reading
from fairseq_ext.corpus.shards import (
    CODECS,
    Shard,
    ShardReader,
    UnreadableShard,
    columns_of,
    shards_of,
)
from fairseq_ext.search.request import TextConstraints


@pytest.fixture
def echo(monkeypatch):
    worker = Echo()
    with one_process(monkeypatch, worker):
        yield worker


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
    shards = [Shard(str(tmp_path / name), "a") for name in ("a", packed.name, "a.parquet")]
    assert [s.request.source for unit in ShardReader(shards[0]).units(9, []) for s in unit] == [
        "eins"
    ]
    assert columns_of(shards[2]) is None
    for shard in shards[1:]:
        with pytest.raises(
            UsageError,
            match=rf"^{shard.path} is read through pyarrow, which .*: pip install -U pyarrow",
        ):
            list(ShardReader(shard).units(9, []))


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst", ".bz2", ".lz4"])
@pytest.mark.parametrize("end", ["", "\n"])
def test_text_is_cut_at_line_feeds_alone(tmp_path, suffix, end):
    path = compress(
        tmp_path / f"a.txt{suffix}",
        ("\ufeff" + "\n".join([LINES[0] + "\r", *LINES[1:]]) + end).encode(),
    )
    assert [(s.number, s.id, s.request.source) for s in read(path)] == [
        (i, i + 1, line) for i, line in enumerate(LINES)
    ]


def test_blocks_may_end_anywhere(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("".join(line + "\n" for line in LINES), encoding="utf-8")
    for size in range(1, 12):
        monkeypatch.setattr(reading, "BLOCK", size)
        reader = ShardReader(Shard(str(tmp_path / "a"), "a"))
        assert [s.request.source for unit in reader.units(2, []) for s in unit] == LINES
        assert reader.position == pytest.approx(reader.size, abs=1.5)


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
    for block in (7, 1 << 20):
        monkeypatch.setattr(reading, "BLOCK", block)
        found = read(tmp_path / "a")
        assert [s.request.source for s in found] == ["eins", "zw\ufffdei", "", "", "vier"]
        assert [s.error and s.error[0] for s in found] == [
            None,
            "invalid UTF-8",
            "too long",
            "too long",
            None,
        ]
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
    first, second, third = read_with(path, tmp_path / "c.tsv")
    assert first.request.own_constraints.constraints == ("one", "two words")
    assert not second.request.own_constraints
    assert third.error[0] == "invalid line" and "has an empty phrase" in third.error[1]
    (tmp_path / "c.tsv").write_text("one\n")
    with pytest.raises(UsageError, match="has 1 line and .* has 3 sentences"):
        read_with(path, tmp_path / "c.tsv")


def read_with(path, constraints):
    return [
        s
        for unit in ShardReader(Shard(str(path), "x", str(constraints))).units(10, [])
        for s in unit
    ]


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
    (tmp_path / "a/x.jsonl").touch()
    for paths, constraints, said in [
        (["a/x.txt", "a/x.jsonl"], None, "would have the same name"),
        (["missing"], None, "does not exist"),
        (["a/x.txt"], ["1", "2"], "names 2 files and the input has 1: give one"),
    ]:
        with pytest.raises(UsageError, match=said):
            shards_of([str(tmp_path / path) for path in paths], constraints)
