"""Where the tokens of a sentence stand in its text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from unicodedata import normalize

from fairseq_ext.constraints.places import Span


def token_spans(tokens: Sequence[int], text: Callable[[Sequence[int]], str], own: dict[int, str] | None = None) -> list[Span]:
    """The characters [start, end) that each token adds to the text in NFKC; none for one that adds nothing, EOS for instance.

    tokens (L,); text: tokens to text. Where the text is not that of its tokens one by one, spaces between them set aside, the text of each
    beginning is asked for. own: keeps their texts from call to call.
    """
    own, whole, spans, reached = {} if own is None else own, read(tokens, text), [], 0
    for token in tokens:
        if token not in own:
            own[token] = read([token], text).lstrip()
        start = reached + (bool(own[token]) and whole.startswith(" ", reached))
        if not whole.startswith(own[token], start):
            break
        spans.append((reached, reached := start + len(own[token])))
    if len(spans) == len(tokens) and reached == len(whole):
        return spans
    spans, reached = [], 0
    for count in range(1, len(tokens) + 1):
        end = max(reached, len(read(tokens[:count], text)))
        spans.append((reached, end))
        reached = end
    return spans


def read(tokens: Sequence[int], text: Callable[[Sequence[int]], str]) -> str:
    """The text of tokens in NFKC."""
    return normalize("NFKC", text(tokens)).rstrip()


def overlapping(spans: Sequence[Span], start: int, end: int) -> list[int]:
    """The places of the tokens that share a character with [start, end)."""
    return [place for place, (first, behind) in enumerate(spans) if first < end and behind > start]
