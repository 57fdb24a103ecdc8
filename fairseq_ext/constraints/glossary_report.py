"""`--glossary-report F`: one JSON line a sentence, what the glossary did there.

`{"id": 3, "source": ..., "translation": ..., "terms": [{"term": "Ader", "line": 12, "targets": ["vein", "lode"], "source_at": [[4, 8]],
"form": "vein", "at": [6, 10]}]}`: which entries fired (line of the file, places in the source), which target was used and where it stands
in the translation, as whole words; `form` and `at` are null where the translation has none of them. Places are characters, [start, end).
source and translation are in NFKC, which is what the places count in. Lines come in the order in which batches finish. The file is there
when the command ends, also by an error; a device or a pipe gets each line at once.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import Any
from unicodedata import normalize

from fairseq_ext.constraints.glossary import Required
from fairseq_ext.errors import UsageError, report
from fairseq_ext.files import is_stream, replacing
from fairseq_ext.terms.text import places
from fairseq_ext.terms.words import starts_of, words_of

Span = tuple[int, int]  # characters, [start, end)


class GlossaryReport:
    """The file. segmented: texts are subword pieces. Errors: UsageError for a place that cannot be written."""

    def __init__(self, path: str, segmented: bool):
        self.path, self.segmented, self.is_stream = path, segmented, is_stream(path)
        self.open = contextlib.ExitStack()  # the file that is being written
        try:
            self.file = self.open.enter_context(replacing(path))
        except OSError as error:
            raise UsageError(f"--glossary-report {path} cannot be written ({error.strerror}): name another file") from error

    def close(self) -> int:
        """Put the file in its place. Return the status: 1, and a sentence on standard error, where that fails."""
        try:
            self.open.close()
        except OSError as error:
            report(UsageError, self.full(error), None)
            return 1
        return 0

    def full(self, error: OSError) -> UsageError:
        """The error for a file that takes no more; nothing of it is left."""
        with contextlib.suppress(OSError):
            self.open.__exit__(type(error), error, error.__traceback__)
        return UsageError(f"--glossary-report {self.path} takes no more ({error.strerror}): make room and run again")

    def add(self, number: int, source: str, translation: str, required: Sequence[Required]) -> None:
        """A sentence's line."""
        source, translation = normalize("NFKC", source), normalize("NFKC", translation)
        spans = word_spans(source, words_of(source, self.segmented))
        terms: list[dict[str, Any]] = []
        for each, (form, at) in zip(required, forms_used(translation, required, self.segmented), strict=True):
            source_at = [(spans[match.start][0], spans[match.end - 1][1]) for match in each.matches]
            entry = {"term": each.term.source, "line": each.term.line, "targets": list(each.term.targets), "source_at": source_at}
            terms.append({**entry, "form": form, "at": at})
        record = {"id": number, "source": source, "translation": translation, "terms": terms}
        try:
            self.file.write(json.dumps(record, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
            if self.is_stream:
                self.file.flush()
        except OSError as error:
            raise self.full(error) from error


def word_spans(text: str, words: Sequence[str]) -> list[Span]:
    """Where the words of a text (in NFKC) stand."""
    return [(start, start + len(word)) for start, word in zip(starts_of(text, words), words, strict=True)]


def forms_used(translation: str, required: Sequence[Required], segmented: bool) -> list[tuple[str | None, Span | None]]:
    """For each requirement, the target that the translation (in NFKC) has and its place; a place serves one requirement.

    Targets in the very words go before those in other case.
    """
    words = words_of(translation, segmented)
    spans, folded = word_spans(translation, words), [word.casefold() for word in words]
    free = [True] * len(words)
    found: list[tuple[str | None, Span | None]] = [(None, None)] * len(required)
    for cased in (True, False):
        for i, each in enumerate(required):
            for target in each.term.targets if found[i][0] is None else ():
                sought = words_of(target, segmented)
                begins = places(sought if cased else [word.casefold() for word in sought], words if cased else folded, whole=True)
                start = next((start for start, _ in begins if all(free[start : start + len(sought)])), None)
                if start is not None:
                    end = start + len(sought)
                    free[start:end] = [False] * len(sought)
                    found[i] = target, (spans[start][0], spans[end - 1][1])
                    break
    return found
