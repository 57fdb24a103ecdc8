"""Glossaries in columns as spreadsheets write them: tab-separated, CSV with commas or semicolons, XLSX; with a header row or without one.

A header row names the columns: `source` and `target`, or the languages by code or name. Without one the columns are two, source and target.
"""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Iterable, Iterator
from typing import Any

import regex

from fairseq_ext.core.errors import UsageError, counted, cut

logger = logging.getLogger("fairseq_ext")
Row = tuple[int, list[str]]  # the number of a line, and its cells
SIDES = (("source", "src", "source term"), ("target", "tgt", "target term", "translation"))
NAMES = {
    "cs": "czech čeština tschechisch", "da": "danish dansk dänisch", "de": "german deutsch", "en": "english englisch",
    "es": "spanish español spanisch", "fr": "french français französisch", "it": "italian italiano italienisch",
    "nl": "dutch nederlands niederländisch", "pl": "polish polski polnisch", "pt": "portuguese português portugiesisch",
    "ru": "russian русский russisch", "uk": "ukrainian українська",
}  # fmt: skip


def csv_table(text: str, path: str) -> Iterator[Row]:
    """The rows of CSV, whatever parts its columns; one that takes several lines counts as its last. Errors: UsageError for wrong quotes."""
    said = regex.match(r"sep=(.)\r?\n", text)
    table = csv.reader(io.StringIO(text), delimiter=said[1] if said else separator(text), strict=True)
    try:
        for row in table:
            if not (said and table.line_num == 1):
                yield table.line_num, row
    except csv.Error as error:
        raise UsageError(f"line {table.line_num} of {path} is not valid CSV ({error}): mend its quotes") from None


def separator(text: str) -> str:
    """What parts the columns of CSV: the one of comma, semicolon and tab that parts most of its first lines into equally many."""
    lines = [regex.sub('"[^"]*"', "", line) for line in text[:10_000].splitlines()[:20] if line.strip()]
    counts = {mark: [line.count(mark) for line in lines] for mark in ",;\t"}
    return max(counts, key=lambda mark: (sum(count == counts[mark][0] > 0 for count in counts[mark]), mark == ","))


def xlsx_table(path: str, flag: str) -> Iterator[Row]:
    """The rows of the first sheet of an XLSX file. Errors: UsageError for a file that is none, and where openpyxl is missing."""
    try:
        import openpyxl
    except ImportError:
        raise UsageError(f"{flag} {path} is XLSX, which openpyxl reads: pip install 'fairseq_ext[text]', or save it as CSV") from None
    try:
        sheet = openpyxl.load_workbook(path, read_only=True, data_only=True).worksheets[0]
        rows = [[str(cell) if cell is not None else "" for cell in row] for row in sheet.iter_rows(values_only=True)]
    except Exception as error:  # of zipfile, of XML, of openpyxl: whatever a wrong file brings about
        raise UsageError(f"{flag}: cannot read {path} as XLSX ({cut(str(error))}): save it again, or as CSV") from None
    yield from enumerate(rows, 1)


def entries(
    rows: Iterable[tuple[int, Any]], path: str, source_lang: str | None, target_lang: str | None, one_way: str = ""
) -> Iterator[tuple[int, Any]]:
    """(line, (source, targets) or the error) of the rows of a table that are not empty; a row may be the error of its line.

    one_way: how a line is written, where nothing but a tab parts columns. Errors: UsageError for more than two columns of CSV without a
    header that names two of them.
    """
    columns: list[int] | None = None
    is_named = False
    for number, row in rows:
        if isinstance(row, UsageError) or not any(cell.strip() for cell in row):
            yield from [(number, row)] if isinstance(row, UsageError) else []
            continue
        if columns is None:
            found = header(row, source_lang, target_lang)
            if found is None and len(row) > 2 and not one_way:
                what = f"{counted(len(row), 'column')} and no header that names two of them"
                raise UsageError(f"{path} has {what}: write source and target, or the languages, above two of its columns")
            columns, is_named = found or [0, 1], found is not None
            if found is not None:
                logger.info("the first row of %s is its header: %s", path, ", ".join(row[place] for place in found))
                continue
        if len(row) <= max(columns) or (one_way and not is_named and len(row) != 2):
            has = f"line {number} of {path} has {counted(len(row), 'column')} and needs {max(columns) + 1}"
            yield number, UsageError(f"{has}{parting(row, one_way)}: {one_way or 'give it a source and a target'}")
        else:
            yield number, (row[columns[0]], row[columns[1]].split("|"))


def parting(row: list[str], one_way: str) -> str:
    """What a message says of a row in one piece that has another separator."""
    mark = next((mark for mark in ";," if mark in row[0]), None) if len(row) == 1 else None
    return f"; its separator is '{mark}'{', which files in .csv may have' if one_way else ''}" if mark else ""


def header(row: list[str], source_lang: str | None, target_lang: str | None) -> list[int] | None:
    """The places of the source and the target column; None where the row names none."""
    cells = [cell.strip().lower().replace("_", "-") for cell in row]
    found = []
    for usual, language in zip(SIDES, (source_lang, target_lang), strict=True):
        code = (language or "").lower().replace("_", "-")
        short = code.partition("-")[0]
        names = {*usual, code, *NAMES.get(short, "").split()} - {""}
        place = next((i for i, cell in enumerate(cells) if cell in names or (short and cell.startswith(f"{short}-"))), None)
        if place is None:
            return None
        found.append(place)
    return found
