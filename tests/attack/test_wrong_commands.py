"""Wrong commands, each with the one sentence that it gets: no traceback, status 1, and nothing translated.

A row is a name, arguments of fairseq-generate behind those of a command that works, and a part of the sentence. The last of a flag's
values counts. {names} are files of `files`.
"""

import copy
import shutil
from pathlib import Path

import pytest
import torch
from forked import generate

RIGHT = ["{data}", "--path", "{model}", "--task", "translation_ext", "--cpu", "--beam", 4, "--max-len-b", 8]
WINDOW = ["--beam", 1, "--decoding", "window"]
WRONG = {
    # numbers
    "lenpen nan": (["--lenpen", "nan"], "--lenpen nan is no length penalty"),
    "unkpen nan": (["--unkpen", "nan"], "--unkpen nan is no penalty"),
    "unkpen inf": (["--unkpen", "inf"], "--unkpen inf is no penalty"),
    "temperature 0": (["--temperature", 0], "--temperature 0.0 is no temperature"),
    "max-len-a nan": (["--max-len-a", "nan"], "--max-len-a nan is no ratio"),
    "max-len-a inf": (["--max-len-a", "inf"], "--max-len-a inf is no ratio"),
    "prefix below 0": (["--prefix-size", -1], "--prefix-size -1 is no number of target tokens"),
    "beam 0": (["--beam", 0], "--beam 0 is no number of hypotheses"),
    "beam too large": (["--beam", 100000], "--beam 100000 is no number of hypotheses: use 1 to 10000"),
    "nbest 0": (["--nbest", 0], "--nbest 0 is no number of hypotheses"),
    "workers": (["--cpu-workers", 3000], "--cpu-workers 3000 is no number of processes"),
    "no workers": (["--cpu-workers", 0], "--cpu-workers 0 is no number of processes"),
    "lsh hits": (["--softmax", "lsh", "--lsh-hits", -1], "--lsh-hits -1 is no number of equal bands"),
    "lsh bands": (["--softmax", "lsh", "--lsh-bands", 0], "--lsh-bands"),
    "shortlist": (["--softmax", "top", "--shortlist-top", -1], "--shortlist-top -1 is no number of words"),
    "stream of none": (["--schedule", "stream", "--stream-width", 0], "--stream-width 0 is no number of sentences"),
    "refill": (["--schedule", "stream", "--refill-threshold", 1], "--refill-threshold 1.0 is not a share below 1"),
    "stream rows": (["--schedule", "stream", "--stream-rows", 2], "--stream-rows 2 is below the beam of 4"),
    "delta nan": (["--prune-threshold", "nan"], "--prune-threshold"),
    "delta below 0": (["--prune-threshold", -1], "--prune-threshold -1.0 is not a distance"),
    "children": (["--prune-children", 0], "--prune-children 0 would leave no hypothesis"),
    "finished": (["--prune-finished", -1], "--prune-finished -1.0 is not a distance"),
    "reward nan": (["--length-reward", "nan", "--unnormalized"], "--length-reward"),
    "reward normalised": (["--length-reward", 1], "--length-reward adds to raw scores: add --unnormalized"),
    "patience": (["--patience", 0], "--patience 0 would wait for no hypothesis"),
    "blocks": ([*WINDOW, "--block-size", -1], "--block-size -1 is no number of tokens"),
    "cost": ([*WINDOW, "--draft-cost", "nan"], "--draft-cost"),
    # what cannot work together
    "sampling": (["--sampling", "--nbest", 4, "--stop", "first"], "--sampling replaces beam search, so --stop first cannot work with it"),
    "window of a beam": (["--decoding", "window"], "--decoding window gives greedy decoding's output"),
    "window with a stop": ([*WINDOW, "--stop", "first"], "--stop first belongs to beam search, and --decoding window has no beam"),
    "window with a softmax": ([*WINDOW, "--softmax", "top"], "--softmax top scores what the rows of a beam search need"),
    "ranked banks": (["--stop", "ranked", "--select", "cbs"], "--stop ranked compares all hypotheses of a sentence"),
    "proof": (["--stop", "optimal", "--unkpen", -1], "can make a token's score positive, so --stop optimal proves nothing"),
    "flag of another": (["--lsh-k", 8], "--lsh-k belongs to --softmax lsh, which is not switched on"),
    "resume nothing": (["--resume"], "--resume goes on with a results file and none is named"),
    "diverse": (["--diverse-beam-groups", 2, "--beam", 3], "--diverse-beam-groups shares the beam out evenly"),
    # files
    "no results name": (["--results-file", ""], "--results-file is given without a name"),
    "no statistics name": (["--stats-file", ""], "--stats-file is given without a name"),
    "statistics in a folder": (["--stats-file", "{data}"], "cannot be written (Is a directory)"),
    "no constraints file": (["--constraints-file", "x" * 300], "--constraints-file: cannot read xxx"),
    "no lexical table": (["--softmax", "lexical"], "--softmax lexical needs a table"),
    "graphs in a file": (["--beam", 1, "--decoding", "jacobi", "--ddg-dir", "{file}/x"], "cannot be written to"),
    "no subset": (["--gen-subset", "nope"], "nope"),
    "no language model": (["--lm-path", "{folder}/none.pt"], "Model file not found"),
    "no segmentation model": (["--bpe", "sentencepiece"], "--sentencepiece-model is needed here and missing: add it"),
    "segmentation model": (["--bpe", "sentencepiece", "--sentencepiece-model", "{folder}/none"], "the path of the segmentation model"),
    "unknown task": (["--task", "translation_exta_ext"], "is none of fairseq_ext's tasks: use "),
}  # fmt: skip


