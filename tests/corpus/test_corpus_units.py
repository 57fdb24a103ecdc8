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


class Picky:
    """A translator's search that fails on batches with certain sentences."""

    def __init__(self, demo, error, bad):
        self.demo, self.error, self.bad = demo, error, bad

    def __getattr__(self, name):
        return getattr(self.demo, name)

    def search(self, tokens, wanted, nbest, numbers=None):
        if any(self.demo.task.source_dictionary.string(line) in self.bad for line in tokens):
            raise self.error
        return self.demo.search(tokens, wanted, nbest, numbers=numbers)


def test_what_only_the_search_finds_out_is_isolated(tmp_path, demo):
    path = write_text(tmp_path / "a", source_lines(0, 9))
    sentences = read(path)
    bad = [
        demo.translator.task.source_dictionary.string(demo.translator.encode(sentences[i].source))
        for i in (2, 7)
    ]
    unit = UnitTranslation(
        Picky(demo.translator, RuntimeError("odd"), bad), Shard(str(path), "a"), sentences
    )
    unit.decode()
    assert sorted(unit.hypotheses) == [0, 1, 3, 4, 5, 6, 8]
    assert [(e["line"], e["reason"]) for e in unit.errors] == [
        (3, "RuntimeError: odd"),
        (8, "RuntimeError: odd"),
    ]


class Broken(Picky):
    """One that fails at everything."""

    def search(self, tokens, wanted, nbest, numbers=None):
        raise self.error


def test_a_unit_that_fails_altogether_is_the_process_s_fault_unless_it_translates_a_word(
    tmp_path, demo
):
    path = write_text(tmp_path / "a", source_lines(0, 3))
    bad = [
        demo.translator.task.source_dictionary.string(demo.translator.encode(s.source))
        for s in read(path)
    ]
    with pytest.raises(RuntimeError, match="device-side assert"):
        UnitTranslation(
            Broken(demo.translator, RuntimeError("device-side assert"), bad),
            Shard(str(path), "a"),
            read(path),
        ).decode()
    before = demo.translator.stats.sentences
    for kind, error in (
        (Picky, RuntimeError("odd")),
        (Picky, RuntimeError("CUDA out of memory")),
        (Broken, RuntimeError("out of memory")),
    ):
        for sentences in (read(path), read(path)[:1]):
            unit = UnitTranslation(
                kind(demo.translator, error, bad), Shard(str(path), "a"), sentences
            )
            unit.decode()
            assert [e["reason"] for e in unit.errors] == [f"RuntimeError: {error}"] * len(
                sentences
            ) and not unit.hypotheses
    assert demo.translator.stats.sentences == before


class Spelled(Picky):
    """One whose segmentation fails on certain lines."""

    def encode(self, line):
        if line in self.bad:
            raise self.error
        return self.demo.encode(line)


def test_an_error_of_the_segmentation_is_its_sentence_s(tmp_path, demo):
    sentences = read(write_text(tmp_path / "a", source_lines(0, 3)))
    unit = UnitTranslation(
        Spelled(demo.translator, ValueError("half a \ud800"), [sentences[1].source]),
        Shard("a", "a"),
        sentences,
    )
    unit.decode()
    assert sorted(unit.hypotheses) == [0, 2] and [
        (e["line"], e["kind"], e["reason"]) for e in unit.errors
    ] == [(2, "failed", "ValueError: half a ?")]


class Late(Picky):
    """The same, failing only when the batch has been searched and counted."""

    def search(self, tokens, wanted, nbest, numbers=None):
        found = self.demo.search(tokens, wanted, nbest, numbers=numbers)
        if any(self.demo.task.source_dictionary.string(line) in self.bad for line in tokens):
            raise self.error
        return found


def test_answers_of_a_search_that_fails_are_counted_once(tmp_path, demo):
    (tmp_path / "a.jsonl").write_text(
        "".join(
            json.dumps({"source": s, "constraints": ["hospital"]}) + "\n"
            for s in source_lines(0, 5)
        )
    )
    sentences = read(tmp_path / "a.jsonl")
    bad = [
        demo.translator.task.source_dictionary.string(demo.translator.encode(sentences[3].source))
    ]
    stats = demo.translator.stats
    before = stats.copy()
    unit = UnitTranslation(
        Late(demo.translator, RuntimeError("odd"), bad),
        Shard(str(tmp_path / "a.jsonl"), "a"),
        sentences,
    )
    unit.decode()
    found = stats.since(before).as_dict()
    assert sorted(unit.hypotheses) == [0, 1, 2, 4] and found["sentences"] == 4
    assert (
        found["constraints"]["given"] == 4
        and found["constraints"]["met"] + len(found["constraints"]["unmet"]) == 4
    )
    assert found["encoder_calls"] > 4  # the work of the failed searches is work


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
    assert "schedule:stream" in found["signature"] and not found["note"]
    found = CorpusWorker({**flags, "match_source_len": True}, 1, False).load()
    assert (
        "schedule:batch" in found["signature"]
        and "does not fit: --match-source-len" in found["note"]
    )
    # what is no fault of the schedule's
    assert (
        "--unkpen"
        in CorpusWorker({**flags, "stop": "optimal", "unkpen": "-1"}, 1, False).load()["error"]
    )
    assert len(loads) == 3
