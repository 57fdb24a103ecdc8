"""Wrong commands, each with the one sentence that it gets: no traceback, status 1,
and nothing translated.

The rows are in commands.tsv (bad_inputs.py): arguments behind those of a command that works. The
last of a flag's values counts. {names} are files of `files`.
"""

import copy
import resource
import shutil
import sys
from pathlib import Path

import pytest
import torch
from bad_inputs import commands
from forked import generate, interactive
from sizes import drawn

RIGHT = [
    "{data}",
    "--path",
    "{model}",
    "--task",
    "translation_ext",
    "--cpu",
    "--beam",
    4,
    "--max-len-b",
    8,
]
WINDOW = ["--beam", 1, "--decoding", "window"]
WRONG, USAGE, TYPED = map(commands, ("generate", "usage", "interactive"))


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


def with_parts(**parts):
    def change(state: dict) -> None:
        state.update(parts)

    return change


def with_settings(**settings):
    def change(state: dict) -> None:
        vars(state["cfg"]["model"]).update(settings)

    return change


def with_kind(weight):
    def change(state: dict) -> None:
        state["model"]["decoder.layers.0.fc1.weight"] = weight(
            state["model"]["decoder.layers.0.fc1.weight"]
        )

    return change


DAMAGED = {
    "no weights": (with_parts(model=None), 'has no weights ("model")'),
    "settings as text": (with_parts(cfg="x"), "no model can be built of {model} ("),
    "arguments as text": (with_parts(args="x"), 'has str in the place of "args"'),
    "the task's state as a list": (
        with_parts(task_state=[1]),
        'has list in the place of "task_state"',
    ),
    "a sparse weight": (
        with_kind(torch.Tensor.to_sparse),
        "without its numbers, or in a sparse form",
    ),
    "a weight of no numbers": (
        with_kind(lambda weight: weight.to("meta")),
        "without its numbers, or in a sparse form",
    ),
    "a weight of text": (
        with_kind(lambda weight: "x"),
        "has str in the place of the weight decoder.layers.0.fc1.weight",
    ),
    "no heads": (
        with_settings(decoder_attention_heads=0),
        "no model can be built of {model} (ZeroDivisionError: ",
    ),
    "heads that do not divide": (
        with_settings(decoder_attention_heads=7),
        "no model can be built of {model} (AssertionError: ",
    ),
    "layers as text": (with_settings(decoder_layers="x"), "no model can be built of {model} ("),
    "a million layers": (
        with_settings(decoder_layers=10**6),
        "has decoder_layers=1000000, and 0 to 1000 are allowed",
    ),
    "layers too wide": (
        with_settings(decoder_layers=1000, decoder_embed_dim=10_000, decoder_ffn_embed_dim=10_000),
        "has far fewer weights than 1000 layers of width 10000 and 10000 in its decoder",
    ),
    "positions below 0": (
        with_settings(max_source_positions=-1),
        "has max_source_positions=-1, and 0 to 1000000 are allowed",
    ),
    "endless positions": (
        with_settings(max_target_positions=2**62),
        "has max_target_positions=4611686018427387904, and 0 to",
    ),
    "an unknown activation": (
        with_settings(activation_fn="x"),
        "no model can be built of {model} (",
    ),
    "dropout as text": (
        with_settings(attention_dropout="x"),
        "has attention_dropout='x', and a number or a truth value is needed",
    ),
    "no dropout": (
        with_settings(dropout=None),
        "has dropout=None, and a number or a truth value is needed",
    ),
    "no truth value": (
        with_settings(decoder_normalize_before={"a": 1}),
        "has decoder_normalize_before={'a': 1}, and a number",
    ),
}
CHECKPOINTS = {
    "a weight is missing": (
        without,
        (
            "the checkpoint's weights are not those of its architecture (Missing: "
            "decoder.layers.0.fc1.weight)"
        ),
    ),
    "a weight too many": (with_more, "(Unexpected: decoder.more)"),
    "unknown architecture": (
        unknown,
        "nobodys is not registered here, and its settings have experts=8",
    ),
    "no settings": (no_settings, "the checkpoint does not hold a model and its settings"),
    "NaN": (with_weight(float("nan")), "holds NaN or infinity"),
    "infinity": (with_weight(float("inf")), "holds NaN or infinity"),
}
DICTIONARIES = {
    "no counts": (
        lambda lines: [line.split()[0] for line in lines],
        "a dictionary cannot be read (Incorrect dictionary format, expected '<token> <cnt>",
    ),
    "a word twice": (
        lambda lines: [lines[0], *lines],
        "a dictionary cannot be read (Duplicate word found when loading Dictionary",
    ),
}


