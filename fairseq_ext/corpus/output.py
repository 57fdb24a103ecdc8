"""The output folder of a run.

The folder has a file for each input shard, `manifest.json`, `errors.jsonl`, and `.parts/` for
unfinished shards.
A finished unit becomes a part, `.parts/NAME.parts/START-END` (a line of JSON with its errors and
statistics, then its output records). A part is written under another name, synced and renamed, so
every part is complete. An unfinished file of a killed process is removed when that file is written
again (core/files.py). When the parts of a shard cover it, they are joined into `NAME.jsonl` (or
`.txt`) in the same way, the manifest records the file, and the parts are removed. Whenever a
process is killed, the next run sees which lines are missing, and no line is written twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.files import (
    replace,
    sha256,
    sha256_of,
    verify_digest,
    with_digest,
)
from fairseq_ext.core.stats import Section
from fairseq_ext.corpus.shards import Shard
from fairseq_ext.corpus.worker import Result

VERSION = 2  # of a part's first line


class OutputFolder:
    """An output folder. suffix: of the finished files. One process at a time may use it
    (`locked`)."""

    def __init__(self, folder: str, suffix: str):
        self.folder, self.suffix = Path(folder), suffix
        self.parts = self.folder / ".parts"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Return a context in which no other run may use the folder.

        Errors: UsageError if another run has it, or if it cannot be created.
        """
        try:
            self.parts.mkdir(parents=True, exist_ok=True)
            lock = open(self.parts / "lock", "w")
        except OSError as error:
            raise UsageError(
                f"--output {self.folder} cannot be written ({error.strerror}): name another folder"
            ) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(
                    f"another run is writing to {self.folder}: wait for it, or name another "
                    "--output"
                ) from None
            yield

    def has_parts(self) -> bool:
        """Return whether there is a part of an earlier run."""
        return any(True for _ in self.parts.rglob("*.parts/[0-9]*-[0-9]*"))

    def clear(self) -> None:
        """Remove the output of earlier runs: parts, errors, the files that the manifest names, and
        the manifest."""
        manifest = self.folder / "manifest.json"
        try:
            shards = verify_digest(manifest.read_bytes())["shards"]
        except (OSError, ValueError, KeyError):  # the files that it named are replaced one by one
            shards = {}
        for entry in shards.values():
            path = self.folder / entry.get("output", "manifest.json")
            if path.resolve().is_relative_to(self.folder.resolve()):
                path.unlink(missing_ok=True)
        for left in os.scandir(self.parts):
            if left.is_dir(follow_symlinks=False):
                shutil.rmtree(left.path, ignore_errors=True)
            elif left.name != "lock":
                os.unlink(left.path)
        (self.folder / "errors.jsonl").unlink(missing_ok=True)
        manifest.unlink(missing_ok=True)

    def path(self, shard: Shard) -> Path:
        """Return the path of the shard's finished file."""
        return self.folder / (shard.name + self.suffix)

    def parts_of(self, shard: Shard) -> Path:
        """Return the folder of the shard's parts."""
        return self.parts / (shard.name + ".parts")

    def ranges(self, shard: Shard) -> list[tuple[int, int]]:
        """Return the ranges [start, end) of lines that parts hold, sorted."""
        folder, found = self.parts_of(shard), []
        for entry in os.scandir(folder) if folder.is_dir() else ():
            if re.fullmatch(r"[0-9]{1,18}-[0-9]{1,18}", entry.name):
                start, _, end = entry.name.partition("-")
                found.append((int(start), int(end)))
        return sorted(found)

    def save(self, shard: Shard, start: int, end: int, result: Result) -> None:
        """Write a unit's result as a part."""
        head = {
            "errors": result.errors,
            "counts": result.stats.record(),
            "translated": result.stats.sentences,
            "signature": result.signature,
        }
        head |= {"version": VERSION, "payload": sha256([result.payload])}
        folder = self.parts_of(shard)
        folder.mkdir(parents=True, exist_ok=True)
        replace(
            folder / f"{start}-{end}",
            [json.dumps(with_digest(head)).encode() + b"\n", result.payload],
        )

    def read_parts(self, shard: Shard) -> Iterator[tuple[dict[str, Any], IO[bytes]]]:
        """Yield each part's header and the open file, which is at its payload, in the order of the
        lines."""
        for start, end in self.ranges(shard):
            path = self.parts_of(shard) / f"{start}-{end}"
            with open(path, "rb") as part:
                try:
                    head = verify_digest(part.readline())
                    if head.get("version") != VERSION:
                        raise ValueError("it is of another version")
                except ValueError as error:
                    raise damaged_error(path, str(error)) from error
                yield {**head, "start": start, "end": end, "path": path}, part

    def summary(self, shard: Shard) -> tuple[dict[str, Any], list[dict[str, object]]]:
        """Return the counts and the errors of the shard's parts. `stats` is for people; `counts` is
        the same with the weights of means, for further addition."""
        counts: dict[str, Any] = {"lines": 0, "translated": 0, "errors": 0, "signatures": []}
        stats = Section()
        errors: list[dict[str, object]] = []
        for head, _ in self.read_parts(shard):
            errors += head["errors"]
            counts["lines"] += head["end"] - head["start"]
            counts["translated"] += head["translated"]
            counts["signatures"] = sorted({*counts["signatures"], head["signature"]} - {""})
            try:
                stats.add(Section.restored(head["counts"]))
            except (ValueError, TypeError) as error:
                # counters of other kinds than those of the earlier parts
                lines = f"{head['start']} to {head['end']}"
                raise damaged_error(
                    self.parts_of(shard), f"the counts of lines {lines} do not fit: {error}"
                ) from error
        counts["errors"] = len(errors)
        shown = {"signature": " and ".join(counts["signatures"]), **stats.as_dict()}
        return {**counts, "stats": shown, "counts": stats.record()}, errors

    def finish(self, shard: Shard, lines: int) -> dict[str, object]:
        """Join the parts of a shard with `lines` lines, and keep its errors until the run ends.
        Return its manifest entry.

        The parts are not removed (see `drop_parts`).
        """
        ranges = self.ranges(shard)
        ends = [0, *(end for _, end in ranges)]
        if ends != [*(start for start, _ in ranges), lines]:
            raise damaged_error(self.parts_of(shard), "its parts leave gaps or overlap")

        def chunks() -> Iterable[bytes]:
            for head, part in self.read_parts(shard):
                payload = part.read()
                if sha256([payload]) != head.get("payload"):
                    raise damaged_error(head["path"], "its content is not what was written")
                yield payload

        counts, errors = self.summary(shard)
        path = self.path(shard)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, chunks())
        counts |= {
            "output": path.relative_to(self.folder).as_posix(),
            "bytes": path.stat().st_size,
            "sha256": sha256_of(path),
        }
        if errors:
            replace(self.errors_path(shard), json_lines(errors))
        else:
            self.errors_path(shard).unlink(missing_ok=True)
        return {"state": "done", **counts}

    def drop_parts(self, shard: Shard) -> None:
        """Remove the shard's parts."""
        shutil.rmtree(self.parts_of(shard), ignore_errors=True)

    def errors_path(self, shard: Shard) -> Path:
        """Return the file that holds a finished shard's errors until the run ends."""
        return self.parts / (shard.name + ".errors")

    def write_errors(
        self, shards: Iterable[Shard], unreadable: Mapping[str, dict[str, object]]
    ) -> Counter[str]:
        """Write errors.jsonl again, for finished and unfinished shards: shard by shard, in the
        order of their lines. Return the number of entries of each kind.

        unreadable: the entries of shards as a whole, by name.
        """
        kinds: Counter[str] = Counter()

        def chunks() -> Iterable[bytes]:
            for shard in shards:
                if self.parts_of(shard).is_dir():
                    lines = list(json_lines(self.summary(shard)[1]))
                else:
                    path = self.errors_path(shard)
                    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
                lines += json_lines(filter(None, [unreadable.get(shard.name)]))
                kinds.update(json.loads(line)["kind"] for line in lines)
                yield b"".join(lines)

        replace(self.folder / "errors.jsonl", chunks())
        return kinds


def damaged_error(path: Path, why: str) -> UsageError:
    """Return the error for a part, or a folder of parts, that was changed or damaged."""
    return UsageError(
        f"{path} cannot be used, because {why}: remove it, and run the same command again"
    )


def json_lines(entries: Iterable[dict[str, object]]) -> Iterable[bytes]:
    """Yield entries as lines of JSON."""
    return (json.dumps(entry).encode() + b"\n" for entry in entries)
