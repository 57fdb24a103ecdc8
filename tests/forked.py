"""fairseq's commands in forked children of this process, which has everything imported: a start
costs milliseconds, not seconds."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import logging
import multiprocessing.util
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import NamedTuple

import fairseq.quantization_utils  # noqa: F401  these three, or each child imports them
import numpy.random  # noqa: F401
import pytest
import sentencepiece  # noqa: F401
import torch
from fairseq_cli.generate import cli_main
from fairseq_cli.interactive import cli_main as interactive_main

from fairseq_ext.core import exit
from fairseq_ext.plugin.compat import configuration, startup

configuration.defaults()  # or each child composes them
COMMANDS = {"fairseq-generate": cli_main, "fairseq-interactive": interactive_main}
NO_READER = ("--num-workers", 0)  # a process that reads batches is a fork of its own
LONGEST = 120  # seconds of a command, after which it prints where it is, and is stopped


class Done(NamedTuple):
    """How a command ended (the exit status, or minus the signal), and what it said."""

    status: int
    stdout: str
    stderr: str

    def error(self, status=1):
        """The one sentence of a command that failed: no traceback, and no translation."""
        said = [line for line in self.stderr.splitlines() if line.startswith("error: ")]
        assert self.status == status and len(said) == 1, self.stderr
        assert "Traceback" not in self.stderr and "H-" not in self.stdout, self.stderr
        return said[0]

    def texts(self):
        """number -> text of each H- line, in their order."""
        found = (line.split("\t") for line in self.stdout.splitlines() if line.startswith("H-"))
        return {int(name[2:]): text for name, _, text in found}

    def reported(self):
        """number -> reason of each E- line."""
        lines = [line.split("\t", 1) for line in self.stderr.splitlines() if line.startswith("E-")]
        assert len({name for name, _ in lines}) == len(lines) and "Traceback" not in self.stderr
        return {int(name[2:]): reason for name, reason in lines}


class Child:
    """A command's main function under way in a forked process, from its arguments to its end,
    exit handlers included.

    stdin: what it reads, or a file descriptor; stdout: a file descriptor, else a file
    of which `wait` says.
    """

    def __init__(self, run, argv, stdin=b"", stdout=None):
        if torch.cuda.is_initialized():
            pytest.skip("a command cannot be forked from a process that has begun to use a GPU")
        self.folder = tempfile.TemporaryDirectory()
        self.stdout, self.stderr = (Path(self.folder.name) / name for name in ("stdout", "stderr"))
        given = Path(self.folder.name) / "stdin"
        if isinstance(stdin, bytes):
            given.write_bytes(stdin)

        def live():
            gc.freeze()  # the collector of a child would copy every page of the parent's objects
            os.dup2(os.open(given, os.O_RDONLY) if isinstance(stdin, bytes) else stdin, 0)
            os.dup2(os.open(self.stdout, os.O_WRONLY | os.O_CREAT) if stdout is None else stdout, 1)
            os.dup2(os.open(self.stderr, os.O_WRONLY | os.O_CREAT), 2)
            self.live(run, argv)

        self.pid = in_fork(live)

    def live(self, run, argv):
        """The life of the child."""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # a command that ran in the parent may have left another
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        sys.stdin, sys.stdout, sys.stderr = (
            open(fd, mode, encoding="utf-8", errors=errors, closefd=False)
            for fd, (mode, errors) in enumerate(
                (("r", "strict"), ("w", "strict"), ("w", "backslashreplace"))
            )
        )
        sys.argv = sys.orig_argv = argv
        # handlers of the parent write where pytest looks
        logging.basicConfig(stream=sys.stderr, level="INFO", force=True)
        logging.disable(logging.NOTSET)
        for name in ("fairseq", "fairseq_ext"):  # tests before may have silenced the parent's
            logging.getLogger(name).setLevel(logging.NOTSET)
        atexit._clear()  # those of the parent
        startup.own_this_process()
        # ends the processes that read batches, as in every Python, before what a command's start
        # has registered: torch imports it later
        atexit.register(multiprocessing.util._exit_function)
        exit.restore_keyboard_interrupt()
        status = 1
        try:
            status = int(run() or 0)  # type: ignore[call-overload]
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else 1
        except BaseException as error:
            exit.report_and_leave(type(error), error, error.__traceback__)
        atexit._run_exitfuncs()
        exit.exit_process(status)

    def is_alive(self):
        """Say whether it is still under way."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def said(self, text):
        """Wait until standard error has this text, or the child is over; whether it has it."""
        while (
            text not in self.stderr.read_text(encoding="utf-8", errors="replace")
            if self.stderr.exists()
            else True
        ):
            if not self.is_alive():
                return False
            time.sleep(0.01)
        return True

    def wait(self):
        """Its end."""
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        texts = (
            path.read_text(encoding="utf-8") if path.exists() else ""
            for path in (self.stdout, self.stderr)
        )
        done = Done(status, *texts)
        self.folder.cleanup()
        return done


def in_fork(work):
    """Do this, and nothing else, in a forked process, for at most LONGEST seconds; its number.

    Its status is 0 where nothing was raised: without this a fork would go on with the tests.
    """
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            faulthandler.register(signal.SIGALRM, file=2, chain=True)  # says where it stands still
            signal.alarm(LONGEST)
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return pid


@contextlib.contextmanager
def inside(folder):
    """Make `folder` the working directory for as long as the context lasts."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def forked(run, *argv, stdin=None):
    """Run a command's main function with these arguments."""
    return Child(
        run, list(map(str, argv)), stdin.encode() if isinstance(stdin, str) else stdin or b""
    ).wait()


def interactive(*arguments, stdin=b""):
    """fairseq-interactive with our tasks known."""
    return forked(interactive_main, "fairseq-interactive", *arguments, stdin=stdin)


def generate(*arguments):
    """fairseq-generate with our tasks known, as with --user-dir fairseq_ext."""
    return forked(cli_main, "fairseq-generate", *NO_READER, *arguments)


def generate_forked(*arguments):
    """The same, of a command that must succeed."""
    return succeeded(generate(*arguments))


def interactive_forked(text, *arguments):
    """fairseq-interactive on these lines, which must succeed."""
    return succeeded(forked(interactive_main, "fairseq-interactive", *arguments, stdin=text))


def succeeded(done):
    """The same; AssertionError for a command that failed."""
    assert done.status == 0, done.stdout + done.stderr
    return done


def command(name, *arguments, stdin=b"", check=True):
    """What conftest.command gives, without a start of Python: for commands of our tasks, since here
    their package is imported first."""
    more = NO_READER if name == "fairseq-generate" else ()
    done = forked(COMMANDS[name], name, *more, *arguments, stdin=stdin)
    assert not check or done.status == 0, done.stdout + done.stderr
    return subprocess.CompletedProcess(
        [name, *map(str, arguments)], done.status, done.stdout, done.stderr
    )
