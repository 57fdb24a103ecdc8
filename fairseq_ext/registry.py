"""Strategies by name: one small registry a plug point, and the flags each strategy brings.

A strategy file registers a builder, `@register("stop", "optimal", OptimalEnding)`, where the last is the dataclass with its flags.
Nothing else knows the strategy: `config.py` gathers the dataclasses into the task's, and builds what the flags name.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

DEFAULT = {"select": "topk", "stop": "count", "schedule": "batch", "softmax": "full", "decoding": "beam"}  # fairseq's own behaviour
POINTS = tuple(DEFAULT)


@dataclass(frozen=True)
class Strategy:
    """One value of a plug point's flag."""

    point: str
    name: str
    build: Callable  # (flags, Context) -> the plug
    flags: type | None = None  # dataclass of its flags; several strategies may share one
    check: Callable | None = None  # (flags, generation config) -> None; raises ValueError with one sentence
    tell: Callable | None = None  # (flags, generation config) -> what the signature says of it besides its name and flags


STRATEGIES: dict[str, dict[str, Strategy]] = {point: {} for point in POINTS}
PRUNERS: dict[str, Strategy] = {}  # pruning is on when its flags are set, not by name


def register(
    point: str, name: str, flags: type | None = None, check: Callable | None = None, tell: Callable | None = None
) -> Callable:
    """Register a builder under a plug point ('prune' for one that its flags switch on)."""

    def add(build: Callable) -> Callable:
        table = PRUNERS if point == "prune" else STRATEGIES[point]
        table[name] = Strategy(point, name, build, flags, check, tell)
        return build

    return add


@functools.cache
def load_strategies() -> None:
    """Import every strategy file, one folder a plug point, so that each registers itself. A name with a leading underscore is shared
    code."""
    package = importlib.import_module("fairseq_ext.strategies")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.rpartition(".")[2].startswith("_"):
            importlib.import_module(module.name)
