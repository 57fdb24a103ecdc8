"""Where the tokens of a sentence stand in its text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from unicodedata import normalize

from fairseq_ext.constraints.places import Span


def token_spans(tokens: Sequence[int], text: Callable[[Sequence[int]], str]) -> list[Span]:
    """The characters [start, end) that each token adds to the text in NFKC; none for one that adds nothing, EOS for instance.

    tokens (L,); text: tokens to text. The text of each beginning is asked for, as a token's own text depends on what stands before it.
    """
    spans, reached = [], 0
    for count in range(1, len(tokens) + 1):
        end = max(reached, len(normalize("NFKC", text(tokens[:count])).rstrip()))
        spans.append((reached, end))
        reached = end
    return spans


def overlapping(spans: Sequence[Span], start: int, end: int) -> list[int]:
    """The places of the tokens that share a character with [start, end)."""
    return [place for place, (first, behind) in enumerate(spans) if first < end and behind > start]
