"""Input files (`--input`) as shards, and each shard as numbered sentences.

This module decides the kind of a file and the name of its output, and checks that the file has the
required keys or columns.
Kinds: text, JSONL (.jsonl, .json, .ndjson) and Parquet (.parquet); compression by suffix:
.gz .zst .bz2 .lz4.
"""

from __future__ import annotations

import codecs
import contextlib
import glob
import io
import json
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import astuple
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_ext.core.errors import LONE_SURROGATE, UsageError, counted, cut
from fairseq_ext.core.files import Lines
from fairseq_ext.search.constraints.lines import (
    KEYS,
    NO_CONSTRAINTS,
    is_json,
    json_object,
    parse_json,
    parse_tabs,
    text_constraints,
)
from fairseq_ext.search.request import NO_TEXT, Request, TextConstraints

CODECS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bz2", ".lz4": "lz4"}
KINDS = {".jsonl": "jsonl", ".json": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}


class Shard(NamedTuple):
    """One input file."""

    path: str
    name: str  # of its output, without suffix: its path below the common folder of all inputs
    constraints: str | None = None  # its constraints file

    @property
    def kind(self) -> str:
        return KINDS.get(Path(without_suffix(self.path, CODECS)).suffix.lower(), "text")


def without_suffix(path: str, suffixes: Collection[str]) -> str:
    """Return a path without its suffix, if it is one of these."""
    stem, suffix = os.path.splitext(path)
    return stem if suffix.lower() in suffixes else path


def shards_of(paths: Sequence[str], constraints: Sequence[str] | None) -> list[Shard]:
    """Return the shards of --input, patterns expanded, each with its --constraints-file.

    Errors: UsageError for files that do not exist, for two inputs whose outputs would have the same
    name, and for a number of constraints files that differs from that of the inputs.
    """
    found: list[str] = []
    for path in paths:
        names = [path] if os.path.exists(path) else sorted(glob.glob(path, recursive=True))
        if os.path.isdir(path):
            entries = (e for e in os.scandir(path) if not e.name.startswith("."))
            names = sorted(entry.path for entry in entries if entry.is_file())
        if not names:
            raise UsageError(
                f"--input {path} does not exist: name files, folders or patterns that do"
            )
        found += [name for name in names if not os.path.isdir(name)]
    if not found:
        raise UsageError("--input names no file: give one or more")
    for flag, path in [("--input", path) for path in found] + [
        ("--constraints-file", path) for path in constraints or ()
    ]:
        if os.path.exists(path) and not os.path.isfile(path):
            raise UsageError(
                f"{flag} {path} is not a regular file, and a corpus run reads its files more than "
                "once: write it to one first"
            )
    if constraints is not None and len(constraints) != len(found):
        raise UsageError(
            f"--constraints-file names {counted(len(constraints), 'file')} and the input has "
            f"{len(found)}: give one for each, in order"
        )
    folder = os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in found])
    shards: dict[str, Shard] = {}
    for i, path in enumerate(found):
        name = without_suffix(os.path.relpath(os.path.abspath(path), folder), CODECS)
        name = without_suffix(name, [*KINDS, ".txt"])
        if name in shards:
            raise UsageError(
                f"the outputs of {shards[name].path} and {path} would have the same name: rename "
                "one, or run twice"
            )
        shards[name] = Shard(path, name, constraints[i] if constraints is not None else None)
    return list(shards.values())


# ---- The keys or columns of a shard
#
# They are checked for the source before a model is loaded.


FIRST_LINES = 100  # lines of JSONL that are read for its keys


def check_columns(shards: Sequence[Shard], source_field: str | None) -> None:
    """Raise UsageError for a Parquet or JSONL file without the source's column or key.

    A file that cannot be read is reported when it is processed.
    """
    names = source_names(source_field)
    for shard in shards:
        known = names_in(shard)
        if known and known.keys().isdisjoint(names):
            one, which = (
                ("column", "its columns")
                if shard.kind == "parquet"
                else ("key", "the keys of its first lines")
            )
            raise UsageError(
                f"{shard.path} has no {one} {' or '.join(map(json.dumps, names))}: name one with "
                f"--source-field; {which} are {cut(', '.join(known))}"
            )


def names_in(shard: Shard) -> dict[str, None]:
    """Return the columns of a Parquet file, or the keys of the objects in a JSONL file's first
    lines; none of a file or a line that cannot be read."""
    found: dict[str, None] = {}
    with contextlib.suppress(ImportError, OSError, ValueError, UnreadableShard):
        # pyarrow's errors are ValueErrors, or OSErrors
        if shard.kind == "parquet":
            import pyarrow.parquet

            found |= dict.fromkeys(pyarrow.parquet.read_schema(shard.path).names)
        elif shard.kind == "jsonl":
            lines = ShardReader(shard._replace(constraints=None)).raw_lines()
            for line in islice(lines, FIRST_LINES):
                with contextlib.suppress(UsageError, UnicodeDecodeError):
                    found |= dict.fromkeys(json_object((line or b"").decode(), shard.path))
    return found


