"""The statistics of a run: typed counters, and `Stats`, which gathers them.

plugin/results.py writes them as the JSON object of `--stats-file`. Counts are of work really done.
Strategies hold their section and count in it; nobody replaces it.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

# ---- Typed counters
#
# One merge and one difference serve processes, corpus units and runs.
#
# Every counter is of one of these kinds. What does not apply is None, and is left out of the JSON
# object.
#
# | kind | value | the merge of two | in the JSON object |
# | --- | --- | --- | --- |
# | Sum | a number, or a tensor that stays on its device until it is read | adds them | the number |
# | Mean | `Mean(total, weight)` | adds totals and weights | total / weight |
# | Ratio | `Ratio(over, under)` | adds both sums | over / under |
# | Text | a string, or `Setting` for a number | must agree, else ValueError | the text |
# | Items | a list | joins them | the list |
# | Section | counters by name | merges each | an object |
#
# The difference undoes the merge: `merge(a, b).since(a)` equals `b`.


R = TypeVar("R", bound="Ratio")


@dataclass(frozen=True)
class Ratio:
    """One sum over another."""

    over: float = 0.0
    under: float = 0.0

    def __add__(self: R, other: R) -> R:
        return type(self)(self.over + other.over, self.under + other.under)

    def __sub__(self: R, other: R) -> R:
        return type(self)(self.over - other.over, self.under - other.under)

    def value(self) -> float:
        """The quotient; 0 where nothing has been counted."""
        return self.over / self.under if self.under else 0.0


class Mean(Ratio):
    """A mean with its weight: the sum of the values, and how many there are."""


@dataclass(frozen=True)
class Setting:
    """A number that does not count anything: all parts of a run have the same."""

    number: float


class Items(list):
    """Records in the order in which they come; `+=` adds to the list itself."""


def merged(ours: Any, theirs: Any) -> Any:
    """Two counters of one kind as one; ours changes in place where it can.

    Errors: ValueError for two kinds or texts.
    """
    if ours is None or theirs is None:
        return copied(theirs) if ours is None else ours
    if not (isinstance(ours, Section) and isinstance(theirs, Section)) and kind(ours) is not kind(
        theirs
    ):
        raise ValueError(
            f"two parts of one run count different things: {recorded(ours)} and {recorded(theirs)}"
        )
    if isinstance(ours, Section):
        ours.add(theirs)
        return ours
    if isinstance(ours, (str, Setting)):
        if ours != theirs:
            raise ValueError(f"two parts of one run tell different things: {ours} and {theirs}")
        return ours
    if isinstance(ours, Items):
        ours.extend(theirs)
        return ours
    return ours + theirs


def kind(value: Any) -> type:
    """The type of a counter; integers are floats."""
    return float if isinstance(value, int) else type(value)


def difference(after: Any, before: Any) -> Any:
    """What came between two states of one counter; before: None where it was not yet there."""
    if before is None or isinstance(after, (str, Setting)):
        return copied(after)
    if isinstance(after, Section):
        return after.since(before)
    return Items(after[len(before) :]) if isinstance(after, Items) else after - before


def copied(value: Any) -> Any:
    """A counter that does not change with this one."""
    return (
        value.copy()
        if isinstance(value, Section)
        else Items(value)
        if isinstance(value, Items)
        else value
    )


def marked(value: Any) -> Any:
    """What going back to this counter needs."""
    return (
        value.mark()
        if isinstance(value, Section)
        else len(value)
        if isinstance(value, Items)
        else value
    )


def shown(value: Any) -> Any:
    """A counter in the JSON object."""
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
    """Counters by name, which are its attributes (those that begin with _ are not counters)."""

    key: ClassVar[str] = ""  # its name in the JSON object
    of_answers: ClassVar[bool] = False  # it counts what became of sentences, not the work on them

    def settle(self) -> None:
        """Bring what is counted on a device to the host."""
        for name, value in vars(self).items():
            if hasattr(value, "item") and not name.startswith("_"):
                setattr(self, name, value.item())

    def counters(self) -> dict[str, Any]:
        """Each counter that applies, settled; a text that is not known yet does not."""
        self.settle()
        found = {
            name: value
            for name, value in vars(self).items()
            if value is not None and value != "" and not name.startswith("_")
        }
        for name, value in found.items():
            if isinstance(value, bool) or not isinstance(
                value, (int, float, str, Ratio, Setting, Items, Section)
            ):
                raise TypeError(f"{type(self).__name__}.{name} is not a counter: {value!r}")
        return found

    def add(self, part: Section) -> None:
        """Count what another process, unit or run has counted as well."""
        ours = self.counters()
        for name, theirs in part.counters().items():
            setattr(self, name, merged(ours.get(name), theirs))

    def since(self, before: Section) -> Any:
        """What has been counted since a copy of this was made, as a section like this one."""
        out, then = self.copy(), before.counters()
        for name, value in self.counters().items():
            setattr(out, name, difference(value, then.get(name)))
        return out

    def copy(self) -> Any:
        """Another one that counts on its own."""
        self.settle()
        out = copy.copy(self)
        vars(out).update({name: copied(value) for name, value in vars(self).items()})
        return out

    def mark(self) -> dict[str, Any]:
        """What `go_back` needs: counters by name, of lists their length, of sections their mark."""
        return {name: marked(value) for name, value in self.counters().items()}

    def go_back(self, mark: dict[str, Any]) -> None:
        """Forget what was counted since `mark`; what was not there then is as in a new section."""
        for name, value in self.counters().items():
            if isinstance(value, Items):
                del value[mark.get(name, 0) :]
            elif isinstance(value, Section) and name in mark:
                value.go_back(mark[name])
            else:
                setattr(self, name, mark.get(name, getattr(type(self), name, None)))

    def as_dict(self) -> dict[str, Any]:
        """The JSON object for readers."""
        return {name: shown(value) for name, value in self.counters().items()}

    def record(self) -> dict[str, Any]:
        """The JSON object that `restored` reads: every counter with its kind, means
        with their weights."""
        return {name: recorded(value) for name, value in self.counters().items()}

    @classmethod
    def restored(cls, record: dict[str, Any]) -> Any:
        """The section of a record; sections in it are plain ones.

        Errors: ValueError, TypeError, KeyError for what is no record.
        """
        out = cls()
        for name, value in record.items():
            if hasattr(out, name) or name.startswith("_"):
                raise ValueError(f"a counter cannot have the name '{name}'")
            setattr(out, name, unrecorded(value))
        out.counters()
        return out


KINDS: dict[str, Any] = {
    "ratio": Ratio,
    "mean": Mean,
    "setting": Setting,
    "items": lambda *items: Items(items),
}


def recorded(value: Any) -> Any:
    """A number or a text as it is, another kind as [its name, its parts], a
    section as an object."""
    if isinstance(value, Section):
        return value.record()
    if isinstance(value, Items):
        return ["items", *value]
    if isinstance(value, Ratio):
        return ["mean" if isinstance(value, Mean) else "ratio", value.over, value.under]
    return ["setting", value.number] if isinstance(value, Setting) else value


def unrecorded(value: Any) -> Any:
    """The counter of a record."""
    if isinstance(value, dict):
        return Section.restored(value)
    if not isinstance(value, list):
        return value
    if not value:
        raise ValueError("a counter has no kind")
    return KINDS[value[0]](*value[1:])


# ---- The counters of a run


S = TypeVar("S", bound=Section)
DECODER_WORK = ("encoder_calls", "decoder_calls", "decoder_rows", "decoder_positions")


@dataclass
class Stats(Section):
    """What a run has done so far.

    Strategies register sections of their own (`section`), which become attributes.
    """

    signature: str = ""
    sentences: int = 0
    target_tokens: int = 0  # of the best hypothesis of each sentence, EOS included
    seconds: float = 0.0  # decoding only
    encoder_calls: int = 0
    decoder_calls: int = 0
    decoder_rows: int = 0  # rows, summed over calls
    decoder_positions: int = 0  # rows x block width, summed over calls
    # times that sentences started beside live ones, or after them; only of a streaming schedule
    refills: int | None = None
    # of these two, an int, or a tensor that stays on its device until it is read
    expansions: Any = None  # live hypotheses that the decoder has continued; only of beam search
    dropped_rows: Any = None  # candidates that would have been rows but for pruning
    _own_loop: bool = True  # False: fairseq's own loop decodes, which counts no work of the decoder

    def section(self, kind: type[S], *arguments: Any) -> S:
        """The section of this kind, made of the arguments where there is none yet."""
        if kind.key not in vars(self):
            setattr(self, kind.key, kind(*arguments))
        found = getattr(self, kind.key)
        assert isinstance(found, kind), (
            f"the section {kind.key} is of another kind: {type(found).__name__}"
        )
        return found

    def found(self, kind: type[S]) -> S | None:
        """The section of this kind, None where nothing is counted in one."""
        return vars(self).get(kind.key)

    def drop(self, dropped: Any) -> None:
        """Count the rows that pruning has kept from the decoder (a tensor of any shape, true
        where one was dropped)."""
        count = dropped.sum()
        self.dropped_rows = count if self.dropped_rows is None else self.dropped_rows + count

    def expand(self, hypotheses: Any) -> None:
        """Count live hypotheses that are continued."""
        self.expansions = hypotheses if self.expansions is None else self.expansions + hypotheses

    def refill(self) -> None:
        """Count a time that sentences started beside live ones, or after them."""
        self.refills = (self.refills or 0) + 1

    def useful_rows(self) -> float:
        """The share of decoder rows that were live hypotheses."""
        return int(self.expansions or 0) / max(1, self.decoder_rows)

    def count_step(self, rows: int, width: int) -> None:
        """One decoder call over this many rows, each width positions wide."""
        self.decoder_calls += 1
        self.decoder_rows += rows
        self.decoder_positions += rows * width

    def count_steps(self, calls: int, rows: int) -> None:
        """Steps of live hypotheses: so many decoder calls, of so many rows in all."""
        self.decoder_calls += calls
        self.decoder_rows += rows
        self.decoder_positions += rows
        self.expand(rows)

    def leave_out_decoder(self) -> None:
        """fairseq's own loop decodes, whose calls nobody counts: the counters of the
        decoder do not apply."""
        self._own_loop = False

    def mark(self) -> dict[str, Any]:
        """What `go_back` needs: of answers alone, so that it costs little to ask
        before every batch."""
        sections = {section.key: section.mark() for section in self.of_sentences()}
        return {"sentences": self.sentences, "target_tokens": self.target_tokens, **sections}

    def go_back(self, mark: dict[str, Any]) -> None:
        """A search failed after some answers, and its sentences are searched again: its work
        counts, its answers do not."""
        self.sentences, self.target_tokens = mark["sentences"], mark["target_tokens"]
        for section in self.of_sentences():
            section.go_back(mark.get(section.key, {}))

    def of_sentences(self) -> list[Section]:
        """The sections that count what became of sentences."""
        return [
            value
            for value in vars(self).values()
            if isinstance(value, Section) and value.of_answers
        ]

    def counters(self) -> dict[str, Any]:
        found = super().counters()
        return (
            found
            if self._own_loop
            else {name: value for name, value in found.items() if name not in DECODER_WORK}
        )
