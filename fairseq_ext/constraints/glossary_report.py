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
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any
from unicodedata import normalize

from fairseq_ext.constraints.glossary import Required
from fairseq_ext.constraints.in_text import end_of
from fairseq_ext.constraints.pieces import normal
from fairseq_ext.errors import UsageError, report
from fairseq_ext.files import is_stream
from fairseq_ext.terms.words import starts_of, words_of

Span = tuple[int, int]  # characters, [start, end)
Place = tuple[str, Span]  # a target, and where it stands


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
        return UsageError(f"--glossary-report {self.path} takes no more ({error.strerror}): make room and run again")

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
    """For each requirement, the target that the translation (in NFKC) has and its place; a place serves one requirement.

    Targets as they are written go before those in another case, where the requirement allows one; a requirement that finds its places
    taken has another one move to a place that is free. segmented: the texts are pieces, parted by spaces; whole: a target must end a
    word, not only start one; None: targets count inside words as well.
    """
    seats: dict[int, Place] = {}
    wanted: list[list[Place]] = [[] for _ in required]
    for exact in (True, False):
        for each, found in zip(required, wanted, strict=True):
            for target in each.term.targets:
                found += places(target, translation, "exact" if exact else each.cased.mode, segmented, whole)
        for i in range(len(required)):
            if i not in seats:
                seat(i, wanted, seats, set(), [])
    return [seats.get(i, (None, None)) for i in range(len(required))]


def places(target: str, translation: str, case: str, segmented: bool, whole: bool | None) -> list[Place]:
    """Where a target stands, from left to right, inside words last; arguments as in `forms_used`."""
    form = normal(normalize("NFKC", target))
    if segmented:
        padded, mode = f" {translation} ", "exact" if case == "exact" else "any"
        spans = [(begin, end - 2) for begin, end in occurrences(lambda start: end_of(f" {form} ", padded, start, False, mode))]
        spans = [span for span in spans if case != "initial" or span[0] == 0]
    else:
        spans = list(occurrences(lambda start: end_of(form, translation, start, bool(whole), case)))
        if whole is None:
            spans += occurrences(lambda start: ((at := translation.find(form, start)), at + len(form)))
    return [(target, span) for span in dict.fromkeys(spans)]


def occurrences(find: Callable[[int], Span]) -> Iterator[Span]:
    """All that `find` finds; find: the first span at or behind a place, (-1, ...) for none."""
    span = find(0)
    while span[0] >= 0:
        yield span
        span = find(span[0] + 1)


def seat(i: int, wanted: Sequence[Sequence[Place]], seats: dict[int, Place], tried: set[Place], above: list[Span]) -> bool:
    """Give requirement i one of its wanted places, if need be one whose holder can move (an augmenting path); whether there is one.

    tried: places that some requirement has asked for in vain; above: the spans that those who wait for i are to have."""
    held = {j: span for j, (_, span) in seats.items() if j != i}
    options = [place for place in wanted[i] if place not in tried and not any(overlap(place[1], span) for span in above)]
    holders = [[j for j, span in held.items() if overlap(place[1], span)] for place in options]
    for place, of_place in sorted(zip(options, holders, strict=True), key=lambda option: len(option[1])):  # free ones first
        if place in tried:
            continue
        tried.add(place)
        if not of_place or (len(of_place) == 1 and seat(of_place[0], wanted, seats, tried, [*above, place[1]])):
            seats[i] = place
            return True
    return False


def overlap(one: Span, other: Span) -> bool:
    """Whether two spans share a character."""
    return one[0] < other[1] and other[0] < one[1]
