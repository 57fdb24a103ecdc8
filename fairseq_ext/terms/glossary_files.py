"""Entries of a glossary file, with the line that each stands on.

By the file's name:
- .csv: a header with the columns `source` and `target`, or the two language codes; other columns are not read.
- .jsonl, .json: `{"source": "term", "target": "a|b"}` a line; the target may be a list.
- .tbx, .xml: TBX-Basic (ISO 30042), a concept's terms by language; terms marked deprecated or superseded are left out.
- any other: source term, tab, target term.
`a|b` in a target: any one of them. Blank lines are skipped.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import regex

from fairseq_ext.errors import UsageError, counted
from fairseq_ext.files import Lines

# a mark that parts clauses, with more of the term behind it
CLAUSES = regex.compile(r"[,;:!?…](?=\s+\S)|[，。；：！？、](?=\s*\S)")


@dataclass(slots=True)
class Entry:
    """A line of a glossary."""

    source: str
    targets: tuple[str, ...]  # any one of them
    line: int  # from 1


@dataclass(frozen=True)
class Languages:
    """The codes under which CSV and TBX files may have their columns."""

    source: str | None = None
    target: str | None = None


class Errors:
    """Collects the errors of a file's lines: the first is told, with how many more lines have one."""

    def __init__(self) -> None:
        self.first: UsageError | None = None
        self.lines = 0

    def add(self, error: UsageError) -> None:
        self.first, self.lines = self.first or error, self.lines + 1

    def tell(self) -> None:
        """UsageError if there are any."""
        if self.first is not None:
            more = f" ({counted(self.lines - 1, 'more such line')} in the file)" if self.lines > 1 else ""
            raise UsageError(f"{self.first}{more}")


def read(path: str, flag: str, languages: Languages, errors: Errors) -> list[Entry]:
    """The file's entries; what is wrong with a line goes to `errors`.

    Errors: UsageError for a file that cannot be read, and for one whose form leaves no lines to read.
    """
    readers = {".csv": csv_rows, ".jsonl": json_rows, ".json": json_rows, ".tbx": tbx_rows, ".xml": tbx_rows}
    reader = readers.get(Path(path).suffix.lower(), tab_rows)
    found = []
    for number, row in reader(path, flag, languages):
        try:
            if isinstance(row, UsageError):
                raise row
            source, targets = row
            found.append(Entry(*checked(source, targets, f"line {number} of {path}"), number))
        except UsageError as error:
            errors.add(error)
    return found


def checked(source: str, targets: list[str], where: str) -> tuple[str, tuple[str, ...]]:
    """A source term and its targets without space around them; UsageError for empty ones and for a term of two clauses."""
    source, stripped = source.strip(), [target.strip() for target in targets]
    if not source:
        raise UsageError(f"{where} has no source term: write one before the tab")
    if not any(stripped):
        raise UsageError(f"{where} has no target for the term '{source}': write it after the tab")
    if not all(stripped):
        raise UsageError(f"{where} has an empty alternative in '{'|'.join(targets)}': remove the bar")
    parted = None if source.isalnum() else CLAUSES.search(source)
    if parted:
        raise UsageError(f"{where} has the source term '{source}' across a '{parted[0]}': make its parts terms of their own")
    return source, tuple(dict.fromkeys(stripped))


def tab_rows(path: str, flag: str, languages: Languages) -> Iterator[tuple[int, Any]]:
    """(line, (source, targets) or the error) of a tab-separated file."""
    for number, line in numbered(path, flag):
        if isinstance(line, UsageError):
            yield number, line
            continue
        columns = line.split("\t")
        if len(columns) == 2:
            yield number, (columns[0], columns[1].split("|"))
        elif line.strip():
            count = counted(len(columns), "column")
            how = "write the source term, one tab, the target term"
            yield number, UsageError(f"line {number} of {path} has {count} and needs 2: {how}")


def json_rows(path: str, flag: str, languages: Languages) -> Iterator[tuple[int, Any]]:
    """The same of JSONL."""
    for number, line in numbered(path, flag):
        if isinstance(line, UsageError):
            yield number, line
        elif line.strip():
            try:
                record = json.loads(line)
                target = record["target"]
                targets = target.split("|") if isinstance(target, str) else list(target)
                for text in [record["source"], *targets]:
                    text.encode()  # a lone surrogate is no text either
                yield number, (record["source"], targets)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                how = 'write {"source": "term", "target": "a|b"}, the target as text or a list of texts'
                yield number, UsageError(f"line {number} of {path} is not an entry: {how}")


def csv_rows(path: str, flag: str, languages: Languages) -> Iterator[tuple[int, Any]]:
    """The same of CSV; a row that takes several lines counts as its last."""
    lines = [line for _, line in numbered(path, flag)]
    wrong = next((line for line in lines if isinstance(line, UsageError)), None)
    if wrong is not None:
        raise wrong
    table = csv.reader(io.StringIO("\n".join(map(str, lines))), strict=True)
    columns: list[int] | None = None
    try:
        for row in table:
            if not any(cell.strip() for cell in row):
                continue
            if columns is None:
                columns = header(row, path, languages)
            elif len(row) <= max(columns):
                said = f"line {table.line_num} of {path} has {counted(len(row), 'column')}, fewer than the header"
                yield table.line_num, UsageError(f"{said}: give it a source and a target")
            else:
                yield table.line_num, (row[columns[0]], row[columns[1]].split("|"))
    except csv.Error as error:
        raise UsageError(f"line {table.line_num} of {path} is not valid CSV ({error}): mend its quotes") from None


def tbx_rows(path: str, flag: str, languages: Languages) -> Iterator[tuple[int, Any]]:
    """The same of TBX."""
    from fairseq_ext.terms.tbx import rows  # which loads an XML parser

    yield from rows(path, flag, languages.source, languages.target)


def header(row: list[str], path: str, languages: Languages) -> list[int]:
    """The places of the source and the target column; UsageError where the header names none."""
    names = [name.strip().lower() for name in row]
    found = []
    for column, code in (("source", languages.source), ("target", languages.target)):
        accepted = [column] + ([code.lower()] if code else [])
        place = next((names.index(name) for name in accepted if name in names), None)
        if place is None:
            raise UsageError(f"the header of {path} has no column '{column}': name two of its columns source and target")
        found.append(place)
    return found


def numbered(path: str, flag: str) -> Iterator[tuple[int, str | UsageError]]:
    """(number from 1, line or the error) of a text file."""
    lines = Lines(path, flag)
    for i in range(len(lines)):
        try:
            yield i + 1, lines[i]
        except UsageError as error:
            yield i + 1, error
