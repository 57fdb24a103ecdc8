"""XLIFF 1.2 and 2 as segments: units without a target get one, behind their source; all else is
kept.

1.2: http://docs.oasis-open.org/xliff/v1.2/os/xliff-core.html; 2.1:
http://docs.oasis-open.org/xliff/xliff-core/v2.1/xliff-core-v2.1.html.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import regex

from fairseq_ext.core.errors import UsageError
from fairseq_ext.text.atoms import (
    BLOCK,
    BREAK,
    CLOSING,
    OPENING,
    PLACEHOLDER,
    POINT,
    Atom,
    Ends,
    Item,
    pairs,
)
from fairseq_ext.text.markup import ANY_ENTITY, XML_ENTITY, escape, through_escapes
from fairseq_ext.text.messages import message_atoms
from fairseq_ext.text.segments import of_atoms
from fairseq_ext.text.stopping import checked
from fairseq_ext.text.xml_tokens import CDATA, CDATA_END, COMMENT, END, START, Token, tokens
from fairseq_ext.text.xml_tokens import TEXT as CHARACTERS

UNITS = ("trans-unit", "segment")
# elements of XLIFF 2 whose start tag is all there is, and those of 1.2 that hold code
LONE = frozenset("x ph cp sm em it bx ex bpt ept sc ec".split())
STARTS, ENDS = frozenset("bx bpt sc".split()), frozenset("ex ept ec".split())
LINE = regex.compile(r"(?i)lb|x-(?:html-)?br|xlf:lb")


@dataclass
class Unit:
    """A unit in reading. source, target: numbers of the first and the last token of each."""

    is_translated: bool
    source: tuple[int, int] | None = None
    target: tuple[int, int] | None = None
    anchor: int = 0  # the token after which a target goes


def of_xliff(text: str, ends: Ends, protect: Sequence[str] = ()) -> Iterator[Item]:
    """Yield the items of XLIFF, where the source of a unit without a target is its target too.

    ends, protect: see `of_text`. Errors: UsageError for what is not well-formed, or no XLIFF.
    """
    found = tokens(text, "the XLIFF")
    root = next(token for token in found if token.kind == START)
    if root.local != "xliff":
        raise UsageError(f"the root element must be xliff, and is {root.local}: name an XLIFF file")
    at, partners = 0, pairs(found, START, END)
    for unit in checked(units(text, found, partners)):
        source = found[unit.source[0]]  # type: ignore[index]
        if unit.target is None:
            start = end = found[unit.anchor].end
            opening, closing = opened(text, source), f"</{prefix(source)}target>"
        else:
            before, behind = found[unit.target[0]], found[unit.target[1]]
            start, end = before.start, behind.end
            opening, closing = text[start : before.end], text[behind.start : end]
            if before.end == end:  # <target/>
                opening = opening[:-2].rstrip() + ">"
                closing = f"</{before.name}>"
        yield text[at:start] + opening
        first, last = unit.source  # type: ignore[misc]
        atoms = source_atoms(text, found, partners, first, last, protect)
        yield from of_atoms(atoms, ends, escape)
        yield closing
        at = end
    yield text[at:]


def prefix(token: Token) -> str:
    """Return the prefix of a token's name, with its colon."""
    return token.name[: len(token.name) - len(token.local)]


def opened(text: str, source: Token) -> str:
    """Return the start tag of a new target, with the white space that its source has."""
    space = source.attributes.get("xml:space")
    return f"<{prefix(source)}target" + (f' xml:space="{space}"' if space else "") + ">"


def units(text: str, found: Sequence[Token], partners: dict[int, int]) -> Iterator[Unit]:
    """Yield the units that have a source and no target, in their order."""
    # of each open element, whether it is translated; and the unit that it is
    open_elements: list[tuple[bool, Unit | None]] = [(True, None)]
    number = 0
    while number < len(found):
        token = found[number]
        is_translated, unit = open_elements[-1]
        if token.kind == START and unit and token.local in ("source", "target", "seg-source"):
            last = partners[number]
            if token.local == "target":
                unit.target = number, last
            else:
                unit.source = (number, last) if token.local == "source" else unit.source
                unit.anchor = last
            number = last
        elif token.kind == START:
            is_translated = token.attributes.get("translate", "yes" * is_translated) == "yes"
            is_unit = token.local in UNITS
            open_elements.append((is_translated, Unit(is_translated) if is_unit else None))
        elif token.kind == END:
            open_elements.pop()
            if unit and is_open(text, found, unit):
                yield unit
        number += 1


def is_open(text: str, found: Sequence[Token], unit: Unit) -> bool:
    """Return whether a unit is to be translated."""
    if not unit.is_translated or unit.source is None:
        return False
    if unit.target is None:
        return True
    first, last = unit.target
    return not any(
        token.kind != CHARACTERS or text[token.start : token.end].strip()
        for token in found[first + 1 : last]
    )


def source_atoms(
    text: str,
    found: Sequence[Token],
    partners: dict[int, int],
    first: int,
    last: int,
    protect: Sequence[str],
) -> Iterator[Atom]:
    """Yield the atoms of the tokens between two."""
    breaks = found[first].attributes.get("xml:space") == "preserve"
    read = partial(message_atoms, protect=protect, breaks=breaks)
    number, is_cdata = first + 1, False
    while number < last:
        token = found[number]
        raw = text[token.start : token.end]
        if token.kind == CHARACTERS:
            yield from (
                read(raw) if is_cdata else through_escapes(raw, ANY_ENTITY, character, read)
            )
        elif token.kind in (CDATA, CDATA_END):
            is_cdata = token.kind == CDATA
            yield Atom(BLOCK, raw)
        elif token.kind == START:
            end = partners[number]
            attributes, name = token.attributes, token.local
            whole = text[token.start : found[end].end]
            key = attributes.get("startRef", attributes.get("rid", attributes.get("id", "")))
            is_protected = attributes.get("translate") == "no" or (
                attributes.get("mtype") == "protected"
            )
            if LINE.fullmatch(attributes.get("ctype", attributes.get("subType", ""))):
                yield Atom(BREAK, whole)
            elif is_protected and name not in STARTS:
                yield Atom(PLACEHOLDER, whole)
            elif name in STARTS:
                yield Atom(OPENING, whole, name=f"span {key}")
            elif name in ENDS:
                yield Atom(CLOSING, whole, name=f"span {key}")
            elif name in LONE or end == number + 1:
                is_text = name in ("x", "ph")
                yield Atom(PLACEHOLDER if is_text else POINT, whole)
            else:
                yield Atom(OPENING, raw, name=name)
                number += 1
                continue
            number = end
        elif token.kind == END:
            yield Atom(CLOSING, raw, name=token.local)
        else:
            yield Atom(POINT if token.kind == COMMENT else PLACEHOLDER, raw)
        number += 1


def character(entity: str) -> str | None:
    """Return the character of an entity; None for one that only a DTD defines."""
    return html.unescape(entity) if XML_ENTITY.fullmatch(entity) else None
