"""Glossaries that a server keeps by name: a TSV file each, replaced in one step."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.files import atomic_write, sha256
from fairseq_ext.search.request import GlossaryFile

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
        return (
            sorted(file.stem for file in self.folder.glob("*.tsv") if NAME.fullmatch(file.stem))
            if self.folder.is_dir()
            else []
        )

    def file(self, name: str) -> GlossaryFile:
        """Return the current version of a glossary (raises Missing)."""
        path = self.path(name)
        try:
            found = path.stat()
            key = (found.st_ino, found.st_size, found.st_mtime_ns)
            if name not in self.digests or self.digests[name][0] != key:
                self.digests[name] = (key, sha256([path.read_bytes()]))
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
