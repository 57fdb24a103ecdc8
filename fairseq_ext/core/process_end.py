"""What runs when the process ends, by one hook for all commands (and Translators) of the process.

fairseq's commands return without a word to their task, and have dropped it by then. So what a command has to do at its end is kept here.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable

from fairseq_ext.core import command_line, leaving
from fairseq_ext.core.errors import report


class ProcessEnd:
    """Functions that return a status, called when the process ends, the last one first. A fork calls those that it has added itself."""

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
        """Call them. A command then leaves with the highest status, unless an error ends it, which has told its own. A function that raises
        an error, which is told, counts as status 1."""
        if self.process != os.getpid():
            return
        status = 0
        while self.functions:
            try:
                status = max(status, self.functions.pop()())
            except Exception as error:
                report(type(error), error, error.__traceback__)
                status = max(status, 1)
        if status and command_line.owned and not leaving.under_way:
            leaving.leave(status)


at_process_end = ProcessEnd().add
