"""Files that commands read back, changed by hand with right digests: each is refused, or
made again, in one sentence."""

import json

import pytest

from fairseq_ext import UsageError
from fairseq_ext.core.files import with_digest
from fairseq_ext.corpus.job import Manifest
from fairseq_ext.plugin.results import FORMAT, ResultsFile

# ---- --results-file, of a dictionary of 10 words

MADE_FROM = {"--beam": "5"}
HEAD = {**FORMAT, "signature": "s", "made_from": MADE_FROM}
HYPOTHESIS = {"tokens": [5, 2], "score": -1.0, "positional_scores": [-0.5, -0.5]}
SENTENCE = {"id": 0, "source": "x", "text": "a", "hypotheses": [HYPOTHESIS]}
RESULTS = {
    "no format": (1, {**HEAD, "format": "mine"}, "it is not the beginning of a results file"),
    "an older version": (1, {**HEAD, "version": 2}, "it is not the beginning of a results file"),
    "no origin": (1, {**HEAD, "made_from": None}, "it is not the beginning of a results file"),
    "an origin of numbers": (
        1,
        {**HEAD, "made_from": {"--beam": 5}},
        "it is not the beginning of a results file",
    ),
    "another beam": (
        1,
        {**HEAD, "made_from": {"--beam": "4"}},
        "which differs in --beam (4 there, 5 now)",
    ),
    "no number": (2, {**SENTENCE, "id": None}, "its 'id' is not what a report has there"),
    "a number below 0": (
        2,
        {**SENTENCE, "id": -1},
        "it has no hypotheses, or a number below 0",
    ),
    "half a number": (2, {**SENTENCE, "id": 0.5}, "its 'id' is not"),
    "truth for a number": (
        2,
        {**SENTENCE, "id": True},
        "its 'id' is not",
    ),
    "no source": (2, {**SENTENCE, "source": 3}, "its 'source' is not"),
    "no text": (2, {**SENTENCE, "text": ["a"]}, "its 'text' is not"),
    "no hypotheses": (2, {**SENTENCE, "hypotheses": []}, "it has no hypotheses"),
    "hypotheses by name": (
        2,
        {**SENTENCE, "hypotheses": {"0": HYPOTHESIS}},
        "its 'hypotheses' is not",
    ),
    "a hypothesis as text": (
        2,
        {**SENTENCE, "hypotheses": ["a"]},
        "its 'hypotheses' is not",
    ),
    "a word too many": (
        2,
        {**SENTENCE, "hypotheses": [{**HYPOTHESIS, "tokens": [10, 2]}]},
        "a token outside the dictionary's 10 words",
    ),
    "a word below 0": (
        2,
        {**SENTENCE, "hypotheses": [{**HYPOTHESIS, "tokens": [-1, 2]}]},
        "a token outside the dictionary's 10 words",
    ),
    "a list for a word": (
        2,
        {**SENTENCE, "hypotheses": [{**HYPOTHESIS, "tokens": [[4]]}]},
        "a token outside the dictionary's 10 words",
    ),
    "no words": (
        2,
        {**SENTENCE, "hypotheses": [{**HYPOTHESIS, "tokens": []}]},
        "a token outside the dictionary's 10 words",
    ),
    "a huge word": (
        2,
        {**SENTENCE, "hypotheses": [{**HYPOTHESIS, "tokens": [10**40, 2]}]},
        "its 'tokens' is not",
    ),
    "NaN": (
        2,
        {**SENTENCE, "hypotheses": [{**HYPOTHESIS, "score": float("nan")}]},
        "its 'score' is not",
    ),
    "a score as text": (
        2,
        {**SENTENCE, "hypotheses": [{**HYPOTHESIS, "score": "-1"}]},
        "its 'score' is not",
    ),
    "a score too few": (
        2,
        {**SENTENCE, "hypotheses": [{**HYPOTHESIS, "positional_scores": [-1.0]}]},
        "it has not one score for each token",
    ),
    "unmet as text": (
        2,
        {**SENTENCE, "hypotheses": [{**HYPOTHESIS, "unmet": "x"}]},
        "its 'unmet' is not",
    ),
    "a place as a number": (
        2,
        {**SENTENCE, "hypotheses": [{**HYPOTHESIS, "placements": [{"placed_by": 3}]}]},
        "its 'placed_by' is not",
    ),
    "a field of a later version": (
        2,
        {**SENTENCE, "hypotheses": [{**HYPOTHESIS, "colour": "red"}]},
        "its 'hypotheses' is not",
    ),
    "unmet without reason": (
        2,
        {**SENTENCE, "hypotheses": [{**HYPOTHESIS, "unmet": [["x"]]}]},
        "its 'unmet' is not",
    ),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_results_file(tmp_path, name):
    number, line, reason = RESULTS[name]
    lines = [HEAD, SENTENCE, {**SENTENCE, "id": 1}]
    path = tmp_path / "results.jsonl"
    path.write_text("".join(json.dumps(with_digest(each)) + "\n" for each in lines))
    file = ResultsFile(str(path), True, "s", MADE_FROM, 10)
    assert list(file.done) == [0, 1]
    file.close()
    lines[number - 1] = line
    path.write_text("".join(json.dumps(with_digest(each)) + "\n" for each in lines))
    with pytest.raises(UsageError) as error:
        ResultsFile(str(path), True, "s", MADE_FROM, 10)
    assert reason in str(error.value) and "name another --results-file" in str(error.value)
    assert number == 1 or f"line {number}, is not a line of a results file, because" in str(
        error.value
    )


# ---- the corpus command's manifest

DONE = {
    "state": "done",
    "input": "9 bytes",
    "bytes": 4,
    "sha256": "0",
    "lines": 2,
    "counts": {},
    "signatures": [],
}
MANIFEST = {
    "format": "fairseq_ext corpus manifest",
    "version": 1,
    "signature": "s",
    "arguments": {},
    "totals": {},
    "shards": {"in": DONE},
}
MANIFESTS = {
    "another format": ({"format": "x"}, "it is of another format or version"),
    "another version": ({"version": 2}, "it is of another format or version"),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest(tmp_path, name):
    changes, reason = MANIFESTS[name]
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(with_digest(MANIFEST)))
    assert Manifest(tmp_path).shards == {"in": DONE}
    path.write_text(json.dumps(with_digest({**MANIFEST, **changes})))
    with pytest.raises(UsageError) as error:
        Manifest(tmp_path)
    assert f"{path} cannot be read, because {reason}" in str(error.value) and "--overwrite" in str(
        error.value
    )
