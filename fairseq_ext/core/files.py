"""Files: lines by number, a file written in one step, sealed JSON, the user's cache, digests."""

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
import os
import pwd
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from fairseq_ext.core.errors import UsageError, counted

BLOCK = 1 << 24  # bytes searched for line ends at once
LONGEST_PIPE = 1 << 28  # bytes read of what is no file
IN_MEMORY = 1 << 24  # bytes of a file that is kept in memory
PART = ".part"  # ends the name of a file that is being written; a killed process leaves it


class Lines:
    """The lines of a UTF-8 text file, however large, with one offset a line. A small file is kept
    in memory; of a large one each line is read when it is used.

    `lines[number]` is a line without its end, number counted from 0; a byte order mark and
    carriage returns are dropped.

    Only a line feed ends a line, as in fairseq's own reading of a corpus; the last line needs none.
    Errors: UsageError for a file that cannot be read, and for a line that is not UTF-8
    when it is asked for.
    """

    def __init__(self, path: str, flag: str):
        self.path, self.flag = path, flag
        try:
            with open(path, "rb") as file:
                status = os.fstat(file.fileno())
                # subtle: not mapped, as a program that shortens the file would end this one
                is_large = stat.S_ISREG(status.st_mode) and status.st_size > IN_MEMORY
                self.data = b"" if is_large else file.read(LONGEST_PIPE + 1)
                self.file = open(os.dup(file.fileno()), "rb") if is_large else None
                self.size = status.st_size if is_large else len(self.data)
        except OSError as error:
            raise UsageError(
                f"{flag}: cannot read {path} ({error.strerror}): name a file that exists "
                "and is readable"
            ) from None
        if len(self.data) > LONGEST_PIPE:
            raise UsageError(
                f"{flag}: {path} has no end within {LONGEST_PIPE >> 20} MiB, and is not a file: "
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
        """The content from `start` up to `end` (raises UsageError for a file that has been
        shortened)."""
        if self.file is None:
            return self.data[start:end]
        found = os.pread(self.file.fileno(), end - start, start)
        if len(found) < end - start:
            raise UsageError(
                f"{self.flag}: {self.path} was shortened while it was read: run again, and leave "
                "it as it is meanwhile"
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
        """How messages name a line."""
        return f"line {number + 1} of {self.path}"

    def for_each(self, act: Callable[[str, str], None]) -> None:
        """act(line, where) on every line that is not blank.

        Errors: the first UsageError, with how many more lines have one, after all
        lines have been read.
        """
        errors = []
        for number in range(len(self)):
            try:
                line = self[number]
                if line.strip():
                    act(line, self.where(number))
            except UsageError as error:
                errors.append(error)
        if errors:
            more = (
                f" ({counted(len(errors) - 1, 'more such line')} in the file)"
                if len(errors) > 1
                else ""
            )
            raise UsageError(f"{errors[0]}{more}")


# ---- Writing


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A binary file to write: when the block ends, `path` holds all of it, on disk, in one step.

    A symbolic link stays, and what it points to is replaced; a file that is replaced keeps its
    mode. A device or pipe is written in place. When the block or the disk fails, `path` is as it
    was and nothing is left behind. Errors: OSError.
    """
    if is_stream(path):
        with open(path, "ab") as out:
            yield out
        return
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    if target.is_dir() or os.fspath(path).endswith(os.sep):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    handle, part = new_part(target)
    try:
        with os.fdopen(handle, "wb") as out:
            yield out
            out.flush()
            os.fchmod(
                out.fileno(),
                stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o666 & ~umask(),
            )
            os.fsync(out.fileno())
        os.replace(part, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise
    sync_folder(target.parent)


def new_part(target: Path) -> tuple[int, str]:
    """A new file beside a target, locked: an open handle, and its path.

    Those of processes that were killed are removed: nobody has a lock on them.
    """
    prefix = f".{target.name[:100]}."
    for old in target.parent.glob(f"{glob.escape(prefix)}????????{PART}"):
        with contextlib.suppress(OSError), open(old, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(old)
    while True:
        handle, part = tempfile.mkstemp(dir=target.parent, prefix=prefix, suffix=PART)
        with contextlib.suppress(OSError):  # on some network disks there are no locks
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(handle).st_nlink:
            return handle, part
        os.close(handle)  # removed by another process, before it had its lock


def replace(path: str | os.PathLike[str], chunks: Iterable[bytes]) -> None:
    """Write the chunks to `path` in one step, as `replacing` does. Errors: OSError."""
    with replacing(path) as out:
        for chunk in chunks:
            out.write(chunk)


def remove_unfinished(paths: Iterable[Path]) -> None:
    """Remove what killed processes have left of `replacing` these files. Errors: OSError."""
    names: dict[Path, set[str]] = {}
    for path in paths:
        names.setdefault(path.parent, set()).add(path.name[:100])
    for folder in filter(Path.is_dir, names):
        for path in folder.glob(f".*{PART}"):
            if path.name[1 : -len(PART)].rpartition(".")[0] in names[folder]:
                path.unlink()


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Whether writing to `path` cannot replace a file: a device, a pipe, or what this process
    has open (/dev/stdout)."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    if stat.S_ISDIR(mode):
        return False
    name = os.path.abspath(path)
    return (
        not stat.S_ISREG(mode)
        or name.startswith(("/proc/", "/dev/fd/"))
        or name in ("/dev/stdin", "/dev/stdout", "/dev/stderr")
    )


def refuse_shared(written: Iterable[tuple[str, str]], read: Iterable[tuple[str, str]]) -> None:
    """UsageError for a file that is written, (flag, path), and named by another flag;
    devices and pipes may be."""
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
    """Have the folder's names on disk, where the file system can. Errors: OSError."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:  # a folder that may be written and not listed
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
    """The mode bits that new files of this process do not get."""
    found = os.umask(0o077)
    os.umask(found)
    return found


# ---- JSON that tells when it was changed


def sealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record, as JSON keeps it, with a digest of its content."""
    kept = json.loads(json.dumps(record, ensure_ascii=False).encode("utf-8", "replace"))
    return {**kept, "sha256": seal(kept)}


def unsealed(text: bytes) -> dict[str, Any]:
    """The JSON object that `sealed` has made, without its digest.

    Errors: ValueError, whose text fits behind "because".
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("it is not valid JSON") from None
    if not isinstance(found, dict) or found.pop("sha256", None) != seal(found):
        raise ValueError("its content is not what was written")
    return found


def seal(record: dict[str, Any]) -> str:
    """Half of the SHA-256 of a record's content."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:32]


# ---- The cache


def cache_folder() -> Path:
    """Where files are kept that can be made again: fairseq_ext in $XDG_CACHE_HOME,
    else in ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fairseq_ext"


def untrusted(path: Path) -> str | None:
    """Why somebody else could have written a file or folder, or a folder above it; None where
    only this user and root can.

    A folder above it may be writable by all if it is sticky, as /tmp is. Errors: OSError for
    a path that does not exist.
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
    """Whether nobody else is in a group: the one of this user's own name that many
    systems give each user."""
    try:
        user, group = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(gid)
    except KeyError:
        return False
    return group.gr_name == user and set(group.gr_mem) <= {user}


def table_lines(path: str, flag: str, columns: int) -> Iterator[list[str]]:
    """The columns of each line of a file; raises UsageError where it cannot be read
    or a line has fewer."""
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
# They tell that a file, a dictionary or a model is the one of an earlier run.


DIGEST_BLOCK = 1 << 20  # bytes
SHOWN = 32  # hexadecimal digits


def sha256_of(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file's content, in hexadecimal. Errors: OSError."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(DIGEST_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def fingerprint(path: str | os.PathLike[str]) -> str:
    """A file's size and the digest of all of its content, as messages show them.

    Errors: OSError.
    """
    return f"{os.path.getsize(path)} bytes, {sha256_of(path)[:SHOWN]}"


def fingerprint_of_dictionary(dictionary: Any) -> str:
    """The number of words of fairseq's dictionary and the digest of the words in their order."""
    digest = hashlib.sha256("\n".join(dictionary.symbols).encode("utf-8", "surrogatepass"))
    return f"{len(dictionary)} words, {digest.hexdigest()[:SHOWN]}"
