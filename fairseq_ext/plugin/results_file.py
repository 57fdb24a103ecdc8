"""Results on disk as sentences finish (`--results-file`), so that an interrupted run can go on (`--resume`).

JSON lines (results_line.py): the first tells how the results are made, each other one is a sentence: its number, a checksum of its
source tokens, its translation, and its hypotheses with all that the commands print of them. One run at a time writes the file.
"""

from __future__ import annotations

import fcntl
import gc
import hashlib
import logging
import os
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from fairseq_ext.core.errors import UsageError, counted
from fairseq_ext.core.files import is_stream
from fairseq_ext.plugin import results_line

SHOWN = 80  # characters of a value in a message
logger = logging.getLogger("fairseq_ext")

OPEN: weakref.WeakValueDictionary[tuple[int, int], ResultsFile] = weakref.WeakValueDictionary()  # of this process, by device and inode


class ResultsFile:
    """One file, written line by line.

    signature: one line for readers. made_from: what results depend on, by flag (run_key.py). words: of the target dictionary.
    Errors: UsageError for a file that cannot be written, is in use, is of another search, or has a line that is not as it was written.
    """

    def __init__(self, path: str, resume: bool, signature: str, made_from: dict[str, str], words: int):
        self.path, self.words = Path(path), words
        self.done: dict[int, dict[str, Any]] = {}
        self.latest: dict[int, dict[str, Any]] = {}  # of a search that is not over: its sentences are searched again if it fails
        if os.path.isdir(path) or path.endswith(os.sep):
            raise UsageError(f"--results-file {path} is a directory: name a file")
        try:
            stream = is_stream(self.path)
            self.file: IO[bytes] = open(self.path, "ab" if stream else "a+b", buffering=0)
            if not stream:
                self.lock()
                whole = self.look(resume, made_from)
                self.file.truncate(whole)  # a line that was cut short is done again
                if whole:
                    logger.info("%s has %s of an earlier run, not to be decoded again", path, counted(len(self.done), "sentence"))
                    return
        except OSError as error:
            raise UsageError(f"--results-file {path} cannot be written ({error.strerror}): name another file") from error
        self.write({**results_line.FORMAT, "signature": signature, "made_from": made_from})

    def lock(self) -> None:
        """Keep other runs out for as long as this process lives. Errors: UsageError where one is in.

        subtle: such a lock is the process's own. One that children inherit (flock) would outlive a killed run in fairseq's data loaders;
        this one lets in the same process, of which OPEN knows, and goes when any handle of the file is closed, so there is one.
        """
        status = os.fstat(self.file.fileno())
        inode = (status.st_dev, status.st_ino)
        refusal = UsageError(f"another run is writing to {self.path}: wait for it, or name another --results-file")
        if inode in OPEN:
            gc.collect()  # an earlier run of this process may be over, and only wait for Python to notice
        if inode in OPEN:
            raise refusal
        try:
            fcntl.lockf(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise refusal from None
        OPEN[inode] = self

    def look(self, resume: bool, made_from: dict[str, str]) -> int:
        """Take in the sentences that are done; return how many bytes of the file are whole lines."""
        if not self.path.stat().st_size:
            return 0
        if not resume:
            raise UsageError(f"{self.path} has results already: add --resume to continue it, or name another file")
        whole = 0
        self.file.seek(0)
        with open(self.file.fileno(), "rb", closefd=False) as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n") and (number > 1 or results_line.may_begin(line)):
                    break  # cut short
                try:
                    if number == 1:
                        self.compare(results_line.header(line), made_from)
                    else:
                        record = results_line.sentence(line, self.words)
                        self.done[record["id"]] = record
                except ValueError as error:
                    if isinstance(error, UsageError):
                        raise
                    raise UsageError(
                        f"{self.path}, line {number}, is not a line of a results file, because {error}: name another --results-file"
                    ) from None
                whole += len(line)
        return whole

    def compare(self, there: dict[str, str], now: dict[str, str]) -> None:
        """UsageError that names what differs."""
        different = [name for name in dict.fromkeys([*there, *now]) if there.get(name) != now.get(name)]
        if different:
            told = (f"{name} ({shown(there.get(name))} there, {shown(now.get(name))} now)" for name in different[:3])
            more = f" and {len(different) - 3} more" if len(different) > 3 else ""
            raise UsageError(
                f"{self.path} has results of another search, which differs in {', '.join(told)}{more}: "
                "use the same flags and files, or name another --results-file"
            )

    def write(self, record: dict[str, Any]) -> None:
        """Add one line, on disk as far as this process goes: a line is written at once, as several processes may write."""
        line = results_line.line_of(record)
        try:
            while line:
                line = line[self.file.write(line) :]
        except OSError as error:
            raise UsageError(f"--results-file {self.path} cannot be written ({error.strerror}): make room and add --resume") from error

    def add(self, number: int, source: str, text: str, hypotheses: list[dict[str, Any]]) -> None:
        """A sentence is done: its checksum, the best translation as text, its hypotheses as fairseq's commands read them."""
        kept = [
            {"tokens": h["tokens"].tolist(), "score": float(h["score"]), "positional_scores": h["positional_scores"].tolist()}
            | {name: h[name] for name in ("unmet", "utility") if name in h}
            for h in hypotheses
        ]
        record = {"id": number, "source": source, "text": text, "hypotheses": kept}
        self.write(record)
        self.latest[number] = record

    def forget(self, numbers: Iterable[int]) -> None:
        """The search of these sentences is over: nobody asks for their latest records any more."""
        for number in numbers:
            self.latest.pop(number, None)

    def hypotheses(self, number: int, source: str, device: torch.device) -> list[dict[str, Any]] | None:
        """The hypotheses of a sentence, given its checksum, that is done already; None if it is not."""
        record = self.done.get(number) or self.latest.get(number)
        if record is None:
            return None
        if record["source"] != source:
            raise UsageError(
                f"sentence {number} of {self.path} was translated from another source, or with other constraints or another prefix: "
                "use the same data, or name another --results-file"
            )
        nothing = torch.empty(0)
        return [
            {
                "tokens": torch.tensor(h["tokens"], device=device),
                "score": torch.tensor(h["score"], device=device),
                "attention": nothing,
                "alignment": nothing,
                "positional_scores": torch.tensor(h["positional_scores"], device=device),
            }
            | ({"unmet": [tuple(each) for each in h["unmet"]]} if "unmet" in h else {})
            | ({"utility": h["utility"]} if "utility" in h else {})
            for h in record["hypotheses"]
        ]

    def close(self) -> None:
        """Let other runs in."""
        self.file.close()
        for inode in [inode for inode, file in OPEN.items() if file is self]:
            del OPEN[inode]


def shown(value: str | None) -> str:
    """A value in a message."""
    return "not given" if value is None else value if len(value) <= SHOWN else value[:SHOWN] + "..."


def checksum(*given: Any) -> str:
    """Of what a sentence's results depend on: tensors of tokens, and what else its representation tells."""
    parts = [x.cpu().numpy().tobytes() if isinstance(x, Tensor) else repr(x).encode("utf-8", "surrogatepass") for x in given]
    return hashlib.sha256(b"|".join(parts)).hexdigest()[:16]
