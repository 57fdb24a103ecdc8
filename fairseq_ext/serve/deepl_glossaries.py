"""Glossaries of DeepL's API: by identifier, each with a dictionary for each pair of languages.

| in the folder of an owner | what is in it |
| --- | --- |
| ID/glossary.json | the glossary without its entries; it names their files |
| ID/de-en-VERSION.tsv | the entries of a dictionary, as they were sent |
| ID/de-en-VERSION.jsonl | those that a sentence can hold, for the engine; a bar is no sign there |

Other entries are another version, so a change takes place when glossary.json is replaced.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import shutil
import threading
import time
import unicodedata
import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from itertools import chain
from pathlib import Path

from pydantic import BaseModel

from fairseq_ext.core.errors import UsageError, cut
from fairseq_ext.core.files import atomic_write, sha256
from fairseq_ext.core.glossary import checked
from fairseq_ext.search.request import GlossaryFile
from fairseq_ext.serve.glossaries import Missing
from fairseq_ext.serve.model_folder import Pair

Entries = dict[str, str]
STAYS = 3600  # seconds that an earlier version is kept, which a request may read
LONGEST = 1024  # bytes of a term, and of a glossary's name, as in DeepL's API


class Dictionary(BaseModel):
    """The record of one dictionary. digest: of its file for the engine; version: of its entries."""

    source_lang: str
    target_lang: str
    entry_count: int
    digest: str
    version: str = ""

    @property
    def pair(self) -> Pair:
        return self.source_lang, self.target_lang

    def files(self, folder: Path) -> tuple[Path, Path]:
        """Return the files of its entries, as they were sent and for the engine."""
        name = f"{'-'.join(self.pair)}{self.version}"
        return folder / f"{name}.tsv", folder / f"{name}.jsonl"

    def shown(self) -> dict[str, object]:
        """Return the dictionary for an answer."""
        return self.model_dump(exclude={"digest", "version"})


class Glossary(BaseModel):
    """A glossary without its entries."""

    glossary_id: str
    name: str
    creation_time: str
    dictionaries: list[Dictionary]

    def find(self, pair: Pair) -> Dictionary | None:
        """Return the dictionary of a pair of languages."""
        return next((each for each in self.dictionaries if each.pair == pair), None)

    def of_one_dictionary(self) -> Glossary:
        """Return this glossary (raises UsageError if it has not one dictionary)."""
        if (count := len(self.dictionaries)) != 1:
            raise UsageError(
                f"the glossary '{cut(self.name)}' has {count} dictionaries: use /v3/glossaries"
            )
        return self

    def shown(self, is_alone: bool = False) -> dict[str, object]:
        """Return the glossary for an answer of /v3; is_alone: of /v2, with one dictionary each."""
        found = [each.shown() for each in self.dictionaries]
        more = {**found[0], "ready": True} if is_alone else {"dictionaries": found}
        return self.model_dump(exclude={"dictionaries"}) | more


class DeepLGlossaries:
    """The glossaries of one owner. Errors: OSError where the folder cannot be written."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.lock = threading.Lock()  # of changes

    def all(self) -> list[Glossary]:
        """Return all glossaries, the oldest first."""
        found = []
        for file in self.folder.glob("*/glossary.json"):
            with contextlib.suppress(OSError):  # it is being deleted
                found.append(Glossary.model_validate_json(file.read_bytes()))
        return sorted(found, key=lambda each: (each.creation_time, each.glossary_id))

    def path(self, identifier: str) -> Path:
        """Return the folder of an identifier (raises UsageError for an invalid one)."""
        try:
            return self.folder / str(uuid.UUID(identifier))
        except ValueError:
            raise UsageError(
                f"'{cut(identifier)}' is no identifier of a glossary: use its glossary_id"
            ) from None

    def get(self, identifier: str) -> Glossary:
        """Return the glossary of an identifier (raises UsageError, Missing)."""
        try:
            content = (self.path(identifier) / "glossary.json").read_bytes()
        except FileNotFoundError:
            raise Missing(f"there is no glossary {identifier}: create it first") from None
        return Glossary.model_validate_json(content)

    def dictionary(self, glossary: Glossary, pair: Pair) -> Dictionary:
        """Return the dictionary of a pair (raises Missing)."""
        if (found := glossary.find(pair)) is None:
            raise Missing(
                f"the glossary '{cut(glossary.name)}' has no dictionary from {pair[0].upper()} to "
                f"{pair[1].upper()}: add one"
            )
        return found

    def entries(self, glossary: Glossary, pair: Pair) -> Entries:
        """Return the entries of a dictionary (raises Missing)."""
        found = self.dictionary(glossary, pair)
        path, _ = found.files(self.path(glossary.glossary_id))
        try:
            lines = path.read_text(encoding="utf-8").split("\n")
        except FileNotFoundError:
            raise Missing(f"there is no glossary {glossary.glossary_id} any more") from None
        return dict(line.split("\t") for line in lines if line)  # type: ignore[misc]

    def file(self, glossary: Glossary, pair: Pair) -> GlossaryFile:
        """Return the file of a dictionary for the engine (raises Missing)."""
        found = self.dictionary(glossary, pair)
        _, path = found.files(self.path(glossary.glossary_id))
        return GlossaryFile(str(path), found.digest)

    def create(self, name: str, dictionaries: Mapping[Pair, Entries]) -> Glossary:
        """Keep a new glossary."""
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        made = Glossary(
            glossary_id=str(uuid.uuid4()), name=name, creation_time=now, dictionaries=[]
        )
        try:
            return self.write(made, dictionaries)
        except OSError:
            shutil.rmtree(self.path(made.glossary_id), ignore_errors=True)
            raise

    def change(
        self,
        identifier: str,
        name: str | None,
        dictionaries: Mapping[Pair, Entries],
        adds: bool,
    ) -> Glossary:
        """Rename a glossary (None: as it is) and write dictionaries of it. adds: the entries of a
        dictionary that is there stay where they are not replaced. Errors: those of `get`."""
        with self.lock:
            glossary = self.get(identifier)
            glossary.name = name or glossary.name
            if adds:
                dictionaries = {
                    pair: (self.entries(glossary, pair) if glossary.find(pair) else {}) | entries
                    for pair, entries in dictionaries.items()
                }
            return self.write(glossary, dictionaries)

    def write(self, glossary: Glossary, dictionaries: Mapping[Pair, Entries]) -> Glossary:
        """Write a glossary and these dictionaries of it: all of them, or where one fails none."""
        folder = self.path(glossary.glossary_id)
        folder.mkdir(parents=True, exist_ok=True)
        known = {each.pair: each for each in glossary.dictionaries}
        earlier = [known[pair].files(folder) for pair in dictionaries if pair in known]
        contents: dict[Path, bytes] = {}
        for pair, entries in dictionaries.items():
            sent, usable = tsv(entries).encode(), b"".join(engine_lines(entries))
            known[pair] = Dictionary(
                source_lang=pair[0],
                target_lang=pair[1],
                entry_count=len(entries),
                digest=sha256([usable]),
                version=f"-{sha256([sent])[:16]}",
            )
            contents |= dict(zip(known[pair].files(folder), (sent, usable), strict=True))
        glossary.dictionaries = [*known.values()]
        record = folder / "glossary.json", glossary.model_dump_json().encode()
        with contextlib.ExitStack() as files:  # the record is replaced last
            for path, content in (record, *contents.items()):
                out = files.enter_context(atomic_write(path))
                out.write(content)
                out.flush()
        for path in chain(*earlier):
            path.touch()  # so that it stays a while
        self.remove_earlier(glossary, folder)
        return glossary

    def remove_earlier(self, glossary: Glossary, folder: Path) -> None:
        """Remove the files of earlier versions that no request reads any more."""
        kept = {path for each in glossary.dictionaries for path in each.files(folder)}
        for path in {*folder.glob("*.tsv"), *folder.glob("*.jsonl")} - kept:
            if path.stat().st_mtime < time.time() - STAYS:
                path.unlink(missing_ok=True)

    def delete(self, identifier: str) -> None:
        """Delete a glossary (raises as `get`)."""
        with self.lock:
            folder = self.path(self.get(identifier).glossary_id)
            (folder / "glossary.json").unlink()  # first: without it there is no glossary
            shutil.rmtree(folder, ignore_errors=True)

    def delete_dictionary(self, identifier: str, pair: Pair) -> None:
        """Delete a dictionary (raises as `get`, and Missing)."""
        with self.lock:
            glossary = self.get(identifier)
            found = self.dictionary(glossary, pair)
            glossary.dictionaries.remove(found)
            self.write(glossary, {})
            for path in found.files(self.path(identifier)):
                path.unlink(missing_ok=True)


