"""Term-base files as entries, each with its line: tab-separated, CSV, XLSX, JSONL, TBX and TMX.

By the file's name:
- .csv, with commas, semicolons or tabs, and .xlsx, the first sheet: a header with the columns
  `source` and `target`, or with the two languages by code or name, other columns being ignored;
  without a header, two columns.
- .jsonl, .json: `{"source": "term", "target": "a|b"}` a line; the target may be a list.
- .tbx, .tmx, .xml: TBX-Basic (ISO 30042), a concept's terms by language; terms marked deprecated or
  superseded are left out. Of TMX, units that have the text in both languages.
- any other: source term, tab, target term; the first line may be a header like that of .csv.
  UTF-8, or UTF-16 with a byte order mark.
`a|b` in a target: either alternative. Blank lines are skipped. A header's column `case`, or a field
`case` in JSONL, says in which letter case an entry counts: exact, initial or any. A column or field
`optional` says by yes or no whether the entry may be left where it does not fit.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import regex
from lxml import etree

from fairseq_ext.core.errors import UsageError, counted, cut
from fairseq_ext.core.files import LineErrors, Lines
from fairseq_ext.core.language_codes import language_of, two_letters

CASES = ("", "exact", "initial", "any")  # of an entry
OPTIONAL = {"": False, "no": False, "false": False, "yes": True, "true": True}


@dataclass(slots=True)
class Entry:
    """A line of a glossary."""

    source: str
    targets: tuple[str, ...]  # alternatives
    line: int  # from 1
    case: str = ""  # exact, initial or any; "": none is named
    optional: bool = False  # it may be left where it does not fit


@dataclass(frozen=True)
class Languages:
    """The language codes that CSV and TBX files may use for their columns."""

    source: str | None = None
    target: str | None = None


def read(path: str, flag: str, languages: Languages, errors: LineErrors) -> list[Entry]:
    """Return the file's entries; errors of single lines are added to `errors`.

    Errors: UsageError for a file that cannot be read or is not of its format.
    """
    reader = READERS.get(Path(path).suffix.lower(), tab_rows)
    found = []
    for number, row in reader(path, flag, languages):
        try:
            if isinstance(row, UsageError):
                raise row
            source, targets, *rest = row
            where = f"line {number} of {path}"
            found.append(Entry(*checked(source, targets, where), number, *details(rest, where)))
        except UsageError as error:
            errors.add(error)
    return found


def checked(source: str, targets: list[str], where: str) -> tuple[str, tuple[str, ...]]:
    """Return a source term and its targets without surrounding space; UsageError for empty
    ones."""
    source, stripped = source.strip(), [target.strip() for target in targets]
    if not source:
        raise UsageError(f"{where} has no source term: write one before the tab")
    if not any(stripped):
        raise UsageError(f"{where} has no target for the term '{source}': write it after the tab")
    if not all(stripped):
        raise UsageError(
            f"{where} has an empty alternative in '{'|'.join(targets)}': remove the bar"
        )
    return source, tuple(dict.fromkeys(stripped))


def details(cells: Sequence[str], where: str) -> tuple[str, bool]:
    """Return an entry's case and whether it is optional, from their cells, if there are any
    (raises UsageError for others than there are)."""
    case, optional = (cell.strip().lower() for cell in (*cells, "", "")[:2])
    if case not in CASES:
        raise UsageError(
            f"{where} has the case '{cut(case)}': write exact, initial or any, or nothing"
        )
    if optional not in OPTIONAL:
        raise UsageError(f"{where} has '{cut(optional)}' as optional: write yes or no, or nothing")
    return case, OPTIONAL[optional]


def written(entries: Iterable[Entry]) -> Iterator[str]:
    """Yield the lines of a tab-separated file of entries, with the columns that they need."""
    entries = list(entries)
    others = {"case": [entry.case for entry in entries]}
    others["optional"] = ["yes" * entry.optional for entry in entries]
    columns = {"source": [entry.source for entry in entries]}
    columns["target"] = ["|".join(entry.targets) for entry in entries]
    columns |= {name: cells for name, cells in others.items() if any(cells)}
    if len(columns) > 2:
        yield "\t".join(columns) + "\n"
    for row in zip(*columns.values(), strict=True):
        yield "\t".join(" ".join(cell.split()) for cell in row) + "\n"


# the line, and the fields of its entry: source, targets, case and whether it is optional; or the
# line's error
EntryRow = tuple[int, tuple[Any, ...] | UsageError]


def tab_rows(path: str, flag: str, languages: Languages) -> Iterator[EntryRow]:
    """Yield (line, (source, targets) or the error) of a tab-separated file."""
    rows = (
        (number, line if isinstance(line, UsageError) else line.split("\t"))
        for number, line in numbered(path, flag)
    )
    yield from entries(rows, path, languages, "write the source term, one tab, the target term")


def json_rows(path: str, flag: str, languages: Languages) -> Iterator[EntryRow]:
    """Yield number and entry of each line of a JSONL file."""
    for number, line in numbered(path, flag):
        if isinstance(line, UsageError):
            yield number, line
        elif line.strip():
            try:
                record = json.loads(line)
                target = record["target"]
                targets = target.split("|") if isinstance(target, str) else list(target)
                for text in [record["source"], *targets]:
                    text.encode()  # raises an error for a lone surrogate
                rest = (str(record.get(name) or "") for name in ("case", "optional"))
                yield number, (record["source"], targets, *rest)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                how = (
                    'write {"source": "term", "target": "a|b"}, the target as text '
                    "or a list of texts"
                )
                yield number, UsageError(f"line {number} of {path} is not an entry: {how}")


def csv_rows(path: str, flag: str, languages: Languages) -> Iterator[EntryRow]:
    """Yield number and entry of each row of a CSV file; a row of several lines has the number of
    the last one."""
    lines = [line for _, line in numbered(path, flag)]
    wrong = next((line for line in lines if isinstance(line, UsageError)), None)
    if wrong is not None:
        raise wrong
    yield from entries(csv_table("\n".join(map(str, lines)), path), path, languages)


def xlsx_rows(path: str, flag: str, languages: Languages) -> Iterator[EntryRow]:
    """Yield number and entry of each row of the first sheet of an XLSX file."""
    yield from entries(xlsx_table(path, flag), path, languages)


def tbx_rows(path: str, flag: str, languages: Languages) -> Iterator[EntryRow]:
    """Yield line and entry of each source term of a TBX or TMX file."""
    yield from rows(path, flag, languages.source, languages.target)


def numbered(path: str, flag: str) -> Iterator[tuple[int, str | UsageError]]:
    """Yield (number from 1, line or the error) of a text file. A file with a byte order mark of
    UTF-16 is read as UTF-16, the encoding of "Unicode text" in spreadsheets."""
    lines = Lines(path, flag)
    if bytes(lines.data[:2]) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        try:
            yield from enumerate(
                bytes(lines.data).decode("utf-16").replace("\r\n", "\n").rstrip("\n").split("\n"), 1
            )
        except UnicodeDecodeError as error:
            raise UsageError(
                f"{path} begins like UTF-16 and is not valid ({error.reason}): save it again, or "
                "as UTF-8"
            ) from None
        return
    for i in range(len(lines)):
        try:
            yield i + 1, lines[i]
        except UsageError as error:
            yield i + 1, error


READERS = {
    ".csv": csv_rows,
    ".xlsx": xlsx_rows,
    ".jsonl": json_rows,
    ".json": json_rows,
    ".tbx": tbx_rows,
    ".tmx": tbx_rows,
    ".xml": tbx_rows,
}


# ---- Glossaries in columns, the formats of spreadsheets
#
# Tab-separated, CSV with commas or semicolons, or XLSX; with a header row or without one.
#
# A header row names the columns: `source` and `target`, or the languages by code or name. Without
# one there must be two columns, source and target.


logger = logging.getLogger("fairseq_ext")
Row = tuple[int, list[str]]  # the number of a line, and its cells
SIDES = (
    ("source", "src", "source term", "source text", "source language", "term", "quelle", "begriff"),
    ("target", "tgt", "target term", "target text", "target language", "translation", "ziel")
    + ("übersetzung",),
)


def csv_table(text: str, path: str) -> Iterator[Row]:
    """Yield the rows of CSV with any separator; the number of a row with several lines is that of
    the last one.

    Errors: UsageError for wrong quotes.
    """
    said = regex.match(r"sep=(.)\r?\n", text)
    table = csv.reader(
        io.StringIO(text), delimiter=said[1] if said else separator(text), strict=True
    )
    try:
        for row in table:
            if not (said and table.line_num == 1):
                yield table.line_num, row
    except csv.Error as error:
        raise UsageError(
            f"line {table.line_num} of {path} is not valid CSV ({error}): correct its quotes"
        ) from None


def separator(text: str) -> str:
    """Return the separator of CSV: comma, semicolon or tab, whichever splits most of the first
    lines into the same number of columns."""
    lines = [
        regex.sub('"[^"]*"', "", line) for line in text[:10_000].splitlines()[:20] if line.strip()
    ]
    counts = {mark: [line.count(mark) for line in lines] for mark in ",;\t"}
    return max(
        counts,
        key=lambda mark: (sum(count == counts[mark][0] > 0 for count in counts[mark]), mark == ","),
    )


def xlsx_table(path: str, flag: str) -> Iterator[Row]:
    """Yield the rows of the first sheet of an XLSX file.

    Errors: UsageError for a file that is not XLSX, and if openpyxl is not installed.
    """
    try:
        import openpyxl
    except ImportError:
        raise UsageError(
            f"{flag} {path} is XLSX, which openpyxl reads: pip install 'fairseq_ext[text]', "
            "or save it as CSV"
        ) from None
    try:
        sheet = openpyxl.load_workbook(path, read_only=True, data_only=True).worksheets[0]
        sheet.reset_dimensions()  # the dimensions in the file may be wrong
        rows = [
            [str(cell) if cell is not None else "" for cell in row]
            for row in sheet.iter_rows(values_only=True)
        ]
    except Exception as error:
        # zipfile, the XML parser and openpyxl raise various errors for a wrong file
        raise UsageError(
            f"{flag}: cannot read {path} as XLSX ({cut(str(error))}): save it again, or as CSV"
        ) from None
    yield from enumerate(rows, 1)


def entries(
    rows: Iterable[tuple[int, list[str] | UsageError]],
    path: str,
    languages: Languages,
    one_way: str = "",
) -> Iterator[EntryRow]:
    """Yield (line, (source, targets) or the error) for each row of a table that is not empty; a row
    may be the error of its line.

    one_way: for tab-separated files, the correct form of a line. Errors: UsageError for more than
    two columns of CSV without a header that names two of them.
    """
    columns: list[int] | None = None
    is_named, others = False, [-1, -1]  # the columns of case and optional
    for number, row in rows:
        if isinstance(row, UsageError) or not any(cell.strip() for cell in row):
            yield from [(number, row)] if isinstance(row, UsageError) else []
            continue
        if columns is None:
            found = header(row, languages)
            if found is None and len(row) > 2 and not one_way:
                what = f"{counted(len(row), 'column')} and no header that names two of them"
                raise UsageError(
                    f"{path} has {what}: write source and target, or the languages, above "
                    "two of its columns"
                )
            columns, is_named = found or [0, 1], found is not None
            if found is not None:
                names = [cell.strip().lower() for cell in row]
                others = [
                    names.index(name) if name in names else -1 for name in ("case", "optional")
                ]
                logger.info(
                    "the first row of %s is its header: %s",
                    path,
                    ", ".join(row[place] for place in found),
                )
                continue
        if len(row) <= max(columns) or (one_way and not is_named and len(row) != 2):
            has = (
                f"line {number} of {path} has {counted(len(row), 'column')} and needs "
                f"{max(columns) + 1}"
            )
            yield (
                number,
                UsageError(
                    f"{has}{separator_hint(row, one_way)}: "
                    f"{one_way or 'give it a source and a target'}"
                ),
            )
        else:
            rest = (row[place] if 0 <= place < len(row) else "" for place in others)
            yield number, (row[columns[0]], row[columns[1]].split("|"), *rest)


def separator_hint(row: list[str], one_way: str) -> str:
    """Return a hint for the message about a row that seems to have another separator."""
    mark = next((mark for mark in ";," if mark in row[0]), None) if len(row) == 1 else None
    return (
        f"; its separator is '{mark}'{', which files in .csv may have' if one_way else ''}"
        if mark
        else ""
    )


def header(row: list[str], languages: Languages) -> list[int] | None:
    """Return the indices of the source and the target column; None if the row is not a header."""
    cells = [cell.strip().lower().replace("_", "-") for cell in row]
    known = [language_of(cell) for cell in row]
    found = []
    for usual, language in zip(SIDES, (languages.source, languages.target), strict=True):
        code = (language or "").lower().replace("_", "-")
        place = next((i for i, cell in enumerate(cells) if cell and cell in (*usual, code)), None)
        if place is None and language:
            place = next((i for i, each in enumerate(known) if each == two_letters(language)), None)
        if place is None:
            break
        found.append(place)
    if len(found) == 2 and found[0] != found[1]:
        return found
    if languages == Languages() and len(row) == 2 and all(known) and known[0] != known[1]:
        return [0, 1]
    return None


# ---- Term bases in XML: TBX-Basic, and TMX
#
# TBX-Basic (ISO 30042, https://www.tbxinfo.net/tbx-basic) has concepts with their terms in each
# language, TMX units with a text in each language.
#
# Both dialects are read: `termEntry/langSet/tig/term` of version 2 and
# `conceptEntry/langSec/termSec/term` of version 3. Each source term of a concept is an entry, and
# the concept's target terms are its alternatives.


CONCEPTS = ("termEntry", "conceptEntry", "tu")
SECTIONS = ("langSet", "langSec", "tuv")
TERM_GROUPS = ("tig", "ntig", "termSec", "seg")


LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"


CODES = ("bpt", "ept", "ph", "it", "ut")


NOT_USED = ("deprecatedTerm-admn-sts", "supersededTerm-admn-sts")


def rows(
    path: str, flag: str, source_lang: str | None, target_lang: str | None
) -> Iterator[tuple[int, tuple[str, list[str]]]]:
    """Yield (line, (source, targets)) for each source term; concepts that lack one of the languages
    are left out.

    Errors: UsageError for a file that is not XML or has no concepts, and for languages that are
    unknown or not in the file.
    """
    if not source_lang or not target_lang:
        kind = "TMX" if path.lower().endswith(".tmx") else "TBX"
        raise UsageError(
            f"{flag} {path} is {kind}, and the languages are not known: name them by --source-lang "
            "and --target-lang"
        )
    # entities are not resolved and no address is opened: the source of a glossary is not trusted
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False
    )
    try:
        root = etree.parse(path, parser).getroot()
    except OSError as error:
        raise UsageError(
            f"{flag}: cannot read {path} ({error}): name a file that exists and is readable"
        ) from None
    except etree.XMLSyntaxError as error:
        raise UsageError(
            f"line {error.lineno} of {path} is not valid XML ({cut(str(error.msg))}): export "
            "the glossary again"
        ) from None
    seen: dict[str, None] = {}
    concepts = entries = 0
    for concept in root.iter():
        if name_of(concept) not in CONCEPTS:
            continue
        concepts += 1
        terms: dict[str, list[tuple[int, str]]] = {}
        for language, found in sections(concept):  # a language may have several sections
            terms.setdefault(language, []).extend(found)
        seen.update(dict.fromkeys(terms))
        targets = [text for _, text in of_language(terms, target_lang)]
        for line, source in of_language(terms, source_lang) if targets else ():
            entries += 1
            yield line, (source, targets)
    if not entries:
        there = f"terms in {', '.join(seen)}" if seen else f"{concepts} concepts with terms"
        raise UsageError(
            f"{flag} {path} has {there}, none in both {source_lang} and {target_lang}: "
            "name its languages"
        )


def sections(concept: etree._Element) -> Iterator[tuple[str, list[tuple[int, str]]]]:
    """Yield a concept's languages, each with (line, term) of the terms in use."""
    for section in concept:
        if name_of(section) in SECTIONS:
            found = []
            for group in section:
                if name_of(group) in TERM_GROUPS and not any(
                    note.text and note.text.strip() in NOT_USED for note in group.iter()
                ):
                    terms = (each for each in group.iter() if name_of(each) in ("term", "seg"))
                    found += [(each.sourceline, "".join(shown(each)).strip()) for each in terms]
            yield str(section.get(LANGUAGE) or section.get("lang") or "").lower(), found


def of_language(terms: dict[str, list[tuple[int, str]]], language: str) -> list[tuple[int, str]]:
    """Return the terms of a language. `de` includes those of `de-AT`, `de_DE` and `deu`; `de_AT`
    has those of `de` if it has no own terms."""
    code = language.lower().replace("_", "-")
    named = {name: name.replace("_", "-") for name in terms}
    own = [name for name, each in named.items() if each == code or each.startswith(f"{code}-")]
    short = two_letters(code)
    near = [name for name in terms if language_of(name) == short]
    return [term for name in (own or near) for term in terms[name]]


def shown(element: etree._Element) -> Iterator[str]:
    """Yield the text of a term, without formatting codes of a program (TMX's bpt, ept, ph and
    it)."""
    yield element.text or ""
    for child in element:
        if name_of(child) and name_of(child) not in CODES:
            yield from shown(child)
        yield child.tail or ""


def name_of(element: etree._Element) -> str:
    """Return the element's name without its namespace; "" for comments."""
    return etree.QName(element).localname if isinstance(element.tag, str) else ""
