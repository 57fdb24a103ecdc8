"""fairseq's commands in forked children of this process, which has everything imported: a start costs milliseconds, not seconds."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fairseq_cli.generate import cli_main
from fairseq_cli.interactive import cli_main as interactive_main

from fairseq_ext.errors import report

LONGEST = 120  # seconds of a command, after which it is stopped


class Done(NamedTuple):
    """How a command ended (the exit status, or minus the signal), and what it said."""

    status: int
    stdout: str
    stderr: str


def child(run: Callable[[], object], argv: list[str], folder: Path) -> None:
    """Run a command's main function to its end, exit handlers included. Its input is the file stdin, if there is one."""
    signal.alarm(LONGEST)
    if (folder / "stdin").exists():
        os.dup2(os.open(folder / "stdin", os.O_RDONLY), 0)
        sys.stdin = os.fdopen(0, encoding="utf-8")
    for name, number in (("stdout", 1), ("stderr", 2)):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", encoding="utf-8") for number in (1, 2))
    sys.argv = sys.orig_argv = argv
    logging.basicConfig(stream=sys.stderr, level="INFO", force=True)  # handlers of the parent write where pytest looks
    atexit._clear()  # those of the parent
    status = 1
    try:
        status = int(run() or 0)  # type: ignore[call-overload]
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException as error:
        report(type(error), error, error.__traceback__)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def forked(run: Callable[[], object], *argv: object, stdin: str | None = None) -> Done:
    """Run a command's main function with these arguments."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if stdin is not None:
            (folder / "stdin").write_text(stdin, encoding="utf-8")
        pid = os.fork()
        if pid == 0:
            child(run, list(map(str, argv)), folder)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return Done(status, *((folder / stream).read_text(encoding="utf-8") for stream in ("stdout", "stderr")))


def generate(*arguments: object) -> Done:
    """fairseq-generate with our tasks known, as with --user-dir fairseq_ext."""
    return forked(cli_main, "fairseq-generate", *arguments)


def generate_forked(*arguments: object) -> Done:
    """The same, of a command that must succeed."""
    return succeeded(generate(*arguments))


def interactive_forked(text: str, *arguments: object) -> Done:
    """fairseq-interactive on these lines, which must succeed."""
    return succeeded(forked(interactive_main, "fairseq-interactive", *arguments, stdin=text))


def succeeded(done: Done) -> Done:
    """The same; AssertionError for a command that failed."""
    assert done.status == 0, done.stdout + done.stderr
    return done
