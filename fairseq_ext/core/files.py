"""Files: lines by number, atomic writing, JSON with a digest, the user's cache, digests."""

from __future__ import annotations

import codecs
import contextlib
import errno
import fcntl
import functools
import glob
import grp
import hashlib
import json
import logging
import os
import pwd
import re
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np

from fairseq_ext.core.errors import UsageError, counted

BLOCK = 1 << 24  # bytes searched for line ends at once
MAX_PIPE = 1 << 28  # bytes read from a pipe or device
MAX_IN_MEMORY = 1 << 24  # bytes of a file that is kept in memory
SHOWN_ERRORS = 5  # of a file's lines
STANDARD = ("/dev/stdin", "/dev/stdout", "/dev/stderr")
PART = ".part"  # suffix of a file that is being written; a killed process leaves it behind

logger = logging.getLogger("fairseq_ext")


class Lines:
    """The lines of a UTF-8 text file of any size, with one offset a line in memory. A small file is
    kept in memory; a line of a large file is read when it is used.

    `lines[number]` is a line without its end, number counted from 0; a byte order mark and
    carriage returns are dropped.

    Only a line feed ends a line, as when fairseq reads a corpus; the last line needs none.
    Errors: UsageError for a file that cannot be read, and when a line is read that is not UTF-8.
    """

    def __init__(self, path: str, flag: str):
        self.path, self.flag = path, flag
        try:
            with open(path, "rb") as file:
                status = os.fstat(file.fileno())
                # subtle: not mapped, since a program that shortens the file would kill this process
                is_large = stat.S_ISREG(status.st_mode) and status.st_size > MAX_IN_MEMORY
                self.data = b"" if is_large else file.read(MAX_PIPE + 1)
                self.file = open(os.dup(file.fileno()), "rb") if is_large else None
                self.size = status.st_size if is_large else len(self.data)
        except OSError as error:
            raise UsageError(
                f"{flag}: cannot read {path} ({error.strerror}): name a file that exists "
                "and is readable"
            ) from None
        if len(self.data) > MAX_PIPE:
            raise UsageError(
                f"{flag}: {path} has no end within {MAX_PIPE >> 20} MiB, and is not a file: "
                "write its lines to a file"
            )
        found = [
            np.flatnonzero(np.frombuffer(self.bytes(i, min(self.size, i + BLOCK)), np.uint8) == 10)
            + i
            for i in range(0, self.size, BLOCK)
        ]
        has_open_end = self.size and self.bytes(self.size - 1, self.size) != b"\n"
        open_end = [np.array([self.size])] if has_open_end else []
        self.ends = np.concatenate([np.zeros(0, np.int64), *found, *open_end])  # (lines,)

    def __reduce__(self):
        return Lines, (self.path, self.flag)

    def bytes(self, start: int, end: int) -> bytes:
        """Return the content [start, end) (raises UsageError for a file that has been
        shortened)."""
        if self.file is None:
            return self.data[start:end]
        found = os.pread(self.file.fileno(), end - start, start)
        if len(found) < end - start:
            raise UsageError(
                f"{self.flag}: {self.path} was shortened while it was read: run again, and do "
                "not change it meanwhile"
            )
        return found

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, number: int) -> str:
        start = int(self.ends[number - 1]) + 1 if number else 0
        raw = self.bytes(start, int(self.ends[number])).rstrip(b"\r")
        raw = raw if number else raw.removeprefix(codecs.BOM_UTF8)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UsageError(
                f"{self.where(number)} is not valid UTF-8 (byte {error.start + 1}): convert the "
                "file, for example with iconv -t utf-8"
            ) from None

    def __iter__(self) -> Iterator[str]:
        return (self[number] for number in range(len(self)))

    def where(self, number: int) -> str:
        """Return a line's place, for messages."""
        return f"line {number + 1} of {self.path}"

    def refuse_number(self, sentences: int, hint: str = "", has: str = "the input has") -> NoReturn:
        """Raise UsageError for a file without a line for each sentence.

        hint: the end of the remedy; has: what has the sentences.
        """
        raise UsageError(
            f"{self.flag} {self.path} has {counted(len(self), 'line')} and {has} "
            f"{counted(sentences, 'sentence')}: write one line for each{hint}"
        )

    def for_each(self, act: Callable[[str, str], None]) -> None:
        """Call act(line, where) for every line that is not blank.

        Errors: after all lines, the first UsageError with the number of further ones.
        """
        errors = LineErrors()
        for number in range(len(self)):
            try:
                line = self[number]
                if line.strip():
                    act(line, self.where(number))
            except UsageError as error:
                errors.add(error)
        errors.raise_first()


