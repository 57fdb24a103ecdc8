"""The statistics of a run: typed counters, and `Stats`, which gathers them.

plugin/results.py writes them as the JSON object of `--stats-file`. Only work that was really done
is counted. Strategies hold their section and count in it; it is never replaced.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from typing_extensions import Self

# ---- Typed counters
#
# The same merge and difference serve processes, corpus units and runs.
#
# Every counter is of one of these kinds. A counter that does not apply is None and is left out of
# the JSON object.
#
# | kind | value | the merge of two | in the JSON object |
# | --- | --- | --- | --- |
# | Sum | a number, or a tensor, which is read at the end | adds them | the number |
# | Ratio, Mean | `Ratio(numerator, denominator)` | adds both sums | the quotient |
# | Text | a string, or `Setting` for a number | must agree, else ValueError | the text |
# | Items | a list | joins them | the list |
# | Section | counters by name | merges each | an object |
#
# The difference undoes the merge: `merge(a, b).since(a)` equals `b`.


@dataclass(frozen=True)
class Ratio:
    """One sum divided by another."""

    numerator: float = 0.0
    denominator: float = 0.0

    def __add__(self, other: Ratio) -> Ratio:
        return Ratio(self.numerator + other.numerator, self.denominator + other.denominator)

    def __sub__(self, other: Ratio) -> Ratio:
        return Ratio(self.numerator - other.numerator, self.denominator - other.denominator)

    def value(self) -> float:
        """Return the quotient; 0 if nothing has been counted."""
        return self.numerator / self.denominator if self.denominator else 0.0


Mean = Ratio  # the sum of values, and their number


@dataclass(frozen=True)
class Setting:
    """A number that is not a count: all parts of a run have the same value."""

    number: float


class Items(list):
    """Records in the order in which they are added; `+=` changes the list itself."""


# a number, a text, or one of these classes; a `Section` has several by name
Counter = Any
Counters = dict[str, Counter]


def merge(ours: Counter, theirs: Counter) -> Counter:
    """Return two counters of one kind as one; `ours` is changed in place if it is mutable.

    Errors: ValueError for different texts.
    """
    if ours is None or theirs is None:
        return copy_counter(theirs) if ours is None else ours
    if isinstance(ours, (str, Setting)):
        if ours != theirs:
            raise ValueError(f"two parts of one run report different things: {ours} and {theirs}")
    elif isinstance(ours, Section):
        ours.add(theirs)
    else:
        ours += theirs
    return ours


def difference(after: Counter, before: Counter) -> Counter:
    """Return what was counted between two states of one counter; before: None if it did not exist
    yet."""
    if before is None or isinstance(after, (str, Setting)):
        return copy_counter(after)
    if isinstance(after, Section):
        return after.since(before)
    return Items(after[len(before) :]) if isinstance(after, Items) else after - before


def copy_counter(value: Counter) -> Counter:
    """Return a copy of a counter that does not change with the original."""
    return (
        value.copy()
        if isinstance(value, Section)
        else Items(value)
        if isinstance(value, Items)
        else value
    )


def mark_counter(value: Counter) -> Counter:
    """Return the mark that `rollback` needs to restore a counter."""
    return (
        value.mark()
        if isinstance(value, Section)
        else len(value)
        if isinstance(value, Items)
        else value
    )


def readable(value: Counter) -> Counter:
    """Return a counter's value in the JSON object."""
    if isinstance(value, Section):
        return value.as_dict()
    return (
        value.value()
        if isinstance(value, Ratio)
        else value.number
        if isinstance(value, Setting)
        else value
    )


class Section:
    """Counters by name: its attributes, except those whose names begin with _."""

    key: ClassVar[str] = ""  # its name in the JSON object
    counts_answers: ClassVar[bool] = False  # counts results of sentences, not work

    def settle(self) -> None:
        """Copy counts on a device to the host."""
        for name, value in vars(self).items():
            if hasattr(value, "item") and not name.startswith("_"):
                setattr(self, name, value.item())

    def counters(self) -> Counters:
        """Return each counter that applies, on the host; empty texts do not apply."""
        self.settle()
        return {
            name: value
            for name, value in vars(self).items()
            if value is not None and value != "" and not name.startswith("_")
        }

    def add(self, part: Section) -> None:
        """Add the counts of another process, unit or run."""
        ours = self.counters()
        for name, theirs in part.counters().items():
            setattr(self, name, merge(ours.get(name), theirs))

    def since(self, before: Self) -> Self:
        """Return what was counted since `before`, an earlier copy of this section, was made."""
        out, then = self.copy(), before.counters()
        for name, value in self.counters().items():
            setattr(out, name, difference(value, then.get(name)))
        return out

    def copy(self) -> Self:
        """Return a copy that counts independently."""
        self.settle()
        out = copy.copy(self)
        vars(out).update({name: copy_counter(value) for name, value in vars(self).items()})
        return out

    def mark(self) -> Counters:
        """Return the mark that `rollback` needs: counters by name; the length of a list, the mark
        of a section."""
        return {name: mark_counter(value) for name, value in self.counters().items()}

    def rollback(self, mark: Counters) -> None:
        """Restore the counts at the time of `mark`; counters that did not exist then are reset."""
        for name, value in self.counters().items():
            if isinstance(value, Items):
                del value[mark.get(name, 0) :]
            elif isinstance(value, Section) and name in mark:
                value.rollback(mark[name])
            else:
                setattr(self, name, mark.get(name, getattr(type(self), name, None)))

    def as_dict(self) -> Counters:
        """Return the JSON object for people."""
        return {name: readable(value) for name, value in self.counters().items()}

    def record(self) -> Counters:
        """Return the JSON object that `restored` reads: every counter with its kind."""
        return {name: recorded(value) for name, value in self.counters().items()}

    @classmethod
    def restored(cls, record: Counters) -> Self:
        """Return the section of a record; sections inside it have the class Section."""
        out = cls()
        vars(out).update({name: unrecorded(value) for name, value in record.items()})
        return out


