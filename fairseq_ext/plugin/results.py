"""The files of a run (`--results-file` with `--resume`, `--glossary-report`, `--stats-file`) and
its progress."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import gc
import json
import logging
import os
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

import torch
from torch import Tensor
from tqdm import tqdm

from fairseq_ext.core.errors import UsageError, counted, cut, report
from fairseq_ext.core.files import is_stream, replace, sha256, verify_digest, with_digest
from fairseq_ext.core.stats import Section
from fairseq_ext.search.constraints.report import as_listed
from fairseq_ext.search.finished import Hypothesis
from fairseq_ext.search.phrases.sentence import Placed, SourceTerm
from fairseq_ext.search.report import ConstraintReport, Report, as_json, from_json, named

logger = logging.getLogger("fairseq_ext")


@contextlib.contextmanager
def writing(file: str, way_out: str) -> Iterator[None]:
    """Raise UsageError for an OSError in the context. file: its flag and its name."""
    try:
        yield
    except OSError as error:
        why = error.strerror or error
        raise UsageError(f"{file} cannot be written ({why}): {way_out}") from error


class RunFile:
    """A file that one run writes line by line.

    flag: that names it; way_out: where the disk is full.
    Errors: UsageError for a file that cannot be written, or that another run writes.
    """

    def __init__(self, path: str, flag: str, way_out: str):
        self.path, self.flag, self.way_out = Path(path), flag, way_out
        if os.path.isdir(path) or path.endswith(os.sep):
            raise UsageError(f"{flag} {path} is a directory: name a file")
        self.is_stream = is_stream(path)
        with writing(f"{flag} {path}", "name another file"):
            self.file: IO[bytes] = open(path, "ab" if self.is_stream else "a+b", buffering=0)
            if not self.is_stream:
                self.lock()

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
                        f"{self.flag}"
                    ) from None
                # an earlier run of this process may be over and not yet collected
                gc.collect()
        if not open_files.is_registered:
            os.register_at_fork(after_in_child=close_in_child)
            open_files.is_registered = True
        open_files.add(self)

    def write(self, text: str) -> None:
        """Write one line. The system has it on return; several processes may write."""
        line, written = text.encode("utf-8", "replace") + b"\n", 0
        with writing(f"{self.flag} {self.path}", self.way_out):
            try:
                while written < len(line):
                    written += self.file.write(line[written:])
            except BaseException:
                if written and not self.is_stream:  # the next line must not follow half a line
                    self.file.truncate(os.fstat(self.file.fileno()).st_size - written)
                raise

    def close(self) -> None:
        """Release the file for other runs."""
        self.file.close()
        open_files.discard(self)


class OpenFiles(weakref.WeakSet):
    """The files that this process writes."""

    is_registered = False  # whether forked children close them


open_files = OpenFiles()


def close_in_child() -> None:
    """Close the files in a forked child, whose parent writes them."""
    for file in list(open_files):
        file.file.close()


# ---- `--results-file` and `--resume`
#
# Results are on disk as sentences finish, so that an interrupted run can be continued. The file has
# JSON lines. The first line names the search; each other line is a sentence: its number, a checksum
# of its source tokens, its translation, and its hypotheses with all values that are printed.
# One run at a time writes the file.


class ResultsFile(RunFile):
    """One file, written line by line.

    signature: one line for readers. made_from: what results depend on, by flag (run.py). words:
    number of words of the target dictionary.
    Errors: UsageError for a file that cannot be written, is in use, has results of another search,
    or has a changed line.
    """

    def __init__(
        self, path: str, resume: bool, signature: str, made_from: dict[str, str], words: int
    ):
        super().__init__(path, "--results-file", "make room and add --resume")
        self.words = words
        # hypotheses by the number of their sentence, with a checksum of what they depend on
        self.done: dict[int, tuple[str, Sequence[Hypothesis]]] = {}
        # those of the current search; its sentences are searched again if it fails
        self.unconfirmed: dict[int, tuple[str, Sequence[Hypothesis]]] = {}
        if not self.is_stream:
            with writing(f"--results-file {path}", "name another file"):
                whole = self.read_existing(resume, made_from)
                self.file.truncate(whole)  # the sentence of an incomplete line is translated again
            if whole:
                logger.info(
                    "%s has %s of an earlier run, not to be decoded again",
                    path,
                    counted(len(self.done), "sentence"),
                )
                return
        self.write_record({**FORMAT, "signature": signature, "made_from": made_from})

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
                if not line.endswith(b"\n") and (
                    number > 1 or START.startswith(line[: len(START)])
                ):
                    break  # an incomplete line
                try:
                    if number == 1:
                        self.compare(header(line), made_from)
                    else:
                        sentence, source, report = read_line(line, self.words)
                        self.done[sentence] = source, report.hypotheses
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
            absent = "not given"
            differences = (
                f"{name} ({cut(there.get(name, absent))} there, {cut(now.get(name, absent))} now)"
                for name in different[:3]
            )
            more = f" and {len(different) - 3} more" if len(different) > 3 else ""
            raise UsageError(
                f"{self.path} has results of another search, which differs in "
                f"{', '.join(differences)}{more}: use the same flags and "
                "files, or name another --results-file"
            )

    def write_record(self, record: dict) -> None:
        """Write one line."""
        self.write(json.dumps(with_digest(record), ensure_ascii=False))

    def add(self, number: int, source: str, text: str, report: Report[Hypothesis]) -> None:
        """Write a finished sentence. source: a checksum of all that its results depend on; text: of
        the best hypothesis."""
        self.write_record({"id": number, "source": source, "text": text, **as_json(report)})
        self.unconfirmed[number] = source, report.hypotheses

    def forget(self, numbers: Iterable[int]) -> None:
        """Drop the unconfirmed records of sentences whose search is over."""
        for number in numbers:
            self.unconfirmed.pop(number, None)

    def hypotheses(self, number: int, source: str, device: torch.device) -> list[Hypothesis]:
        """Return the hypotheses of a finished sentence, given its checksum; none for any other
        sentence."""
        before, found = self.done.get(number) or self.unconfirmed.get(number) or (source, ())
        if before != source:
            raise UsageError(
                f"sentence {number + 1} of {self.path} was translated from another source, "
                "or with other constraints or another prefix: use the same data, or name "
                "another --results-file"
            )
        # fairseq's commands change the scores that they print
        return [
            dataclasses.replace(
                h,
                tokens=h.tokens.to(device),
                positional_scores=h.positional_scores.to(device, copy=True),
            )
            for h in found
        ]


def checksum(*given: object) -> str:
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


FORMAT = {"format": "fairseq_ext results", "version": 3}
START = json.dumps(FORMAT)[:-1].encode()  # start of the first line


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


def read_line(line: bytes, words: int) -> tuple[int, str, Report[Hypothesis]]:
    """Return the number, the checksum and the report of a line. words: size of the dictionary of
    its tokens.

    Errors: ValueError; its text can follow "because".
    """
    record = verify_digest(line)
    number, source, _ = (
        from_json(kind, record.pop(name, None), name)
        for name, kind in (("id", int), ("source", str), ("text", str))
    )
    report: Report[Hypothesis] = from_json(Report[Hypothesis], record)
    if number < 0 or not report.hypotheses:
        raise ValueError("it has no hypotheses, or a number below 0")
    for each in report.hypotheses:
        tokens = each.tokens.tolist()
        if not tokens or any(type(token) is not int or not 0 <= token < words for token in tokens):
            raise ValueError(f"it has a token outside the dictionary's {words} words")
        scores = each.positional_scores
        if scores.shape != each.tokens.shape or any(of != of for of in scores.tolist()):
            raise ValueError("it has not one score for each token")
    return number, source, report


# ---- The report (`--glossary-report F`): one JSON line a sentence
#
# `{"id": 3, "source": ..., "translation": ..., "terms": [{"term": "Ader", "line": 12, "targets":
# ["vein", "lode"], "source_at": [[4, 8]], "form": "vein", "at": [6, 10]}]}`: the entries that the
# source has (line of the file, places in the source; forms: the number of its target forms, with
# inflected ones), which of them was used and where it stands in
# the translation; `form` and `at` are null where the translation has none of them, or only such as
# serve another term, by the definition that the search keeps to (--constraint-boundary,
# --constraint-case). Where terms are placed, the fields of `Placed`. Places are
# characters, [start, end). source and translation are in NFKC, the translation with single spaces,
# which is what the places count in. Lines come in the order in which batches finish. Each line is
# in the file as soon as its batch is decoded, so that a command that is killed leaves those that it
# has printed.


class GlossaryReport(RunFile):
    """The file."""

    def __init__(self, path: str):
        super().__init__(path, "--glossary-report", "make room and run again")
        if not self.is_stream:
            self.file.truncate(0)

    def end(self) -> int:
        """Write the file to disk. Return the status: 1, with a message on standard error, if that
        fails."""
        try:
            with writing(f"{self.flag} {self.path}", self.way_out), self.file:
                if not self.is_stream:
                    os.fsync(self.file.fileno())
        except UsageError as error:
            report(type(error), error, None)
            return 1
        return 0

    def add(
        self,
        number: int,
        source: str,
        translation: str,
        terms: Iterable[tuple[SourceTerm, ConstraintReport]],
    ) -> None:
        """Write a sentence's line, whose places are in these texts."""
        out: list[dict[str, object]] = []
        for term, of in sorted(terms, key=lambda each: each[0].words):
            at = of.spans[0] if of.spans else None
            entry = {
                "term": term.source,
                "line": term.line,
                "targets": list(term.entry),
                "forms": len(term.forms),
                "source_at": of.source_spans,
                "form": None if at is None else as_listed(translation[slice(*at)], term),
                "at": at,
            }
            out.append(entry | (named(of, Placed) if of.placed_by else {}))
        record = {"id": number, "source": source, "translation": translation, "terms": out}
        self.write(json.dumps(record, ensure_ascii=False))