class LineErrors:
    """Collects the errors of a file's lines; the first one is reported with the number of the
    others. shown: the first few errors."""

    def __init__(self) -> None:
        self.first: UsageError | None = None
        self.shown: list[UsageError] = []
        self.lines = 0

    def add(self, error: UsageError) -> None:
        self.first, self.lines = self.first or error, self.lines + 1
        if len(self.shown) < SHOWN_ERRORS:
            self.shown.append(error)

    def warn(self, path: str) -> None:
        """Log which lines are left out."""
        for error in self.shown:
            logger.warning("%s. The line is left out", error)
        if self.lines > len(self.shown):
            more = counted(self.lines - len(self.shown), "more such line")
            logger.warning("%s has %s that cannot be used, left out too", path, more)

    def raise_first(self) -> None:
        """Raise UsageError if there are errors."""
        if self.first is not None:
            more = counted(self.lines - 1, "more such line")
            raise UsageError(
                f"{self.first} ({more} in the file)" if self.lines > 1 else str(self.first)
            )


# ---- Writing


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a binary file for writing; when the block ends, it replaces `path` in one step, synced
    to disk.

    The target of a symbolic link is replaced, and the link stays. A replaced file keeps its mode.
    If the block or the disk fails, it is unchanged and no other file is left. A device or pipe is
    written in place, /dev/stdout behind what it has got and in front of what it gets later. Errors:
    OSError.
    """
    if is_stream(path):
        number = descriptor(path)
        with open(path, "ab") if number is None else open(duplicate(number, path), "wb") as out:
            yield out
        return
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    if target.is_dir() or os.fspath(path).endswith(os.sep):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    part = new_part(target)
    try:
        with part as out:
            yield out
            out.flush()
            try:
                mode = stat.S_IMODE(target.stat().st_mode)
            except FileNotFoundError:
                mode = 0o666 & ~umask()
            os.fchmod(out.fileno(), mode)
            os.fsync(out.fileno())
            os.replace(part.name, target)  # while it is locked
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part.name)
        raise
    sync_folder(target.parent)


def new_part(target: Path) -> IO[bytes]:
    """Create a locked file in the folder of the target, and open it.

    Files of killed processes are removed: they are not locked.
    """
    prefix = f".{target.name[:100]}."
    for old in target.parent.glob(f"{glob.escape(prefix)}????????{PART}"):
        with contextlib.suppress(OSError), open(old, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(old)
    while True:
        part = tempfile.NamedTemporaryFile(
            dir=target.parent, prefix=prefix, suffix=PART, delete=False
        )
        with contextlib.suppress(OSError):  # some network disks have no locks
            fcntl.flock(part, fcntl.LOCK_EX)  # after the other that is about to remove it
        if os.fstat(part.fileno()).st_nlink:
            return part
        part.close()


def replace(path: str | os.PathLike[str], chunks: Iterable[bytes]) -> None:
    """Write the chunks to `path` with `atomic_write`. Errors: OSError."""
    with atomic_write(path) as out:
        for chunk in chunks:
            out.write(chunk)


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Return whether writing to `path` does not replace a file: a device, a pipe, or a file that
    this process has open (/dev/stdout)."""
    if descriptor(path) is not None:
        return True
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    if stat.S_ISDIR(mode):
        return False
    return not stat.S_ISREG(mode) or os.path.abspath(path).startswith("/proc/")


def descriptor(path: str | os.PathLike[str]) -> int | None:
    """Return the descriptor of this process that a path names, as /dev/stdout names 1."""
    name = os.path.abspath(path)
    if name in STANDARD:
        return STANDARD.index(name)
    found = re.fullmatch(rf"/(?:dev|proc/(?:self|{os.getpid()}))/fd/([0-9]{{1,9}})", name)
    return int(found[1]) if found else None


def duplicate(number: int, path: str | os.PathLike[str]) -> int:
    """Return another descriptor of the open file that a path names by its number, behind what is
    printed so far. Errors: OSError for one that is not open, or was not when the process began."""
    closed = OSError(errno.EBADF, "it is closed", str(path))
    if number < 3 and (sys.__stdin__, sys.__stdout__, sys.__stderr__)[number] is None:
        raise closed  # the number may be another file's by now
    print(end="", flush=True)
    try:
        return os.dup(number)
    except OSError:
        raise closed from None


