"""What a term test set holds, whatever its format: sentences with their terms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fairseq_ext.core.errors import UsageError


@dataclass(frozen=True)
class Term:
    """A source term and the target forms that translate it."""

    source: str
    targets: tuple[str, ...]  # any one of them
    place: tuple[int, int] | None = None  # where the reference has it, [start, end) in words; None: not marked
    marked: bool = False  # whether the test set says that the source sentence holds the term


@dataclass(frozen=True)
class Sentence:
    """A line of the test set. source is None where the format has none."""

    source: str | None
    reference: str
    terms: tuple[Term, ...]
    document: str = ""


def targets_of(value: object, where: str) -> tuple[str, ...]:
    """Target forms from JSON: a string, `a|b` for alternatives, or a list of strings; UsageError for anything else."""
    given = value.split("|") if isinstance(value, str) else value
    if not isinstance(given, list) or not given or not all(isinstance(each, str) and each.strip() for each in given):
        raise UsageError(f"{where} has a term without a target: write a string or a list of strings")
    return tuple(dict.fromkeys(each.strip() for each in given))


def terms_of(pairs: Iterable[tuple[object, object]], where: str) -> tuple[Term, ...]:
    """Terms from (source, targets) pairs of JSON; UsageError for a source that is no text."""
    found = []
    for source, targets in pairs:
        if not isinstance(source, str) or not source.strip():
            raise UsageError(f"{where} has a term without a source: write the source term as a string")
        found.append(Term(source.strip(), targets_of(targets, where)))
    return tuple(found)
