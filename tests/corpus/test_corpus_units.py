"""Units of sentences through a loaded model: what is translated, what is refused, and
whose fault an error is."""

import json

import pytest
from corpus_jobs import DEMO, FLAGS, one_process, read, records, source_lines, write_text

from fairseq_ext.corpus.__main__ import main
from fairseq_ext.corpus.shards import Shard
from fairseq_ext.corpus.worker import CorpusWorker, UnitTranslation


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
    met, unmet = ({"phrase": "hospital", "met": value} for value in (True, False))
    assert [r.get("constraints") for r in found] == [
        [],
        [met],
        None,
        None,
        [{"phrase": "Today", "met": True}, unmet],
    ]
    assert found[4]["hypotheses"][0].startswith("Today")
    assert [bool(r["hypotheses"]) for r in found] == [True, True, False, False, True]
    assert [(e["line"], e["kind"]) for e in result.errors] == [
        (3, "constraint"),
        (4, "too long"),
        (5, "constraint not met"),
    ]
    assert (
        "line 3 of" in result.errors[0]["reason"]
        and "conflicts with the banned phrase" in result.errors[2]["reason"]
    )
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
    given = [
        "translate",
        "--data",
        str(DEMO),
        "--path",
        str(DEMO / "checkpoint.pt"),
        "--input",
        str(path),
        "--cpu",
    ]
    more = [f"--{name.replace('_', '-')}={value}" for name, value in FLAGS.items() if name != "cpu"]
    with one_process(monkeypatch, None):
        main([*given, *more, "--output", str(tmp_path / "out"), "--glossary", str(glossary)])
    said = [each.getMessage() for each in caplog.records if each.name == "fairseq_ext.corpus"]
    assert ["name its columns in a header, or swap them" in each for each in said] == [True]