def engine_lines(entries: Entries) -> Iterable[bytes]:
    """Return the lines of a file for the engine, without terms that no sentence can have."""
    for source, target in entries.items():
        try:
            checked(source, [target], "")
        except UsageError:  # across the mark between two clauses
            continue
        record = {"source": source, "target": [target]}
        yield json.dumps(record, ensure_ascii=False).encode() + b"\n"


# ---- Entries as text


def tsv(entries: Entries) -> str:
    """Return the entries, one a line, separated by tabs."""
    return "\n".join(f"{source}\t{target}" for source, target in entries.items())


def csv_text(entries: Entries) -> str:
    """Return the entries as CSV."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(entries.items())
    return out.getvalue()


def read_entries(text: str, format: str, pair: Pair) -> Entries:
    """Return the entries of a text in the format "tsv" or "csv".

    Errors: UsageError for a line that is none, a term that comes twice, and for no entries.
    """
    found: Entries = {}
    if format == "tsv":
        rows = enumerate((line.split("\t") for line in re.split("\r\n|\n|\r", text)), 1)
    else:
        rows = enumerate(csv_rows(text), 1)
    for number, row in rows:
        where = f"entry {number} of the glossary"
        if not any(cell.strip() for cell in row):
            continue
        named = format == "csv" and len(row) == 4
        if len(row) != 2 and not named:
            raise UsageError(
                f"{where} has {len(row)} columns: write the source term and the target term"
            )
        if named and tuple(cell.strip().lower() for cell in row[2:]) != pair:
            raise UsageError(
                f"{where} is from {cut(row[2])} to {cut(row[3])}, and its dictionary from "
                f"{pair[0].upper()} to {pair[1].upper()}: send it in a dictionary of its own"
            )
        source, target = (checked_term(cell.strip(), where) for cell in row[:2])
        if source in found:
            raise UsageError(f"{where} has the source term '{cut(source)}' again: send it once")
        found[source] = target
    if not found:
        raise UsageError("the glossary has no entries: send one or more")
    return found


def csv_rows(text: str) -> Iterable[list[str]]:
    """Return the rows of CSV with commas (raises UsageError for wrong quotes)."""
    table = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        yield from table
    except csv.Error as error:
        raise UsageError(
            f"line {table.line_num} of the entries is not valid CSV ({error}): correct its quotes"
        ) from None


def checked_term(term: str, where: str) -> str:
    """Return the term (raises UsageError for one that is empty, too long or has control
    characters)."""
    if not term:
        raise UsageError(f"{where} has an empty term: write both terms")
    if any(unicodedata.category(each) in ("Cc", "Zl", "Zp") for each in term):
        raise UsageError(f"{where} has a control character in '{cut(term)}': remove it")
    if (size := len(term.encode())) > LONGEST:
        raise UsageError(f"{where} has a term of {size} bytes and may have {LONGEST}: shorten it")
    return term
