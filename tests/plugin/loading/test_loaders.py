"""Every file that is read back, damaged in every way: it is what was written, or it is
refused in one sentence."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sizes import examples

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.files import verify_digest, with_digest
from fairseq_ext.core.glossary import Languages, LineErrors, read
from fairseq_ext.corpus.job import Manifest
from fairseq_ext.corpus.output import OutputFolder
from fairseq_ext.corpus.shards import Shard, ShardReader, UnreadableShard
from fairseq_ext.corpus.worker import Result
from fairseq_ext.plugin.results import FORMAT, ResultsFile
from fairseq_ext.search.constraints.lines import json_object, parse_json, parse_tabs
from fairseq_ext.search.parallel.graph import Graph
from fairseq_ext.terms import formats
from fairseq_ext.terms.formats import Files

FUZZ = settings(
    max_examples=examples(200),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
CPU = torch.device("cpu")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4)
    ),
    max_leaves=12,
)
HARMS = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=3)


def harmed(content: bytes, harms: list[tuple[float, int]], end: float) -> bytes:
    """Some bytes changed, and often the end cut off."""
    out = bytearray(content)
    for place, value in harms:
        out[int(place * len(out))] = value
    return bytes(out[: round(end * len(out))] if end < 0.5 else out)


def one_sentence(error: pytest.ExceptionInfo | Exception) -> None:
    assert "\n" not in str(error) and ": " in str(error)


def replaced(value, path: list[float], by):
    """The JSON value with a part of it, found by chance numbers, replaced."""
    if not path or not isinstance(value, (dict, list)) or not value:
        return by
    keys = list(value) if isinstance(value, dict) else range(len(value))
    key, copy = keys[int(path[0] * len(value))], value.copy()
    copy[key] = replaced(value[key], path[1:], by)
    return copy


PATHS = st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=4)


@FUZZ
@given(st.dictionaries(st.text(max_size=9), JSON, max_size=4))
def test_a_sealed_record_comes_back_and_another_does_not(record):
    record.pop("sha256", None)
    text = json.dumps(with_digest(record)).encode()
    found, given = (json.dumps(each, sort_keys=True) for each in (verify_digest(text), record))
    assert found == given
    with pytest.raises(ValueError, match="not what was written"):
        verify_digest(json.dumps({**with_digest(record), "more": 1}).encode())


# ---- --results-file

HYPOTHESIS = {"tokens": [4, 5, 2], "score": -0.5, "positional_scores": [-0.5, -0.5, -0.5]}
HYPOTHESIS["unmet"] = [["a", "no room"]]
SENTENCE = {"id": 3, "source": "abc", "text": "a b", "hypotheses": [HYPOTHESIS]}
MADE_FROM = {"--beam": "5"}


def written(*sentences: object) -> bytes:
    """A results file of these records, with their digests."""
    lines = [{**FORMAT, "signature": "ours", "made_from": MADE_FROM}, *sentences]
    return b"".join(json.dumps(with_digest(line)).encode() + b"\n" for line in lines)


def results(path: Path) -> dict | None:
    """What a run that goes on takes from the file; None if it refuses it."""
    try:
        file = ResultsFile(str(path), True, "ours", MADE_FROM, 100)
    except UsageError as error:
        one_sentence(error)
        return None
    file.close()
    for number in file.done:
        try:
            assert file.hypotheses(number, "abc", CPU)
        except UsageError as error:
            one_sentence(error)
    return file.done


@FUZZ
@given(HARMS, st.floats(0, 1))
def test_results_that_were_damaged(tmp_path, harms, end):
    path = tmp_path / "results"
    content = written(SENTENCE, {**SENTENCE, "id": 4})
    path.write_bytes(content)
    whole = results(path)
    path.write_bytes(harmed(content, harms, end))
    done = results(path)
    assert whole is not None and whole.keys() == {SENTENCE["id"], 4}
    assert done is None or {**whole, **done}.keys() == whole.keys()
    for number, record in (done or {}).items():
        assert repr(record) == repr(whole[number])


@FUZZ
@given(PATHS, JSON)
def test_results_that_another_program_wrote(tmp_path, path, value):
    """The digest is right, a part of the record is anything."""
    record = replaced(SENTENCE, path, value)
    file, more = tmp_path / "results", {**SENTENCE, "id": 4}
    file.write_bytes(written(record if isinstance(record, dict) else {}, more))
    results(file)


# ---- the corpus command's folder

MANIFEST = {
    "signature": "s",
    "arguments": {"--beam": 5},
    "totals": {},
    "shards": {"in": {"state": "open", "input": "9 bytes"}},
}
SHARD = Shard("in.txt", "in")


@FUZZ
@given(HARMS, st.floats(0, 1))
def test_a_manifest_that_was_damaged(tmp_path, harms, end):
    written = Manifest(tmp_path / "nowhere")
    written.path = tmp_path / "manifest.json"
    for name, value_of in MANIFEST.items():
        setattr(written, name, value_of)
    written.write()
    written.path.write_bytes(harmed(written.path.read_bytes(), harms, end))
    try:
        Manifest(tmp_path).reconcile({"--beam": 5}, [SHARD], {"in": "9 bytes"})
    except UsageError as error:
        one_sentence(error)


@FUZZ
@given(HARMS, st.floats(0, 1))
def test_parts_that_were_damaged(tmp_path, harms, end):
    store = OutputFolder(str(tmp_path), ".jsonl")
    payload = b'{"id": 1}\n{"id": 2}\n'
    store.save(SHARD, 0, 2, Result(payload, [{"line": 1, "reason": "r"}], signature="s"))
    part = store.parts_of(SHARD) / "0-2"
    part.write_bytes(harmed(part.read_bytes(), harms, end))
    try:
        store.finish(SHARD, 2)
    except UsageError as error:
        one_sentence(error)
    else:
        assert store.path(SHARD).read_bytes() == payload


def test_parts_that_leave_gaps_or_have_strange_names_are_reported(tmp_path):
    store = OutputFolder(str(tmp_path), ".jsonl")
    for start, end in ((0, 2), (3, 4)):
        store.save(SHARD, start, end, Result(b"x\n", signature="s"))
    (store.parts_of(SHARD) / "x-²").write_text("")
    with pytest.raises(UsageError, match="its parts leave gaps or overlap: remove it"):
        store.finish(SHARD, 4)


# ---- what users write


TBX = b"""<?xml version="1.0"?><tbx><text><body><conceptEntry id="1">\
<langSec xml:lang="de"><termSec><term>Ader</term></termSec></langSec>
<langSec xml:lang="en"><termSec>\
<term>vein</term></termSec></langSec></conceptEntry></body></text></tbx>"""
TERMS = {  # by the name of the file or of the reader
    "g.tsv": b"Ader\tvein|vessel\nHand\thand\n",
    "g.csv": b"source,target\nAder,vein\n",
    "g.jsonl": b'{"source": "Ader", "target": "vein"}\n',
    "g.tbx": TBX,
    "read_wmt25": b'{"en": "a", "de": "b", "proper": {"a": "b"}}\n',
    "read_jsonl": b'{"reference": "b", "terms": [{"source": "a", "target": ["b"]}]}\n',
}


@FUZZ
@given(st.sampled_from([*TERMS]), HARMS, st.floats(0, 1), st.binary(max_size=60))
def test_glossaries_and_test_sets_of_terms(tmp_path, name, harms, end, more):
    file, errors = tmp_path / name, LineErrors()
    file.write_bytes(harmed(TERMS[name], harms, end) + more)
    try:
        if name.startswith("read"):
            found, _ = getattr(formats, name)(Files(str(file), "de"))
            terms = [term for sentence in found for term in sentence.terms]
        else:
            terms = read(str(file), "--glossary", Languages("de", "en"), errors)
        assert all(term.source.strip() and all(map(str.strip, term.targets)) for term in terms)
        errors.raise_first()
    except UsageError as error:
        one_sentence(error)


KEYS = st.sampled_from(["constraints", "any_of", "avoid", "prefix", "source", "id", "other"])


@FUZZ
@given(st.text(max_size=60) | st.dictionaries(KEYS, JSON, max_size=3).map(json.dumps))
def test_lines_of_constraints(line):
    for parse in (parse_json, parse_tabs, json_object):
        try:
            parse(line, "line 1 of x")
        except UsageError as error:
            one_sentence(error)


@FUZZ
@given(
    st.lists(
        st.binary(max_size=40)
        | st.dictionaries(KEYS, JSON, max_size=3).map(lambda each: json.dumps(each).encode()),
        max_size=4,
    )
)
def test_lines_of_jsonl(tmp_path, lines):
    """Every line is a sentence or has its error, and one never costs another."""
    file = tmp_path / "in.jsonl"
    file.write_bytes(b"".join(line.replace(b"\n", b"") + b"\n" for line in lines))
    try:
        found = [
            sentence
            for unit in ShardReader(Shard(str(file), "in")).units(2, [])
            for sentence in unit
        ]
    except UnreadableShard as error:
        one_sentence(error)
    else:
        assert [sentence.number for sentence in found] == list(range(len(lines)))
        for sentence in found:
            assert isinstance(sentence.request.source, str)
            assert sentence.error is None or "\n" not in sentence.error[1]


# ---- dependency graphs

CELLS = [{"token": token, "probability": 0.5, "right": True} for token in ("a", "</s>")]
STEPS = [{"first": 0, "verified": 2, "cells": CELLS}]
GRAPH = Graph("1", ["x"], ["a", "</s>"], "jacobi", STEPS, [0, 0], [-1, -1])


@FUZZ
@given(HARMS, st.floats(0, 1), PATHS, JSON, st.booleans())
def test_graphs(tmp_path, harms, end, path, value, is_json):
    file = tmp_path / "1.json"
    GRAPH.save(file)
    content = file.read_bytes()
    other = json.dumps(replaced(json.loads(content), path, value)).encode()
    file.write_bytes(other if is_json else harmed(content, harms, end))
    try:
        Graph.load(file)
    except UsageError as error:
        one_sentence(error)
