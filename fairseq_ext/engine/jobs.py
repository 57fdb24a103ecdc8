"""The messages of an engine's worker processes, and the checks of its requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairseq_ext.core.errors import UsageError, cut
from fairseq_ext.search.constraints.from_python import check_list, check_texts
from fairseq_ext.search.request import GlossaryFile


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

    def add(self, other: Work) -> None:
        """Add the counts of another report."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


def check_request(given: Mapping[str, Any]) -> None:
    """Refuse arguments of `Engine.submit` that are of another type (raises UsageError)."""
    for name, least in (("nbest", None), ("number", 0), ("seed", None)):
        value = given.get(name, least)
        if type(value) is not int and (name == "number" or value is not None):
            raise UsageError(f"{name} is {cut(repr(value))}: give a whole number")
    if not 0 <= given.get("number", 0) < 1 << 63:
        raise UsageError(f"number is {cut(repr(given['number']))}: count sentences from 0")
    if type(given.get("align", False)) is not bool:
        raise UsageError(f"align is {cut(repr(given['align']))}: give True or False")
    check_list(glossaries := given.get("glossaries", ()), "glossaries")
    for each in glossaries:
        if not isinstance(each, GlossaryFile):
            raise UsageError(f"glossaries has {cut(repr(each))}: give each as a GlossaryFile")
    if (terms := given.get("terms")) is not None:
        if not isinstance(terms, Mapping):
            raise UsageError(f"terms is {cut(repr(terms))}: give a dictionary of terms")
        check_texts([*terms.keys(), *terms.values()], "terms")
    if (languages := given.get("languages")) is not None:
        check_list(languages, "languages")
        check_texts(languages, "languages")
        if len(languages) != 2 or not all(each.isprintable() for each in languages):
            raise UsageError(f"languages is {cut(repr(languages))}: give source and target")
    on_partial = given.get("on_partial")
    if on_partial is not None and not callable(on_partial):
        raise UsageError(f"on_partial is {cut(repr(on_partial))}: give a function")


def plain(value: object) -> Any:
    """Return a text, or a tuple of them, with all texts as str, not as a subclass of the caller's,
    which a worker may not have."""
    if isinstance(value, str):
        return str.__str__(value)
    return tuple(map(plain, value)) if isinstance(value, tuple) else value
