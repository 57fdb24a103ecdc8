"""Constraints from Python (lists of phrases) as the fields of a request for each line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from fairseq_ext.core.errors import UsageError, counted, cut
from fairseq_ext.search.request import NO_TEXT, Request, TextConstraints

Entry = TypeVar("Entry", covariant=True)


class ListOf(Protocol[Entry]):
    """A sequence of any kind but str: type checkers refuse a text in place of a list of texts.

    A str is a `Sequence[str]` of its characters. It is not a `ListOf[str]`, since its `in` accepts
    only text.
    """

    def __getitem__(self, index: int, /) -> Entry: ...
    def __contains__(self, entry: object, /) -> bool: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Entry]: ...


# constraints of one line: each a phrase, or a list of alternative phrases
Phrases = ListOf[str | ListOf[str]]
Avoid = ListOf[str] | ListOf[ListOf[str]]  # phrases of all lines, or of each line
KINDS = ("constraints", "avoid", "prefixes", "allowed")  # fields of a Call
OF_ALL = ("avoid", "allowed")  # which may be those of all lines


@dataclass
class Call:
    """What a call with n lines has besides them. None: it has none of the kind."""

    constraints: ListOf[Phrases] | None = None  # n lists of phrases that must appear
    # phrases that must not appear, in any line, or n lists of them
    avoid: Avoid | None = None
    prefixes: ListOf[str | None] | None = None  # n beginnings of translations
    allowed: Avoid | None = None  # strings, one of which is the output: of all lines, or n lists
    nbest: int | None = None  # hypotheses of each line
    seed: int | None = None  # of the samples of these lines
    # number of lines of the call before these, for messages and for the flags' files
    first: int = 0
    # numbers of the n lines in their text, if they are sentences of one (default: from `first` on)
    numbers: Sequence[int] | None = None

    @property
    def has_constraints(self) -> bool:
        """Whether it has constraints, even empty ones."""
        return any(getattr(self, name) is not None for name in KINDS)

    def check(self, count: int) -> None:
        """Refuse arguments for another number of lines (raises UsageError)."""
        for name in KINDS:
            if (given := getattr(self, name)) is None:
                continue
            check_list(given, name, unordered=name in OF_ALL)
            if name in OF_ALL and is_of_all(given, name):
                check_texts(given, name)
            elif len(given) != count:
                has = counted(len(given), "entry", "entries")
                raise UsageError(
                    f"{name} has {has} for {counted(count, 'line')}: give one entry for each line"
                )

    def request(self, place: int, line: str) -> Request:
        """Return the request of a line; place: among the n.

        Errors: UsageError, which names the line, for phrases in a wrong form.
        """
        number = self.first + place if self.numbers is None else self.numbers[place]
        text = self.text(place) if self.has_constraints else NO_TEXT
        return Request(number, line, text, nbest=self.nbest, seed=self.seed)

    def entry(self, name: str, place: int) -> Any:
        """Return what an argument says of a line, None for nothing."""
        given = getattr(self, name)
        if given is None or (name in OF_ALL and is_of_all(given, name)):
            return given
        return given[place]

    def where(self, place: int) -> str:
        """Return the place of a line, for messages."""
        return f"line {self.first + place + 1}"

    def text(self, place: int) -> TextConstraints:
        """Return the constraints of a line (errors: those of `request`)."""
        where = self.where(place)
        given = {name: self.entry(name, place) for name in KINDS}
        lists = {name: () if each is None else each for name, each in given.items()}
        prefix = given["prefixes"]
        found = TextConstraints(
            any_of=tuple(
                texts([each] if isinstance(each, str) else each, f"a constraint of {where}")
                for each in items(lists["constraints"], f"constraints of {where}")
            ),
            avoid=texts(lists["avoid"], f"avoid of {where}"),
            prefix=texts([] if is_empty(prefix) else [prefix], f"prefixes of {where}"),
            allowed=texts(lists["allowed"], f"allowed of {where}"),
        )
        if given["allowed"] is not None and not found.allowed:
            raise UsageError(
                f"allowed of {where} is empty, so no output would be allowed: give strings, or None"
            )
        if () in found.any_of:
            raise UsageError(f"a constraint of {where} is an empty list: remove it")
        return found


def is_of_all(given: Any, name: str) -> bool:
    """Return whether a list is for all lines together: it is a set, or contains no list. In
    `allowed` a None stands for a line without a set, so it counts as a list."""
    return isinstance(given, AbstractSet) or not any(
        (name == "allowed" and each is None)
        or (isinstance(each, Iterable) and not isinstance(each, str))
        for each in given
    )


def is_empty(prefix: object) -> bool:
    """Return whether it is no prefix: None, or a text without characters."""
    return prefix is None or (isinstance(prefix, str) and not prefix)


def is_iterable(given: Any) -> bool:
    """Return whether it has entries; arrays without dimensions have an `__iter__` that raises."""
    try:
        iter(given)
    except TypeError:
        return False
    return True


def check_list(given: object, name: str, unordered: bool = False, once: bool = False) -> None:
    """Refuse an argument that is not a list (raises UsageError).

    unordered: a set is allowed; once: so is an object that can be read only once.
    """
    if isinstance(given, str):
        raise UsageError(f"{name} is one string, and a list is needed: put it into a list")
    others = (bytes, bytearray, Mapping, *(() if unordered else (AbstractSet,)))
    if isinstance(given, others) or not is_iterable(given):
        raise UsageError(f"{name} is {cut(repr(given))}, and a list is needed: give one")
    if not once and not isinstance(given, Sized):
        raise UsageError(
            f"{name} is a {type(given).__name__}, which can be read only once: make a list of it"
        )


def check_texts(given: Any, name: str) -> None:
    """Refuse an argument that is not a list or set of texts (raises UsageError)."""
    check_list(given, name, unordered=True)
    for each in given:
        if not isinstance(each, str):
            raise UsageError(f"{name} has {cut(repr(each))}: give text")


def items(given: Any, what: str) -> list[Any]:
    """Return the entries of a list (raises UsageError for anything else)."""
    if isinstance(given, (str, bytes, bytearray, Mapping)) or not is_iterable(given):
        raise UsageError(f"{what} is {cut(repr(given))}: give a list of phrases")
    return list(given)


def texts(given: object, what: str) -> tuple[str, ...]:
    """Return the phrases of a list (raises UsageError for an entry that is not text)."""
    found = items(given, what)
    for phrase in found:
        if not isinstance(phrase, str):
            raise UsageError(f"{what} has {cut(repr(phrase))} for a phrase: give text")
    return tuple(found)
