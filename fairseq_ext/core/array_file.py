"""Files of named arrays that are checked while they are read: draft tables and LSH indexes.

A file is a zip archive. `about.json` holds the format, its version, digests of the data that the
arrays were made from, and a digest of the arrays; each other member is an array in NumPy's own
format, so numpy.load can read it too. A file contains no code. The sizes that the archive states
are checked before memory is allocated for them.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
import zipfile
from collections.abc import Mapping
from typing import IO, Any

import numpy as np

from fairseq_ext.core.errors import cut
from fairseq_ext.core.files import atomic_write

ABOUT, MAX_ABOUT = "about.json", 1 << 16  # bytes
MAX_HEADER = 10_000  # bytes of an array's header
# an archive may unpack to EXPANSION times its size plus EXTRA_BYTES
EXPANSION, EXTRA_BYTES = 64, 1 << 26


class DamagedFile(ValueError):
    """A file that `save` has not written or that was changed since; the text can follow
    "because"."""


def digest_of(arrays: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of names, types, shapes and contents."""
    out = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        out.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        out.update(array.view(np.uint8).data if array.size else b"")
    return out.hexdigest()


def save(
    path: str | os.PathLike[str],
    kind: str,
    version: int,
    made_from: Mapping[str, str],
    arrays: Mapping[str, np.ndarray],
    compress: bool,
) -> None:
    """Write the file atomically.

    made_from: digests of the data that the arrays were made from. Errors: OSError.
    """
    about = {
        "format": kind,
        "version": version,
        "made_from": dict(made_from),
        "sha256": digest_of(arrays),
    }
    with (
        atomic_write(path) as out,
        zipfile.ZipFile(
            out, "w", zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
        ) as archive,
    ):
        archive.writestr(ABOUT, json.dumps(about, indent=1) + "\n")
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(
                    member, np.ascontiguousarray(array), version=(1, 0), allow_pickle=False
                )


def load(
    path: str | os.PathLike[str],
    kind: str,
    version: int,
    layout: Mapping[str, tuple[tuple[str, ...], int]],
) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """Return the digests of the data that the file was made from, and its arrays.

    layout: name -> allowed types, number of dimensions; the file must have exactly these arrays.
    The caller checks the values. Errors: OSError if the file cannot be read; DamagedFile if it is
    not a file that `save` has written.
    """
    with open(path, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise DamagedFile("it is not a regular file")
        try:
            with zipfile.ZipFile(file) as archive:
                return contents(archive, os.fstat(file.fileno()).st_size, kind, version, layout)
        except (DamagedFile, MemoryError):
            raise
        except Exception as error:  # zipfile and numpy fail in any way on a file of another kind
            said = cut(str(error)) or type(error).__name__
            raise DamagedFile(f"it cannot be read ({said})") from error


def contents(
    archive: zipfile.ZipFile,
    size: int,
    kind: str,
    version: int,
    layout: Mapping[str, tuple[tuple[str, ...], int]],
) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """Return what `load` returns, from an open archive of `size` bytes."""
    members = {member.filename: member for member in archive.infolist()}
    if sum(member.file_size for member in members.values()) > EXPANSION * size + EXTRA_BYTES:
        raise DamagedFile(f"it unpacks to more than {EXPANSION} times its size")
    if ABOUT not in members or members[ABOUT].file_size > MAX_ABOUT:
        raise DamagedFile("it does not state its format")
    about = json.loads(archive.read(ABOUT))
    if not isinstance(about, dict) or about.get("format") != kind:
        raise DamagedFile("it is of another format")
    if about.get("version") != version:
        raise DamagedFile(
            f"it is of version {str(about.get('version'))[:20]} of its format, and this is "
            f"version {version}"
        )
    made_from = about.get("made_from")
    if not isinstance(made_from, dict) or not all(
        isinstance(value, str) for value in made_from.values()
    ):
        raise DamagedFile("it does not state what it was made from")
    if len(archive.infolist()) != len(members) or set(members) != {
        ABOUT,
        *(f"{name}.npy" for name in layout),
    }:
        raise DamagedFile("it holds other arrays")
    arrays = {}
    for name, (types, dimensions) in layout.items():
        member = members[f"{name}.npy"]
        with archive.open(member) as stream:
            arrays[name] = read_array(stream, member.file_size, name, types, dimensions)
    if digest_of(arrays) != about.get("sha256"):
        raise DamagedFile("its content is not what was written")
    return made_from, arrays


def read_array(
    stream: IO[bytes], size: int, name: str, types: tuple[str, ...], dimensions: int
) -> np.ndarray:
    """Read an array of a member of `size` bytes, after checking the type and size in its header."""
    header: Any = stream
    if np.lib.format.read_magic(header) != (1, 0):
        raise DamagedFile(f"its array {name} is of another version")
    # the type stubs of some NumPy versions lack max_header_size
    read_header: Any = np.lib.format.read_array_header_1_0
    shape, by_column, dtype = read_header(header, max_header_size=MAX_HEADER)
    if dtype.str not in types or len(shape) != dimensions or by_column:
        raise DamagedFile(f"its array {name} is {dtype} of shape {shape}")
    length = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or length != size - stream.tell():
        raise DamagedFile(f"its array {name} does not have the size that it states")
    array = np.empty(shape, dtype)
    if length:
        array.reshape(-1).view(np.uint8)[:] = np.frombuffer(stream.read(length), np.uint8)
    return array
