"""The files of a test set, as the command names them, and how their lines are read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fairseq_ext.core.errors import UsageError, counted
from fairseq_ext.core.files import Lines


@dataclass(frozen=True)
class Files:
    """What the command says of the test set."""

    references: str  # --references
    target_lang: str  # --target-lang
    source_lang: str | None = None  # --source-lang
    sources: str | None = None  # --sources
    terms_file: str | None = None  # --terms-file
    terms: str | None = None  # --terms
    glossary_match: str = "surface"  # --glossary-match


def objects(path: str, flag: str) -> Iterator[tuple[Any, str]]:
    """Each line of a JSONL file as its value and how messages name the line; UsageError for a line that is not JSON."""
    lines = Lines(path, flag)
    for number in range(len(lines)):
        where = lines.where(number)
        try:
            value = json.loads(lines[number])
            if "\\u" in lines[number]:
                json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate is no text
            yield value, where
        except (ValueError, RecursionError):
            raise UsageError(f"{where} is not JSON: write one JSON value a line") from None


def text_lines(path: str, flag: str) -> list[str]:
    """The lines of a text file without space around them."""
    lines = Lines(path, flag)
    return [lines[number].strip() for number in range(len(lines))]


def text_field(record: dict[str, Any], name: str, where: str) -> str:
    """A text field of a record; UsageError where it is missing or no text."""
    if not isinstance(record.get(name), str):
        raise UsageError(f"{where} has no text under '{name}': it has {', '.join(map(repr, record)) or 'nothing'}")
    return record[name].strip()


def same_length(given: dict[str, int]) -> None:
    """UsageError unless all files (what -> its lines) have as many lines as the first."""
    (first, lines), *others = given.items()
    for what, number in others:
        if number != lines:
            raise UsageError(f"{what} has {counted(number, 'line')} and {first} has {lines}: name files of the same test set")
