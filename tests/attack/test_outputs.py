"""The files that commands write: where they may be, and what is in them whatever
ends the command."""

import json
import os
import signal
import time

import pytest
from bad_inputs import LANGUAGES, search
from fairseq_cli.interactive import cli_main
from forked import Child, generate
from sizes import drawn

from fairseq_ext import UsageError
from fairseq_ext.core.files import with_digest
from fairseq_ext.corpus.job import Manifest
from fairseq_ext.plugin.results import FORMAT, ResultsFile


@pytest.fixture
def glossary(tmp_path) -> list:
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
    until = time.monotonic() + 60
    while (
        not (report.exists() and report.read_bytes().count(b"\n") == 3) and time.monotonic() < until
    ):
        time.sleep(0.02)
    second = Child(cli_main, arguments, b"de5\n").wait().error()
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait().status == -signal.SIGKILL
    os.close(reads), os.close(writes)
    assert f"another run is writing to {report}: wait for it" in second
    records = [json.loads(line) for line in report.read_text().splitlines()]
    assert [(record["id"], len(record["terms"])) for record in records] == [(0, 1), (1, 0), (2, 1)]


# ---- one file for two flags

SHARED = {  # the flags, and what would be written over which file, where the first may be named
    "statistics over results": (
        "--results-file {new} --stats-file {new}",
        "--stats-file would be written over {new}",
    ),
    "statistics over the model": (
        "--stats-file {model}",
        "--stats-file would be written over {model}, which --path names",
    ),
    "results over the model": (
        "--results-file {model} --resume",
        "--results-file would be written over {model}",
    ),
    "a report over its glossary": (
        "--glossary-report {glossary}",
        "--glossary-report would be written over {glossary}",
    ),
    "statistics over a link": (
        "--stats-file {link}",
        "--stats-file would be written over {glossary}, which --glossary names",
    ),
    "statistics over a hard link": (
        "--stats-file {hard}",
        "--stats-file would be written over {glossary}",
    ),
    "a report over results": (
        "--results-file {new} --glossary-report {new}",
        "--results-file would be written over {new}, which --glossary-report names",
    ),
}


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
    words = [flag.format(**files) for flag in flags.split()]
    done = generate(*search(tiny, *glossary, *words, model=files["model"]))
    assert sentence.format(**files) in done.error()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_device_may_be_named_twice(tiny):
    named = ["--stats-file", os.devnull, "--results-file", os.devnull]
    assert generate(*search(tiny, *named)).status == 0


# ---- strange places

PLACES = {
    "a link to itself": ("{folder}/loop", "Too many levels of symbolic links"),
    "a folder's name": ("{folder}/new/", "directory"),
    "a link to a folder": ("{folder}/folder", "directory"),
    "a link into nowhere": ("{folder}/lost", "No such file or directory"),
    "a handle that is not open": ("/dev/fd/987654", "No such file or directory"),
    "a full disk": ("/dev/full", "No space left on device"),
    "a name of 300 letters": ("{folder}/" + "x" * 300, "File name too long"),
}


@drawn(5)
@pytest.mark.parametrize("flag", ["--stats-file", "--results-file", "--glossary-report"])
@pytest.mark.parametrize("name", PLACES)
def test_a_place_that_cannot_be_written_is_one_sentence_and_stays_as_it_is(
    tiny, tmp_path, glossary, flag, name
):
    place, reason = PLACES[name]
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
BEGIN, WORD = (
    "it is not the beginning of a results file",
    "a token outside the dictionary's 10 words",
)
# what is changed: of the first line, of a sentence, of its hypothesis; what is said
RESULTS: list[tuple[int, dict, str]] = [
    (1, {"format": "mine"}, BEGIN),
    (1, {"version": 2}, BEGIN),
    (1, {"made_from": None}, BEGIN),
    (1, {"made_from": {"--beam": 5}}, BEGIN),
    (1, {"made_from": {"--beam": "4"}}, "which differs in --beam (4 there, 5 now)"),
    *((2, {"id": value}, "its 'id' is not what a report has there") for value in (None, 0.5, True)),
    (2, {"id": -1}, "it has no hypotheses, or a number below 0"),
    (2, {"source": 3}, "its 'source' is not"),
    (2, {"text": ["a"]}, "its 'text' is not"),
    (2, {"hypotheses": []}, "it has no hypotheses"),
    (2, {"hypotheses": {"0": HYPOTHESIS}}, "its 'hypotheses' is not"),
    (2, {"hypotheses": ["a"]}, "its 'hypotheses' is not"),
    *((3, {"tokens": value}, WORD) for value in ([10, 2], [-1, 2], [[4]], [])),
    (3, {"tokens": [10**40, 2]}, "its 'tokens' is not"),
    *((3, {"score": value}, "its 'score' is not") for value in (float("nan"), "-1")),
    (3, {"positional_scores": [-1.0]}, "it has not one score for each token"),
    *((3, {"unmet": value}, "its 'unmet' is not") for value in ("x", [["x"]])),
    (3, {"placements": [{"placed_by": 3}]}, "its 'placed_by' is not"),
    (3, {"colour": "red"}, "its 'hypotheses' is not"),  # of a later version
]


@pytest.mark.parametrize(("part", "changes", "reason"), RESULTS, ids=str)
def test_a_results_file(tmp_path, part, changes, reason):
    hypothesis = [{**HYPOTHESIS, **changes}] if part == 3 else [HYPOTHESIS]
    number, whole = min(part, 2), HEAD if part == 1 else {**SENTENCE, "hypotheses": hypothesis}
    line = {**whole, **(changes if part < 3 else {})}
    path = tmp_path / "results.jsonl"

    def read(lines: list[dict]) -> ResultsFile:
        path.write_text("".join(json.dumps(with_digest(each)) + "\n" for each in lines))
        return ResultsFile(str(path), True, "s", MADE_FROM, 10)

    lines = [HEAD, SENTENCE, {**SENTENCE, "id": 1}]
    file = read(lines)
    assert list(file.done) == [0, 1]
    file.close()
    lines[number - 1] = line
    with pytest.raises(UsageError) as error:
        read(lines)
    said = str(error.value)
    assert reason in said and "name another --results-file" in said
    assert number == 1 or f"line {number}, is not a line of a results file, because" in said


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
