"""Known mistakes become one sentence on standard error, and everything else keeps its traceback;
what runs when a process ends: all of it, once, in the process that requested it, with the highest
status."""

import atexit
import errno
import os
import sys

import pytest
from forked import Child, forked

from fairseq_ext.core.errors import UsageError, explain, report
from fairseq_ext.core.exit import ProcessEnd, at_process_end, install_hook, report_and_leave

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


def saying(status: int):
    def function() -> int:
        print(status)
        return status

    return function


def test_every_function_is_called_the_last_one_first_and_the_highest_status_is_reported():
    def run() -> None:
        for status in (0, 3, 1):
            at_process_end(saying(status))

    done = forked(run, "command")
    assert done.stdout.split() == ["1", "3", "0"] and done.status == 3


def test_what_the_program_has_registered_runs_too():
    def run() -> None:
        atexit.register(print, "first")
        at_process_end(saying(3))
        atexit.register(print, "last")

    done = forked(run, "command")
    assert done.stdout.split() == ["last", "3", "first"] and done.status == 3


def test_the_broken_pipe_of_another_is_not_that_of_the_output():
    """A connection to a server, say: it is an error, and no quiet end."""

    def run() -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    done = forked(run, "command")
    assert done.status == 1 and "Broken pipe" in done.stderr
    read, write = os.pipe()
    os.close(read)
    child = Child(run, ["command"], stdout=write)
    os.close(write)
    assert os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1]) == 141
    child.folder.cleanup()


def test_one_that_raises_keeps_no_other_from_its_end():
    def broken() -> int:
        raise UsageError("there is no room: make some")

    def run() -> None:
        for function in (saying(0), broken, saying(0)):
            at_process_end(function)

    done = forked(run, "command")
    assert done.stdout.split() == ["0", "0"] and done.status == 1
    assert done.stderr == "error: there is no room: make some\n"


def test_a_fork_leaves_to_its_parent_what_is_its_parents():
    end = ProcessEnd()
    end.add(saying(3))
    done = forked(end.run, "command")
    assert done.stdout == "" and done.status == 0
    end.functions.clear()
