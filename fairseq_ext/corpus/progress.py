"""Progress lines of a run, the table at its end, and `--stats-file`."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fairseq_ext.core.errors import counted
from fairseq_ext.core.files import is_stream, replace
from fairseq_ext.core.stats import Section
from fairseq_ext.corpus.shards import Unit
from fairseq_ext.corpus.worker import Result

if TYPE_CHECKING:
    from fairseq_ext.corpus.scheduler import RayWorkers


@dataclass
class Progress:
    """Counts. interval: seconds between two lines on standard error, 0 for none."""

    interval: float
    shards: int
    shards_done: int = 0
    unreadable: list[str] = field(default_factory=list)  # shards: why
    errors: int = 0  # entries of errors.jsonl
    unmet: int = 0  # of these, constraints that are not met
    sentences_before: int = 0  # done by earlier runs
    sentences: int = 0  # done by this run, like all fields below
    tokens: int = 0  # of the best hypotheses, EOS included
    busy: float = 0.0  # seconds that workers spent on units, summed
    cpu_seconds: float = 0.0  # CPU time of that
    idle_seconds: float = 0.0  # seconds that they waited between two units, summed
    bytes: int = 0  # of the input
    bytes_before: float = 0.0  # done by earlier runs, or left out
    bytes_done: float = 0.0
    seconds: float = 0.0  # from the start of the first unit to the end of the last
    workers: int = 0
    restarts: int = 0
    signature: str = ""
    started: float = field(default_factory=time.monotonic)
    last_report_time: float = field(default_factory=time.monotonic)
    reported_sentences: int = -1  # sentences, as the last line with figures had them
    changed: float = 0.0  # when that was

    def add(self, unit: Unit, result: Result) -> None:
        """Count a finished unit."""
        self.sentences += len(unit.sentences)
        self.tokens += result.stats.target_tokens
        self.busy += result.seconds
        self.cpu_seconds += result.cpu_seconds
        self.idle_seconds += result.idle_seconds
        self.bytes_done += unit.input_bytes

    def tick(self, workers: RayWorkers) -> None:
        """Print a progress line if the interval has passed: the figures, or for how long they have
        not changed."""
        now = time.monotonic()
        if not self.interval or now - self.last_report_time < self.interval:
            return
        self.last_report_time, self.seconds = now, now - (workers.start_time or now)
        where = f"no other sentence for {clock(now - self.changed)}"
        if self.sentences != self.reported_sentences:
            self.reported_sentences, self.changed, where = self.sentences, now, self.figures()
        alive, size = workers.alive, workers.size
        waiting = "" if alive else " (they are starting, or the cluster has no room for them)"
        line = f"corpus: {where}, {alive} of {counted(size, 'worker')} alive{waiting}"
        print(line, file=sys.stderr, flush=True)

    def figures(self) -> str:
        """Return sentences, speed, share done and time left as a text."""
        share = min((self.bytes_before + self.bytes_done) / max(self.bytes, 1), 1.0)
        left = (
            self.seconds * (self.bytes - self.bytes_before - self.bytes_done) / self.bytes_done
            if self.bytes_done
            else None
        )
        return (
            f"{counted(self.sentences_before + self.sentences, 'sentence')}, "
            f"{self.rate(self.sentences):.1f} a second, {self.rate(self.tokens):.0f} "
            f"tokens a second, {100 * share:.1f}% done, {clock(left)} left"
        )

    def rate(self, count: int) -> float:
        """Return a count divided by the seconds of decoding."""
        return count / self.seconds if self.seconds else 0.0

    def stop(self, workers: RayWorkers) -> None:
        """Record the time and the workers; called after the last unit."""
        self.seconds = time.monotonic() - workers.start_time if workers.start_time else 0.0
        self.workers, self.restarts = workers.size, workers.restarts

    @property
    def waiting(self) -> float:
        """Share of their time in which workers waited for the next unit: for Ray, and for
        reading and writing."""
        return self.idle_seconds / (self.idle_seconds + self.busy) if self.busy else 0.0

    def table(self) -> str:
        """Return the summary at the end of a run."""
        unreadable = f", {len(self.unreadable)} unreadable" if self.unreadable else ""
        earlier = f", {self.sentences_before} of them before this run"
        rows = [
            ("shards", f"{self.shards_done} of {self.shards} done{unreadable}"),
            (
                "sentences",
                f"{self.sentences_before + self.sentences}{earlier * bool(self.sentences_before)}",
            ),
            ("entries of errors.jsonl", str(self.errors)),
        ]
        if self.sentences:
            speed, tokens = self.rate(self.sentences), self.rate(self.tokens)
            whole_time = clock(time.monotonic() - self.started)
            restarts, waiting = counted(self.restarts, "restart"), f"{100 * self.waiting:.2f}%"
            rows += [
                ("decoding time", f"{clock(self.seconds)} (with start-up {whole_time})"),
                ("speed", f"{speed:.1f} sentences and {tokens:.0f} tokens a second"),
                ("a worker", f"{3600 * speed / max(self.workers, 1):.0f} sentences an hour"),
                (
                    "workers",
                    f"{self.workers}, {restarts}, waited {waiting} of the time for a unit",
                ),
            ]
        rows.append(("made by", self.signature))
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def clock(seconds: float | None) -> str:
    """Return a time as hours, minutes and seconds."""
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


# ---- `--stats-file`: the counters of a run
#
# The file is written atomically, from time to time and at the end.


SECONDS_BETWEEN_WRITES = 30.0


class RunStats:
    """The counters of all workers, with those of earlier runs. path: the file, None for none;
    a stream is written once, at the end.

    The methods' `signature` is that of the manifest; it is used while nothing is finished.
    """

    def __init__(self, path: str | None):
        self.path = path
        self.is_stream = path is not None and is_stream(path)
        self.counts = Section()
        self.signatures: set[str] = set()  # of the finished parts
        self.written = time.monotonic()

    def add(self, part: Section, *signatures: str) -> None:
        """Count a finished part; empty signatures are ignored."""
        self.counts.add(part)
        self.signatures |= {*signatures} - {""}

    def as_dict(self, signature: str) -> dict[str, object]:
        """Return the JSON object of the file."""
        return {
            "signature": " and ".join(sorted(self.signatures)) or signature,
            **self.counts.as_dict(),
        }

    def write(self, signature: str) -> None:
        """Write the file, if there is one. Errors: OSError."""
        self.written = time.monotonic()
        if self.path:
            replace(self.path, [json.dumps(self.as_dict(signature), indent=1).encode() + b"\n"])

    def write_occasionally(self, signature: str) -> None:
        """Write the file if SECONDS_BETWEEN_WRITES have passed."""
        if not self.is_stream and time.monotonic() - self.written > SECONDS_BETWEEN_WRITES:
            self.write(signature)
