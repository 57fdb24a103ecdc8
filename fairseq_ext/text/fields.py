"""Pieces of a paragraph of docx, pptx or odt, and fields of docx among them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import regex

W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
LINKED = regex.compile(r"\s*HYPERLINK\b")  # a field whose result is text


@dataclass
class Piece:
    """A piece of a paragraph's content.

    kind: of paragraphs.py, "/r" for the end of an r, or "text"; nodes: what stands there; run: in
    which it stands.
    """

    kind: str
    text: str = ""
    nodes: list[Any] = field(default_factory=list)
    run: Any = None
    form: str = ""  # of text: its formatting
    parts: list[Piece] = field(default_factory=list)  # of a field, what it is made of
    end: list[Piece] = field(default_factory=list)  # of a field around text, what is behind it


def fields(pieces: list[Piece]) -> Iterator[Piece]:
    """Yield the pieces, in which a field without text runs is one piece, read as a word.

    A link's text stays, between two pieces that mark it; the pieces of other fields stay, too.
    """
    at, ends = 0, field_ends(pieces)
    while at < len(pieces):
        end = ends.get(at)
        if end is None:
            yield pieces[at]
            at += 1
            continue
        inside = pieces[at : end + 1]
        code = "".join(
            node.text or ""
            for piece in inside
            for node in piece.nodes
            if node.tag == W + "instrText"
        )
        middle = next((i for i, piece in enumerate(inside) if state(piece) == "separate"), None)
        is_nested = any(state(piece) == "begin" for piece in inside[1:])
        is_flat = not any(piece.kind == "r" for piece in inside)
        if LINKED.match(code) and middle is not None and not is_nested:
            yield Piece("r", parts=inside[: middle + 1], end=inside[-1:])
            yield from inside[middle + 1 : -1]
            yield Piece("/r")
        elif is_flat:
            yield Piece("f", parts=inside)
        else:
            yield from inside
        at = end + 1


def state(piece: Piece) -> str:
    """Return begin, separate or end, for a character of a field."""
    node = piece.nodes[0] if piece.nodes else None
    if node is None or node.tag != W + "fldChar":
        return ""
    return str(node.get(W + "fldCharType"))


def field_ends(pieces: list[Piece]) -> dict[int, int]:
    """Return the places of the beginnings of fields, each with that of its end in the same
    element."""
    ends, begun, around = dict[int, int](), list[tuple[int, int]](), [-1]
    for place, piece in enumerate(pieces):
        kind = state(piece)
        if piece.kind == "r":
            around.append(place)
        elif piece.kind == "/r":
            around.pop()
        elif kind == "begin":
            begun.append((place, around[-1]))
        elif kind == "end" and begun:
            start, element = begun.pop()
            if element == around[-1]:
                ends[start] = place
    return ends
