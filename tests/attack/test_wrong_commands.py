"""Wrong commands, and tasks and architectures that no search here can run, each with the one
sentence that it gets: no traceback, status 1, and nothing translated.

The rows are in commands.tsv (bad_inputs.py): arguments behind those of a command that works. The
last of a flag's values counts. {names} are files of `files`.
"""

import json
import re
import resource
import shutil
import sys
from pathlib import Path

import pytest
import torch
from bad_inputs import LANGUAGES, commands, rows
from conftest import limited
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY
from forked import generate, interactive
from sizes import drawn

from fairseq_ext import Translator
from fairseq_ext.core.errors import UsageError
from fairseq_ext.model.choose import refusal_reason

RIGHT = "{data} --path {model} --task translation_ext --cpu --beam 4 --max-len-b 8".split()
WINDOW = "--beam 1 --decoding window".split()
WRONG, USAGE, TYPED = map(commands, ("generate", "usage", "interactive"))
TASKS, NEEDS, USED = rows("commands.tsv", "no task"), *map(commands, ("task", "architecture"))
WEIGHT = "decoder.layers.0.fc1.weight"


def with_parts(**parts):
    return lambda state: state.update(parts)


def with_settings(**settings):
    return lambda state: vars(state["cfg"]["model"]).update(settings)


def with_weight(change):
    return lambda state: state["model"].update({WEIGHT: change(state["model"][WEIGHT])})


NO_NUMBERS = "without its numbers, or in a sparse form"
CHECKPOINTS = {
    "a sparse weight": (with_weight(torch.Tensor.to_sparse), NO_NUMBERS),
    "a weight of no numbers": (with_weight(lambda weight: weight.to("meta")), NO_NUMBERS),
    "a weight of text": (with_weight(str), f"has str in the place of the weight {WEIGHT}"),
    "a weight is missing": (
        lambda state: state["model"].pop(WEIGHT),
        f"the checkpoint's weights are not those of its architecture (Missing: {WEIGHT})",
    ),
    "a weight too many": (
        lambda state: state["model"].update({"decoder.more": torch.ones(2)}),
        "(Unexpected: decoder.more)",
    ),
} | {
    name: (change(**json.loads(parts)), sentence)
    for kind, change in (("parts", with_parts), ("settings", with_settings))
    for name, (parts, sentence) in rows("commands.tsv", kind).items()
}


@pytest.fixture(scope="module")
def files(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wrong")
    (folder / "dotted.too").mkdir()
    texts = {"file": "x", "empty": "", "phrases": "en1\n" * 11, "banned": "en2\n"}
    texts |= {"glossary": "de1\ten1\n", "long": "en1 " * 100_000 + "\n"}
    for name, text in (texts | {"letters": "abcdefg " * 12_500 + "\n"}).items():
        (folder / name).write_text(text)
    named = {name: folder / name for name in (*texts, "letters")}
    named |= {"data": tiny / "data", "model": tiny / "model.pt"}
    return named | {"folder": folder, "dotted": folder / "dotted.too"}


def filled(arguments, files):
    return [str(a).format(**files) if "{" in str(a) else str(a) for a in arguments]


@pytest.fixture
def refused(files):
    """The one sentence of fairseq-generate with these arguments, some files being others."""

    def run(*more, **others):
        return generate(*filled([*RIGHT, *more], files | others)).error()

    return run


@pytest.fixture
def typed(files):
    """How fairseq-interactive ends with these arguments."""

    def run(*more, stdin=b"de1\n"):
        return interactive(*filled([*RIGHT, *LANGUAGES, *more], files), stdin=stdin)

    return run


@pytest.fixture
def data(files, tmp_path):
    """A copy of the data set, to be damaged."""
    return Path(shutil.copytree(files["data"], tmp_path / "data"))


@pytest.fixture
def changed(files, tmp_path):
    """Saves the checkpoint with a change in it."""

    def save(change):
        state = torch.load(files["model"], weights_only=False)
        change(state)
        torch.save(state, tmp_path / "changed.pt")
        return tmp_path / "changed.pt"

    return save


@drawn(9)
@pytest.mark.parametrize("name", WRONG)
def test_wrong_flags_get_one_sentence(name, files, refused):
    arguments, sentence = WRONG[name]
    said = refused(*arguments)
    for place in ("data", "folder"):
        sentence = sentence.replace(f"{{{place}}}", str(files[place]))
    assert sentence in said and len(said) < 500


@drawn(8)
@pytest.mark.parametrize("name", TYPED)
def test_wrong_flags_of_interactive_get_one_sentence(name, typed):
    arguments, sentence = TYPED[name]
    assert sentence in typed(*arguments).error()


@drawn(4)
@pytest.mark.parametrize("name", USAGE)
def test_what_argparse_refuses(name, files):
    arguments, sentence = USAGE[name]
    for command in (generate, interactive):
        done = command(*filled([*RIGHT, *arguments], files))
        assert done.status == 2 and sentence in done.stderr and "H-" not in done.stdout
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("module", "words", "said"),
    [
        ("sacremoses", "--tokenizer moses", "--tokenizer moses needs sacremoses"),
        (
            "fastBPE",
            "--bpe fastbpe --bpe-codes {file}",
            "--bpe or --tokenizer needs fastBPE, which is not installed",
        ),
    ],
)
def test_a_segmentation_that_is_not_installed_gets_one_sentence(
    module, words, said, files, monkeypatch
):
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not, where it is
    for command in (generate, interactive):
        done = command(*filled([*RIGHT, *LANGUAGES, *words.split()], files))
        assert done.error() == f"error: {said}: pip install {module}"


