"""Wrong commands, each with the one sentence that it gets: no traceback, status 1,
and nothing translated.

A row is a name, arguments of fairseq-generate behind those of a command that works, and a part of
the sentence. The last of a flag's values counts. {names} are files of `files`. Rows of flags that
have nothing to work on: flag_rows.py.
"""

import copy
import resource
import shutil
import sys
from pathlib import Path

import pytest
import torch
from flag_rows import FLAGS
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
WRONG = {
    # numbers
    "lenpen nan": (["--lenpen", "nan"], "--lenpen (length penalty) must be "),
    "lenpen above": (
        ["--lenpen", 50],
        "--lenpen (length penalty) must be -10 to 10, not 50.0",
    ),
    "unkpen nan": (["--unkpen", "nan"], "--unkpen (penalty) must be "),
    "temperature 0": (["--temperature", 0], "--temperature (temperature) must be "),
    "max-len-a nan": (
        ["--max-len-a", "nan"],
        "--max-len-a (ratio of target to source tokens) must be 0 to 1000, not nan",
    ),
    "max-len-a inf": (
        ["--max-len-a", "inf"],
        "--max-len-a (ratio of target to source tokens) must be 0 to 1000, not inf",
    ),
    "prefix below 0": (["--prefix-size", -1], "--prefix-size (number of target tokens) must be "),
    "beam 0": (["--beam", 0], "--beam (number of hypotheses) must be "),
    "beam too large": (
        ["--beam", 100000],
        "--beam (number of hypotheses) must be 1 to 10000, not 100000",
    ),
    "nbest 0": (["--nbest", 0], "--nbest (number of hypotheses) must be "),
    "workers": (["--cpu-workers", 3000], "--cpu-workers (number of processes) must be "),
    "no workers": (["--cpu-workers", 0], "--cpu-workers (number of processes) must be "),
    "lsh hits": (
        ["--softmax", "lsh", "--lsh-hits", -1],
        "--lsh-hits (number of equal bands) must be ",
    ),
    "lsh bands": (["--softmax", "lsh", "--lsh-bands", 0], "--lsh-bands"),
    "shortlist": (
        ["--softmax", "top", "--shortlist-top", -1],
        "--shortlist-top (number of words) must be ",
    ),
    "stream of none": (
        ["--schedule", "stream", "--stream-width", 0],
        "--stream-width (number of sentences) must be ",
    ),
    "refill": (
        ["--schedule", "stream", "--refill-threshold", 1],
        "--refill-threshold 1.0 is not a share below 1",
    ),
    "stream rows": (
        ["--schedule", "stream", "--stream-rows", 2],
        "--stream-rows 2 is below the beam of 4",
    ),
    "delta nan": (["--prune-threshold", "nan"], "--prune-threshold"),
    "delta below 0": (
        ["--prune-threshold", -1],
        "--prune-threshold must be 0 or more, such as 1.5, not -1.0",
    ),
    "children": (["--prune-children", 0], "--prune-children 0 would leave no hypothesis"),
    "finished": (
        ["--prune-finished", -1],
        "--prune-finished must be 0 or more, such as 20, not -1.0",
    ),
    "reward nan": (["--length-reward", "nan", "--unnormalized"], "--length-reward"),
    "reward normalised": (
        ["--length-reward", 1],
        "--length-reward adds to unnormalised scores: add --unnormalized",
    ),
    "reward beyond numbers": (
        ["--length-reward", "1e300", "--unnormalized"],
        "--length-reward (nats) must be 0 to 1000, not 1e+300",
    ),
    "ratio": (
        ["--length-reward", 1, "--unnormalized", "--length-ratio", 0],
        "--length-ratio 0.0 is not a length ratio",
    ),
    "offset": (
        ["--length-reward", 1, "--unnormalized", "--length-offset", "inf"],
        "--length-offset (number of subwords) must be -",
    ),
    "seed": (["--softmax", "lsh", "--lsh-seed", 10**30], "(seed of 64 bits) must be "),
    "blocks": ([*WINDOW, "--block-size", -1], "--block-size (number of tokens) must be "),
    "cost": ([*WINDOW, "--draft-cost", "nan"], "--draft-cost"),
    # numbers of fairseq's own
    "seed below 0": (["--seed", -1], "--seed must be 0 to 4294967295"),
    "processes that read": (
        ["--num-workers", -1],
        "--num-workers (number of processes) must be 0 to ",
    ),
    "a huge batch": (["--batch-size", "9" * 300], ", not " + "9" * 77 + "..."),
    "no multiple": (
        ["--required-batch-size-multiple", 0],
        "--required-batch-size-multiple (number of sentences) must be ",
    ),
    "no multiple of tokens": (
        ["--required-seq-len-multiple", 0],
        "--required-seq-len-multiple (number of tokens) must be ",
    ),
    "no interval": (["--log-interval", 0], "--log-interval (number of batches) must be "),
    "a word for a number": (
        ["--max-tokens-valid", "x"],
        "a flag, or a setting of the checkpoint, must be a number or a list",
    ),
    "no shards": (
        ["--checkpoint-shard-count", 0],
        "--checkpoint-shard-count (number of files) must be 1 to ",
    ),
    "a user directory that is a file": (
        ["--user-dir", "{file}"],
        "cannot be imported: it must be a folder, without a dot in its name",
    ),
    "a user directory with a dot": (
        ["--user-dir", "{dotted}"],
        "cannot be imported: it must be a folder, without a dot in its name",
    ),
    "no end": (["--avoid-file", "/dev/zero"], "--avoid-file: /dev/zero has no end within 256 MiB"),
    "a name of two lines": (
        ["--avoid-file", "a\nb"],
        "--avoid-file: cannot read a\\nb (No such file or directory)",
    ),
    "a language model without a name": (
        ["--lm-path", "???"],
        "--lm-path is needed here and missing",
    ),
    "no world": (
        ["--distributed-world-size", 0],
        "--distributed-world-size (number of processes) must be ",
    ),
    "half an override": (
        ["--model-overrides", "[1"],
        "--model-overrides must be a dictionary of values, not [1",
    ),
    "code as override": (
        ["--model-overrides", "__import__('os')"],
        "must be a dictionary of values, not __import__('os')",
    ),
    "a list of overrides": (
        ["--model-overrides", "[]"],
        "--model-overrides must be a dictionary of values, not []",
    ),
    "a way to join": (
        ["--remove-bpe", "nope"],
        "--post-process (--remove-bpe) nope is unknown to fairseq",
    ),
    # what cannot work together
    "steps": (
        ["--print-step"],
        (
            "--print-step shows the steps of iterative refinement, which no search here "
            "has: leave it out"
        ),
    ),
    "history": (
        ["--retain-iter-history"],
        "--retain-iter-history shows the steps of iterative refinement",
    ),
    "sampling": (
        ["--sampling", "--nbest", 4, "--stop", "first"],
        "--stop first belongs to beam search, and --sampling has no beam",
    ),
    "a search beside another": (
        ["--sampling", "--nbest", 4, "--diverse-beam-groups", 2],
        "--match-source-len each choose continuations",
    ),
    "a mass of words": (
        ["--sampling", "--nbest", 4, "--sampling-topp", "nan"],
        "--sampling-topp (probability, -1: all words) must",
    ),
    "a number of words": (
        ["--sampling", "--nbest", 4, "--sampling-topk", 10**30],
        "--sampling-topk (number of words, -1: all) must",
    ),
    "a strength": (
        ["--diverse-beam-groups", 2, "--diverse-beam-strength", "nan"],
        "--diverse-beam-strength (penalty) must be a finite",
    ),
    "window of a beam": (
        ["--decoding", "window"],
        "--decoding window gives greedy decoding's output",
    ),
    "window with a stop": (
        [*WINDOW, "--stop", "first"],
        "--stop first belongs to beam search, and --decoding window has no beam",
    ),
    "window with a softmax": (
        [*WINDOW, "--softmax", "top"],
        "--softmax top works on the rows of a beam search",
    ),
    "ranked banks": (
        ["--stop", "ranked", "--select", "cbs"],
        "--stop ranked compares all hypotheses of a sentence",
    ),
    "proof": (
        ["--stop", "optimal", "--unkpen", -1],
        "can make a token's score positive, so --stop optimal proves nothing",
    ),
    "flag of another": (
        ["--lsh-k", 8],
        "--lsh-k belongs to --softmax lsh, which is not switched on",
    ),
    "backend of another loop": (
        ["--match-source-len", "--decoder-backend", "transformer"],
        (
            "--match-source-len replaces beam search, so --decoder-backend transformer "
            "cannot work with it"
        ),
    ),
    "resume nothing": (["--resume"], "--resume continues a results file and none is named"),
    "diverse": (
        ["--diverse-beam-groups", 2, "--beam", 3],
        "--diverse-beam-groups shares the beam out evenly",
    ),
    "cost of a block": (
        ["--beam", 1, "--decoding", "jacobi", "--draft-cost", 1],
        "--draft-cost belongs to --decoding window, not to",
    ),
    # files
    "no results name": (["--results-file", ""], "--results-file is given without a name"),
    "no statistics name": (["--stats-file", ""], "--stats-file is given without a name"),
    "statistics in a folder": (["--stats-file", "{data}"], "cannot be written (Is a directory)"),
    "no constraints file": (
        ["--constraints-file", "x" * 300],
        "--constraints-file: cannot read xxx",
    ),
    "no lexical table": (["--softmax", "lexical"], "--softmax lexical needs a table"),
    "a banned phrase of 100,000 words": (
        ["--avoid-file", "{long}"],
        "has a banned phrase of 100000 tokens and 512 are allowed",
    ),
    "a constraint of 100,000 letters": (
        ["--avoid-file", "{letters}"],
        "the phrase 'abcdefg abcdefg",
    ),
    "graphs in a file": (
        ["--beam", 1, "--decoding", "jacobi", "--ddg-dir", "{file}/x"],
        "cannot be written to",
    ),
    "no counts": (
        ["--softmax", "top", "--shortlist-counts", "{empty}"],
        "counts no word of the target dictionary: write lines",
    ),
    "no columns": (
        ["--softmax", "top", "--shortlist-counts", "{file}"],
        "line 1 has 1 column and needs 2: correct 'x'",
    ),
    "no subset": (["--gen-subset", "nope"], "nope"),
    "no language model": (["--lm-path", "{folder}/none.pt"], "Model file not found"),
    "no segmentation model": (
        ["--bpe", "sentencepiece"],
        "--sentencepiece-model is needed here and missing: add it",
    ),
    "segmentation model": (
        ["--bpe", "sentencepiece", "--sentencepiece-model", "{folder}/none"],
        "the path of the segmentation model",
    ),
    "a long name of results": (
        ["--results-file", "x" * 5000],
        "--results-file " + "x" * 77 + "... cannot be written (File name too long)",
    ),
    "a long name of a subset": (
        ["--gen-subset", "x" * 5000],
        "x" * 77 + "... ({data}): binarise that subset",
    ),
    "a long name of a model": (["--path", "x" * 5000], "Model file not found: " + "x" * 77 + "..."),
    "a segmentation of no settings": (
        ["--bpe", "characters"],
        "--bpe characters is one that fairseq 0.12 cannot set up: use another",
    ),
    "no user's code": (
        ["--user-dir", "{folder}/none"],
        "--user-dir {folder}/none does not exist: correct the path",
    ),
    "a backslash": (
        ["--retain-dropout-modules", "\\"],
        "a flag's value is read as more than text (LexerNoViableAltException: ",
    ),
    "a place-holder": (
        ["--quantization-config-path", "${{x}}"],
        "a flag's value is read as more than text (Interpolation key 'x'",
    ),
    "another form": (
        ["--dataset-impl", "cached"],
        "the data set cannot be read (Index file doesn't match expected format. ",
    ),
    "unknown task": (["--task", "translation_exta_ext"], "is unknown to fairseq_ext: use "),
}
# refused by argparse, with status 2
USAGE = {
    "the default typed": (
        ["--patience", -1],
        "--patience: (number of beams of hypotheses) must be 1 to 1000000, not -1, or be left out",
    ),
    "no patience": (
        ["--patience", 0],
        "argument --patience: (number of beams of hypotheses) must be 1 to 1000000, not 0",
    ),
    "a patience of 300 digits": (
        ["--patience", "9" * 300],
        "must be 1 to 1000000, not " + "9" * 77 + "...",
    ),
    "half a patience": (["--patience", "1.5"], "argument --patience: invalid"),
    "an endless beam": (["--beam", "inf"], "argument --beam: invalid int value: 'inf'"),
    "another stop": (["--stop", "never"], "argument --stop: invalid choice: 'never'"),
    "a stop of one's own": (["--stop", "mine"], "FAIRSEQ_EXT_STRATEGIES must name its file"),
    "a softmax of one's own": (["--softmax", "mine"], "FAIRSEQ_EXT_STRATEGIES must name its file"),
}


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
@pytest.mark.parametrize("name", WRONG | FLAGS)
def test_wrong_flags_get_one_sentence(name, files):
    arguments, sentence = (WRONG | FLAGS)[name]
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


TYPED = {
    "unknown words of no file": (
        ["--replace-unk"],
        "--replace-unk needs the file of an alignment dictionary: name one",
    ),
    "half an alignment dictionary": (
        ["--replace-unk", "{file}"],
        "line 1 has 1 column and needs 2: correct 'x'",
    ),
    "several processes": (
        ["--distributed-world-size", 2],
        "--distributed-world-size: the world size is 2 but have 0 available devices",
    ),
    "half a pipeline": (
        ["--pipeline-model-parallel", "--distributed-num-procs", 7],
        "--pipeline-balance is currently required for",
    ),
}


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
