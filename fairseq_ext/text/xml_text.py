"""XML as segments: an element is inline among text; every other parts segments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import regex

from fairseq_ext.text import markup
from fairseq_ext.text.atoms import BLOCK, CLOSING, OPENING, PLACEHOLDER, POINT, Atom, Item, in_cdata
from fairseq_ext.text.markup import ANY_ENTITY, escape
from fairseq_ext.text.segments import of_atoms
from fairseq_ext.text.xml_tokens import (
    CDATA,
    CDATA_END,
    COMMENT,
    END,
    INSTRUCTION,
    START,
    TEXT,
    Token,
    tokens,
)

TAG = regex.compile(r"<[/a-zA-Z!]")  # of HTML in a CDATA section


def of_xml(
    text: str,
    ends: Callable[[str], list[int]],
    protect: Sequence[str] = (),
    inline: Collection[str] | None = None,
) -> Iterator[Item]:
    """Yield the items of XML.

    inline: names of inline elements, where they are known. Errors: UsageError for what is not
    well-formed.
    """
    found = tokens(text, "the XML")
    partners = ends_of(found)
    mixed = among_text(text, found) if inline is None else set()
    run: list[Atom] = []
    number, is_cdata = 0, False
    while number < len(found):
        token = found[number]
        raw = text[token.start : token.end]
        if token.kind in (CDATA, CDATA_END):
            yield from of_atoms(run, ends, in_cdata if is_cdata else escape)
            yield raw
            run, is_cdata = [], token.kind == CDATA
        elif token.kind == TEXT:
            run += (
                markup.atoms(raw, protect, False)
                if is_cdata and TAG.search(raw)
                else markup.text_atoms(raw, protect, None if is_cdata else ANY_ENTITY)
            )
        elif token.kind in (START, END):
            is_inline = number in mixed if inline is None else token.name in inline
            if token.kind == START and is_protected(token):
                number = partners[number]
                raw = text[token.start : found[number].end]
                run.append(Atom(PLACEHOLDER if is_inline else BLOCK, raw))
            elif not is_inline:
                run.append(Atom(BLOCK, raw))
            elif token.kind == START and found[number + 1].start == found[number + 1].end:
                run.append(Atom(POINT, raw))  # <x/>
                number += 1
            else:
                run.append(Atom(OPENING if token.kind == START else CLOSING, raw, name=token.name))
        else:
            is_point = token.kind in (COMMENT, INSTRUCTION)
            run.append(Atom(POINT if is_point else BLOCK, raw))
        number += 1
        if run and run[-1].kind == BLOCK:
            yield from of_atoms(run, ends, in_cdata if is_cdata else escape)
            run = []
    yield from of_atoms(run, ends, escape)


def is_protected(token: Token) -> bool:
    """Return whether a start tag says that its element is not translated."""
    said = token.attributes.get("translate", token.attributes.get("translatable", ""))
    return said.lower() in ("no", "false")


def ends_of(found: Sequence[Token]) -> dict[int, int]:
    """Return the numbers of the start tags, each with that of its end tag."""
    ends, open_tags = dict[int, int](), list[int]()
    for number, token in enumerate(found):
        if token.kind == START:
            open_tags.append(number)
        elif token.kind == END:
            ends[open_tags.pop()] = number
    return ends


def among_text(text: str, found: Sequence[Token]) -> set[int]:
    """Return the numbers of the tags of elements that stand among text."""
    parent, stack, children, mixed = -1, list[int](), dict[int, list[int]](), set[int]()
    for number, token in enumerate(found):
        if token.kind == TEXT and text[token.start : token.end].strip():
            mixed.add(parent)
        elif token.kind == START:
            children.setdefault(parent, []).append(number)
            stack.append(parent)
            parent = number
        elif token.kind == END:
            parent = stack.pop()
            children.setdefault(parent, []).append(number)
    return {number for element in mixed for number in children.get(element, [])}