@drawn(2)
@pytest.mark.parametrize("name", ["empty", "file", "model", "folder"])
def test_what_is_no_sentencepiece_model_gets_one_sentence(name, files, refused):
    said = refused("--bpe", "sentencepiece", "--sentencepiece-model", f"{{{name}}}")
    assert f"--sentencepiece-model {files[name]} cannot be read (" in said


def test_a_limit_of_open_files_under_which_torch_would_wait_for_ever(files, refused):
    """For tensors that its process of batches could not send; the read of so small a data set might
    just pass, and a larger would not."""
    with limited(resource.RLIMIT_NOFILE, 55):
        said = refused("--num-workers", 1)
        alone = generate(*filled([*RIGHT, "--num-workers", 0], files))
    assert (
        "the limit of 55 open files is too low to read batches in 1 process: allow 56 (ulimit "
        "-n), or use --num-workers 0"
    ) in said
    assert alone.status == 0 and "H-0" in alone.stdout, alone.stderr


def test_no_limit_of_tokens_is_none_as_in_fairseq(files, typed):
    """0 and below."""
    for most in (0, -1):
        done = generate(*filled([*RIGHT, "--max-tokens", most], files))
        for each in (done, typed("--max-tokens", most)):
            assert each.status == 0 and not each.reported() and 0 in each.texts()


@drawn(3)
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_wrong_checkpoints_get_one_sentence(name, refused, changed):
    change, sentence = CHECKPOINTS[name]
    said = refused(model=(path := changed(change)))
    assert sentence.replace("{model}", str(path)) in said and len(said) < 500


@pytest.mark.parametrize("what", ["embeddings", "data"])
def test_a_checkpoint_opens_no_other_file(what, files, changed, tmp_path):
    """Embeddings that its training began with are among its weights; its data folder is only looked
    at for a dictionary to compare with."""
    (tmp_path / "outside").mkdir()  # to open it would be an error
    outside = str(tmp_path / "outside")
    paths = dict(encoder_embed_path=outside, decoder_embed_path=outside)
    model = changed(with_settings(**paths if what == "embeddings" else dict(data=3)))
    done = generate(*filled(RIGHT, files | {"model": model}))
    assert done.status == 0 and "H-0" in done.stdout, done.stderr


def test_what_is_no_checkpoint_gets_one_sentence(files, tmp_path, refused):
    torch.save(torch.ones(3), path := tmp_path / "wrong.pt")
    assert "does not hold a model and its settings" in refused(model=path)
    for content in (b"\0" * 4096, b"x", b"", files["model"].read_bytes()[:2000]):
        path.write_bytes(content)
        said = refused(model=path)
        assert f"{path} is not a checkpoint that fairseq can read" in said
        assert "weights_only" not in said
    for zipped in (True, False):
        torch.save({"model": bytearray(10)}, path, _use_new_zipfile_serialization=zipped)
        assert b"bytearray" in path.read_bytes()
        assert "its pickle calls bytearray" in refused(model=path)
    assert "is a folder, and a file is needed" in refused(model=tmp_path)
    none = generate(*filled([RIGHT[0], *RIGHT[3:]], files))
    assert "no model is named: add --path" in none.error()


@pytest.mark.parametrize(
    ("pattern", "new", "sentence"),
    [
        (rb"(?m) \d+$", b"", "cannot be read (Incorrect dictionary format, expected '<token>"),
        (rb"^(.*\n)", rb"\1\1", "cannot be read (Duplicate word found when loading Dictionary"),
        (rb"(?s)^.*$", b"h\xfcgel 3\n", "{path} is not valid UTF-8"),
        (rb"\Z", b"more 1\nand 1\n", "the checkpoint does not fit the dictionaries in the"),
    ],
)
def test_wrong_dictionaries_get_one_sentence(pattern, new, sentence, data, refused):
    path = data / "dict.en.txt"
    path.write_bytes(re.sub(pattern, new, path.read_bytes()))
    assert sentence.format(path=f"the dictionary {path}") in refused(data=data)


def cut_short(data):
    return data[: len(data) // 2]


def of_other_words(data):
    return b"\xff\x7f" * (len(data) // 2)


@drawn(2)
@pytest.mark.parametrize("readers", [0, 1])
@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("de.idx", cut_short),
        ("de.bin", cut_short),
        ("de.bin", of_other_words),
        ("en.bin", of_other_words),
    ],
)
def test_damaged_data_sets_get_one_sentence(data, refused, readers, file, change):
    """The index is read at the start, the words in each batch, also in a process of their own."""
    path = data / f"test.de-en.{file}"
    path.write_bytes(change(path.read_bytes()))
    more = ["--score-reference"] if file == "en.bin" else []
    said = refused(*more, "--num-workers", readers, data=data)
    assert said.startswith("error: the data set cannot be read (")
    assert said.endswith("make it again with fairseq-preprocess")


