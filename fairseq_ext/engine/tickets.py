"""What an engine takes and gives: requests, the messages of its worker processes, the errors of
requests, and the rate at which they are answered."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fairseq_ext.core.dispatch import Closed as Closed
from fairseq_ext.core.dispatch import WorkerDied as WorkerDied
from fairseq_ext.core.errors import UsageError, cut
from fairseq_ext.search.constraints.from_python import (
    ListOf,
    Phrases,
    check_list,
    check_texts,
    is_empty,
    items,
)
from fairseq_ext.search.constraints.lines import text_constraints
from fairseq_ext.search.request import GlossaryFile, Request


class Busy(RuntimeError):
    """The queue is full. retry_after: seconds after which there may be room."""

    def __init__(self, waiting: int, retry_after: float):
        super().__init__(
            f"{waiting} requests are waiting, which is all that the queue takes: try again in "
            f"{retry_after:.0f} seconds"
        )
        self.retry_after = retry_after


class Pace:
    """The rate at which the last requests were answered."""

    def __init__(self) -> None:
        self.last: deque[float] = deque(maxlen=64)  # time.monotonic() of each

    def count(self) -> None:
        """Note that a request is answered now."""
        self.last.append(time.monotonic())

    def until_half(self, waiting: int) -> float:
        """Return the seconds until half of the waiting requests are likely to be done, from 1 to
        60."""
        last = list(self.last)
        rate = (
            (len(last) - 1) / (last[-1] - last[0]) if len(last) > 1 and last[-1] > last[0] else 1.0
        )
        return min(60.0, max(1.0, 0.5 * waiting / rate))


@dataclass(frozen=True)
class Partial:
    """A partial result: the certain beginning of a translation."""

    text: str
    tokens: int


@dataclass(frozen=True)
class Description:
    """The model and the settings that a worker has loaded."""

    signature: str
    source: str  # languages
    target: str
    beam: int
    nbest: int
    width: int  # sentences that it decodes at once
    longest: int | None  # source tokens that the model takes
    no_constraints: str  # why requests can have none; "" where they can
    # that requests may name, as targets alone where the source is none; none where
    # there is one pair
    languages: tuple[str, ...] = ()

    @property
    def leads(self) -> set[str]:
        """The tags with which a source may begin, each of a language to translate to."""
        return (
            set() if self.source in self.languages else {f">>{each}<<" for each in self.languages}
        )


@dataclass
class Work:
    """Counts of work done since the last report."""

    steps: int = 0
    rows: int = 0
    refills: int = 0
    tokens: int = 0
    sentences: int = 0
    restarts: int = 0  # of workers, in the counts of an engine

    def add(self, other: Work) -> None:
        """Add the counts of another report."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


def request_of(
    source: str,
    constraints: Phrases = (),
    any_of: ListOf[ListOf[str]] = (),
    avoid: ListOf[str] = (),
    prefix: str | None = None,
    glossaries: ListOf[GlossaryFile] = (),
    terms: Mapping[str, str] | None = None,
    nbest: int | None = None,
    on_partial: Callable[[Partial], None] | None = None,
    align: bool = False,
    languages: tuple[str, str] | None = None,
    seed: int | None = None,
    number: int = 0,
    allowed: ListOf[str] | None = None,
) -> Request:
    """Return the request of the arguments of `Engine.submit` (raises UsageError for those that are
    of another type)."""
    if not isinstance(source, str):
        raise UsageError(
            f"the source is {type(source).__name__}, and a sentence is a text: give a str"
        )
    for name, value in (("nbest", nbest), ("number", number), ("seed", seed)):
        if type(value) is not int and (name == "number" or value is not None):
            raise UsageError(f"{name} is {cut(repr(value))}: give a whole number")
    if not 0 <= number < 1 << 63:
        raise UsageError(f"number is {cut(repr(number))}: count sentences from 0")
    if type(align) is not bool:
        raise UsageError(f"align is {cut(repr(align))}: give True or False")
    check_list(glossaries, "glossaries")
    for each in glossaries:
        if not isinstance(each, GlossaryFile):
            raise UsageError(f"glossaries has {cut(repr(each))}: give each as a GlossaryFile")
    if terms is not None:
        if not isinstance(terms, Mapping):
            raise UsageError(f"terms is {cut(repr(terms))}: give a dictionary of terms")
        check_texts([*terms.keys(), *terms.values()], "terms")
    if languages is not None:
        check_list(languages, "languages")
        check_texts(languages, "languages")
        if len(languages) != 2 or not all(each.isprintable() for each in languages):
            raise UsageError(f"languages is {cut(repr(languages))}: give source and target")
    if on_partial is not None and not callable(on_partial):
        raise UsageError(f"on_partial is {cut(repr(on_partial))}: give a function")
    given = {
        "constraints": items(constraints, "constraints"),
        "any_of": [items(each, "an entry of any_of") for each in items(any_of, "any_of")],
        "avoid": items(avoid, "avoid"),
        "prefix": None if is_empty(prefix) else prefix,
        "allowed": None if allowed is None else items(allowed, "allowed"),
    }
    return Request(
        number,
        plain(source),
        text_constraints(given, "the request"),
        tuple(glossaries),
        plain(tuple((terms or {}).items())),
        nbest,
        seed,
        None if languages is None else (plain(languages[0]), plain(languages[1])),
        align,
    )


def plain(value: object) -> Any:
    """Return a text, or a tuple of them, with all texts as str, not as a subclass of the caller's,
    which a worker may not have."""
    if isinstance(value, str):
        return str.__str__(value)
    return tuple(map(plain, value)) if isinstance(value, tuple) else value
