"""The lines of a UTF-8 text file by number, however large: mapped into memory, with one offset a line."""

from __future__ import annotations

import codecs
import mmap
import os
import stat
from collections.abc import Callable

import numpy as np

from fairseq_ext.errors import UsageError

BLOCK = 1 << 24  # bytes searched for line ends at once


class Lines:
    """`lines[number]` is a line without its end, number counted from 0; a byte order mark and carriage returns are dropped.

    Only a line feed ends a line, as in fairseq's own reading of a corpus; the last line needs none.
    Errors: UsageError for a file that cannot be read, and for a line that is not UTF-8 when it is asked for.
    """

    def __init__(self, path: str, flag: str):
        self.path, self.flag = path, flag
        try:
            with open(path, "rb") as file:
                status = os.fstat(file.fileno())
                mappable = stat.S_ISREG(status.st_mode) and status.st_size > 0  # pipes and empty files are not
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if mappable else file.read()
        except OSError as error:
            raise UsageError(f"{flag}: cannot read {path} ({error.strerror}): name a file that exists and is readable") from None
        found = [np.flatnonzero(np.frombuffer(self.data[i : i + BLOCK], np.uint8) == 10) + i for i in range(0, len(self.data), BLOCK)]
        open_end = [np.array([len(self.data)])] if len(self.data) and self.data[-1] != 10 else []
        self.ends = np.concatenate([np.zeros(0, np.int64), *found, *open_end])  # (lines,)

    def __reduce__(self):
        return Lines, (self.path, self.flag)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, number: int) -> str:
        raw = self.data[int(self.ends[number - 1]) + 1 if number else 0 : int(self.ends[number])].rstrip(b"\r")
        raw = raw if number else raw.removeprefix(codecs.BOM_UTF8)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UsageError(
                f"{self.where(number)} is not valid UTF-8 (byte {error.start + 1}): convert the file, for example with iconv -t utf-8"
            ) from None

    def where(self, number: int) -> str:
        """How messages name a line."""
        return f"line {number + 1} of {self.path}"

    def for_each(self, act: Callable[[str, str], None]) -> None:
        """act(line, where) on every line that is not blank.

        Errors: the first UsageError, with how many more lines have one, after all lines have been read.
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
            more = f" ({len(errors) - 1} more such line{'s' * (len(errors) > 2)} in the file)" if len(errors) > 1 else ""
            raise UsageError(f"{errors[0]}{more}")
