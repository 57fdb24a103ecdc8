"""Constraints as Python gives them (lists of phrases) to what the search takes:
`SentenceConstraints` of each line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fairseq_ext.core.errors import UsageError, counted, cut
from fairseq_ext.search.constraints.sources import ConstraintSource
from fairseq_ext.search.phrases.sentence import SentenceConstraints

# of one line: each a phrase, or a list of phrases that any one of meets
Phrases = Sequence[str | Sequence[str]]


@dataclass
class Given:
    """The constraints of a call: of n lines. None says that the call has none of the kind."""

    constraints: Sequence[Phrases] | None = None  # n lists of phrases that must appear
    # phrases that must not appear, in any line, or n lists of them
    avoid: Sequence[str] | Sequence[Sequence[str]] | None = None
    prefixes: Sequence[str | None] | None = None  # n: what each line starts with
    seed: int | None = None  # of their samples
    first: int = 0  # lines of the call before these n, for messages and for the files of the flags
    # of the n in their text, where they are sentences of one (default: from `first` on)
    numbers: Sequence[int] | None = None

    def __bool__(self) -> bool:
        return any(given is not None for given in (self.constraints, self.avoid, self.prefixes))

    def check(self, count: int) -> None:
        """Refuse arguments that are not for this number of lines (raises UsageError)."""
        for name, given in (
            ("constraints", self.constraints),
            ("avoid", self.avoid),
            ("prefixes", self.prefixes),
        ):
            if (
                given is not None
                and len(given) != count
                and not (name == "avoid" and self.bans_everywhere)
            ):
                has = counted(len(given), "entry", "entries")
                raise UsageError(
                    f"{name} has {has} for {counted(count, 'line')}: give one entry for each line"
                )

    @property
    def bans_everywhere(self) -> bool:
        """Whether `avoid` is of all lines together."""
        return self.avoid is not None and all(isinstance(phrase, str) for phrase in self.avoid)

    def of_line(self, place: int, tokens: Tensor, source: ConstraintSource) -> SentenceConstraints:
        """The constraints of a line, those of the flags (source) included. place: among
        the n; tokens: (L,).

        Errors: UsageError, naming the line, for phrases that cannot be used.
        """
        number = self.first + place
        where = f"line {number + 1}"
        phrases = items(
            (self.constraints[place] or ()) if self.constraints is not None else (),
            f"constraints of {where}",
        )
        banned = (
            ()
            if self.avoid is None
            else self.avoid
            if self.bans_everywhere
            else self.avoid[place] or ()
        )
        prefix = (self.prefixes[place] or "") if self.prefixes is not None else ""
        fields: dict[str, list[Any]] = {
            "constraints": [],
            "any_of": [
                texts([p] if isinstance(p, str) else p, f"a constraint of {where}") for p in phrases
            ],
            "avoid": texts(banned, f"avoid of {where}"),
            "prefix": texts([prefix] if prefix else [], f"prefixes of {where}"),
        }
        if [] in fields["any_of"]:
            raise UsageError(f"a constraint of {where} is an empty list: remove it")
        return source.sentence(number, tokens, source.of_fields(fields, where))


def items(given: Any, what: str) -> list[Any]:
    """The entries of a list; UsageError for anything else."""
    if isinstance(given, (str, Mapping)) or not isinstance(given, Iterable):
        raise UsageError(f"{what} is {cut(repr(given))}: give a list of phrases")
    return list(given)


def texts(given: Any, what: str) -> list[str]:
    """The phrases of a list; UsageError for an entry that is not text."""
    found = items(given, what)
    for phrase in found:
        if not isinstance(phrase, str):
            raise UsageError(f"{what} has {cut(repr(phrase))} for a phrase: give text")
    return found
