"""`--glossary-report F`: one JSON line a sentence, what the glossary did there.

`{"id": 3, "source": ..., "translation": ..., "terms": [{"term": "Ader", "line": 12, "targets": ["vein", "lode"], "source_at": [[4, 8]],
"form": "vein", "at": [6, 10]}]}`: which entries fired (line of the file, places in the source), which target was used and where it stands
in the translation; `form` and `at` are null where the translation has none of them, or only such as serve another term, by the
definition that the search keeps to (--constraint-boundary, --constraint-case). Places are characters, [start, end). source and
translation are in NFKC, the translation with single spaces, which is what the places count in. Lines come in the order in which batches
finish. Each line is in the file as soon as its batch is decoded, so that a command that is killed leaves those that it has printed.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Sequence
from typing import IO, Any
from unicodedata import normalize

from fairseq_ext.core.errors import UsageError, report
from fairseq_ext.core.files import is_stream
from fairseq_ext.core.words import starts_of, words_of
from fairseq_ext.search.constraints.glossary import Required
from fairseq_ext.search.phrases.pieces import normal
from fairseq_ext.search.phrases.places import Span, Text, Wanted, assigned


class GlossaryReport:
    """The file. segmented, whole: as in `forms_used`. Errors: UsageError for a place that cannot be written."""

    def __init__(self, path: str, segmented: bool, whole: bool | None = True):
        self.path, self.segmented, self.whole, self.is_stream = path, segmented, whole, is_stream(path)
        try:
            self.file: IO[bytes] = open(path, "ab", buffering=0)
            if not self.is_stream:
                fcntl.lockf(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.file.truncate(0)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES) and error.filename is None:  # of the lock
                raise UsageError(f"another run is writing to {path}: wait for it, or name another --glossary-report") from None
            raise UsageError(f"--glossary-report {path} cannot be written ({error.strerror}): name another file") from error

    def close(self) -> int:
        """Have the file on disk. Return the status: 1, and a sentence on standard error, where that fails."""
        try:
            with self.file:
                if not self.is_stream:
                    os.fsync(self.file.fileno())
        except OSError as error:
            report(UsageError, self.full(error), None)
            return 1
        return 0

    def full(self, error: OSError) -> UsageError:
        """The error for a file that takes no more; the lines before stay."""
        return UsageError(f"--glossary-report {self.path} cannot be written ({error.strerror}): make room and run again")

    def add(self, number: int, source: str, translation: str, required: Sequence[Required]) -> None:
        """A sentence's line."""
        source, translation = normalize("NFKC", source), normal(normalize("NFKC", translation))
        spans = word_spans(source, words_of(source, self.segmented))
        terms: list[dict[str, Any]] = []
        for each, (form, at) in zip(required, forms_used(translation, required, self.segmented, self.whole), strict=True):
            source_at = [(spans[match.start][0], spans[match.end - 1][1]) for match in each.matches]
            entry = {"term": each.term.source, "line": each.term.line, "targets": list(each.term.targets), "source_at": source_at}
            terms.append({**entry, "form": form, "at": at})
        record = {"id": number, "source": source, "translation": translation, "terms": terms}
        line = json.dumps(record, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        try:
            while line:
                line = line[self.file.write(line) :]
        except OSError as error:
            raise self.full(error) from error


def word_spans(text: str, words: Sequence[str]) -> list[Span]:
    """Where the words of a text (in NFKC) stand."""
    return [(start, start + len(word)) for start, word in zip(starts_of(text, words), words, strict=True)]


def forms_used(
    translation: str, required: Sequence[Required], segmented: bool, whole: bool | None = True
) -> list[tuple[str | None, Span | None]]:
    """For each requirement, the target that the translation (in NFKC) has and its place; a place serves one requirement (places.py, there
    the other arguments)."""
    targets = [list(each.term.targets) for each in required]
    wanted = [Wanted([normal(normalize("NFKC", t)) for t in of], each.cased.mode) for of, each in zip(targets, required, strict=True)]
    places = assigned(Text(translation, segmented, whole), wanted)
    return [(None, None) if place is None else (of[place[0]], place[1]) for of, place in zip(targets, places, strict=True)]