@pytest.fixture(scope="module")
def files(tiny, tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("wrong")
    (folder / "file").write_text("x")
    (folder / "dotted.too").mkdir()
    (folder / "empty").write_text("")
    texts = {"phrases": "en1\n" * 11, "banned": "en2\n", "glossary": "de1\ten1\n"}
    texts |= {"long": "en1 " * 100_000 + "\n", "letters": "abcdefg " * 12_500 + "\n"}
    for name, text in texts.items():
        (folder / name).write_text(text)
    named = {name: folder / name for name in ("file", "empty", *texts)}
    return named | {
        "data": tiny / "data",
        "model": tiny / "model.pt",
        "folder": folder,
        "dotted": folder / "dotted.too",
    }


def refused(arguments: list) -> str:
    """The one sentence that a command leaves; it translates nothing."""
    status, out, log = generate(*arguments)
    said = [line for line in log.splitlines() if line.startswith("error: ")]
    assert status == 1 and "Traceback" not in log and len(said) == 1, log
    assert not any(line.startswith("H-") for line in out.splitlines())
    return said[0]


def filled(arguments: list, files: dict[str, Path]) -> list[str]:
    return [str(a).format(**files) if "{" in str(a) else str(a) for a in arguments]


@drawn(9)
@pytest.mark.parametrize("name", WRONG)
def test_wrong_flags_get_one_sentence(name, files):
    arguments, sentence = WRONG[name]
    said = refused(filled([*RIGHT, *arguments], files))
    assert (
        sentence.replace("{data}", str(files["data"])).replace("{folder}", str(files["folder"]))
        in said
        and len(said) < 500
    )


@drawn(4)
@pytest.mark.parametrize("name", USAGE)
def test_what_argparse_refuses(name, files):
    arguments, sentence = USAGE[name]
    for command in (generate, interactive):
        done = command(*filled([*RIGHT, *arguments], files))
        assert (
            done.status == 2
            and "Traceback" not in done.stderr
            and sentence in done.stderr
            and "H-" not in done.stdout
        )


@pytest.mark.parametrize("command", [generate, interactive])
def test_a_tokenizer_that_is_not_installed_gets_one_sentence(command, files, monkeypatch):
    monkeypatch.setitem(sys.modules, "sacremoses", None)  # as if it were not, where it is
    done = command(*filled([*RIGHT, "-s", "de", "-t", "en", "--tokenizer", "moses"], files))
    said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert said == ["error: --tokenizer moses needs sacremoses: pip install sacremoses"]
    assert done.status == 1 and "Traceback" not in done.stderr and "H-" not in done.stdout


def test_a_segmentation_that_is_not_installed_gets_one_sentence(files, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastBPE", None)  # as if it were not, where it is
    said = refused(filled([*RIGHT, "--bpe", "fastbpe", "--bpe-codes", "{file}"], files))
    assert (
        said
        == "error: --bpe or --tokenizer needs fastBPE, which is not installed: pip install fastBPE"
    )


@drawn(2)
@pytest.mark.parametrize("name", ["empty", "file", "model", "folder"])
def test_what_is_no_sentencepiece_model_gets_one_sentence(name, files):
    said = refused(
        filled([*RIGHT, "--bpe", "sentencepiece", "--sentencepiece-model", f"{{{name}}}"], files)
    )
    assert f"--sentencepiece-model {files[name]} cannot be read (" in said


def test_what_is_no_list_of_gpt2_pieces_gets_one_sentence(files):
    """Where the encoder reads it at once, and not from the network."""
    said = refused(
        filled(
            [
                *RIGHT,
                "--bpe",
                "gpt2",
                "--gpt2-encoder-json",
                "{file}",
                "--gpt2-vocab-bpe",
                "{file}",
            ],
            files,
        )
    )
    assert "what --bpe gpt2 names cannot be read (" in said


def test_the_moses_tokenizer_without_languages_gets_one_sentence(files):
    assert "--tokenizer moses needs the languages: add --source-lang and --target-lang" in refused(
        filled([*RIGHT, "--tokenizer", "moses"], files)
    )


def test_a_limit_of_open_files_under_which_torch_would_wait_for_ever(files):
    """For tensors that its process of batches could not send; the read of so small a data set might
    just pass, and a larger would not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (55, hard))
    try:
        said = refused(filled([*RIGHT, "--num-workers", 1], files))
        alone = generate(*filled([*RIGHT, "--num-workers", 0], files))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (
        "the limit of 55 open files is too low to read batches in 1 process: allow 56 (ulimit "
        "-n), or use --num-workers 0"
    ) in said
    assert alone.status == 0 and "H-0" in alone.stdout, alone.stderr


def test_no_limit_of_tokens_is_none_as_in_fairseq(files):
    """0 and below."""
    for most in (0, -1):
        done = generate(*filled([*RIGHT, "--max-tokens", most], files))
        typed = interactive(
            *filled([*RIGHT, "-s", "de", "-t", "en", "--max-tokens", most], files),
            stdin=b"de1 de2\n",
        )
        assert (
            done.status == typed.status == 0
            and "E-" not in done.stderr + typed.stderr
            and "H-0" in typed.stdout
        )


@drawn(3)
@pytest.mark.parametrize("name", CHECKPOINTS | DAMAGED)
def test_wrong_checkpoints_get_one_sentence(name, files, tmp_path):
    change, sentence = (CHECKPOINTS | DAMAGED)[name]
    state = copy.deepcopy(torch.load(files["model"], weights_only=False))
    change(state)
    torch.save(state, tmp_path / "wrong.pt")
    said = refused(filled(RIGHT, files | {"model": tmp_path / "wrong.pt"}))
    assert sentence.replace("{model}", str(tmp_path / "wrong.pt")) in said and len(said) < 500


def test_a_checkpoint_opens_no_other_file(files, tmp_path):
    """Embeddings that its training began with are among its weights."""
    (tmp_path / "outside").mkdir()  # to open it would be an error
    state = copy.deepcopy(torch.load(files["model"], weights_only=False))
    state["cfg"]["model"].encoder_embed_path = state["cfg"]["model"].decoder_embed_path = str(
        tmp_path / "outside"
    )
    torch.save(state, tmp_path / "model.pt")
    done = generate(*filled(RIGHT, files | {"model": tmp_path / "model.pt"}))
    assert done.status == 0 and "H-0" in done.stdout, done.stderr


def test_a_checkpoint_whose_data_folder_is_a_number_is_decoded(files, tmp_path):
    """The folder is only looked at for a dictionary to compare with."""
    state = copy.deepcopy(torch.load(files["model"], weights_only=False))
    state["cfg"]["model"].data = 3
    torch.save(state, tmp_path / "model.pt")
    done = generate(*filled(RIGHT, files | {"model": tmp_path / "model.pt"}))
    assert done.status == 0 and "H-0" in done.stdout, done.stderr


def test_what_is_no_checkpoint_gets_one_sentence(files, tmp_path):
    torch.save(torch.ones(3), tmp_path / "tensor.pt")
    assert "does not hold a model and its settings" in refused(
        filled(RIGHT, files | {"model": tmp_path / "tensor.pt"})
    )
    cut = files["model"].read_bytes()[:2000]
    for name, content in (
        *(("nul.pt", b"\0" * 4096), ("text.pt", b"x"), ("empty.pt", b""), ("cut.pt", cut)),
    ):
        (tmp_path / name).write_bytes(content)
        said = refused(filled(RIGHT, files | {"model": tmp_path / name}))
        assert (
            f"{tmp_path / name} is not a checkpoint that fairseq can read" in said
            and "weights_only" not in said
        )
    for zipped in (True, False):
        torch.save(
            {"model": bytearray(10)}, tmp_path / "bytes.pt", _use_new_zipfile_serialization=zipped
        )
        content = (tmp_path / "bytes.pt").read_bytes()
        assert b"bytearray" in content
        assert "its pickle calls bytearray" in refused(
            filled(RIGHT, files | {"model": tmp_path / "bytes.pt"})
        )
    assert "is a folder, and a file is needed" in refused(
        filled(RIGHT, files | {"model": tmp_path})
    )
    assert "no model is named: add --path" in refused(filled([RIGHT[0], *RIGHT[3:]], files))


@pytest.mark.parametrize("name", DICTIONARIES)
def test_wrong_dictionaries_get_one_sentence(name, files, tmp_path):
    change, sentence = DICTIONARIES[name]
    shutil.copytree(files["data"], tmp_path / "data")
    path = tmp_path / "data" / "dict.en.txt"
    path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")
    assert sentence in refused(filled(RIGHT, files | {"data": tmp_path / "data"}))


def test_a_dictionary_of_other_bytes_is_named(files, tmp_path):
    shutil.copytree(files["data"], tmp_path / "data")
    (tmp_path / "data" / "dict.en.txt").write_bytes(b"h\xfcgel 3\n")
    said = refused(filled(RIGHT, files | {"data": tmp_path / "data"}))
    assert f"the dictionary {tmp_path / 'data' / 'dict.en.txt'} is not valid UTF-8" in said


def cut_short(data: bytes) -> bytes:
    return data[: len(data) // 2]


def of_other_words(data: bytes) -> bytes:
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
def test_damaged_data_sets_get_one_sentence(files, tmp_path, readers, file, change):
    """The index is read at the start, the words in each batch, also in a process of their own."""
    shutil.copytree(files["data"], tmp_path / "data")
    path = tmp_path / "data" / f"test.de-en.{file}"
    path.write_bytes(change(path.read_bytes()))
    more = ["--score-reference"] if file == "en.bin" else []
    said = refused(
        filled([*RIGHT, *more, "--num-workers", readers], files | {"data": tmp_path / "data"})
    )
    assert said.startswith("error: the data set cannot be read (") and said.endswith(
        "make it again with fairseq-preprocess"
    ), said


@drawn(8)
@pytest.mark.parametrize("name", TYPED)
def test_wrong_flags_of_interactive_get_one_sentence(name, files):
    arguments, sentence = TYPED[name]
    done = interactive(*filled([*RIGHT, "-s", "de", "-t", "en", *arguments], files), stdin=b"de1\n")
    assert (
        done.status == 1
        and "error: " in done.stderr
        and sentence in done.stderr
        and "Traceback" not in done.stderr
    )
    assert "H-" not in done.stdout


def test_lines_have_no_references_to_score(files):
    done = interactive(
        *filled([*RIGHT, "-s", "de", "-t", "en", "--score-reference"], files), stdin=b"de1\n"
    )
    assert (
        done.status == 1
        and "error: --score-reference scores the translations of a data set" in done.stderr
    )


def test_missing_data_gets_one_sentence(files, tmp_path):
    assert "does not exist: correct the path" in refused(
        filled(RIGHT, files | {"data": tmp_path / "none"})
    )
    shutil.copytree(files["data"], tmp_path / "data")
    (tmp_path / "data" / "dict.en.txt").unlink()
    assert "no dictionary at" in refused(filled(RIGHT, files | {"data": tmp_path / "data"}))
    (tmp_path / "data" / "dict.en.txt").mkdir()
    assert "is a folder, and a file is needed" in refused(
        filled(RIGHT, files | {"data": tmp_path / "data"})
    )


@drawn(1)
@pytest.mark.parametrize(
    "more",
    [[*WINDOW, "--draft-file", "{empty}"], ["--avoid-file", "{empty}"], ["--glossary", "{empty}"]],
    ids=str,
)
def test_an_empty_file_changes_nothing(files, more):
    """Every sentence is decoded as without the file."""
    outs = []
    for given in ([], more):
        status, out, log = generate(
            *filled([*RIGHT, *(WINDOW if more[:4] == WINDOW else []), *given], files)
        )
        assert status == 0, log
        outs.append([line for line in out.splitlines() if line.startswith("H-")])
    assert len(outs[0]) == 11 and outs[0] == outs[1]


BARE = [
    ["--select", "dba", "--constraint-end"],
    ["--constraint-case", "any"],
    ["--constraints", "--avoid-case", "exact"],
]


@pytest.mark.parametrize("flags", BARE, ids=str)
def test_flags_of_phrases_without_any_in_interactive(files, flags):
    done = interactive(*filled([*RIGHT, "-s", "de", "-t", "en", *flags], files), stdin=b"de1\n")
    said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert (
        done.status == 1
        and len(said) == 1
        and "phrases, and the command has none: add" in said[0]
        and "H-" not in done.stdout
    )


def test_phrases_may_be_typed_where_the_command_names_a_file(files):
    flags = ["--avoid-file", "{banned}", "--constraint-case", "any"]
    done = interactive(
        *filled([*RIGHT, "-s", "de", "-t", "en", *flags], files), stdin=b"de1\ten5\n"
    )
    assert (
        done.status == 0
        and "en5"
        in next(line for line in done.stdout.splitlines() if line.startswith("H-0")).split()
    )


def test_a_class_to_trust_that_is_none_gets_one_sentence(files, monkeypatch):
    monkeypatch.setenv("FAIRSEQ_EXT_ALLOW_GLOBALS", "nosuch.thing")
    assert "FAIRSEQ_EXT_ALLOW_GLOBALS names nosuch.thing, which cannot be imported (" in refused(
        filled(RIGHT, files)
    )
