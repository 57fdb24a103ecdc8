"""Exit status of a command, the message for it, and functions that run at its end.

| event | status | standard error |
| --- | --- | --- |
| Ctrl-C | 130 | nothing |
| the reader of the output has closed the pipe (`| head -1`) | 141 | nothing |
| the output cannot be written (a full disk), or is closed | 1 | one sentence |
| an error | 1 | one sentence (errors.py), or a traceback for an unknown error |

Functions registered for the end, such as writing statistics, run in every case.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import errno
import logging
import os
import select
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from fairseq_ext.core import command_line
from fairseq_ext.core.errors import report

INTERRUPTED, BROKEN_PIPE = 130, 141  # a shell's status for SIGINT and SIGPIPE
DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
end_status = 0  # highest status of the functions registered for the end of a command
is_exiting = False  # whether an error is ending this process; its status is then decided


def output_error() -> OSError | None:
    """Flush standard output. Return the error if that fails, else None."""
    try:
        if sys.stdout is not None and not sys.stdout.closed:
            sys.stdout.flush()
    except OSError as error:
        return error
    return None


def report_output_error(problem: OSError) -> int:
    """Return the exit status for an error of standard output. Print a sentence, except for a
    closed pipe."""
    if isinstance(problem, BrokenPipeError):
        return BROKEN_PIPE
    said = f"cannot be written ({problem.strerror or problem}): free disk space and run again"
    if problem.errno == errno.EBADF:
        said = "is closed: send it to a file"
    with contextlib.suppress(OSError):
        print(f"error: standard output {said}", file=sys.stderr)
    return 1


def exit_process(status: int, problem: OSError | None = None) -> NoReturn:
    """End the process now. An error of standard output changes the status; problem: one that a
    flush has raised, as the next one may not raise it."""
    problem = problem or output_error()
    if problem is not None and status != INTERRUPTED:
        status = report_output_error(problem)
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    # subtle: a thread that reads batches ahead may have started a process meanwhile, which waits
    # for ever if its first look at its parent comes too late, and holds a pipe of the output open
    for process in getattr(sys.modules.get("multiprocessing"), "active_children", list)():
        if process._parent_pid == os.getpid():  # a forked process lists those of its parent
            process.kill()
    os._exit(status)


def is_output_error(error: BaseException) -> bool:
    """Return whether an error is one of writing to a stream of this process. Such an error names no
    file, while errors of our own files do (files.py)."""
    if not isinstance(error, OSError) or error.filename is not None:
        return False
    if isinstance(error, BrokenPipeError):  # another pipe or a connection may have raised it
        return output_error() is not None or any(map(has_no_reader, (1, 2)))
    return error.errno in (*DISK_FULL_ERRNOS, errno.EBADF) or output_error() is not None


def has_no_reader(fd: int) -> bool:
    """Return whether a file descriptor is a pipe or a socket whose other end is closed."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def report_and_leave(kind: type[BaseException], error: BaseException, trace) -> None:
    """Exception hook of the commands: report the error, then end the process.

    subtle: fairseq reads batches ahead in a thread, and Python may abort (status 134) if it shuts
    down while that thread runs. So after an error only the functions registered for the end run,
    and then the process ends at once.
    """
    global is_exiting
    if hasattr(sys, "ps1"):  # the session at a prompt continues
        report(kind, error, trace)
        return
    is_exiting = True
    status = 1
    if isinstance(error, KeyboardInterrupt):
        with contextlib.suppress(ValueError):  # raised outside the main thread
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C ends it at once
        status = INTERRUPTED
    elif is_output_error(error):
        status = report_output_error(error)  # type: ignore[arg-type]
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the rest would fail as well
    else:
        report(kind, error, trace)
    atexit._run_exitfuncs()
    exit_process(status)


def install_hook() -> None:
    """Use `report_and_leave` for uncaught errors, unless another program has installed a hook."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = report_and_leave


def restore_keyboard_interrupt() -> None:
    """Let Ctrl-C raise KeyboardInterrupt from now on. Until now, while our command was importing
    modules, it ended the process at once (`end_at_interrupt`)."""
    if signal.getsignal(signal.SIGINT) is command_line.interrupted:
        with contextlib.suppress(ValueError):  # raised outside the main thread
            signal.signal(signal.SIGINT, signal.default_int_handler)


def interrupted_at_end(*signal_and_frame: object) -> None:
    """Handle Ctrl-C while a command ends: it ends all the same, with this status. A second one ends
    the process at once."""
    global end_status
    end_status = INTERRUPTED
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def watch_output() -> None:
    """Let write errors of a command's output end it with the status above, also in log lines, in a
    help and at the very end.

    subtle: if standard error is closed, Python would print its messages to standard output.
    """
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")
    if sys.stdout is None:  # writing fails
        sys.stdout = open(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8")
    stock = logging.Handler.handleError

    def raise_errors_of_output(handler: logging.Handler, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, OSError) and getattr(handler, "stream", None) in (
            sys.stdout,
            sys.stderr,
        ):
            raise error
        stock(handler, record)

    def print_message(parser: argparse.ArgumentParser, message: str, file: Any = None) -> None:
        """Print a help or an error of the command line; argparse ignores what writing raises."""
        file = file or sys.stderr
        with contextlib.suppress(*([OSError] if file is sys.stderr else [])):
            file.write(message)

    logging.Handler.handleError = raise_errors_of_output  # type: ignore[assignment,method-assign]
    argparse.ArgumentParser._print_message = print_message  # type: ignore[assignment,method-assign]
    atexit.register(check_output)


def check_output() -> None:
    """Set the status at the end of the process, after all other functions registered for it."""
    problem = None if is_exiting else output_error()
    if not is_exiting and (end_status or problem is not None):
        exit_process(end_status, problem)


# ---- Functions that run when the process ends
#
# One hook serves all commands (and Translators) of the process.
#
# fairseq's commands do not notify their task when they end and no longer hold it. So the functions
# that a command needs at its end are registered here.


class ProcessEnd:
    """Functions that return a status, called when the process ends, the last one first.

    A forked process calls only the functions that it has added itself.
    """

    def __init__(self) -> None:
        self.process = 0
        self.functions: list[Callable[[], int]] = []

    def add(self, function: Callable[[], int]) -> None:
        """Register a function for the end of the process."""
        if self.process != os.getpid():
            self.process, self.functions = os.getpid(), []
            atexit.register(self.run)
        self.functions.append(function)

    def run(self) -> None:
        """Call the functions. A command then exits with the highest status; an error that ends the
        process keeps its own status. A function that raises is reported and counts as status 1."""
        if self.process != os.getpid():
            return
        global end_status
        status = 0
        if (
            command_line.own_command
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ):
            signal.signal(signal.SIGINT, interrupted_at_end)
        while self.functions:
            try:
                status = max(status, self.functions.pop()())
            except Exception as error:
                report(type(error), error, error.__traceback__)
                status = max(status, 1)
        if command_line.own_command:
            end_status = max(end_status, status)


at_process_end = ProcessEnd().add
