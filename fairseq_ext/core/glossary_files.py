"""Entries of a glossary file, with the line that each stands on.

By the file's name:
- .csv, with commas, semicolons or tabs, and .xlsx, the first sheet: a header with the columns `source` and `target`, or the two languages
  by code or name, where other columns are not read; without one, two columns.
- .jsonl, .json: `{"source": "term", "target": "a|b"}` a line; the target may be a list.
- .tbx, .tmx, .xml: TBX-Basic (ISO 30042), a concept's terms by language; terms marked deprecated or superseded are left out. Of TMX, units
  that have the text in both languages.
- any other: source term, tab, target term; a header as of .csv may stand above. UTF-8, or UTF-16 with a byte order mark.
`a|b` in a target: any one of them. Blank lines are skipped.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import regex

from fairseq_ext.core.errors import UsageError, counted
from fairseq_ext.core.files import Lines
from fairseq_ext.core.glossary_tables import csv_table, entries, xlsx_table

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
    reader = READERS.get(Path(path).suffix.lower(), tab_rows)
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
    rows = ((number, line if isinstance(line, UsageError) else line.split("\t")) for number, line in numbered(path, flag))
    yield from entries(rows, path, languages.source, languages.target, "write the source term, one tab, the target term")


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
    yield from entries(csv_table("\n".join(map(str, lines)), path), path, languages.source, languages.target)


def xlsx_rows(path: str, flag: str, languages: Languages) -> Iterator[tuple[int, Any]]:
    """The same of the first sheet of an XLSX file."""
    yield from entries(xlsx_table(path, flag), path, languages.source, languages.target)


def tbx_rows(path: str, flag: str, languages: Languages) -> Iterator[tuple[int, Any]]:
    """The same of TBX."""
    from fairseq_ext.core.tbx import rows  # which loads an XML parser

    yield from rows(path, flag, languages.source, languages.target)


def numbered(path: str, flag: str) -> Iterator[tuple[int, str | UsageError]]:
    """(number from 1, line or the error) of a text file; in UTF-16, as spreadsheets write Unicode text, where its first bytes say so."""
    lines = Lines(path, flag)
    if bytes(lines.data[:2]) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        try:
            yield from enumerate(bytes(lines.data).decode("utf-16").replace("\r\n", "\n").rstrip("\n").split("\n"), 1)
        except UnicodeDecodeError as error:
            raise UsageError(f"{path} begins as UTF-16 and is none ({error.reason}): save it again, or as UTF-8") from None
        return
    for i in range(len(lines)):
        try:
            yield i + 1, lines[i]
        except UsageError as error:
            yield i + 1, error


READERS = {
    ".csv": csv_rows, ".xlsx": xlsx_rows, ".jsonl": json_rows, ".json": json_rows, ".tbx": tbx_rows, ".tmx": tbx_rows, ".xml": tbx_rows,
}  # fmt: skip
