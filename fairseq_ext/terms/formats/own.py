"""Our own formats.

TSV: source, tab, reference, then for each term two more columns: source term, target term (`a|b`: any one of them).
JSONL: `{"source": "...", "reference": "...", "terms": {"term": "a|b"}, "document": "d1"}`; terms may be a list of objects with
`source` and `target`, targets may be lists, document may be left out. --terms names another key than `terms`; `proper` and `random`,
the shared tasks' names, mean `terms` where no line has a key of that name.
"""

from __future__ import annotations

from typing import Any

from fairseq_ext.core.errors import UsageError, counted
from fairseq_ext.core.files import Lines
from fairseq_ext.terms.formats.files import Files, objects, text_field
from fairseq_ext.terms.test_set import Sentence, terms_of

TASKS = ("proper", "random")  # dictionaries of the shared tasks


def read_tsv(files: Files) -> tuple[list[Sentence], str | None]:
    """A sentence for each line of --references, and --source-lang; UsageError for a wrong number of columns."""
    lines = Lines(files.references, "--references")
    found = []
    for number in range(len(lines)):
        columns = [column.strip() for column in lines[number].split("\t")]
        where = lines.where(number)
        if len(columns) < 2 or len(columns) % 2:
            raise UsageError(f"{where} has {counted(len(columns), 'column')}: write source, reference, then two columns for each term")
        source, reference, *rest = columns
        found.append(Sentence(source, reference, terms_of(zip(rest[::2], rest[1::2], strict=True), where)))
    return found, files.source_lang


def read_jsonl(files: Files) -> tuple[list[Sentence], str | None]:
    """A sentence for each line of --references, and --source-lang; UsageError for a line without its fields, and for a --terms that no
    line has."""
    records = list(objects(files.references, "--references"))
    for record, where in records:
        if not isinstance(record, dict):
            raise UsageError(f"{where} is not a JSON object: write one with source, reference and terms")
    name = key_of(files, [record for record, _ in records])
    found = []
    for record, where in records:
        source = text_field(record, "source", where) if "source" in record else None
        document = str(record.get("document", ""))
        terms = terms_of(pairs_of(record.get(name, []), where), where)
        found.append(Sentence(source, text_field(record, "reference", where), terms, document))
    return found, files.source_lang


def key_of(files: Files, records: list[dict[str, Any]]) -> str:
    """The key under which lines have their terms; UsageError for a --terms that no line has."""
    name = files.terms or "terms"
    if not files.terms or not records or any(name in record for record in records):
        return name
    if name in TASKS:
        return "terms"
    raise UsageError(f"no line of {files.references} has '{name}': --terms names one of {', '.join(map(repr, records[0]))}")


def pairs_of(given: Any, where: str) -> list[tuple[object, object]]:
    """(source, targets) pairs of an object or of a list of objects; UsageError for anything else."""
    if isinstance(given, dict):
        return list(given.items())
    if isinstance(given, list) and all(isinstance(each, dict) for each in given):
        return [(each.get("source"), each.get("target")) for each in given]
    raise UsageError(f'{where} has terms of another kind: write {{"term": "target"}} or [{{"source": ..., "target": ...}}]')