def without(state: dict) -> None:
    del state["model"]["decoder.layers.0.fc1.weight"]


def with_more(state: dict) -> None:
    state["model"]["decoder.more"] = torch.ones(2)


def unknown(state: dict) -> None:
    model = state["cfg"]["model"]
    model._name = model.arch = "nobodys"
    model.experts = 8  # no setting of a plain Transformer's


def no_settings(state: dict) -> None:
    state["cfg"] = None


def with_weight(value: float):
    def change(state: dict) -> None:
        state["model"]["decoder.layers.0.fc1.weight"][0, 0] = value

    return change


CHECKPOINTS = {
    "a weight is missing": (without, "the checkpoint's weights are not those of its architecture (it lacks decoder.layers.0.fc1.weight)"),
    "a weight too many": (with_more, "(it has decoder.more)"),
    "unknown architecture": (unknown, "nobodys is none that is registered here, and its settings have experts=8"),
    "no settings": (no_settings, "the checkpoint holds no settings of its model"),
    "NaN": (with_weight(float("nan")), "holds NaN or infinity"),
    "infinity": (with_weight(float("inf")), "holds NaN or infinity"),
}
DICTIONARIES = {
    "no counts": (lambda lines: [line.split()[0] for line in lines], "a line that is not 'token count'"),
    "a word twice": (lambda lines: [lines[0], *lines], "the dictionary has a word twice"),
}


@pytest.fixture(scope="module")
def files(tiny, tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("wrong")
    (folder / "file").write_text("x")
    (folder / "empty").write_text("")
    return {"data": tiny / "data", "model": tiny / "model.pt", "folder": folder, "file": folder / "file", "empty": folder / "empty"}


def refused(arguments: list) -> str:
    """The one sentence that a command leaves; it translates nothing."""
    status, out, log = generate(*arguments)
    said = [line for line in log.splitlines() if line.startswith("error: ")]
    assert status == 1 and "Traceback" not in log and len(said) == 1, log
    assert not any(line.startswith("H-") for line in out.splitlines())
    return said[0]


def filled(arguments: list, files: dict[str, Path]) -> list[str]:
    return [str(a).format(**files) if "{" in str(a) else str(a) for a in arguments]


@pytest.mark.parametrize("name", WRONG)
def test_wrong_flags_get_one_sentence(name, files):
    arguments, sentence = WRONG[name]
    said = refused(filled([*RIGHT, *arguments], files))
    assert sentence in said and len(said) < 500


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_wrong_checkpoints_get_one_sentence(name, files, tmp_path):
    change, sentence = CHECKPOINTS[name]
    state = copy.deepcopy(torch.load(files["model"], weights_only=False))
    change(state)
    torch.save(state, tmp_path / "wrong.pt")
    assert sentence in refused(filled(RIGHT, files | {"model": tmp_path / "wrong.pt"}))


def test_what_is_no_checkpoint_gets_one_sentence(files, tmp_path):
    torch.save(torch.ones(3), tmp_path / "tensor.pt")
    assert "holds a tensor instead of a model" in refused(filled(RIGHT, files | {"model": tmp_path / "tensor.pt"}))
    assert "is a folder, and a file is needed" in refused(filled(RIGHT, files | {"model": tmp_path}))
    assert "no model is named: add --path" in refused(filled([RIGHT[0], *RIGHT[3:]], files))


@pytest.mark.parametrize("name", DICTIONARIES)
def test_wrong_dictionaries_get_one_sentence(name, files, tmp_path):
    change, sentence = DICTIONARIES[name]
    shutil.copytree(files["data"], tmp_path / "data")
    path = tmp_path / "data" / "dict.en.txt"
    path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")
    assert sentence in refused(filled(RIGHT, files | {"data": tmp_path / "data"}))


def test_missing_data_gets_one_sentence(files, tmp_path):
    assert "does not exist: correct the path" in refused(filled(RIGHT, files | {"data": tmp_path / "none"}))
    shutil.copytree(files["data"], tmp_path / "data")
    (tmp_path / "data" / "dict.en.txt").unlink()
    assert "no dictionary at" in refused(filled(RIGHT, files | {"data": tmp_path / "data"}))
    (tmp_path / "data" / "dict.en.txt").mkdir()
    assert "is a folder, and a file is needed" in refused(filled(RIGHT, files | {"data": tmp_path / "data"}))


def test_an_empty_draft_file_drafts_nothing(files):
    """Every sentence is without a line: decoded as without the file."""
    outs = []
    for drafts in ([], ["--draft-file", "{empty}"]):
        status, out, log = generate(*filled([*RIGHT, *WINDOW, *drafts], files))
        assert status == 0, log
        outs.append([line for line in out.splitlines() if line.startswith("H-")])
    assert len(outs[0]) == 11 and outs[0] == outs[1]