KINDS: dict[str, Callable] = {
    "ratio": Ratio,
    "setting": Setting,
    "items": lambda *items: Items(items),
}


def recorded(value: Counter) -> Counter:
    """Return a counter in the form of a record: a number or a text unchanged, another kind as [its
    name, its parts], a section as an object."""
    if isinstance(value, Section):
        return value.record()
    if isinstance(value, Items):
        return ["items", *value]
    if isinstance(value, Ratio):
        return ["ratio", value.numerator, value.denominator]
    return ["setting", value.number] if isinstance(value, Setting) else value


def unrecorded(value: Counter) -> Counter:
    """Return the counter of a record."""
    if isinstance(value, dict):
        return Section.restored(value)
    return KINDS[value[0]](*value[1:]) if isinstance(value, list) else value


# ---- The counters of a run


S = TypeVar("S", bound=Section)
DECODER_WORK = ("encoder_calls", "decoder_calls", "decoder_rows", "decoder_positions")


@dataclass
class Stats(Section):
    """The counters of a run.

    Strategies register their own sections (`section`), which become attributes.
    """

    signature: str = ""
    sentences: int = 0
    target_tokens: int = 0  # of the best hypothesis of each sentence, EOS included
    seconds: float = 0.0  # decoding only
    encoder_calls: int = 0
    decoder_calls: int = 0
    decoder_rows: int = 0  # rows, summed over calls
    decoder_positions: int = 0  # rows x block width, summed over calls
    # number of times that sentences started while others were live, or after them; streaming only
    refills: int | None = None
    # the next two: an int, or a tensor that is copied to the host when it is read
    expansions: Counter = None  # live hypotheses that the decoder has continued; beam search only
    dropped_rows: Counter = None  # candidates that would have become rows without pruning
    _own_loop: bool = True  # False: fairseq's own loop decodes and does not count its work

    def section(self, kind: type[S], *arguments: object) -> S:
        """Return the section of this kind; it is created from the arguments if needed."""
        if kind.key not in vars(self):
            setattr(self, kind.key, kind(*arguments))
        return getattr(self, kind.key)

    def find_section(self, kind: type[S]) -> S | None:
        """Return the section of this kind; None if there is none."""
        return vars(self).get(kind.key)

    def drop(self, dropped: Counter) -> None:
        """Count the rows that pruning has dropped (a tensor of any shape, true for a dropped
        row)."""
        count = dropped.sum()
        self.dropped_rows = count if self.dropped_rows is None else self.dropped_rows + count

    def expand(self, hypotheses: Counter) -> None:
        """Count live hypotheses that the decoder continues."""
        self.expansions = hypotheses if self.expansions is None else self.expansions + hypotheses

    def refill(self) -> None:
        """Count one start of sentences while others are live, or after them."""
        self.refills = (self.refills or 0) + 1

    def count_step(self, rows: int, width: int) -> None:
        """Count one decoder call with `rows` rows of `width` positions."""
        self.decoder_calls += 1
        self.decoder_rows += rows
        self.decoder_positions += rows * width

    def count_steps(self, calls: int, rows: int) -> None:
        """Count steps of live hypotheses: `calls` decoder calls, with `rows` rows in total."""
        self.decoder_calls += calls
        self.decoder_rows += rows
        self.decoder_positions += rows
        self.expand(rows)

    def exclude_decoder_counters(self) -> None:
        """Leave the decoder's counters out: fairseq's own loop decodes and does not count its
        calls."""
        self._own_loop = False

    def mark(self) -> Counters:
        """Return the mark that `rollback` needs. It has only the counters of results, so that it is
        cheap enough for every batch."""
        sections = {section.key: section.mark() for section in self.of_sentences()}
        return {"sentences": self.sentences, "target_tokens": self.target_tokens, **sections}

    def rollback(self, mark: Counters) -> None:
        """Restore the counters of results after a failed search whose sentences are searched again.
        The work done stays counted."""
        self.sentences, self.target_tokens = mark["sentences"], mark["target_tokens"]
        for section in self.of_sentences():
            section.rollback(mark.get(section.key, {}))

    def of_sentences(self) -> list[Section]:
        """Return the sections that count results of sentences."""
        return [
            value
            for value in vars(self).values()
            if isinstance(value, Section) and value.counts_answers
        ]

    def counters(self) -> Counters:
        found = super().counters()
        return (
            found
            if self._own_loop
            else {name: value for name, value in found.items() if name not in DECODER_WORK}
        )
