"""The files of a run: `--results-file` with `--resume`, `--stats-file`, and how
far a run has come."""

from __future__ import annotations

import fcntl
import gc
import hashlib
import json
import logging
import os
import time
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor
from tqdm import tqdm

from fairseq_ext.core.errors import UsageError, counted
from fairseq_ext.core.files import is_stream, replace, verify_digest, with_digest
from fairseq_ext.core.stats import Stats

# ---- `--results-file` and `--resume`
#
# Results are on disk as sentences finish, so that an interrupted run can go on. The
# file has JSON lines.
# The first tells how the results are made, each other one is a sentence: its number, a checksum of
# its source tokens, its translation, and its hypotheses with all that the commands print of them.
# One run at a time writes the file.


SHOWN = 80  # characters of a value in a message
logger = logging.getLogger("fairseq_ext")


class ResultsFile:
    """One file, written line by line.

    signature: one line for readers. made_from: what results depend on, by flag (run.py). words:
    of the target dictionary.
    Errors: UsageError for a file that cannot be written, is in use, is of another search, or has
    a line that is not as it was written.
    """

    def __init__(
        self, path: str, resume: bool, signature: str, made_from: dict[str, str], words: int
    ):
        self.path, self.words = Path(path), words
        self.done: dict[int, dict[str, Any]] = {}
        # of a search that is not over: its sentences are searched again if it fails
        self.latest: dict[int, dict[str, Any]] = {}
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
                    logger.info(
                        "%s has %s of an earlier run, not to be decoded again",
                        path,
                        counted(len(self.done), "sentence"),
                    )
                    return
        except OSError as error:
            raise UsageError(
                f"--results-file {path} cannot be written ({error.strerror}): name another file"
            ) from error
        self.write({**FORMAT, "signature": signature, "made_from": made_from})

    def lock(self) -> None:
        """Keep other runs out for as long as this process lives. Errors: UsageError
        where one is in.

        subtle: such a lock belongs to the open file. One of the process (lockf) would go when
        any handle of the file is closed, as by a program that reads it. Forked children close
        theirs (`close_in_child`), else the lock would outlive a killed run in fairseq's data
        loaders.
        """
        for is_last in (False, True):
            try:
                fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if is_last:
                    raise UsageError(
                        f"another run is writing to {self.path}: wait for it, or name another "
                        "--results-file"
                    ) from None
                # an earlier run of this process may be over, and only wait for Python to notice
                gc.collect()
        if not OPEN.is_registered:
            os.register_at_fork(after_in_child=close_in_child)
            OPEN.is_registered = True
        OPEN.add(self)

    def look(self, resume: bool, made_from: dict[str, str]) -> int:
        """Take in the sentences that are done; return how many bytes of the
        file are whole lines."""
        if not self.path.stat().st_size:
            return 0
        if not resume:
            raise UsageError(
                f"{self.path} has results already: add --resume to continue it, or "
                "name another file"
            )
        whole = 0
        self.file.seek(0)
        with open(self.file.fileno(), "rb", closefd=False) as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n") and (number > 1 or may_begin(line)):
                    break  # cut short
                try:
                    if number == 1:
                        self.compare(header(line), made_from)
                    else:
                        record = sentence(line, self.words)
                        self.done[record["id"]] = record
                except ValueError as error:
                    if isinstance(error, UsageError):
                        raise
                    raise UsageError(
                        f"{self.path}, line {number}, is not a line of a results file, because "
                        f"{error}: name another --results-file"
                    ) from None
                whole += len(line)
        return whole

    def compare(self, there: dict[str, str], now: dict[str, str]) -> None:
        """UsageError that names what differs."""
        different = [
            name for name in dict.fromkeys([*there, *now]) if there.get(name) != now.get(name)
        ]
        if different:
            told = (
                f"{name} ({shown(there.get(name))} there, {shown(now.get(name))} now)"
                for name in different[:3]
            )
            more = f" and {len(different) - 3} more" if len(different) > 3 else ""
            raise UsageError(
                f"{self.path} has results of another search, which differs in {', '.join(told)}"
                f"{more}: use the same flags and files, or name another --results-file"
            )

    def write(self, record: dict[str, Any]) -> None:
        """Add one line, on disk as far as this process goes: a line is written at once, as
        several processes may write."""
        line = line_of(record)
        written = 0
        try:
            while written < len(line):
                written += self.file.write(line[written:])
        except BaseException as error:
            if written and not is_stream(self.path):  # what comes next does not follow half a line
                self.file.truncate(os.fstat(self.file.fileno()).st_size - written)
            if not isinstance(error, OSError):
                raise
            raise UsageError(
                f"--results-file {self.path} cannot be written ({error.strerror}): make room "
                "and add --resume"
            ) from error

    def add(self, number: int, source: str, text: str, hypotheses: list[dict[str, Any]]) -> None:
        """A sentence is done: its checksum, the best translation as text, its hypotheses as
        fairseq's commands read them."""
        kept = [
            {
                "tokens": h["tokens"].tolist(),
                "score": float(h["score"]),
                "positional_scores": h["positional_scores"].tolist(),
            }
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

    def hypotheses(
        self, number: int, source: str, device: torch.device
    ) -> list[dict[str, Any]] | None:
        """The hypotheses of a sentence, given its checksum, that is done already;
        None if it is not."""
        record = self.done.get(number) or self.latest.get(number)
        if record is None:
            return None
        if record["source"] != source:
            raise UsageError(
                f"sentence {number} of {self.path} was translated from another source, "
                "or with other constraints or another prefix: use the same data, or name "
                "another --results-file"
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
        OPEN.discard(self)


class OpenFiles(weakref.WeakSet):
    """The results files that this process writes."""

    is_registered = False  # that forked children close them


OPEN = OpenFiles()


def close_in_child() -> None:
    """In a forked child: leave the files to the parent."""
    for file in list(OPEN):
        file.close()


def shown(value: str | None) -> str:
    """A value in a message."""
    return "not given" if value is None else value if len(value) <= SHOWN else value[:SHOWN] + "..."


def checksum(*given: Any) -> str:
    """Of what a sentence's results depend on: tensors of tokens, and what else its
    representation tells."""
    parts = [
        x.cpu().numpy().tobytes()
        if isinstance(x, Tensor)
        else repr(x).encode("utf-8", "surrogatepass")
        for x in given
    ]
    return hashlib.sha256(b"|".join(parts)).hexdigest()[:16]


# ---- One line of a results file
#
# It is a JSON object with a digest of its content.
# Everything that is read is checked, as other programs may have written it: `--resume` prints
# these lines as translations.


FORMAT = {"format": "fairseq_ext results", "version": 2}
START = json.dumps(FORMAT)[:-1].encode()  # of the first line


def line_of(record: dict[str, Any]) -> bytes:
    """The line of a record, its end included."""
    return json.dumps(with_digest(record), ensure_ascii=False).encode() + b"\n"


def may_begin(line: bytes) -> bool:
    """Whether a first line that was cut short can be ours."""
    return START.startswith(line[: len(START)])


def header(line: bytes) -> dict[str, str]:
    """What the results were made from. Errors: ValueError, whose text fits behind "because"."""
    record = verify_digest(line)
    made_from = record.get("made_from")
    if (
        {name: record.get(name) for name in FORMAT} != FORMAT
        or not isinstance(made_from, dict)
        or not all(isinstance(value, str) for value in made_from.values())
    ):
        raise ValueError("it is not the beginning of a results file")
    return made_from


def sentence(line: bytes, words: int) -> dict[str, Any]:
    """A sentence's record, whose tokens are of a dictionary of so many words.

    Errors: ValueError, whose text fits behind "because".
    """
    record = verify_digest(line)
    if not (
        whole(record.get("id"))
        and isinstance(record.get("source"), str)
        and isinstance(record.get("text"), str)
    ):
        raise ValueError("it has no number, source or text of a sentence")
    hypotheses = record.get("hypotheses")
    if not isinstance(hypotheses, list) or not hypotheses:
        raise ValueError("it has no hypotheses")
    for hypothesis in hypotheses:
        check(hypothesis, words)
    return record


def check(hypothesis: Any, words: int) -> None:
    """Errors: ValueError for what is no hypothesis over so many words."""
    if not isinstance(hypothesis, dict):
        raise ValueError("it has a hypothesis that is not an object")
    tokens, scores, unmet = (
        hypothesis.get(name) for name in ("tokens", "positional_scores", "unmet")
    )
    if (
        not isinstance(tokens, list)
        or not tokens
        or not all(whole(token) and token < words for token in tokens)
    ):
        raise ValueError(f"it has a token outside the dictionary's {words} words")
    given = [hypothesis.get("score"), hypothesis.get("utility", 0.0)]
    if (
        not isinstance(scores, list)
        or len(scores) != len(tokens)
        or not all(map(number, [*given, *scores]))
    ):
        raise ValueError("it has a score that is not a number, or not one for each token")
    if "unmet" in hypothesis and not (
        isinstance(unmet, list) and all(pair_of_texts(pair) for pair in unmet)
    ):
        raise ValueError("it has constraints that are not pairs of phrase and reason")


def whole(value: Any) -> bool:
    """Whether it is a whole number from 0."""
    return type(value) is int and value >= 0


def number(value: Any) -> bool:
    """Whether it is a number; a sentence whose every word was forbidden has -Infinity."""
    return type(value) in (int, float) and value == value


def pair_of_texts(value: Any) -> bool:
    """Whether it is [phrase, reason]."""
    return (
        isinstance(value, list) and len(value) == 2 and all(isinstance(text, str) for text in value)
    )


# ---- `--stats-file F`: the counters of a run as JSON
#
# The file is replaced in one step while the run goes on and at its end.
# A device or a pipe is written once, at the end.


SECONDS_BETWEEN_WRITES = 20.0


class StatsFile:
    """One run's file.

    Errors: UsageError where it cannot be written, which is better known before the
    run than at its end.
    """

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
                f"--stats-file {self.path} cannot be written ({error.strerror or error}): make "
                "room, or name another file"
            ) from error

    def follow(self) -> None:
        """Write once in a while.

        A disk that is full now may have room at the end, and that error is told.
        """
        if self.is_stream or time.monotonic() - self.written < SECONDS_BETWEEN_WRITES:
            return
        self.written = time.monotonic()
        try:
            self.write()
        except UsageError:
            pass


# ---- How far a streaming run has come
#
# A bar on a terminal, a line in the log now and then elsewhere.

SECONDS_BETWEEN_LINES = 30.0


class Progress:
    """Sentences done of one pool. show_bar: whether by a bar on standard error."""

    def __init__(self, sentences: int, stats: Stats, show_bar: bool):
        self.sentences = sentences
        self.stats = stats
        self.done = 0
        self.start = self.told = time.monotonic()
        self.bar = (
            tqdm(total=sentences, unit=" sentences", leave=False, dynamic_ncols=True)
            if show_bar
            else None
        )

    def add(self) -> None:
        """One more sentence is done."""
        self.done += 1
        now = time.monotonic()
        if self.bar is not None:
            if now - self.told > 0.5:
                self.told = now
                self.bar.set_postfix_str(
                    f"useful rows {self.stats.useful_rows():.0%}", refresh=False
                )
            self.bar.update()
        elif now - self.told > SECONDS_BETWEEN_LINES:
            self.told = now
            speed = self.done / (now - self.start)
            logger.info(
                f"sentences: {self.done:,} of {self.sentences:,}, {speed:.1f} a second, useful "
                f"rows {self.stats.useful_rows():.0%}"
            )

    def close(self) -> None:
        """The pool is done."""
        if self.bar is not None:
            self.bar.close()
