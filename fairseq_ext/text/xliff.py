"""XLIFF 1.2 and 2 as segments: units without a target get one, behind their source; all else is
kept.

1.2: http://docs.oasis-open.org/xliff/v1.2/os/xliff-core.html; 2.1:
http://docs.oasis-open.org/xliff/xliff-core/v2.1/xliff-core-v2.1.html.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import regex

from fairseq_ext.core.errors import UsageError
from fairseq_ext.text.atoms import (
    BREAK,
    CLOSING,
    OPENING,
    PLACEHOLDER,
    POINT,
    Atom,
    Part,
)
from fairseq_ext.text.messages import message_atoms
from fairseq_ext.text.reading import XML_ENTITY, through_escapes
from fairseq_ext.text.stopping import checked
from fairseq_ext.text.xml_tokens import COMMENT, END, START, Tag, Token, Xml
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


def of_xliff(text: str, protect: Sequence[str]) -> Iterator[Part]:
    """Yield the parts of XLIFF, where the source of a unit without a target is its target too
    (raises UsageError for what is not well-formed, or no XLIFF)."""
    xml = Xml(text, "the XLIFF")
    found = xml.tokens
    root = next(token for token in found if token.kind == START)
    if root.local != "xliff":
        raise UsageError(f"the root element must be xliff, and is {root.local}: name an XLIFF file")
    at = 0
    for unit in checked(units(xml)):
        source = found[unit.source[0]]  # type: ignore[index]
        if unit.target is None:
            start = end = found[unit.anchor].end
            opening, closing = opened(source), f"</{prefix(source)}target>"
        else:
            before, behind = found[unit.target[0]], found[unit.target[1]]
            start, end = before.start, behind.end
            opening, closing = text[start : before.end], text[behind.start : end]
            if before.end == end:  # <target/>
                opening = opening[:-2].rstrip() + ">"
                closing = f"</{before.name}>"
        yield text[at:start] + opening
        yield from source_parts(xml, unit, protect)
        yield closing
        at = end
    yield text[at:]


def prefix(token: Token) -> str:
    """Return the prefix of a token's name, with its colon."""
    return token.name[: len(token.name) - len(token.local)]


def opened(source: Token) -> str:
    """Return the start tag of a new target, with the white space that its source has."""
    space = source.attributes.get("xml:space")
    return f"<{prefix(source)}target" + (f' xml:space="{space}"' if space else "") + ">"


def units(xml: Xml) -> Iterator[Unit]:
    """Yield the units that have a source and no target, in their order."""
    # of each open element, whether it is translated; and the unit that it is
    open_elements: list[tuple[bool, Unit | None]] = [(True, None)]
    number = 0
    while number < len(xml.tokens):
        token = xml.tokens[number]
        is_translated, unit = open_elements[-1]
        if token.kind == START and unit and token.local in ("source", "target", "seg-source"):
            last = xml.partners[number]
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
            if unit and is_open(xml, unit):
                yield unit
        number += 1


def is_open(xml: Xml, unit: Unit) -> bool:
    """Return whether a unit is to be translated."""
    if not unit.is_translated or unit.source is None:
        return False
    if unit.target is None:
        return True
    first, last = unit.target
    return not any(
        xml.tokens[number].kind != CHARACTERS or xml.raw(number).strip()
        for number in range(first + 1, last)
    )


def source_parts(xml: Xml, unit: Unit, protect: Sequence[str]) -> Iterator[Part]:
    """Return the parts of a unit's source."""
    found, partners = xml.tokens, xml.partners
    first, last = unit.source  # type: ignore[misc]
    breaks = found[first].attributes.get("xml:space") == "preserve"
    message = partial(message_atoms, protect=protect, breaks=breaks)

    def read(raw: str, is_cdata: bool) -> Iterator[Atom]:
        return message(raw) if is_cdata else through_escapes(raw, XML_ENTITY, message)

    def tag(number: int) -> Tag:
        token = found[number]
        attributes, name = token.attributes, token.local
        if token.kind == END:
            return CLOSING, name, False
        if token.kind != START:
            return POINT if token.kind == COMMENT else PLACEHOLDER, "", False
        key = attributes.get("startRef", attributes.get("rid", attributes.get("id", "")))
        is_protected = attributes.get("translate") == "no" or (
            attributes.get("mtype") == "protected"
        )
        if LINE.fullmatch(attributes.get("ctype", attributes.get("subType", ""))):
            return BREAK, "", True
        if is_protected and name not in STARTS:
            return PLACEHOLDER, "", True
        if name in STARTS or name in ENDS:
            return OPENING if name in STARTS else CLOSING, f"span {key}", True
        if name in LONE or partners[number] == number + 1:
            return PLACEHOLDER if name in ("x", "ph") else POINT, "", True
        return OPENING, name, False

    return xml.parts(range(first + 1, last), read, tag)
