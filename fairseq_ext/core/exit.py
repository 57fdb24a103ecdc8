"""How a command ends: its status, what is said of it, and what runs at its end.

| what happened | status | standard error |
| --- | --- | --- |
| Ctrl-C | 130 | nothing |
| nobody reads the output any more (`| head -1`) | 141 | nothing |
| the output takes no more (a full disk) | 1 | one sentence |
| an error | 1 | one sentence, or a traceback where it is no known mistake (errors.py) |

What was registered for the end, such as writing statistics, runs in every case.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import logging
import os
import select
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from fairseq_ext.core import command_line
from fairseq_ext.core.errors import report

INTERRUPTED, CLOSED = 130, 141  # as a shell tells of SIGINT and SIGPIPE
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
end_status = 0  # of a command, from what was registered for its end
under_way = False  # whether an error ends this process, whose status is then settled


def output_problem() -> OSError | None:
    """The error of standard output, which has not taken all that was written to it;
    None where it has."""
    try:
        if sys.stdout is not None and not sys.stdout.closed:
            sys.stdout.flush()
    except OSError as error:
        return error
    return None


def tell_output_problem(problem: OSError) -> int:
    """The status for it; a sentence, unless it is that nobody reads."""
    if isinstance(problem, BrokenPipeError):
        return CLOSED
    with contextlib.suppress(OSError):
        print(
            f"error: standard output cannot be written ({problem.strerror or problem}): make "
            "room and run again",
            file=sys.stderr,
        )
    return 1


def leave(status: int) -> NoReturn:
    """End the process now; what standard output does not take changes the status."""
    problem = output_problem()
    if problem is not None and status != INTERRUPTED:
        status = tell_output_problem(problem)
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(status)


def is_of_output(error: BaseException) -> bool:
    """Whether an error is one of writing to a stream of this process: it names no file, as those
    of our own files do (files.py)."""
    if not isinstance(error, OSError) or error.filename is not None:
        return False
    if isinstance(error, BrokenPipeError):  # it may be that of another pipe, or of a connection
        return output_problem() is not None or any(map(has_no_reader, (1, 2)))
    return error.errno in NO_ROOM or output_problem() is not None


def has_no_reader(fd: int) -> bool:
    """Whether a file descriptor is a pipe or a socket whose other end is closed."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def report_and_leave(kind: type[BaseException], error: BaseException, trace) -> None:
    """The commands' exception hook: report, then end.

    subtle: fairseq reads batches ahead in a thread, and Python may abort (status 134) when it
    shuts down around that thread. After an error it therefore only runs what was registered for
    the end, and leaves at once.
    """
    global under_way
    if hasattr(sys, "ps1"):  # at a prompt the session goes on
        report(kind, error, trace)
        return
    under_way = True
    status = 1
    if isinstance(error, KeyboardInterrupt):
        with contextlib.suppress(ValueError):  # of another thread than the first
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second one does not wait for the end
        status = INTERRUPTED
    elif is_of_output(error):
        status = tell_output_problem(error)  # type: ignore[arg-type]
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the rest would fail as well
    else:
        report(kind, error, trace)
    atexit._run_exitfuncs()
    leave(status)


def install_hook() -> None:
    """Use `report_and_leave` for uncaught errors, unless somebody else has installed a hook."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = report_and_leave


def interrupts_raise() -> None:
    """Let Ctrl-C raise KeyboardInterrupt from here on: a command of ours that was still importing
    has ended at once (fairseq_ext.pth)."""
    if (
        getattr(signal.getsignal(signal.SIGINT), "__qualname__", "")
        == "FairseqExtStart.interrupted"
    ):
        with contextlib.suppress(ValueError):  # of another thread than the first
            signal.signal(signal.SIGINT, signal.default_int_handler)


def watch_output() -> None:
    """For a process that is a command: what its output does not take ends it as above, in a log
    line and at the very end too.

    subtle: where standard error is closed, Python would print to standard output
    what is meant for it.
    """
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")
    stock = logging.Handler.handleError

    def raise_errors_of_output(handler: logging.Handler, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, OSError) and getattr(handler, "stream", None) in (
            sys.stdout,
            sys.stderr,
        ):
            raise error
        stock(handler, record)

    logging.Handler.handleError = raise_errors_of_output  # type: ignore[assignment,method-assign]
    atexit.register(check_output)


def check_output() -> None:
    """At the end of the process, behind all that others have registered for it: settle the
    status."""
    if not under_way and (end_status or output_problem() is not None):
        leave(end_status)


# ---- What runs when the process ends
#
# One hook serves all commands (and Translators) of the process.
#
# fairseq's commands return without a word to their task, and have dropped it by then. So what a
# command has to do at its end is kept here.


class ProcessEnd:
    """Functions that return a status, called when the process ends, the last one first.

    A fork calls those that it has added itself.
    """

    def __init__(self) -> None:
        self.process = 0
        self.functions: list[Callable[[], int]] = []

    def add(self, function: Callable[[], int]) -> None:
        """Call a function at the end as well."""
        if self.process != os.getpid():
            self.process, self.functions = os.getpid(), []
            atexit.register(self.run)
        self.functions.append(function)

    def run(self) -> None:
        """Call them. A command then leaves with the highest status, unless an error ends it, which
        has told its own. A function that raises an error, which is told, counts as status 1."""
        if self.process != os.getpid():
            return
        global end_status
        status = 0
        while self.functions:
            try:
                status = max(status, self.functions.pop()())
            except Exception as error:
                report(type(error), error, error.__traceback__)
                status = max(status, 1)
        if command_line.owned:
            end_status = max(end_status, status)


at_process_end = ProcessEnd().add
