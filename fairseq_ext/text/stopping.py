"""Stops the reading of a text whose caller has left or whose deadline is over. The thread that
reads sets a condition (`until`); the readers test it every 500 items (`checked`)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
EVERY = 500  # items between two tests; they take some milliseconds
conditions = threading.local()  # checks: of this thread, the inner last


class Stopped(Exception):
    """The reading was stopped: the translation is not needed any more."""


@contextmanager
def until(is_over: Callable[[], bool]) -> Iterator[None]:
    """Stop what this thread reads in this context when `is_over` returns true."""
    checks = conditions.__dict__.setdefault("checks", [])
    checks.append(is_over)
    try:
        yield
    finally:
        checks.pop()


def check() -> None:
    """Raise Stopped if a condition of this thread is true."""
    if any(is_over() for is_over in getattr(conditions, "checks", ())):
        raise Stopped


def checked(items: Iterable[T]) -> Iterator[T]:
    """Yield the items; test the conditions after every 500 (raises Stopped)."""
    for number, item in enumerate(items, 1):
        if not number % EVERY:
            check()
        yield item
