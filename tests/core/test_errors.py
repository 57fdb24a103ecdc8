"""Known mistakes become one sentence on standard error, and everything else keeps its traceback;
what runs when a process ends: all of it, once, in the process that requested it, with the highest
status."""

import atexit
import errno
import os
import re
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


KNOWN = [
    (UsageError("--a and --b exclude each other"), "--a and --b exclude each other"),
    (
        RuntimeError(SIZES),
        "the checkpoint does not fit the dictionaries in the data directory "
        "(encoder.embed_tokens.weight: ",
    ),
    (
        UnicodeEncodeError("latin-1", "漢", 0, 1, "no"),
        "the output is written in latin-1, which has",
    ),
    (UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates"), "the input is not valid UTF-8 ("),
    (
        Exception("Size of sample #0 is invalid (=51) since max_positions=(40, 40), skip --x"),
        "Size of sample #0 is invalid",
    ),
    (OSError("m.pt is not a checkpoint that torch can read: cut"), "m.pt is not a checkpoint"),
    (MemoryError("encode of the compiled library needs more memory"), "memory has run out: "),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "memory has run out: "),
    (ValueError("something else"), None),
    # it may be a model's fault; bad_sentences.py looks at the data
    (IndexError("index out of range in self"), None),
    (OSError("disk full"), None),
]


@pytest.mark.parametrize("error, sentence", KNOWN, ids=lambda value: type(value).__name__)
def test_known_mistakes_have_a_sentence(error, sentence):
    """Others as the commands say them (attack/commands.tsv)."""
    said = explain(error)
    assert said is None if sentence is None else said.startswith(sentence) and "\n" not in said


LONG = "/".join(["a-folder-with-a-long-name"] * 8)  # 207 characters


@pytest.mark.parametrize(
    "path", [f"/{LONG}/m.pt", f"/{LONG}/my model.pt", f"{LONG}/m.pt", f"../{LONG}/my model.pt"]
)
def test_a_path_is_quoted_whole_however_long_it_is(path):
    missing = FileNotFoundError(errno.ENOENT, "No such file", path)
    for error in (
        missing,
        OSError(f"file {path} not found"),
        UsageError(f"'{path}' belongs to no flag"),
        UsageError(f"--table cannot be read ({missing})"),
    ):
        assert path in explain(error)


@pytest.mark.parametrize("quoted", ["x" * 81, "word " * 40, "either / or " * 10, "x/" * 2100])
def test_any_other_quotation_is_cut_at_80_characters(quoted):
    said = str(UsageError(f"the phrase '{quoted}' cannot be used"))
    assert len(said) == len("the phrase '' cannot be used") + 80 and "...' cannot be used" in said


def raised(error: BaseException, cause: BaseException | None = None) -> tuple:
    try:
        raise error from cause
    except BaseException:
        return sys.exc_info()


@pytest.mark.parametrize(
    ("error", "cause", "said"),
    [
        (UsageError("leave --a out"), None, "error: leave --a out\n"),
        (Exception("Cannot load"), RuntimeError(SIZES), "error: the checkpoint does not fit.*\n"),
        (ZeroDivisionError("what is this"), None, "(?s)Traceback(?!.*error: ).*"),
    ],
)
def test_report_is_one_line_or_a_traceback(error, cause, said, capsys):
    """It looks at what caused the error too."""
    report(*raised(error, cause))
    assert re.fullmatch(said, capsys.readouterr().err)


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


def test_what_a_process_has_registered_runs_the_last_first_and_the_highest_status_is_reported():
    def run() -> None:
        atexit.register(print, "first")
        for status in (0, 3, 1):
            at_process_end(saying(status))
        atexit.register(print, "last")

    done = forked(run, "command")
    assert done.stdout.split() == ["last", "1", "3", "0", "first"] and done.status == 3


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
