"""What runs when a process ends: all of it, once, in the process that requested it, with
the highest status."""

import atexit
import errno
import os

from forked import Child, forked

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.exit import ProcessEnd, at_process_end


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
