"""Glossaries that a server keeps: by name, a TSV file each (`Glossaries`); and those of DeepL's API
by identifier, with a dictionary for each pair of languages (`DeepLGlossaries`).

| in the folder of an owner | what is in it |
| --- | --- |
| ID/glossary.json | the glossary without its entries; it names their files |
| ID/de-en-VERSION.jsonl | the entries of a dictionary, in which a bar is no sign |

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
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path

from pydantic import BaseModel

from fairseq_ext.core.errors import UsageError, cut
from fairseq_ext.core.files import atomic_write, sha256
from fairseq_ext.search.request import GlossaryFile
from fairseq_ext.serve.models import Pair

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def with_name(said: str, path: str, name: str) -> str:
    """Return a message of the engine with a glossary's name instead of that of its file."""
    return said.replace(path, name).replace("--glossary: ", "")


class Missing(UsageError):
    """No glossary has this name."""


class Glossaries:
    """The glossaries of a folder, by name."""

    def __init__(self, folder: Path):
        self.folder = folder
        # of files whose inode, size and time are known
        self.digests: dict[str, tuple[tuple[int, int, int], str]] = {}

    def path(self, name: str) -> Path:
        """Return the file of a name (raises UsageError for an invalid name)."""
        if not NAME.fullmatch(name):
            raise UsageError(
                "a glossary's name has 1 to 64 letters, digits, dots, hyphens and underscores, a "
                "letter or digit first"
            )
        return self.folder / f"{name}.tsv"

    def names(self) -> list[str]:
        """Return all names, sorted."""
        return sorted(file.stem for file in self.folder.glob("*.tsv") if NAME.fullmatch(file.stem))

    def file(self, name: str) -> GlossaryFile:
        """Return the current version of a glossary (raises Missing)."""
        path = self.path(name)
        try:
            found = path.stat()
            key = found.st_ino, found.st_size, found.st_mtime_ns
            if self.digests.get(name, ("",))[0] != key:
                self.digests[name] = key, sha256([path.read_bytes()])
        except OSError:
            raise self.missing(name) from None
        return GlossaryFile(str(path), self.digests[name][1])

    def read(self, name: str) -> bytes:
        """Return the content of a glossary (raises Missing)."""
        try:
            return self.path(name).read_bytes()
        except OSError:
            raise self.missing(name) from None

    @contextlib.contextmanager
    def written(self, name: str, content: bytes) -> Iterator[GlossaryFile]:
        """Write a glossary, which has its name when the block ends without an error. Errors:
        OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(self.path(name)) as out:
            out.write(content)
            out.flush()
            yield GlossaryFile(out.name, sha256([content]))

    def delete(self, name: str) -> None:
        """Forget a glossary (raises Missing)."""
        try:
            self.path(name).unlink()
        except FileNotFoundError:
            raise self.missing(name) from None

    def missing(self, name: str) -> Missing:
        """Return the error for a name that no glossary has."""
        return Missing(f"there is no glossary '{name}': put it first (PUT /v1/glossaries/{name})")


# ---- DeepL's API

Entries = dict[str, str]
STAYS = 3600  # seconds that an earlier version is kept, which a request may read
LONGEST = 1024  # bytes of a term, and of a glossary's name, as in DeepL's API


def direction(pair: Pair) -> str:
    """Return a pair of languages for a message."""
    return " to ".join(code.upper() for code in pair)


class Dictionary(BaseModel):
    """The record of one dictionary. digest, version: of the file of its entries."""

    source_lang: str
    target_lang: str
    entry_count: int
    digest: str
    version: str = ""

    @property
    def pair(self) -> Pair:
        return self.source_lang, self.target_lang

    def path(self, folder: Path) -> Path:
        """Return the file of its entries."""
        return folder / f"{'-'.join(self.pair)}{self.version}.jsonl"

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
                f"the glossary '{cut(glossary.name)}' has no dictionary from {direction(pair)}: "
                "add one"
            )
        return found

    def entries(self, glossary: Glossary, pair: Pair) -> Entries:
        """Return the entries of a dictionary (raises Missing)."""
        found = self.dictionary(glossary, pair)
        try:
            lines = found.path(self.path(glossary.glossary_id)).read_bytes().splitlines()
        except FileNotFoundError:
            raise Missing(f"there is no glossary {glossary.glossary_id} any more") from None
        return {each["source"]: each["target"][0] for each in map(json.loads, lines)}

    def file(self, glossary: Glossary, pair: Pair) -> GlossaryFile:
        """Return the file of a dictionary (raises Missing)."""
        found = self.dictionary(glossary, pair)
        return GlossaryFile(str(found.path(self.path(glossary.glossary_id))), found.digest)

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
        dictionaries: dict[Pair, Entries],
        adds: bool,
    ) -> Glossary:
        """Rename a glossary (None: as it is) and write dictionaries of it. adds: the entries of a
        dictionary that is there stay where they are not replaced. Errors: those of `get`."""
        with self.lock:
            glossary = self.get(identifier)
            glossary.name = name or glossary.name
            for pair in dictionaries if adds else ():
                known = self.entries(glossary, pair) if glossary.find(pair) else {}
                dictionaries[pair] = known | dictionaries[pair]
            return self.write(glossary, dictionaries)

    def write(self, glossary: Glossary, dictionaries: Mapping[Pair, Entries]) -> Glossary:
        """Write a glossary and these dictionaries of it: all of them, or where one fails none."""
        folder = self.path(glossary.glossary_id)
        folder.mkdir(parents=True, exist_ok=True)
        known = {each.pair: each for each in glossary.dictionaries}
        earlier = [known[pair].path(folder) for pair in dictionaries if pair in known]
        contents: dict[Path, bytes] = {}
        for pair, entries in dictionaries.items():
            records = ({"source": source, "target": [target]} for source, target in entries.items())
            lines = [json.dumps(each, ensure_ascii=False) + "\n" for each in records]
            digest = sha256([content := "".join(lines).encode()])
            known[pair] = Dictionary(
                source_lang=pair[0],
                target_lang=pair[1],
                entry_count=len(entries),
                digest=digest,
                version=f"-{digest[:16]}",
            )
            contents[known[pair].path(folder)] = content
        glossary.dictionaries = [*known.values()]
        record = folder / "glossary.json", glossary.model_dump_json().encode()
        with contextlib.ExitStack() as files:  # the record is replaced last
            for path, content in (record, *contents.items()):
                out = files.enter_context(atomic_write(path))
                out.write(content)
                out.flush()
        for path in earlier:
            path.touch()  # so that it stays a while
        kept = {each.path(folder) for each in glossary.dictionaries}
        for path in {*folder.glob("*.jsonl")} - kept:  # that no request reads any more
            if path.stat().st_mtime < time.time() - STAYS:
                path.unlink(missing_ok=True)
        return glossary

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
            found.path(self.path(identifier)).unlink(missing_ok=True)


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
    of_tsv = (line.split("\t") for line in re.split("\r\n|\n|\r", text))
    for number, row in enumerate(of_tsv if format == "tsv" else csv_rows(text), 1):
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
                f"{direction(pair)}: send it in a dictionary of its own"
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