# ---- A shard as numbered sentences with their ids and constraints
#
# - Text: a sentence a line. Only a line feed ends a line, as in fairseq's own reading of a corpus;
#   a byte order mark and carriage returns are dropped.
# - JSONL (.jsonl, .json, .ndjson): an object a line, `{"source": "...", "id": ..., "constraints":
#   [...], "any_of": [...], "avoid": [...], "prefix": "...", "allowed": [...]}`; only the source is
#   required, and the last five are as in a JSONL constraints file.
# - Parquet (.parquet): the same names as columns; read batch by batch.
# - Compression by suffix: .gz .zst .bz2 .lz4.
#
# A shard is read once, from its start to its end, one line of at most `MAX_LINE` bytes at a time,
# through pyarrow's streams, as in Ray Data. Ray Data's own readers are not suitable. Its text
# reader reads a whole file into memory and decodes it as one string, so one wrong byte loses the
# file without naming the line; it splits with `str.splitlines`, so U+2028 and seven other
# characters inside a line shift all lines after them. Its JSON reader reads whole files too. Its
# blocks and checkpoints (row ids, all in memory) do not record the file and the line of a row,
# which the order of the output and restarts need here.


BLOCK = 1 << 20  # bytes read at once
MAX_LINE = 1 << 20  # bytes of a line; longer lines are reported as errors
ROWS = 1024  # rows of Parquet read at once


class ShardLine(NamedTuple):
    """One line of a shard."""

    request: Request  # its number is the line's, from 0
    id: object  # the input's, else the line's number from 1
    error: tuple[str, str] | None = None  # kind, reason; None: the line can be translated

    @property
    def number(self) -> int:
        """The number of the line, from 0."""
        return self.request.number


class Unit(NamedTuple):
    """Neighbouring sentences of one shard."""

    shard: Shard
    sentences: list[ShardLine]
    input_bytes: float = 0.0  # their share of the input file
    deaths: int = 0  # of workers that had them

    @property
    def start(self) -> int:
        return self.sentences[0].number

    @property
    def end(self) -> int:
        return self.sentences[-1].number + 1


class UnreadableShard(Exception):
    """A shard that cannot be read to its end. lines: number of lines before the failure."""

    def __init__(self, lines: int, reason: str):
        super().__init__(reason)
        self.lines, self.reason = lines, reason


def source_names(source_field: str | None) -> tuple[str, ...]:
    """Return the keys or columns that may hold the source: --source-field, else the defaults."""
    return (source_field,) if source_field else ("source", "text")


