"""Checks of the results of strategies from outside the package (FAIRSEQ_EXT_STRATEGIES).

Without them, a wrong shape, row or order would change translations without a message. On a GPU the
checks wait for the device, so only a strategy's first results are checked.

Shapes: S live sentences, c candidates a sentence, n live rows, V vocabulary, C words of a
shortlist.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fairseq_ext.core.errors import UsageError
from fairseq_ext.search.beam import Beam
from fairseq_ext.search.candidates import Candidates, StopDecision
from fairseq_ext.search.finished import Finished
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import Prune, Schedule, Select, Softmax, Stop
from fairseq_ext.search.registry import OUTSIDE_MODULE, Strategy

BASES: dict[str, type] = {
    "select": Select,
    "stop": Stop,
    "schedule": Schedule,
    "softmax": Softmax,
    "prune": Prune,
}
# attributes of arguments
READ_ONLY = {
    Beam: ("tokens", "score"),
    Candidates: ("row", "token", "score"),
    Finished: ("count", "total"),
}
ROUNDING = 1e-3  # nats
CHECKED = 100  # results: all steps of a usual batch


def watched(strategy: Strategy, made: Any, eos: int, words: int) -> Any:
    """Return what a builder made; if it comes from outside the package, its first results are
    checked. words: of the target dictionary.
    Errors: UsageError, also during these steps."""
    if not strategy.build.__module__.startswith(OUTSIDE_MODULE):
        return made

    def wrong(what: str) -> UsageError:
        return UsageError(
            f"{strategy.flag} ({strategy.file}) {what}: see the table of the extension points "
            "in docs/strategy.md"
        )

    base = BASES.get(strategy.point, object)
    if not isinstance(made, base) or not callable(made):
        raise wrong(
            f"builds {describe_value(made)}, not a "
            f"{base.__name__ if base is not object else 'driver'}"
        )
    if strategy.point == "decoding":
        return made
    checks: dict[str, Callable[..., str | None]] = {
        "softmax": softmax_error,
        "select": select_error,
        "prune": prune_error,
        "stop": stop_error,
        "schedule": schedule_error,
    }
    check = checks[strategy.point]
    kind, left = type(made), CHECKED

    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        nonlocal left
        left -= 1
        if not left:
            self.__class__ = kind
        given = [
            (each, name, getattr(each, name).clone())
            for each in arguments
            for name in READ_ONLY.get(type(each), ())
        ]
        found = kind.__call__(self, *arguments, **named)
        for each, name, before in given:
            if not torch.equal(getattr(each, name), before):
                raise wrong(
                    f"writes to {type(each).__name__.lower()}.{name}, which may only be read"
                )
        if (
            flaw := check(
                found,
                *arguments,
                **named,
                eos=eos,
                at_most_0="scores of at most 0" not in strategy.denies,
            )
        ) is not None:
            raise wrong(flaw)
        if isinstance(found, LogProbs) and found._ids is None and found.size != words:
            raise wrong(f"returns {found.size} words a row, and the dictionary has {words}")
        return found

    made.__class__ = type(kind.__name__, (kind,), {"__call__": call})
    return made


def describe_value(value: Any) -> str:
    """Return a description of a value, for a message."""
    if isinstance(value, Tensor):
        return f"a {str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)}"
    return "nothing (a return is missing)" if value is None else f"a {type(value).__name__}"


def softmax_error(
    found: Any,
    decoder: Any,
    features: Any,
    beam: Beam | None = None,
    pool: Pool | None = None,
    *,
    eos: int,
    at_most_0: bool,
) -> str | None:
    """Return what is wrong with the result of a softmax; None for nothing."""
    if not isinstance(found, LogProbs):
        return f"returns {describe_value(found)}, not LogProbs"
    value, ids = found._value, found._ids
    if (
        value.dim() != 2
        or not value.dtype.is_floating_point
        or (beam is not None and len(value) != beam.rows)
    ):
        return (
            f"returns {describe_value(value)}, not log-probabilities (n, V) of the "
            f"{'' if beam is None else f'{beam.rows} '}rows"
        )
    if ids is not None and (
        ids.size(-1) != value.size(1) or bool((ids.diff(dim=-1) < (ids.dim() == 1)).any())
    ):
        return (
            "returns ids that do not ascend, or are not one for each column of the "
            "log-probabilities"
        )
    if bool(value.isnan().any()) and not any(bool(each.isnan().any()) for each in features):
        return "returns NaN where the decoder has none"
    if at_most_0 and bool((value > ROUNDING).any()):
        return 'returns log-probabilities above 0, without denies=("scores of at most 0",)'
    if beam is not None and pool is not None:
        ends = found.scores_at(torch.full((1, 1), eos, device=value.device))[:, 0] > -torch.inf
        last = torch.tensor(
            [pool.max_len[s] <= length for s, length in zip(beam.live, beam.steps(), strict=True)],
            device=value.device,
        )
        living, of = beam.last_score() > -torch.inf, beam.sentence_of_row()
        lost = living & ~torch.where(last[of], ends, (value > -torch.inf).any(1))
        if bool(
            (
                torch.bincount(of[living], minlength=len(last))
                == torch.bincount(of[lost], minlength=len(last))
            )[of[lost]].any()
        ):
            return (
                "leaves a sentence no word, or no EOS at the length limit, where nothing "
                "else may follow"
            )
    return None


def select_error(
    found: Any, beam: Beam, log_probs: LogProbs, pool: Pool, *, eos: int, at_most_0: bool
) -> str | None:
    """Return what is wrong with the result of a select strategy; None for nothing."""
    if not isinstance(found, Candidates):
        return f"returns {describe_value(found)}, not Candidates"
    S, parts = len(beam.live), (found.row, found.token, found.score)
    if any(
        not isinstance(x, Tensor) or x.dim() != 2 or len(x) != S or x.shape != found.row.shape
        for x in parts
    ):
        return (
            f"returns {', '.join(map(describe_value, parts))}: row, token and score must "
            f"all be of shape (S, c), with S = {S} sentences"
        )
    if (
        found.row.dtype != torch.long
        or found.token.dtype != torch.long
        or not found.score.dtype.is_floating_point
    ):
        return (
            f"returns {', '.join(map(describe_value, parts))}: row and token must be "
            "int64, score a float"
        )
    if bool(found.score.isnan().any()):
        return "returns NaN for a score"
    there = found.score > -torch.inf
    row = found.row.clamp(0, beam.rows - 1)
    own = beam.sentence_of_row()[row] == torch.arange(S, device=row.device)[:, None]
    if bool((there & ((row != found.row) | ~own)).any()):
        return (
            "returns rows of another sentence: a row is a number of the beam, counted "
            "through all sentences"
        )
    if (
        found.key is None
        and found.group is None
        and bool((found.score[:, 1:] > found.score[:, :-1]).any())
    ):
        return "returns candidates that are not sorted, best first"
    token = found.token.clamp(0, (words := log_probs.dense()).size(1) - 1)
    if at_most_0 and bool(
        (
            there
            & (
                (token != found.token)
                | (found.score > beam.last_score()[row] + words[row, token] + ROUNDING)
            )
        ).any()
    ):
        return (
            "returns a score above beam.last_score() of its row and the token's log-probability "
            "together, or no token of the vocabulary"
        )
    possible = (beam.last_score() > -torch.inf) & (words > -torch.inf).any(1)
    if bool(
        (~there.any(1) & (torch.bincount(beam.sentence_of_row()[possible], minlength=S) > 0)).any()
    ):
        return "returns no candidate for a sentence that has one"
    return None


def prune_error(
    found: Any, candidates: Candidates, *others: Any, eos: int, at_most_0: bool
) -> str | None:
    """Return what is wrong with the result of a pruner; None for nothing."""
    return mask_error("", found, candidates.score.shape)


def stop_error(
    found: Any, candidates: Candidates, *others: Any, eos: int, at_most_0: bool
) -> str | None:
    """Return what is wrong with the result of a stop strategy; None for nothing."""
    if not isinstance(found, StopDecision):
        return f"returns {describe_value(found)}, not a StopDecision"
    shape = candidates.score.shape
    masks = (
        ("done ", found.done, shape),
        ("stays ", found.stays, shape),
        ("final ", found.final, shape[:1]),
    )
    return next(
        (
            flaw
            for name, mask, of in masks
            if (mask is not None or of != shape) and (flaw := mask_error(name, mask, of))
        ),
        None,
    )


def schedule_error(found: Any, waiting: int, *others: Any, eos: int, at_most_0: bool) -> str | None:
    """Return what is wrong with the result of a schedule; None for nothing."""
    is_number = isinstance(found, int) and 0 <= found <= waiting
    return (
        None
        if is_number
        else f"returns {found!r}, not a number of sentences from 0 to the {waiting} that wait"
    )


def mask_error(name: str, found: Any, shape: torch.Size) -> str | None:
    """Return what is wrong with a mask; None for nothing."""
    if isinstance(found, Tensor) and found.dtype == torch.bool and found.shape == shape:
        return None
    return f"returns {name}{describe_value(found)}, not a mask (bool) of shape {tuple(shape)}"
