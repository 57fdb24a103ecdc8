"""The strategies of a generator's search, by the flags (`with_strategies`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from fairseq_ext.core.errors import UsageError
from fairseq_ext.model.protocol import Decoder
from fairseq_ext.model.stock import FairseqBackend
from fairseq_ext.search.beam import Beam
from fairseq_ext.search.candidates import Candidates, StopDecision
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.protocols import Prune, Schedule, Select, Setup, Softmax, Stop, Strategies
from fairseq_ext.search.registry import (
    OUTSIDE,
    Strategy,
    strategies_in_use,
)
from fairseq_ext.search.settings import DEFAULT, Settings


def build(strategy: Strategy, setup: Setup) -> Any:
    """Build a strategy; None for a pruner whose flag the select strategy reads. Its type is checked
    if its file is outside the package."""
    made = strategy.build(setup.settings.get(strategy.flags), setup)
    if strategy.is_outside and not (made is None and strategy.point == "prune"):
        check_made(strategy, made)
    return made


def with_strategies(setup: Setup) -> Setup:
    """Return the setup with the strategies of all extension points, and a decoder that works with
    them.

    Errors: UsageError for a decoder that cannot.
    """
    named = [each for each in strategies_in_use(setup.settings) if each.point != "decoding"]
    built = [build(strategy, setup) for strategy in named]
    select, stop, schedule, softmax, *prune = built
    strategies = Strategies(select, stop, schedule, softmax, [p for p in prune if p is not None])
    checks: dict[int, Callable] = {
        id(made): partial(check_result, strategy, len(setup.dictionary))
        for strategy, made in zip(named, built, strict=True)
        if strategy.is_outside
    }
    if setup.refills:
        setup.stats.refills = setup.stats.refills or 0  # none so far
    return replace(setup, decoder=block_decoder(setup), strategies=strategies, checks=checks)


def may_read_models(settings: Settings) -> bool:
    """Return whether a strategy may read the models' own modules: the output layer does where it is
    not scored in full, --print-alignment reads all, and strategies outside the package may."""
    scores_all = settings.choice("softmax") == DEFAULT["softmax"]
    return not scores_all or bool(settings.generation.print_alignment) or OUTSIDE in os.environ


def block_decoder(setup: Setup) -> Decoder:
    """Return the decoder, or one that also reads several tokens a call if --decoding needs that.

    Errors: UsageError where a schedule does not allow it.
    """
    method = setup.settings.choice("decoding")
    if method == "beam" or setup.decoder.name != "fairseq":
        return setup.decoder
    if setup.refills:
        raise UsageError(
            f"--schedule {setup.settings.choice('schedule')} with --decoding {method} needs "
            "rows of different lengths in one call, which only the transformer backend can read: "
            "leave one of the two out"
        )
    return FairseqBackend(setup.models, cached=False)


# ---- Checks of strategies from outside the package (FAIRSEQ_EXT_STRATEGIES)
#
# They read the type of what a builder returns, and the first result of a search's first step.
#
# Shapes: S live sentences, c candidates a sentence, n live rows, V vocabulary, C words of a
# shortlist.


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
    found: object, beam: Beam, words: int, candidates: Candidates | None
) -> Iterator[tuple[str, Tensor, tuple[int, ...], str]]:
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
        assert isinstance(found, StopDecision)
        for name, mask in (("done ", found.done), ("stays ", found.stays)):
            if mask is not None:
                yield name, mask, shape, "bool"
        yield "final ", found.final, (S,), "bool"
