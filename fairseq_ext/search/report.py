"""The report of a sentence: its hypotheses, how they meet its constraints, and its certificate.

`--results-file`, `--glossary-report`, the Python API, the answers of engine and server and the
output of a corpus are views of it. What is new in it is declared here, and set where it is found.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from fairseq_ext.search.phrases.sentence import Placement

Span = tuple[int, int]  # characters [start, end)


@dataclass(frozen=True)
class Ending:
    """The end of a sentence's search: its certificate, and the work saved against a search to the
    length limit."""

    gap: float  # bound of the score that the answer lacks, in nats; 0 if it is proved the best
    steps: int
    rows: int


@dataclass(kw_only=True)
class Outcome:
    """What is known of a hypothesis besides its tokens and scores."""

    ending: Ending | None = None  # of its sentence, if the stop strategy has certificates
    unmet: Sequence[tuple[str, str]] = ()  # unmet constraints: text, reason
    utility: float | None = None  # expected utility, with --mbr
    # texts of glossary terms that it has in another place than that of their translation
    elsewhere: Sequence[str] = ()
    placements: Sequence[Placement] = ()  # of each glossary term of its sentence

    @property
    def outcome(self) -> dict[str, Any]:
        """These fields alone, by name: of a hypothesis of one class, for one of another."""
        return {each.name: getattr(self, each.name) for each in fields(Outcome)}


@dataclass
class Translation(Outcome):
    """One hypothesis of one line."""

    text: str  # without subword segmentation
    tokens: list[str]  # subword tokens, EOS left out
    score: float  # natural logarithm; length-normalised unless unnormalized=True
    positional_scores: list[float]  # of each token, EOS included
    # (source, target) positions, with print_alignment="hard"
    alignment: list[tuple[int, int]] | None = None
    # character spans of source and target words that are translations of each other, if requested
    words: list[tuple[Span, Span]] | None = None

    def __post_init__(self) -> None:
        self.unmet, self.elsewhere = list(self.unmet), list(self.elsewhere)
        self.placements = list(self.placements)

    def __repr__(self) -> str:
        lacks = f", unmet={self.unmet!r}" if self.unmet else ""
        return f"Translation({self.text!r}, score={self.score:.4f}{lacks})"


# ---- A report as JSON


def as_json(value: Any) -> Any:
    """Return a dataclass as an object, without fields at their defaults; tensors are lists."""
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [as_json(each) for each in value]
    if not is_dataclass(value):
        return value
    given = ((each, getattr(value, each.name)) for each in fields(value))
    return {
        each.name: as_json(of)
        for each, of in given
        if each.default is MISSING or of is not each.default and of != each.default
    }


hints = functools.cache(get_type_hints)


def from_json(kind: Any, value: Any, name: str = "line") -> Any:
    """Return the value of a type that `as_json` was given. name: of the value, for messages.

    Errors: ValueError for another type; the text can follow "because".
    """
    inner, origin = get_args(kind), get_origin(kind)
    if origin is types.UnionType:  # X | None
        return None if value is None else from_json(inner[0], value, name)
    if is_dataclass(kind) and isinstance(kind, type) and isinstance(value, dict):
        of = hints(kind)
        needed = {each.name for each in fields(kind) if each.default is MISSING}
        if value.keys() <= {each.name for each in fields(kind)} and needed <= value.keys():
            return kind(**{each: from_json(of[each], given, each) for each, given in value.items()})
    elif kind is Tensor and isinstance(value, list):
        with contextlib.suppress(RuntimeError, TypeError, ValueError):  # no numbers
            return torch.tensor(value)
    elif origin is not None and isinstance(value, list):
        each = inner if origin is tuple and ... not in inner else inner[:1] * len(value)
        if len(each) == len(value):
            return tuple(from_json(of, item, name) for of, item in zip(each, value, strict=True))
    elif type(value) is kind or kind is float and type(value) is int:
        if value == value:  # no NaN
            return value
    raise ValueError(f"its '{name}' is not what a report has there")