def test_missing_data_gets_one_sentence(data, refused, tmp_path):
    assert "does not exist: correct the path" in refused(data=tmp_path / "none")
    (data / "dict.en.txt").unlink()
    assert "no dictionary at" in refused(data=data)
    (data / "dict.en.txt").mkdir()
    assert "is a folder, and a file is needed" in refused(data=data)


@drawn(1)
@pytest.mark.parametrize(
    "more",
    [[*WINDOW, "--draft-file", "{empty}"], ["--avoid-file", "{empty}"], ["--glossary", "{empty}"]],
    ids=str,
)
def test_an_empty_file_changes_nothing(files, more):
    """Every sentence is decoded as without the file."""
    before, with_it = (generate(*filled([*RIGHT, *given], files)) for given in (more[:-2], more))
    assert before.status == with_it.status == 0, with_it.stderr
    hypotheses = re.findall("^H-.*", before.stdout, re.M)
    assert len(hypotheses) == 11 and re.findall("^H-.*", with_it.stdout, re.M) == hypotheses


def test_phrases_may_be_typed_where_the_command_names_a_file(typed):
    done = typed("--avoid-file", "{banned}", "--constraint-case", "any", stdin=b"de1\ten5\n")
    assert done.status == 0 and "en5" in done.texts()[0].split()


def test_a_class_to_trust_that_is_none_gets_one_sentence(refused, monkeypatch):
    monkeypatch.setenv("FAIRSEQ_EXT_ALLOW_GLOBALS", "nosuch.thing")
    said = "FAIRSEQ_EXT_ALLOW_GLOBALS names nosuch.thing, which cannot be imported ("
    assert said in refused()


# ---- tasks and architectures

NOTHING = ["nowhere", "--path", "nothing.pt"]


def last_line(*arguments):
    """The only line of fairseq-generate, which ends before it looks for its model."""
    done = generate(*NOTHING, *arguments)
    assert done.stdout == "" and len(done.stderr.splitlines()) == 1
    return done.error()


@pytest.mark.parametrize("task", TASKS)
def test_a_task_without_a_twin_is_refused_in_one_line(task):
    said = last_line("--task", task)
    assert f"--task {task}" in said and TASKS[task][1] in said


FILES = {"dict.de.txt": "a 1\n", "dict.en.txt": "a 1\n", "file": "en_XX\n"}
FILES |= {"wrong.yaml": "a: [\n", "empty.yaml": "{}\n"}


@drawn(4)
@pytest.mark.parametrize("name", NEEDS)
def test_what_a_task_must_know_is_requested_in_one_sentence(tmp_path, name):
    """In both commands, before any checkpoint is read."""
    flags, sentence = NEEDS[name]
    for file, text in FILES.items():
        (tmp_path / file).write_text(text)
    where = {"data": tmp_path, "file": tmp_path / "file"}
    words = [tmp_path, "--path", "model.pt", "--cpu", *(flag.format(**where) for flag in flags)]
    for command in (generate, interactive):
        assert sentence.format(**where) in command(*words).error()


def test_a_user_directory_under_a_name_that_is_taken_is_refused(tmp_path):
    (tmp_path / "logging").mkdir()
    said = last_line("--user-dir", tmp_path / "logging", "--task", "translation_ext")
    assert (
        "logging cannot be imported: it must be a folder, without a dot in its name, which is not "
        "the name of another module of Python's"
    ) in said


def test_a_task_of_ones_own_that_no_one_has_extended_is_reported_the_line_to_add(tmp_path):
    (tmp_path / "forgetful").mkdir()
    (tmp_path / "forgetful" / "__init__.py").write_text(
        "from fairseq.tasks import register_task\n"
        "from fairseq.tasks.translation import TranslationConfig, TranslationTask\n"
        "@register_task('forgotten', dataclass=TranslationConfig)\n"
        "class Forgotten(TranslationTask):\n"
        "    pass\n"
    )
    assert last_line("--user-dir", tmp_path / "forgetful", "--task", "forgotten_ext") == (
        "error: there is no --task forgotten_ext yet: add fairseq_ext.extend(Forgotten) where "
        "forgotten is registered"
    )


@pytest.mark.parametrize("name", USED)
def test_an_architecture_of_another_task_is_refused(name):
    """By the task, or other way, that it is to be used with; none where it is the task's own."""
    (task, architecture), instead = USED[name]
    assert architecture in ARCH_MODEL_REGISTRY
    found = refusal_reason(architecture, object.__new__(TASK_REGISTRY[f"{task}_ext"]))
    assert found.endswith(f": use {instead}") if instead else found is None


def test_from_python_too():
    with pytest.raises(UsageError, match="unrecognized arguments: --lang-tok-behind-eos"):
        Translator("none.pt", "none", lang_tok_behind_eos=True)
