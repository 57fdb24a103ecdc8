"""States of one process of ours that answers requests: when it is started again, and when it is
silent. Nothing here reads a clock, a pipe or a file: callers pass what they have read."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

STARTS = 60.0  # seconds for which failed starts are repeated
SHORTEST, LONGEST = 0.25, 8.0  # seconds before a start is repeated
MUCH = 10  # times the timeout: then a process that computes is silent, too


class State(Enum):
    """The state of a worker."""

    STARTING = "starting"  # a process was requested
    READY = "ready"  # its model is loaded
    PAUSED = "paused"  # it is started at `start_at`
    FAILED = "failed"  # its starts have failed


@dataclass(eq=False)
class Supervision:
    """The state of one worker, whose processes may be replaced.

    timeout: seconds after which one that has work is silent.
    """

    timeout: float
    state: State = State.PAUSED
    start_at: float = 0.0  # time of the next start, while it is paused
    failing_since: float | None = None  # time of the first of the failed starts
    pauses: int = 0  # in a row
    error: Exception | None = None  # of the last failed start
    quiet: float = 0.0  # seconds without a message
    still: float = 0.0  # seconds without CPU time
    cpu: float | None = None  # its CPU time in seconds, when last looked at

    def on_start(self) -> None:
        """Note that a process was requested."""
        self.state = State.STARTING
        self.on_message()

    def on_message(self) -> None:
        """Note that the process has sent a message, or has got work again."""
        self.quiet = self.still = 0.0
        self.cpu = None

    def on_ready(self) -> None:
        """Note that its model is loaded."""
        self.state, self.failing_since, self.error = State.READY, None, None
        self.on_message()

    def on_answer(self) -> None:
        """Note an answer: if the process ends now, another one starts at once."""
        self.pauses = 0

    def on_exit(self, now: float, has_answered: bool) -> None:
        """Note that a process that was ready has ended."""
        self.pause(now, 0.0 if has_answered else None)

    def on_failed_start(self, now: float, error: Exception, is_final: bool) -> None:
        """Note that a process could not be started, or ended before it was ready. is_final: another
        start would fail in the same way."""
        self.error = error
        if self.failing_since is None:
            self.failing_since = now
        if is_final or now - self.failing_since >= STARTS:
            self.state = State.FAILED
        else:
            self.pause(now)

    def pause(self, now: float, seconds: float | None = None) -> None:
        """Start again after a while: by default longer each time."""
        if seconds is None:
            seconds = min(LONGEST, SHORTEST * 2.0**self.pauses)
            self.pauses = min(self.pauses + 1, 10)
        self.state, self.start_at = State.PAUSED, now + seconds

    def on_recovery(self, now: float) -> None:
        """Let a failed worker try again: another one could start."""
        if self.state is State.FAILED:
            self.failing_since, self.pauses = None, 0
            self.pause(now)

    def is_silent(self, elapsed: float, cpu: float | None) -> bool:
        """Count seconds in which the caller ran too; whether the process is to be killed.

        cpu: its CPU time, None where that is unknown.
        """
        self.quiet += elapsed
        if cpu is None or self.cpu is None or cpu != self.cpu:
            self.still = 0.0
        else:
            self.still += elapsed
        self.cpu = cpu
        if self.state is State.STARTING:
            return self.still >= self.timeout
        return (
            self.quiet >= self.timeout
            and self.still >= self.timeout
            or self.quiet >= MUCH * self.timeout
        )
