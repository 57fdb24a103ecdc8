"""The output folder of a run.

The folder has a file for each input shard, `manifest.json`, `errors.jsonl`, and `.parts/`
for what is under way.
A finished unit becomes a part, `.parts/NAME.parts/START-END` (a line of JSON with its errors and
statistics, then its output records), written under another name, synced and renamed: a part that
is there is whole. When the parts of a shard cover it, they are joined into `NAME.jsonl` (or `.txt`)
in the same way, the manifest says so, and then they go. So whatever is killed at whatever moment,
the next run sees which lines are missing, and nothing is there twice.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.files import PART, remove_unfinished, replace, sealed, unsealed
from fairseq_ext.core.stats import Section
from fairseq_ext.corpus.shards import Shard
from fairseq_ext.corpus.worker import Result

if TYPE_CHECKING:
    pass

VERSION = 1  # of a part's first line
COPY = 1 << 20  # bytes


class Store:
    """An output folder. suffix: of the finished files. One process at a time holds it (`lock`)."""

    def __init__(self, folder: str, suffix: str):
        self.folder, self.suffix = Path(folder), suffix
        self.parts = self.folder / ".parts"
        self.lock_file: IO | None = None

    def lock(self) -> None:
        """Keep other runs out for as long as this process lives; UsageError when one is in, or
        the folder cannot be made."""
        try:
            self.parts.mkdir(parents=True, exist_ok=True)
            self.lock_file = open(self.parts / "lock", "w")
        except OSError as error:
            raise UsageError(
                f"--output {self.folder} cannot be written ({error.strerror}): name another folder"
            ) from error
        try:
            fcntl.flock(self.lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another run is writing to {self.folder}: wait for it, or name another --output"
            ) from None

    def remove_unfinished(self, shards: Iterable[Shard]) -> None:
        """Remove what a killed run of these shards has left, and nothing of runs below it."""
        own = [self.folder / name for name in ("manifest.json", "errors.jsonl")]
        remove_unfinished([*own, *map(self.path, shards)])
        for path in self.parts.rglob(f".*{PART}"):
            path.unlink()

    def has_parts(self) -> bool:
        """Whether there is a part of an earlier run."""
        return any(True for _ in self.parts.rglob("*.parts/[0-9]*-[0-9]*"))

    def unlock(self) -> None:
        """Let others in."""
        if self.lock_file is not None:
            self.lock_file.close()

    def clear(self) -> None:
        """Remove what earlier runs have put here: parts, errors, the files that the manifest
        names, the manifest."""
        manifest = self.folder / "manifest.json"
        try:
            shards = unsealed(manifest.read_bytes()).get("shards")
        except (OSError, ValueError):  # whatever it named is replaced file by file
            shards = None
        for entry in shards.values() if isinstance(shards, dict) else ():
            output = entry.get("output") if isinstance(entry, dict) else None
            if isinstance(output, str) and (path := self.folder / output).resolve().is_relative_to(
                self.folder.resolve()
            ):
                path.unlink(missing_ok=True)
        for left in os.scandir(self.parts):
            if left.is_dir(follow_symlinks=False):
                shutil.rmtree(left.path, ignore_errors=True)
            elif left.name != "lock":
                os.unlink(left.path)
        (self.folder / "errors.jsonl").unlink(missing_ok=True)
        manifest.unlink(missing_ok=True)

    def path(self, shard: Shard) -> Path:
        """The shard's finished file."""
        return self.folder / (shard.name + self.suffix)

    def parts_of(self, shard: Shard) -> Path:
        """The folder of the shard's parts."""
        return self.parts / (shard.name + ".parts")

    def ranges(self, shard: Shard) -> list[tuple[int, int]]:
        """The lines [start, end) of the shard that parts hold, sorted; what a killed run
        left unfinished is removed."""
        folder, found = self.parts_of(shard), []
        for entry in os.scandir(folder) if folder.is_dir() else ():
            if re.fullmatch(r"[0-9]{1,18}-[0-9]{1,18}", entry.name):
                start, _, end = entry.name.partition("-")
                found.append((int(start), int(end)))
            elif entry.name.endswith(PART):
                os.unlink(entry.path)
        return sorted(found)

    def save(self, shard: Shard, start: int, end: int, result: Result) -> None:
        """Make a unit's result a part."""
        head = {
            "errors": result.errors,
            "counts": result.stats.record(),
            "translated": result.translated,
            "signature": result.signature,
        }
        head |= {"version": VERSION, "payload": hashlib.sha256(result.payload).hexdigest()}
        folder = self.parts_of(shard)
        folder.mkdir(parents=True, exist_ok=True)
        replace(
            folder / f"{start}-{end}", [json.dumps(sealed(head)).encode() + b"\n", result.payload]
        )

    def heads(self, shard: Shard) -> Iterable[dict[str, Any]]:
        """What the shard's parts say of themselves, in the order of their lines."""
        for start, end in self.ranges(shard):
            path = self.parts_of(shard) / f"{start}-{end}"
            with open(path, "rb") as part:
                try:
                    head = unsealed(part.readline())
                    if head.get("version") != VERSION:
                        raise ValueError("it is of another version")
                    head["counts"] = Section.restored(head["counts"])
                    lists = all(isinstance(entry, dict) for entry in head["errors"])
                    if (
                        not lists
                        or type(head["translated"]) is not int
                        or not isinstance(head["signature"], str)
                    ):
                        raise ValueError("it lacks what a part has")
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    raise damaged(path, str(error)) from error
            yield {"lines": end - start, "range": f"{start} to {end}", **head}

    def summary(self, shard: Shard) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Counts and errors of the shard's parts: `stats` for readers, `counts` the same with the
        weights of means, to be added to."""
        counts: dict[str, Any] = {"lines": 0, "translated": 0, "errors": 0, "signatures": []}
        stats = Section()
        errors: list[dict[str, Any]] = []
        for head in self.heads(shard):
            errors += head["errors"]
            counts["lines"] += head["lines"]
            counts["translated"] += head["translated"]
            counts["errors"] += len(head["errors"])
            counts["signatures"] = sorted({*counts["signatures"], head["signature"]} - {""})
            try:
                stats.add(head["counts"])
            except (ValueError, TypeError) as error:
                # of other kinds than those of the parts before
                raise damaged(
                    self.parts_of(shard), f"the counts of lines {head['range']} do not fit: {error}"
                ) from error
        shown = {"signature": " and ".join(counts["signatures"]), **stats.as_dict()}
        return {**counts, "stats": shown, "counts": stats.record()}, errors

    def finish(self, shard: Shard, lines: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Join the parts of a shard of so many lines; its entry in the manifest, and its errors.

        The parts stay (`drop_parts`).
        """
        ranges = self.ranges(shard)
        ends = [0, *(end for _, end in ranges)]
        if ends != [*(start for start, _ in ranges), lines]:
            raise damaged(self.parts_of(shard), "its parts leave gaps or overlap")
        digest = hashlib.sha256()

        def chunks() -> Iterable[bytes]:
            for start, end in ranges:
                path = self.parts_of(shard) / f"{start}-{end}"
                with open(path, "rb") as part:
                    told, of_part = unsealed(part.readline()).get("payload"), hashlib.sha256()
                    while block := part.read(COPY):
                        digest.update(block)
                        of_part.update(block)
                        yield block
                if of_part.hexdigest() != told:
                    raise damaged(path, "its content is not what was written")

        counts, errors = self.summary(shard)
        path = self.path(shard)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, chunks())
        counts |= {
            "output": path.relative_to(self.folder).as_posix(),
            "bytes": path.stat().st_size,
            "sha256": digest.hexdigest(),
        }
        return {"state": "done", **counts}, errors

    def drop_parts(self, shard: Shard) -> None:
        """Remove the shard's parts."""
        shutil.rmtree(self.parts_of(shard), ignore_errors=True)

    def errors_path(self, shard: Shard) -> Path:
        """Where a finished shard's errors are kept until the run ends."""
        return self.parts / (shard.name + ".errors")

    def keep_errors(self, shard: Shard, errors: list[dict[str, Any]]) -> None:
        """Keep a finished shard's errors for `write_errors`."""
        if errors:
            path = self.errors_path(shard)
            path.parent.mkdir(parents=True, exist_ok=True)
            replace(path, json_lines(errors))
        else:
            self.errors_path(shard).unlink(missing_ok=True)

    def write_errors(
        self, shards: Iterable[Shard], unreadable: Callable[[Shard], list[dict[str, Any]]]
    ) -> int:
        """Write errors.jsonl anew: shard by shard, finished or not, each's errors in the order of
        its lines; how many there are.

        unreadable: the entries of a shard as a whole.
        """
        count = 0

        def chunks() -> Iterable[bytes]:
            nonlocal count
            for shard in shards:
                if self.parts_of(shard).is_dir():
                    lines = list(json_lines(self.summary(shard)[1]))
                else:
                    path = self.errors_path(shard)
                    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
                lines += json_lines(unreadable(shard))
                count += len(lines)
                yield b"".join(lines)

        replace(self.folder / "errors.jsonl", chunks())
        return count


def damaged(path: Path, why: str) -> UsageError:
    """The error for a part, or a folder of parts, that is not what was written."""
    return UsageError(
        f"{path} cannot be used, because {why}: remove it, and run the same command again"
    )


def json_lines(entries: Iterable[dict[str, Any]]) -> Iterable[bytes]:
    """Entries as lines of JSON."""
    return (json.dumps(entry).encode() + b"\n" for entry in entries)
