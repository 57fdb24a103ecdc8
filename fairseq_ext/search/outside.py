"""Checks of strategies from outside the package (FAIRSEQ_EXT_STRATEGIES): the type of what a
builder returns, and the first result of a search's first step.

Shapes: S live sentences, c candidates a sentence, n live rows, V vocabulary, C words of a
shortlist.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from fairseq_ext.core.errors import UsageError
from fairseq_ext.search.beam import Beam
from fairseq_ext.search.candidates import Candidates, StopDecision
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.protocols import Prune, Schedule, Select, Softmax, Stop
from fairseq_ext.search.registry import Strategy

# the base class of a strategy, and what it returns (a schedule: the number of sentences)
KINDS: dict[str, tuple[type, type]] = {
    "select": (Select, Candidates),
    "stop": (Stop, StopDecision),
    "softmax": (Softmax, LogProbs),
    "prune": (Prune, Tensor),
    "schedule": (Schedule, int),
}
NAMES = {StopDecision: "a StopDecision", Tensor: "a mask (bool)", "bool": "a mask (bool)"}


def wrong(strategy: Strategy, what: str) -> UsageError:
    return UsageError(
        f"{strategy.flag} ({strategy.file}) {what}: see the table of the extension points "
        "in docs/strategy.md"
    )


def describe(value: object) -> str:
    """Return a description of a value, for a message."""
    if isinstance(value, Tensor):
        return f"a {str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)}"
    return "nothing (a return is missing)" if value is None else f"a {type(value).__name__}"


def check_made(strategy: Strategy, made: object) -> None:
    """Raise UsageError unless a builder has returned a strategy of its extension point."""
    base = KINDS[strategy.point][0] if strategy.point in KINDS else object
    if not isinstance(made, base) or not callable(made):
        name = "driver" if base is object else base.__name__
        raise wrong(strategy, f"builds {describe(made)}, not a {name}")


def check_result(
    strategy: Strategy, words: int, found: object, beam: Beam, candidates: Candidates | None
) -> None:
    """Raise UsageError unless a result has the type, shape and dtype of its extension point, and is
    not empty. words: V; candidates: the argument of pruners and stop strategies."""
    if not isinstance(found, kind := KINDS[strategy.point][1]):
        raise wrong(strategy, f"returns {describe(found)}, not {NAMES.get(kind, kind.__name__)}")
    for name, value, shape, dtype in parts_of(found, beam, words, candidates):
        is_tensor = isinstance(value, Tensor) and value.shape == shape and value.numel() > 0
        if not is_tensor or not str(value.dtype).startswith(f"torch.{dtype}"):
            raise wrong(
                strategy,
                f"returns {name}{describe(value)}, not {NAMES.get(dtype, dtype)} of shape {shape}",
            )


def parts_of(
    found: Any, beam: Beam, words: int, candidates: Candidates | None
) -> Iterator[tuple[str, Any, tuple[int, ...], str]]:
    """Yield the name, tensor, shape and dtype of each part of a result."""
    S = len(beam.live)
    shape: tuple[int, ...]
    if isinstance(found, LogProbs):
        C = words if found._ids is None else found._ids.size(-1)
        yield "log-probabilities ", found._value, (beam.rows, C), "float"
    elif isinstance(found, Candidates):
        shape = (S, found.row.size(-1))
        yield "row ", found.row, shape, "int64"
        yield "token ", found.token, shape, "int64"
        yield "score ", found.score, shape, "float"
    elif candidates is not None:
        shape = tuple(candidates.score.shape)
        if isinstance(found, Tensor):
            yield "", found, shape, "bool"
            return
        for name, mask in (("done ", found.done), ("stays ", found.stays)):
            if mask is not None:
                yield name, mask, shape, "bool"
        yield "final ", found.final, (S,), "bool"
