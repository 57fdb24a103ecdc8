"""The strategies of a generator's search, by the flags (`with_strategies`)."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from fairseq_ext.core.errors import UsageError
from fairseq_ext.model.protocol import Regroupable
from fairseq_ext.model.stock import FairseqBackend
from fairseq_ext.search.outside import check_made, check_result
from fairseq_ext.search.protocols import Setup, Strategies
from fairseq_ext.search.registry import (
    OUTSIDE,
    Strategy,
    strategies_in_use,
)
from fairseq_ext.search.settings import DEFAULT, Settings


def build(strategy: Strategy, setup: Setup) -> Any:
    """Build a strategy; None for a pruner whose flag the select strategy reads. Its type is checked
    if its file is outside the package (search/outside.py)."""
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
    strategies = Strategies(
        select, select.ending(stop), schedule, softmax, [p for p in prune if p is not None]
    )
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
    not scored in full, and strategies outside the package may read any."""
    return settings.choice("softmax") != DEFAULT["softmax"] or OUTSIDE in os.environ


def block_decoder(setup: Setup) -> Regroupable:
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
