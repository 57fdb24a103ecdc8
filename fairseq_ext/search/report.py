"""The report of a sentence: its hypotheses, how they meet its constraints, and its certificate.

`Report` is the same for all who show one: a line of `--results-file` and of `--glossary-report`, a
Python call, an engine's answer, the server's fields, a corpus' line. A field that is declared here
(or, of a term's place, in `Placed` of phrases/sentence.py) is shown by each of them that has it.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Generic, get_args, get_origin, get_type_hints

import torch
from torch import Tensor
from typing_extensions import TypeVar

from fairseq_ext.search.phrases.sentence import Placed, Placement

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Span = tuple[int, int]  # characters [start, end)
SHOWN = {"shown": True}  # of fields that JSON answers have under the same name


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
    # expected utility, with --mbr
    utility: float | None = field(default=None, metadata=SHOWN)
    placements: Sequence[Placement] = ()  # of each glossary term of its sentence

    @property
    def elsewhere(self) -> list[str]:
        """The texts of terms that are in another place than that of their translation."""
        return [p.term.text for p in self.placements if p.term and p.place == "elsewhere"]


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
        self.unmet, self.placements = list(self.unmet), list(self.placements)

    def __repr__(self) -> str:
        lacks = f", unmet={self.unmet!r}" if self.unmet else ""
        return f"Translation({self.text!r}, score={self.score:.4f}{lacks})"


@dataclass(frozen=True, kw_only=True)
class ConstraintReport(Placed):
    """A required phrase, and whether and where the best hypothesis has it."""

    phrase: str  # as it was given, "a|b" for alternatives
    met: bool
    spans: tuple[Span, ...] = ()  # where it stands in the text
    reason: str = ""  # why it is not met
    term: str = ""  # the source term of a glossary that requires it
    source_spans: tuple[Span, ...] = ()  # where the term stands in the source
    # of a term: "in place" of the words that translate it, or "elsewhere"; "" where
    # that is not known
    place: str = ""


# a search's hypotheses have numbers of tokens, and those of an answer texts
H = TypeVar("H", bound=Outcome, default=Translation)


@dataclass(frozen=True)
class Report(Generic[H]):
    """The result of a sentence, or of a text, which has untranslated segments and warnings."""

    hypotheses: Sequence[H]  # best first
    constraints: Sequence[ConstraintReport] = ()
    queued: float = 0.0  # seconds from submission to the decoder
    decoded: float = 0.0  # seconds in the decoder
    # segments of a text that stay as they are, each with the reason
    untranslated: Sequence[tuple[str, str]] = ()
    # of segments of a text that are translated in parts, since they are too long
    warnings: Sequence[str] = ()

    @property
    def text(self: Report) -> str:
        """The text of the best hypothesis."""
        return self.hypotheses[0].text

    @property
    def score(self: Report) -> float:
        """The score of the best hypothesis."""
        return self.hypotheses[0].score

    @property
    def gap(self) -> float | None:
        """What the best hypothesis may lack, in nats, by its certificate; None without one."""
        ending = self.hypotheses[0].ending
        return None if ending is None else ending.gap


def named(value: object, kind: type) -> dict[str, Any]:
    """Return the fields that a dataclass has from one of its bases, by name."""
    return {each.name: getattr(value, each.name) for each in fields(kind)}


def shown(value: DataclassInstance) -> dict[str, object]:
    """Return the fields that JSON answers have under the same name, where they are known."""
    given = ((each.name, getattr(value, each.name)) for each in fields(value) if each.metadata)
    return {name: of for name, of in given if of is not None}


def constraint_json(of: ConstraintReport) -> dict[str, object]:
    """Return the report of a constraint as answers have it."""
    return {"phrase": of.phrase, "met": of.met, "spans": of.spans} | as_json(of)


# ---- A report as JSON


def as_json(value: object) -> Any:
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


@functools.cache
def types_of(kind: type) -> tuple[dict[str, Any], set[str]]:
    """Return the types of the fields of a dataclass, and which of them have no default."""
    hints = get_type_hints(kind)
    own = {each.name: each.default is MISSING for each in fields(kind)}  # type: ignore[arg-type]
    return {name: hints[name] for name in own}, {name for name, needed in own.items() if needed}


def from_json(kind: object, value: object, name: str = "line") -> Any:
    """Return the value of a type that `as_json` was given. name: of the value, for messages.

    Errors: ValueError for another type; the text can follow "because".
    """
    inner, origin = get_args(kind), get_origin(kind)
    if origin is types.UnionType:  # X | None
        return None if value is None else from_json(inner[0], value, name)
    if isinstance(value, dict) and is_dataclass(made := origin or kind):
        of, needed = types_of(made)  # type: ignore[arg-type]
        if needed <= value.keys() <= of.keys():
            if inner:  # Report[Hypothesis]
                of = {n: t[inner] if getattr(t, "__parameters__", ()) else t for n, t in of.items()}
            given = {each: from_json(of[each], part, each) for each, part in value.items()}
            return made(**given)  # type: ignore[operator]
    elif kind is Tensor and isinstance(value, list):
        with contextlib.suppress(RuntimeError, TypeError, ValueError):  # no numbers
            found = torch.tensor(value)
            return torch.tensor(value, dtype=torch.float32) if found.is_floating_point() else found
    elif origin is not None and isinstance(value, list):
        each = inner if origin is tuple and ... not in inner else inner[:1] * len(value)
        if len(each) == len(value):
            return tuple(from_json(of, item, name) for of, item in zip(each, value, strict=True))
    elif type(value) is kind or kind is float and type(value) is int:
        if value == value:  # no NaN
            return value
    raise ValueError(f"its '{name}' is not what a report has there")