class ShardReader:
    """The sentences of a shard, in order. `position` is about the number of the file's bytes that
    have been read.

    source_field: the key or column of the source; None takes "source", else "text".
    Errors: `UnreadableShard` while reading; UsageError if the constraints file does not match the
    shard.
    """

    def __init__(self, shard: Shard, source_field: str | None = None):
        self.shard, self.names = shard, source_names(source_field)
        self.size = max(os.path.getsize(shard.path), 1)
        self.position = 0.0
        self.number = 0  # of the current line
        self.constraint_lines = (
            Lines(shard.constraints, "--constraints-file") if shard.constraints else None
        )
        self.parse_constraints = (
            parse_json
            if self.constraint_lines is not None and is_json(self.constraint_lines)
            else parse_tabs
        )

    def units(self, size: int, done: Sequence[tuple[int, int]]) -> Iterator[list[ShardLine]]:
        """Yield runs of at most `size` neighbouring sentences. Sentences in `done`, sorted ranges
        [start, end), are left out."""
        unit: list[ShardLine] = []
        ranges = iter([*done, (1 << 62, 1 << 62)])
        start, end = next(ranges)
        for raw in self.raw_lines():
            while self.number >= end:
                start, end = next(ranges)
            if self.number < start:
                unit.append(self.sentence(raw))
            self.number += 1
            if unit and (len(unit) == size or self.number % size == 0 or self.number == start):
                yield unit
                unit = []
        if unit:
            yield unit
        if self.constraint_lines is not None and len(self.constraint_lines) != self.number:
            self.constraint_lines.refuse_number(
                self.number, NO_CONSTRAINTS, f"{self.shard.path} has"
            )

    def raw_lines(self) -> Iterator[Any]:
        """Yield lines as bytes (None for a line that is too long), or rows of Parquet as
        dictionaries."""
        try:
            yield from self.rows() if self.shard.kind == "parquet" else self.lines()
        except (OSError, EOFError, ValueError) as error:
            # pyarrow's errors are ValueErrors, or OSErrors
            raise UnreadableShard(self.number, str(error).splitlines()[0]) from error
        except ImportError as error:
            way = "pip install -U pyarrow numpy, or an older pyarrow where numpy has to stay"
            raise UsageError(
                f"{self.shard.path} is read through pyarrow, which cannot be imported "
                f"({error}): {way}"
            ) from error

    def lines(self) -> Iterator[bytes | None]:
        """Yield the file's lines without their line feeds; None for a line that is too long."""
        codec = CODECS.get(os.path.splitext(self.shard.path)[1].lower())
        with open(self.shard.path, "rb", buffering=0) as file:
            stream: Any = file
            if codec and self.size > 1:
                import pyarrow

                stream = pyarrow.CompressedInputStream(file, codec)
            reader = io.BufferedReader(stream, BLOCK)
            mark = codecs.BOM_UTF8
            while line := reader.readline(MAX_LINE + 1):
                is_long = len(line) > MAX_LINE and line[-1:] != b"\n"
                rest = line
                while is_long and rest and rest[-1:] != b"\n":
                    rest = reader.readline(BLOCK)
                self.position = file.tell() if codec else self.position + len(line)
                if line != mark:  # a file of nothing else has no line
                    yield None if is_long else line.removeprefix(mark).removesuffix(b"\n")
                mark = b""

    def rows(self) -> Iterator[dict[str, object]]:
        """Yield the rows of a Parquet file."""
        import pyarrow.parquet

        with pyarrow.parquet.ParquetFile(self.shard.path) as file:
            known = set(file.schema_arrow.names)
            columns = [name for name in (*self.names, "id", *KEYS) if name in known]
            for i in range(file.num_row_groups):
                for batch in file.iter_batches(
                    ROWS, row_groups=[i], columns=columns, use_threads=False
                ):
                    for row in batch.to_pylist():
                        self.position += self.size / file.metadata.num_rows
                        yield row

    def where(self) -> str:
        """Return the current line's place, for messages."""
        return f"line {self.number + 1} of {self.shard.path}"

    def sentence(self, raw: Any) -> ShardLine:
        """Return the current line as a sentence; the problem of a bad line is in its `error`."""
        source, identity, given, error = "", None, NO_TEXT, None
        is_text, where = self.shard.kind == "text", self.where()
        try:
            if raw is None:
                reason = f"{where} has more than {MAX_LINE} bytes: shorten or split it"
                error = "too long", reason
            elif is_text:
                source = raw.rstrip(b"\r").decode("utf-8")
                given = self.constraints({})
            else:
                value = raw
                if isinstance(raw, bytes):
                    text = raw.rstrip(b"\r").decode("utf-8")
                    value = json_object(text, where, (*self.names[:1], *KEYS))
                identity = identity_of(value.get("id"))
                source, given = self.source_of(value), self.constraints(value)
            for text in texts_of((source, identity, astuple(given))):
                text.encode("utf-8")
        except UnicodeDecodeError as wrong:
            source = raw.decode("utf-8", "replace") if is_text else ""
            error = "invalid UTF-8", f"{where} is not valid UTF-8 (byte {wrong.start + 1})"
        except UnicodeEncodeError as wrong:  # a lone surrogate, from an escape in JSON
            error = "invalid UTF-8", f"{where} is not valid Unicode (character {wrong.start + 1})"
            identity = None if any(map(LONE_SURROGATE.search, texts_of(identity))) else identity
            source = source.encode("utf-8", "replace").decode()
        except UsageError as wrong:
            error, source = ("invalid line", str(wrong)), source if is_text else ""
        identity = self.number + 1 if identity is None else identity
        request = Request(self.number, source, NO_TEXT if error else given)
        return ShardLine(request, identity, error)

    def source_of(self, value: dict[str, object]) -> str:
        """Return the source in an object or row (raises UsageError)."""
        source = next((value[name] for name in self.names if value.get(name) is not None), None)
        if not isinstance(source, str):
            raise UsageError(
                f'{self.where()} has no text in "{self.names[0]}": write the source sentence '
                "there (--source-field)"
            )
        return source

    def constraints(self, value: dict[str, object]) -> TextConstraints:
        """Return the constraints of an object or row, and those of the constraints file."""
        found = text_constraints(value, self.where())
        lines = self.constraint_lines
        if lines is not None:
            if self.number >= len(lines):
                raise UsageError(
                    f"--constraints-file {lines.path} has no line {self.number + 1}: write one for "
                    "each sentence"
                )
            if (line := lines[self.number]).strip(" "):
                found += self.parse_constraints(line, lines.where(self.number))
        return found


def identity_of(value: object) -> object:
    """Return an id as a JSON value: dates, decimals and similar values of Parquet become text; NaN,
    which marks an empty cell of a table, becomes None."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return None if value != value else str(value)
    return value


def texts_of(value: object) -> Iterator[str]:
    """Yield every text in a value of lists, tuples and dictionaries, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for each in value.items() if isinstance(value, dict) else value:
            yield from texts_of(each)
