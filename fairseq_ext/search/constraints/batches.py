"""Many terms of a glossary at once: encoders take most of their time to start."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence

SEPARATOR = "‖"  # parts terms that go through an encoder together
BATCH_SIZE = 250  # terms in one call of an encoder


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Switch off garbage collection: with over 100,000 new terms, all of which stay, it would take
    longer than the rest."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def batches(items: Sequence) -> Iterator[Sequence]:
    """Yield the items in batches for one call of an encoder each."""
    for start in range(0, len(items), BATCH_SIZE):
        yield items[start : start + BATCH_SIZE]


def encode_batch(texts: Sequence[str], step: Callable[[str], str]) -> list[str]:
    """Return each text after `step`, which is called once for all: an encoder takes most of its
    time to start.

    subtle: the texts are separated by a sign; if the step did not keep all of them, it is called
    for each text.
    """
    found = step(f" {SEPARATOR} ".join(texts)).split(SEPARATOR)
    return found if len(found) == len(texts) else [step(text) for text in texts]
