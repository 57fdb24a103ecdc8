"""What the readers of all formats share: texts as atoms, and what is between them."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from html.entities import html5
from itertools import groupby
from operator import methodcaller

import regex

from fairseq_ext.text.atoms import (
    BLOCK,
    PLACEHOLDER,
    POINT,
    TEXT,
    Atom,
    Escape,
    Part,
    is_plain,
    text_atom,
)
from fairseq_ext.text.placeholders import find

# of HTML; some are known without a semicolon
ENTITY = regex.compile(
    r"&(?:#\d{1,8}|#[xX][\da-fA-F]{1,7}|[a-zA-Z]\w{1,31});"
    rf"|&(?:{'|'.join(name for name in html5 if name[-1] != ';')})(?![\w=])"
)
# of XML; those that are unknown are defined by the document, if at all
XML_ENTITY = regex.compile(r"&(?:#\d+|#x[\da-fA-F]+|amp|lt|gt|quot|apos);|(?P<unknown>&[^\s&;<]+;)")
# of an item of a list, a quotation, a speaker
BULLET = regex.compile(r"\s*(?:[-–—*•·‣▪◦+>]|\d{1,3}[.)]|[a-z]\))\s+(?=\S)")
TAB = regex.compile(r"\t+")


def escape(text: str) -> str:
    """Return text as it stands between tags."""
    return html.escape(text, quote=False)


def with_signs(signs: dict[str, str]) -> Escape:
    """Return a function that writes each of these characters so."""
    return methodcaller("translate", str.maketrans(signs))


def among(text: str, places: Iterable[tuple[int, int, Iterable[Part]]]) -> Iterator[Part]:
    """Yield the parts of these places of a text (start, end, parts), in order; all else is kept."""
    at = 0
    for start, end, parts in places:
        yield text[at:start]
        yield from parts
        at = end
    yield text[at:]


def text_atoms(
    text: str, protect: Sequence[str] = (), entities: regex.Pattern[str] | None = None
) -> Iterator[Atom]:
    """Yield the atoms of text: its placeholders, and what is between them.

    protect: regular expressions of what stays as it is; entities: those that are the characters
    that they stand for; None: they are placeholders.
    """

    def read(text: str) -> Iterator[Atom]:
        at = 0
        for start, end in [*find(text, protect, entities is not None), (len(text), len(text))]:
            if at < start:
                yield text_atom(text[at:start])
            if start < end:
                yield Atom(PLACEHOLDER, text[start:end])
            at = end

    return read(text) if entities is None else through_escapes(text, entities, read)


def character(entity: regex.Match[str]) -> str | None:
    """Return the character of an entity; None for one that is not known."""
    found = html.unescape(entity[0])
    return None if entity.lastgroup or found == entity[0] else found


def of_text(text: str, protect: Sequence[str] = ()) -> Iterator[Part]:
    """Yield the parts of a plain text. A line break or a tab ends a sentence."""
    for line in text.splitlines(keepends=True):
        lead = BULLET.match(line)
        if lead:
            yield Atom(POINT, lead[0])
        yield from tabbed(text_atoms(line[lead.end() if lead else 0 :], protect))
        yield ""


def tagged(
    text: str,
    tags: regex.Pattern[str],
    read: Callable[[str], Iterable[Atom]],
    tag: Callable[[regex.Match[str]], Atom],
) -> Iterator[Atom]:
    """Yield the atoms of a text with these tags: `tag` makes one of each, `read` those between."""
    at = 0
    for found in tags.finditer(text):
        yield from read(text[at : found.start()])
        yield tag(found)
        at = found.end()
    yield from read(text[at:])


def cut_at(separator: regex.Pattern[str], kind: str, atoms: Iterable[Atom]) -> Iterator[Atom]:
    """Yield the atoms, whose text is cut at a separator, which is an atom of this kind."""

    def separated(found: regex.Match[str]) -> Atom:
        return Atom(kind, found[0])

    for atom in atoms:
        yield from tagged(atom.raw, separator, in_one, separated) if is_plain(atom) else [atom]


def in_one(text: str) -> list[Atom]:
    """Return the atoms of text without placeholders."""
    return [text_atom(text)]


tabbed = partial(cut_at, TAB, BLOCK)


def through_escapes(
    raw: str,
    escapes: regex.Pattern[str],
    read: Callable[[str], Iterator[Atom]],
    decode: Callable[[regex.Match[str]], str | None] = character,
) -> Iterator[Atom]:
    """Yield the atoms that `read` finds in a text without escapes, as they stand in it.

    escapes: the characters that are written with several; decode: from one of these to its
    character, or to None: it is a placeholder.
    """
    places, text, at = list[int](), "", 0
    for match in [*escapes.finditer(raw), None]:
        end = match.start() if match else len(raw)
        text += raw[at:end]
        places += range(at, end)
        character = decode(match) if match else None
        if match and character is not None:
            text += character
            places += [end] * len(character)
        else:
            yield from placed(read(text), raw, text, [*places, end])
            places, text = [], ""
            if match:
                yield Atom(PLACEHOLDER, match[0])
        at = match.end() if match else end


def placed(found: Iterable[Atom], raw: str, text: str, places: list[int]) -> Iterator[Atom]:
    """Yield the atoms of a text as they stand in `raw`. places: of its characters there, and of
    its end."""
    if text == raw[places[0] : places[-1]]:
        yield from found
        return
    at = 0
    for atom in found:
        start, at = at, at + len(atom.raw)
        if not is_plain(atom):
            yield replace(atom, raw=raw[places[start] : places[at]])
            continue
        # a text can be cut where it is written as it is read
        same = (raw[places[i] : places[i + 1]] == text[i] for i in range(start, at))
        for is_same, group in groupby(same):
            size = len(list(group))
            for i in [start] if is_same else range(start, start + size):
                end = start + size if is_same else i + 1
                yield Atom(TEXT, raw[places[i] : places[end]], text[i:end])
            start += size
