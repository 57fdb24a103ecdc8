"""A text by its format, as segments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from fairseq_ext.text.segments import Item, of_text


def items_of(text: str, format: str, ends: Callable[[str], list[int]], protect: Sequence[str] = ()) -> Iterator[Item]:
    """The items of a text."""
    return of_text(text, ends, protect)
