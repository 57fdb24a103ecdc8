"""The files of a run (`--results-file` with `--resume`, `--stats-file`) and its progress."""

from __future__ import annotations

import fcntl
import gc
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
from fairseq_ext.core.files import is_stream, replace, sha256, verify_digest, with_digest
from fairseq_ext.core.stats import Stats

# ---- `--results-file` and `--resume`
#
# Results are on disk as sentences finish, so that an interrupted run can be continued. The file has
# JSON lines. The first line names the search; each other line is a sentence: its number, a checksum
# of its source tokens, its translation, and its hypotheses with all values that are printed.
# One run at a time writes the file.


SHOWN = 80  # characters of a value in a message
logger = logging.getLogger("fairseq_ext")


class ResultsFile:
    """One file, written line by line.

    signature: one line for readers. made_from: what results depend on, by flag (run.py). words:
    number of words of the target dictionary.
    Errors: UsageError for a file that cannot be written, is in use, has results of another search,
    or has a changed line.
    """

    def __init__(
        self, path: str, resume: bool, signature: str, made_from: dict[str, str], words: int
    ):
        self.path, self.words = Path(path), words
        self.done: dict[int, dict[str, Any]] = {}
        # results of the current search; its sentences are searched again if it fails
        self.unconfirmed: dict[int, dict[str, Any]] = {}
        if os.path.isdir(path) or path.endswith(os.sep):
            raise UsageError(f"--results-file {path} is a directory: name a file")
        try:
            stream = is_stream(self.path)
            self.file: IO[bytes] = open(self.path, "ab" if stream else "a+b", buffering=0)
            if not stream:
                self.lock()
                whole = self.read_existing(resume, made_from)
                self.file.truncate(whole)  # the sentence of an incomplete line is translated again
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
        """Lock the file for as long as this process lives (raises UsageError if another run has
        it).

        subtle: such a lock belongs to the open file. A lock of the process (lockf) would be lost
        when any handle of the file is closed, as by a program that reads it. Forked children close
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
                # an earlier run of this process may be over and not yet collected
                gc.collect()
        if not open_files.is_registered:
            os.register_at_fork(after_in_child=close_in_child)
            open_files.is_registered = True
        open_files.add(self)

    def read_existing(self, resume: bool, made_from: dict[str, str]) -> int:
        """Read the finished sentences; return the number of bytes of complete lines."""
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
                if not line.endswith(b"\n") and (number > 1 or may_be_header_start(line)):
                    break  # an incomplete line
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
        """Raise UsageError, which names the differences, if there are any."""
        different = [
            name for name in dict.fromkeys([*there, *now]) if there.get(name) != now.get(name)
        ]
        if different:
            differences = (
                f"{name} ({format_value(there.get(name))} there, {format_value(now.get(name))} now)"
                for name in different[:3]
            )
            more = f" and {len(different) - 3} more" if len(different) > 3 else ""
            raise UsageError(
                f"{self.path} has results of another search, which differs in "
                f"{', '.join(differences)}{more}: use the same flags and "
                "files, or name another --results-file"
            )

    def write(self, record: dict[str, Any]) -> None:
        """Write one line. The system has it on return; several processes may write."""
        line = line_of(record)
        written = 0
        try:
            while written < len(line):
                written += self.file.write(line[written:])
        except BaseException as error:
            if written and not is_stream(self.path):  # the next line must not follow half a line
                self.file.truncate(os.fstat(self.file.fileno()).st_size - written)
            if not isinstance(error, OSError):
                raise
            raise UsageError(
                f"--results-file {self.path} cannot be written ({error.strerror}): make room "
                "and add --resume"
            ) from error

    def add(self, number: int, source: str, text: str, hypotheses: list[dict[str, Any]]) -> None:
        """Write a finished sentence: its checksum, the best translation as text, its hypotheses as
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
        self.unconfirmed[number] = record

    def forget(self, numbers: Iterable[int]) -> None:
        """Drop the unconfirmed records of sentences whose search is over."""
        for number in numbers:
            self.unconfirmed.pop(number, None)

    def hypotheses(
        self, number: int, source: str, device: torch.device
    ) -> list[dict[str, Any]] | None:
        """Return the hypotheses of a finished sentence, given its checksum; None for any other
        sentence."""
        record = self.done.get(number) or self.unconfirmed.get(number)
        if record is None:
            return None
        if record["source"] != source:
            raise UsageError(
                f"sentence {number + 1} of {self.path} was translated from another source, "
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
        """Release the file for other runs."""
        self.file.close()
        open_files.discard(self)


class OpenFiles(weakref.WeakSet):
    """The results files that this process writes."""

    is_registered = False  # whether forked children close them


open_files = OpenFiles()


def close_in_child() -> None:
    """Close the files in a forked child, whose parent writes them."""
    for file in list(open_files):
        file.close()


def format_value(value: str | None) -> str:
    """Return a value as a message shows it."""
    return "not given" if value is None else value if len(value) <= SHOWN else value[:SHOWN] + "..."


def checksum(*given: Any) -> str:
    """Return a checksum of tensors of tokens, and of the `repr` of other values."""
    parts = (
        x.cpu().numpy().tobytes()
        if isinstance(x, Tensor)
        else repr(x).encode("utf-8", "surrogatepass")
        for x in given
    )
    return sha256([b"|".join(parts)])[:16]


# ---- One line of a results file
#
# It is a JSON object with a digest of its content. Everything that is read is checked, since other
# programs may have written it and `--resume` prints these lines as translations.


FORMAT = {"format": "fairseq_ext results", "version": 2}
START = json.dumps(FORMAT)[:-1].encode()  # start of the first line


def line_of(record: dict[str, Any]) -> bytes:
    """Return the line of a record, with its newline."""
    return json.dumps(with_digest(record), ensure_ascii=False).encode() + b"\n"


def may_be_header_start(line: bytes) -> bool:
    """Return whether an incomplete first line can be the start of ours."""
    return START.startswith(line[: len(START)])


def header(line: bytes) -> dict[str, str]:
    """Return what the results were made from, by flag. Errors: ValueError; its text can follow
    "because"."""
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
    """Return a sentence's record. words: size of the dictionary of its tokens.

    Errors: ValueError; its text can follow "because".
    """
    record = verify_digest(line)
    if not (
        is_index(record.get("id"))
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
    """Raise ValueError unless `hypothesis` is one over a dictionary of this size."""
    if not isinstance(hypothesis, dict):
        raise ValueError("it has a hypothesis that is not an object")
    tokens, scores, unmet = (
        hypothesis.get(name) for name in ("tokens", "positional_scores", "unmet")
    )
    if (
        not isinstance(tokens, list)
        or not tokens
        or not all(is_index(token) and token < words for token in tokens)
    ):
        raise ValueError(f"it has a token outside the dictionary's {words} words")
    given = [hypothesis.get("score"), hypothesis.get("utility", 0.0)]
    if (
        not isinstance(scores, list)
        or len(scores) != len(tokens)
        or not all(map(is_number, [*given, *scores]))
    ):
        raise ValueError("it has a score that is not a number, or not one for each token")
    if "unmet" in hypothesis and not (
        isinstance(unmet, list) and all(is_text_pair(pair) for pair in unmet)
    ):
        raise ValueError("it has constraints that are not pairs of phrase and reason")


def is_index(value: Any) -> bool:
    """Return whether it is an integer of 0 or more."""
    return type(value) is int and value >= 0


def is_number(value: Any) -> bool:
    """Return whether it is a number, or -Infinity, the score of a sentence whose every word was
    forbidden."""
    return type(value) in (int, float) and value == value


def is_text_pair(value: Any) -> bool:
    """Return whether it is [phrase, reason]."""
    return (
        isinstance(value, list) and len(value) == 2 and all(isinstance(text, str) for text in value)
    )


# ---- `--stats-file F`: the counters of a run as JSON
#
# The file is replaced in one step during the run and at its end. A device or a pipe is written
# once, at the end.


SECONDS_BETWEEN_WRITES = 20.0


class StatsFile:
    """The statistics file of one run.

    Errors: UsageError if it cannot be written, which is reported before the run.
    """

    def __init__(self, path: str, stats: Stats):
        self.path, self.stats, self.is_stream = path, stats, is_stream(path)
        if not self.is_stream:
            self.write()
        self.written = time.monotonic()

    def write(self) -> None:
        """Write the statistics so far. Errors: UsageError."""
        try:
            replace(self.path, [json.dumps(self.stats.as_dict(), indent=1).encode(), b"\n"])
        except OSError as error:
            raise UsageError(
                f"--stats-file {self.path} cannot be written ({error.strerror or error}): make "
                "room, or name another file"
            ) from error

    def write_occasionally(self) -> None:
        """Write the file, at most every 20 seconds. Errors are ignored: the last write, at the end
        of the run, reports them."""
        if self.is_stream or time.monotonic() - self.written < SECONDS_BETWEEN_WRITES:
            return
        self.written = time.monotonic()
        try:
            self.write()
        except UsageError:
            pass


# ---- Progress of a streaming run: a bar on a terminal, else a line in the log now and then

SECONDS_BETWEEN_LINES = 30.0


class Progress:
    """The progress of one pool, in finished sentences. show_bar: whether by a bar on standard
    error."""

    def __init__(self, sentences: int, stats: Stats, show_bar: bool):
        self.sentences = sentences
        self.stats = stats
        self.done = 0
        self.start = self.last_report = time.monotonic()
        self.bar = (
            tqdm(total=sentences, unit=" sentences", leave=False, dynamic_ncols=True)
            if show_bar
            else None
        )

    def add(self) -> None:
        """Count one more finished sentence."""
        self.done += 1
        now = time.monotonic()
        if self.bar is not None:
            if now - self.last_report > 0.5:
                self.last_report = now
                self.bar.set_postfix_str(
                    f"useful rows {self.stats.useful_rows():.0%}", refresh=False
                )
            self.bar.update()
        elif now - self.last_report > SECONDS_BETWEEN_LINES:
            self.last_report = now
            speed = self.done / (now - self.start)
            logger.info(
                f"sentences: {self.done:,} of {self.sentences:,}, {speed:.1f} a second, useful "
                f"rows {self.stats.useful_rows():.0%}"
            )

    def close(self) -> None:
        """Close the bar."""
        if self.bar is not None:
            self.bar.close()
