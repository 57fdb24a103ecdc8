"""The files that commands write: where they may be, and what is in them whatever
ends the command."""

import json
import os
import signal

import pytest
from bad_inputs import LANGUAGES, commands, rows, search
from fairseq_cli.interactive import cli_main
from forked import Child, generate
from serving import until
from sizes import drawn

from fairseq_ext import UsageError
from fairseq_ext.core.files import with_digest
from fairseq_ext.corpus.job import Manifest
from fairseq_ext.plugin.results import FORMAT, ResultsFile


@pytest.fixture
def glossary(tmp_path):
    (tmp_path / "g.tsv").write_text("de1\ten1\n")
    return ["--glossary", tmp_path / "g.tsv"]


# ---- --glossary-report


def test_a_killed_session_leaves_the_glossary_report_of_what_it_has_printed(
    tiny, tmp_path, glossary
):
    """And another session does not write to it meanwhile."""
    report = tmp_path / "report.jsonl"
    words = search(tiny, *LANGUAGES, *glossary, "--glossary-report", report)
    arguments = ["fairseq-interactive", *map(str, words)]
    reads, writes = os.pipe()
    child = Child(cli_main, arguments, reads)
    os.write(writes, b"de1 de2\nde3\nde1\n")
    assert until(lambda: report.exists() and report.read_bytes().count(b"\n") == 3)
    second = Child(cli_main, arguments, b"de5\n").wait().error()
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait().status == -signal.SIGKILL
    os.close(reads), os.close(writes)
    assert f"another run is writing to {report}: wait for it" in second
    records = [json.loads(line) for line in report.read_text().splitlines()]
    assert [(record["id"], len(record["terms"])) for record in records] == [(0, 1), (1, 0), (2, 1)]


# ---- one file for two flags

# the flags, and what would be written over which file, where the first may be named
SHARED = commands("shared")


@drawn(4)
@pytest.mark.parametrize("name", SHARED)
def test_nothing_is_written_over_a_file_that_the_command_names(tiny, tmp_path, glossary, name):
    flags, sentence = SHARED[name]
    files = {each: tmp_path / each for each in ("new", "model", "link", "hard")}
    files["glossary"] = glossary[1]
    files["link"].symlink_to(glossary[1])
    files["hard"].hardlink_to(glossary[1])
    files["model"].write_bytes((tiny / "model.pt").read_bytes())
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    words = [flag.format(**files) for flag in flags]
    done = generate(*search(tiny, *glossary, *words, model=files["model"]))
    assert sentence.format(**files) in done.error()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_device_may_be_named_twice(tiny):
    named = ["--stats-file", os.devnull, "--results-file", os.devnull]
    assert generate(*search(tiny, *named)).status == 0


# ---- strange places

PLACES = commands("place")


@drawn(5)
@pytest.mark.parametrize("flag", ["--stats-file", "--results-file", "--glossary-report"])
@pytest.mark.parametrize("name", PLACES)
def test_a_place_that_cannot_be_written_is_one_sentence_and_stays_as_it_is(
    tiny, tmp_path, glossary, flag, name
):
    (place,), reason = PLACES[name]
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "folder").symlink_to(tmp_path)
    (tmp_path / "lost").symlink_to(tmp_path / "no" / "where")
    before = sorted(path.name for path in tmp_path.iterdir())
    said = generate(*search(tiny, *glossary, flag, place.format(folder=tmp_path))).error()
    assert flag in said and reason in said
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert (tmp_path / "loop").is_symlink()


def test_a_link_to_a_file_that_is_not_there_makes_it(tiny, tmp_path, glossary):
    for flag in ("--stats-file", "--results-file", "--glossary-report"):
        (tmp_path / flag).symlink_to(tmp_path / f"made by {flag}")
        assert generate(*search(tiny, *glossary, flag, tmp_path / flag)).status == 0
        assert (tmp_path / flag).is_symlink() and (tmp_path / f"made by {flag}").stat().st_size


# ---- Files that commands read back, changed by hand with right digests: each is refused

MADE_FROM = {"--beam": "5"}  # with a dictionary of 10 words
HEAD = {**FORMAT, "signature": "s", "made_from": MADE_FROM}
HYPOTHESIS = {"tokens": [5, 2], "score": -1.0, "positional_scores": [-0.5, -0.5]}
SENTENCE = {"id": 0, "source": "x", "text": "a", "hypotheses": [HYPOTHESIS]}


# what is changed in the first line, in a sentence, or in its hypothesis, and what is said
RESULTS = [
    (number, *row)
    for number, kind in enumerate(("head", "sentence", "hypothesis"))
    for row in rows("commands.tsv", f"results: {kind}").values()
]


@pytest.mark.parametrize(("part", "changes", "reason"), RESULTS)
def test_a_results_file(tmp_path, part, changes, reason):
    changed = [{}, {}, {}]
    changed[part] = json.loads(changes)
    path, number = tmp_path / "results.jsonl", min(part, 1)

    def read(lines):
        path.write_text("".join(json.dumps(with_digest(each)) + "\n" for each in lines))
        return ResultsFile(str(path), True, "s", MADE_FROM, 10)

    lines = [HEAD, SENTENCE, {**SENTENCE, "id": 1}]
    file = read(lines)
    assert list(file.done) == [0, 1]
    file.close()
    whole = [HEAD, SENTENCE | {"hypotheses": [HYPOTHESIS | changed[2]]}]
    lines[number] = whole[number] | changed[number]
    with pytest.raises(UsageError) as error:
        read(lines)
    said = str(error.value)
    assert reason in said and "name another --results-file" in said
    assert number == 0 or "line 2, is not a line of a results file, because" in said


# ---- the corpus command's manifest

DONE = {"state": "done", "input": "9 bytes", "bytes": 4, "sha256": "0", "lines": 2}
DONE |= {"counts": {}, "signatures": []}
MANIFEST = {"format": "fairseq_ext corpus manifest", "version": 1, "signature": "s"}
MANIFEST |= {"arguments": {}, "totals": {}, "shards": {"in": DONE}}


@pytest.mark.parametrize("changes", [{"format": "x"}, {"version": 2}], ids=str)
def test_a_manifest_of_another_format_or_version(tmp_path, changes):
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(with_digest(MANIFEST)))
    assert Manifest(tmp_path).shards == {"in": DONE}
    path.write_text(json.dumps(with_digest({**MANIFEST, **changes})))
    with pytest.raises(UsageError) as error:
        Manifest(tmp_path)
    said = f"{path} cannot be read, because it is of another format or version"
    assert said in str(error.value) and "--overwrite" in str(error.value)
