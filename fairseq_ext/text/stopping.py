"""Reading of a text that stops where nobody waits for it any more: a thread says when that is, and
what reads looks from time to time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
EVERY = 500  # items, which take some milliseconds
waiting = threading.local()  # checks: of this thread's readings, one within another


class Stopped(Exception):
    """Nobody waits for the text."""


@contextmanager
def until(is_over: Callable[[], bool]) -> Iterator[None]:
    """What is read in this context, in this thread, stops where this becomes true."""
    checks = waiting.__dict__.setdefault("checks", [])
    checks.append(is_over)
    try:
        yield
    finally:
        checks.pop()


def check() -> None:
    """Raise Stopped where nobody waits."""
    if any(is_over() for is_over in getattr(waiting, "checks", ())):
        raise Stopped


def checked(items: Iterable[T]) -> Iterator[T]:
    """Yield the items, with a look between some of them (raises Stopped)."""
    for number, item in enumerate(items, 1):
        if not number % EVERY:
            check()
        yield item
