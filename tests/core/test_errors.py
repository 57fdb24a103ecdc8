"""Known mistakes become one sentence on standard error; everything else keeps its traceback."""

import errno
import sys

import pytest

from fairseq_ext.core.errors import UsageError, explain, report
from fairseq_ext.core.exit import install_hook, report_and_leave

SIZES = (
    "Error(s) in loading state_dict for TransformerModel:\n"
    "\tsize mismatch for encoder.embed_tokens.weight: copying a param with shape torch.Size([40, "
    "16]) from checkpoint, the shape in current model is torch.Size([48, 16])."
)


@pytest.mark.parametrize(
    "error, sentence",
    [
        (UsageError("--a and --b exclude each other"), "--a and --b exclude each other"),
        (OSError("Model file not found: x.pt"), "Model file not found: x.pt: --path names"),
        (
            FileNotFoundError(errno.ENOENT, "No such file", "d/dict.en.txt"),
            "no dictionary at d/dict.en.txt: ",
        ),
        (FileNotFoundError("Dataset not found: test (d)"), "test (d): binarise that subset"),
        (
            RuntimeError(SIZES),
            (
                "the checkpoint does not fit the dictionaries in the data directory "
                "(encoder.embed_tokens.weight: "
            ),
        ),
        (
            UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
            "the input is not valid UTF-8 (",
        ),
        (
            UnicodeEncodeError("latin-1", "漢", 0, 1, "no"),
            "the output is written in latin-1, which has no '漢': set ",
        ),
        (
            UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates"),
            "the input is not valid UTF-8 (",
        ),
        (
            Exception(
                "Size of sample #0 is invalid (=51) since max_positions=(40, 40), skip it with --x"
            ),
            "Size of sample #0 is invalid",
        ),
        (OSError("m.pt is not a checkpoint that torch can read: cut"), "m.pt is not a checkpoint"),
        (MemoryError("encode of the compiled library needs more memory"), "memory has run out: "),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "memory has run out: "),
        (ValueError("something else"), None),
        # it may be a model's fault; bad_sentences.py looks at the data
        (IndexError("index out of range in self"), None),
        (OSError("disk full"), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_known_mistakes_have_a_sentence(error, sentence):
    said = explain(error)
    assert said is None if sentence is None else said.startswith(sentence) and "\n" not in said


LONG = "/".join(["a-folder-with-a-long-name"] * 8)  # 207 characters


@pytest.mark.parametrize(
    "path", [f"/{LONG}/m.pt", f"/{LONG}/my model.pt", f"{LONG}/m.pt", f"../{LONG}/my model.pt"]
)
@pytest.mark.parametrize(
    "error",
    [
        lambda path: FileNotFoundError(errno.ENOENT, "No such file", path),
        lambda path: IsADirectoryError(errno.EISDIR, "Is a directory", path),
        lambda path: OSError(f"file {path} not found"),
        lambda path: OSError(f"Model file not found: {path}"),
        lambda path: UsageError(f"'{path}' belongs to no flag"),
        lambda path: UsageError(
            f"--table cannot be read ({FileNotFoundError(errno.ENOENT, 'No such file', path)})"
        ),
    ],
)
def test_a_path_is_quoted_whole_however_long_it_is(error, path):
    said = explain(error(path))
    assert said is not None and path in said


@pytest.mark.parametrize("quoted", ["x" * 81, "word " * 40, "either / or " * 10, "x/" * 2100])
def test_any_other_quotation_is_cut_at_80_characters(quoted):
    said = str(UsageError(f"the phrase '{quoted}' cannot be used"))
    assert len(said) == len("the phrase '' cannot be used") + 80 and "...' cannot be used" in said


def raised(error: BaseException, cause: BaseException | None = None) -> tuple:
    try:
        raise error from cause
    except BaseException:
        return sys.exc_info()


def test_report_is_one_line_without_a_traceback(capsys):
    report(*raised(UsageError("leave --a out")))
    assert capsys.readouterr().err == "error: leave --a out\n"


def test_report_looks_at_what_caused_the_error(capsys):
    report(*raised(Exception("Cannot load"), cause=RuntimeError(SIZES)))
    assert capsys.readouterr().err.startswith("error: the checkpoint does not fit")


def test_an_unknown_error_keeps_its_traceback(capsys):
    report(*raised(ZeroDivisionError("what is this")))
    said = capsys.readouterr().err
    assert said.startswith("Traceback") and "error: " not in said


def test_the_traceback_can_be_requested(capsys, monkeypatch):
    monkeypatch.setenv("FAIRSEQ_EXT_TRACEBACK", "1")
    report(*raised(UsageError("leave --a out")))
    said = capsys.readouterr().err
    assert said.startswith("Traceback") and said.endswith("error: leave --a out\n")


def test_another_programs_hook_stays(monkeypatch):
    theirs = lambda *a: None  # noqa: E731
    monkeypatch.setattr(sys, "excepthook", theirs)
    install_hook()
    assert sys.excepthook is theirs
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    install_hook()
    assert sys.excepthook is report_and_leave
