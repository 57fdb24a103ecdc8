"""What a run says of itself: progress lines, a table at the end, and `--stats-file`."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fairseq_ext.core.errors import counted
from fairseq_ext.core.files import is_stream, replace
from fairseq_ext.core.stats import Section
from fairseq_ext.corpus.worker import Result

if TYPE_CHECKING:
    from fairseq_ext.corpus.scheduler import Scheduler, Unit


@dataclass
class Progress:
    """Counts. interval: seconds between two lines on standard error, 0 for none."""

    interval: float
    shards: int
    done: int = 0  # shards
    unreadable: list[str] = field(default_factory=list)  # shards: why
    errors: int = 0  # entries of errors.jsonl
    before: int = 0  # sentences, done by earlier runs
    sentences: int = 0  # done by this run, as all that follows
    translated: int = 0
    tokens: int = 0
    busy: float = 0.0  # seconds that workers spent on units, summed
    processor: float = 0.0  # of which the processor worked for them
    waited: float = 0.0  # seconds that they waited between two units, summed
    bytes: int = 0  # of the input
    bytes_before: float = 0.0  # done by earlier runs, or left out
    bytes_done: float = 0.0
    first: float = 0.0  # when the first unit was given out
    seconds: float = 0.0  # from then to the end of the last
    workers: int = 0
    restarts: int = 0
    signature: str = ""
    started: float = field(default_factory=time.monotonic)
    said: float = field(default_factory=time.monotonic)
    told: int = -1  # sentences, as the last line with figures had them
    changed: float = 0.0  # when that was

    def add(self, unit: Unit, result: Result) -> None:
        """A unit is finished."""
        self.sentences += len(unit.sentences)
        self.translated += result.translated
        self.tokens += result.tokens
        self.busy += result.seconds
        self.processor += result.processor
        self.waited += result.waited
        self.bytes_done += unit.weight

    def tick(self, alive: int, size: int, begun: float) -> None:
        """Say where the run stands, if it is time to: the figures, or for how long they have been
        the same."""
        now = time.monotonic()
        if not self.interval or now - self.said < self.interval:
            return
        self.said, self.seconds = now, now - (begun or now)
        where = f"no other sentence for {clock(now - self.changed)}"
        if self.sentences != self.told:
            self.told, self.changed, where = self.sentences, now, self.figures()
        waiting = "" if alive else " (they are starting, or the cluster has no room for them)"
        line = f"corpus: {where}, {alive} of {counted(size, 'worker')} alive{waiting}"
        print(line, file=sys.stderr, flush=True)

    def figures(self) -> str:
        """Sentences, speed, share done, time left."""
        share = min((self.bytes_before + self.bytes_done) / max(self.bytes, 1), 1.0)
        left = (
            self.seconds * (self.bytes - self.bytes_before - self.bytes_done) / self.bytes_done
            if self.bytes_done
            else None
        )
        return (
            f"{counted(self.before + self.sentences, 'sentence')}, "
            f"{self.rate(self.sentences):.1f} a second, {self.rate(self.tokens):.0f} "
            f"tokens a second, {100 * share:.1f}% done, {clock(left)} left"
        )

    def rate(self, count: int) -> float:
        """So many a second."""
        return count / self.seconds if self.seconds else 0.0

    def stop(self, scheduler: Scheduler) -> None:
        """No more units come."""
        self.seconds = time.monotonic() - scheduler.begun if scheduler.begun else 0.0
        self.workers, self.restarts = scheduler.size, scheduler.restarts

    @property
    def waiting(self) -> float:
        """The share of their time that workers waited for the next unit: for Ray, and for
        reading and writing."""
        return self.waited / (self.waited + self.busy) if self.busy else 0.0

    def table(self) -> str:
        """The summary at the end."""
        rows = [
            (
                "shards",
                f"{self.done} of {self.shards} done"
                + (f", {len(self.unreadable)} unreadable" if self.unreadable else ""),
            ),
            (
                "sentences",
                f"{self.before + self.sentences}"
                + (f", {self.before} of them before this run" if self.before else ""),
            ),
            ("entries of errors.jsonl", str(self.errors)),
        ]
        if self.sentences:
            rows += [
                (
                    "decoding time",
                    (
                        f"{clock(self.seconds)} (with start-up "
                        f"{clock(time.monotonic() - self.started)})"
                    ),
                ),
                (
                    "speed",
                    (
                        f"{self.rate(self.sentences):.1f} sentences and "
                        f"{self.rate(self.tokens):.0f} tokens a second"
                    ),
                ),
                (
                    "a worker",
                    (
                        f"{3600 * self.rate(self.sentences) / max(self.workers, 1):.0f} "
                        "sentences an hour"
                    ),
                ),
                (
                    "workers",
                    (
                        f"{self.workers}, {counted(self.restarts, 'restart')}, waited "
                        f"{100 * self.waiting:.2f}% of the time for a unit"
                    ),
                ),
            ]
        rows.append(("made by", self.signature))
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def clock(seconds: float | None) -> str:
    """Hours, minutes, seconds."""
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


# ---- `--stats-file`: what a run has counted
#
# The file is replaced in one step while the run goes on and at its end.


SECONDS_BETWEEN_WRITES = 30.0


class RunStats:
    """The counters of all workers, those of earlier runs included. path: the file, None for none;
    a stream is written once, at the end.

    `signature` is that of the manifest, which stands where nothing is finished yet.
    """

    def __init__(self, path: str | None):
        self.path = path
        self.is_stream = path is not None and is_stream(path)
        self.counts = Section()
        self.signatures: set[str] = set()  # of what is finished
        self.written = time.monotonic()

    def add(self, part: Section, *signatures: str) -> None:
        """Count a part that is finished; an empty signature is none."""
        self.counts.add(part)
        self.signatures |= {*signatures} - {""}

    def as_dict(self, signature: str) -> dict[str, Any]:
        """The JSON object for readers."""
        return {
            "signature": " and ".join(sorted(self.signatures)) or signature,
            **self.counts.as_dict(),
        }

    def write(self, signature: str) -> None:
        """Replace the file, if there is one. Errors: OSError."""
        self.written = time.monotonic()
        if self.path:
            replace(self.path, [json.dumps(self.as_dict(signature), indent=1).encode() + b"\n"])

    def follow(self, signature: str) -> None:
        """Replace it once in a while."""
        if not self.is_stream and time.monotonic() - self.written > SECONDS_BETWEEN_WRITES:
            self.write(signature)