# ---- `--stats-file F`: the counters of a run as JSON
#
# The file is replaced in one step during the run and at its end. A device or a pipe is written
# once, at the end.


SECONDS_BETWEEN_WRITES = 20.0


class StatsFile:
    """The statistics file of one run.

    Errors: UsageError if it cannot be written, which is reported before the run.
    """

    def __init__(self, path: str, stats: Section):
        self.path, self.stats, self.is_stream = path, stats, is_stream(path)
        if not self.is_stream:
            self.write()
        self.written = time.monotonic()

    def write(self) -> None:
        """Write the statistics so far. Errors: UsageError."""
        with writing(f"--stats-file {self.path}", "make room, or name another file"):
            replace(self.path, [json.dumps(self.stats.as_dict(), indent=1).encode(), b"\n"])

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

    def __init__(self, sentences: int, show_bar: bool):
        self.sentences, self.done = sentences, 0
        self.start = self.last_report = time.monotonic()
        how = {"unit": " sentences", "leave": False, "dynamic_ncols": True}
        self.bar = tqdm(total=sentences, **how) if show_bar else None

    def add(self) -> None:
        """Count one more finished sentence."""
        self.done += 1
        now = time.monotonic()
        if self.bar is not None:
            self.bar.update()
        elif now - self.last_report > SECONDS_BETWEEN_LINES:
            self.last_report = now
            speed = self.done / (now - self.start)
            logger.info("sentences: %d of %d, %.1f a second", self.done, self.sentences, speed)

    def close(self) -> None:
        """Close the bar."""
        if self.bar is not None:
            self.bar.close()
