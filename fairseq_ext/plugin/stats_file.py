"""`--stats-file F`: the counters of a run as JSON, replaced in one step while it goes on and at its end.

A device or a pipe is written once, at the end.
"""

from __future__ import annotations

import json
import time

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.files import is_stream, replace
from fairseq_ext.core.stats import Stats

SECONDS_BETWEEN_WRITES = 20.0


class StatsFile:
    """One run's file. Errors: UsageError where it cannot be written, which is better known before the run than at its end."""

    def __init__(self, path: str, stats: Stats):
        self.path, self.stats, self.is_stream = path, stats, is_stream(path)
        if not self.is_stream:
            self.write()
        self.written = time.monotonic()

    def write(self) -> None:
        """Write what the run has done so far. Errors: UsageError."""
        try:
            replace(self.path, [json.dumps(self.stats.as_dict(), indent=1).encode(), b"\n"])
        except OSError as error:
            raise UsageError(
                f"--stats-file {self.path} cannot be written ({error.strerror or error}): make room, or name another file"
            ) from error

    def follow(self) -> None:
        """Write once in a while. A disk that is full now may have room at the end, and that error is told."""
        if self.is_stream or time.monotonic() - self.written < SECONDS_BETWEEN_WRITES:
            return
        self.written = time.monotonic()
        try:
            self.write()
        except UsageError:
            pass
