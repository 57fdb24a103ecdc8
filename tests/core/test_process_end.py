"""What runs when a process ends: all of it, once, in the process that asked for it, with
the highest status."""

from forked import forked

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.exit import ProcessEnd, at_process_end


def saying(status: int):
    def function() -> int:
        print(status)
        return status

    return function


def test_every_function_is_called_the_last_one_first_and_the_highest_status_is_told():
    def run() -> None:
        for status in (0, 3, 1):
            at_process_end(saying(status))

    done = forked(run, "command")
    assert done.stdout.split() == ["1", "3", "0"] and done.status == 3


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