def refuse_shared(written: Iterable[tuple[str, str]], read: Iterable[tuple[str, str]]) -> None:
    """Raise UsageError for a written file, (flag, path), that another flag names too; devices and
    pipes are exempt."""
    seen = [(flag, path) for flag, path in read if os.path.isfile(path)]
    for flag, path in written:
        if is_stream(path):
            continue
        for other, there in seen:
            both = os.path.exists(path) and os.path.exists(there)
            if os.path.realpath(path) == os.path.realpath(there) or (
                both and os.path.samefile(path, there)
            ):
                raise UsageError(
                    f"{flag} would be written over {there}, which {other} names as well: "
                    "name another file"
                )
        seen.append((flag, path))


def sync_folder(folder: Path) -> None:
    """Sync the folder's names to disk, if the file system supports it. Errors: OSError."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:  # the folder can be written but not listed
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


@functools.cache
def umask() -> int:
    """Return the mode bits that new files of this process do not get."""
    found = os.umask(0o077)
    os.umask(found)
    return found


# ---- JSON with a digest that shows whether it was changed


def with_digest(record: Mapping[str, object]) -> dict:
    """Return the record with JSON types only, and with a digest of its content."""
    kept = json.loads(json.dumps(record, ensure_ascii=False).encode("utf-8", "replace"))
    return {**kept, "sha256": content_digest(kept)}


def verify_digest(text: bytes) -> dict:
    """Return the JSON object that `with_digest` has made, without its digest.

    Errors: ValueError if it was changed; the text can follow "because".
    """
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(text)
        if isinstance(found, dict) and found.pop("sha256", None) == content_digest(found):
            return found
    raise ValueError("its content is not what was written")


def content_digest(record: Mapping[str, object]) -> str:
    """Return half of the SHA-256 of a record's content."""
    return sha256([json.dumps(record, sort_keys=True).encode()])[:32]


# ---- The cache


def cache_folder() -> Path:
    """Return the folder for files that can be made again: fairseq_ext in $XDG_CACHE_HOME, else in
    ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fairseq_ext"


def untrusted_reason(path: Path) -> str | None:
    """Return the reason why another user could have written a file or folder, or a folder above
    it; None if only this user and root can.

    A folder above it may be writable by all if it is sticky, like /tmp. Errors: OSError for a path
    that does not exist.
    """
    for lexical in (Path(os.path.abspath(path)), Path(os.path.realpath(path))):
        for place in (lexical, *lexical.parents):
            found = place.stat()
            if found.st_uid not in (0, os.geteuid()) or (
                place == lexical and found.st_uid != os.geteuid()
            ):
                return f"{place} belongs to another user"
            by_all = found.st_mode & stat.S_IWOTH or (
                found.st_mode & stat.S_IWGRP and not is_own_group(found.st_gid)
            )
            if by_all and (place == lexical or not found.st_mode & stat.S_ISVTX):
                return f"{place} is writable by other users"
    return None


@functools.cache
def is_own_group(gid: int) -> bool:
    """Return whether this user is the only member of a group: many systems give each user a group
    with the user's name."""
    try:
        user, group = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(gid)
    except KeyError:
        return False
    return group.gr_name == user and set(group.gr_mem) <= {user}


def table_lines(path: str, flag: str, columns: int) -> Iterator[list[str]]:
    """Yield the first `columns` columns of each line of a file.

    Errors: UsageError for a file that cannot be read, and for a line with fewer columns.
    """
    for number, line in enumerate(Lines(path, flag), 1):
        parts = line.split()
        if len(parts) < columns:
            raise UsageError(
                f"{flag} {path}, line {number} has {counted(len(parts), 'column')} and needs "
                f"{columns}: correct '{line.strip()}'"
            )
        yield parts[:columns]


# ---- Digests of whole contents
#
# They show that a file, a dictionary or a model is the same as in an earlier run.


DIGEST_BLOCK = 1 << 20  # bytes
SHOWN = 32  # hexadecimal digits


def sha256(parts: Iterable) -> str:
    """Return the SHA-256, in hexadecimal, of bytes (or dense arrays of NumPy) one after another.

    Every digest of a file that this package writes is one of these.
    """
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def sha256_of(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal. Errors: OSError."""
    with open(path, "rb") as file:
        return sha256(iter(lambda: file.read(DIGEST_BLOCK), b""))


def fingerprint(path: str | os.PathLike[str]) -> str:
    """Return a file's size and the digest of its content in the form that messages show.

    Errors: OSError.
    """
    return f"{os.path.getsize(path)} bytes, {sha256_of(path)[:SHOWN]}"


def fingerprint_of_dictionary(dictionary: Any) -> str:
    """Return the number of words of fairseq's dictionary and the digest of the words, in order."""
    words = "\n".join(dictionary.symbols).encode("utf-8", "surrogatepass")
    return f"{len(dictionary)} words, {sha256([words])[:SHOWN]}"
