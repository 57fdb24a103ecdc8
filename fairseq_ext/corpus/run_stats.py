"""What a run has counted, and its `--stats-file`: replaced in one step while the run goes on and at its end."""

from __future__ import annotations

import json
import time
from typing import Any

from fairseq_ext.core.files import is_stream, replace
from fairseq_ext.core.stats import Section

SECONDS_BETWEEN_WRITES = 30.0


class RunStats:
    """The counters of all workers, those of earlier runs included. path: the file, None for none; a stream is written once, at the end.

    `signature` is that of the manifest, which stands where nothing is finished yet.
    """

    def __init__(self, path: str | None):
        self.path = path
        self.is_stream = path is not None and is_stream(path)
        self.counts = Section()
        self.signatures: set[str] = set()  # of what is finished
        self.written = time.monotonic()

    def add(self, part: Section, *signatures: str) -> None:
        """Count a part that is finished; an empty signature is none."""
        self.counts.add(part)
        self.signatures |= {*signatures} - {""}

    def as_dict(self, signature: str) -> dict[str, Any]:
        """The JSON object for readers."""
        return {"signature": " and ".join(sorted(self.signatures)) or signature, **self.counts.as_dict()}

    def write(self, signature: str) -> None:
        """Replace the file, if there is one. Errors: OSError."""
        self.written = time.monotonic()
        if self.path:
            replace(self.path, [json.dumps(self.as_dict(signature), indent=1).encode() + b"\n"])

    def follow(self, signature: str) -> None:
        """Replace it once in a while."""
        if not self.is_stream and time.monotonic() - self.written > SECONDS_BETWEEN_WRITES:
            self.write(signature)
