"""XML as segments: an element is inline among text; every other parts segments."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import regex

from fairseq_ext.text import markup
from fairseq_ext.text.atoms import (
    BLOCK,
    CLOSING,
    OPENING,
    PLACEHOLDER,
    POINT,
    Atom,
    Ends,
    Item,
    pairs,
)
from fairseq_ext.text.markup import ANY_ENTITY, escape
from fairseq_ext.text.segments import of_atoms
from fairseq_ext.text.xml_tokens import (
    CDATA,
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
    ends: Ends,
    protect: Sequence[str] = (),
    inline: Collection[str] | None = None,
) -> Iterator[Item]:
    """Yield the items of XML.

    inline: names of inline elements, where they are known. Errors: UsageError for what is not
    well-formed.
    """
    yield from of_atoms(atoms(text, protect, inline), ends, escape)


def atoms(text: str, protect: Sequence[str], inline: Collection[str] | None) -> Iterator[Atom]:
    """Yield the atoms of XML."""
    found = tokens(text, "the XML")
    partners = pairs(found, START, END)
    mixed = among_text(text, found, partners) if inline is None else set()
    number, is_cdata = 0, False
    while number < len(found):
        token = found[number]
        raw = text[token.start : token.end]
        is_inline = number in mixed if inline is None else token.name in inline
        if token.kind == TEXT and is_cdata and TAG.search(raw):
            yield from markup.atoms(raw, protect, False)
        elif token.kind == TEXT:
            yield from markup.text_atoms(raw, protect, None if is_cdata else ANY_ENTITY)
        elif token.kind == START and is_protected(token):
            number = partners[number]
            raw = text[token.start : found[number].end]
            yield Atom(PLACEHOLDER if is_inline else BLOCK, raw)
        elif token.kind in (COMMENT, INSTRUCTION):
            yield Atom(POINT, raw)
        elif token.kind not in (START, END) or not is_inline:
            is_cdata = token.kind == CDATA
            yield Atom(BLOCK, raw)
        elif token.kind == START and found[number + 1].start == found[number + 1].end:
            yield Atom(POINT, raw)  # <x/>
            number += 1
        else:
            yield Atom(OPENING if token.kind == START else CLOSING, raw, name=token.name)
        number += 1


def is_protected(token: Token) -> bool:
    """Return whether a start tag says that its element is not translated."""
    said = token.attributes.get("translate", token.attributes.get("translatable", ""))
    return said.lower() in ("no", "false")


def among_text(text: str, found: Sequence[Token], partners: dict[int, int]) -> set[int]:
    """Return the numbers of the tags of elements that stand among text."""
    stack, parents, mixed = [-1], dict[int, int](), set[int]()
    for number, token in enumerate(found):
        if token.kind == TEXT and text[token.start : token.end].strip():
            mixed.add(stack[-1])
        elif token.kind == START:
            parents[number] = stack[-1]
            stack.append(number)
        elif token.kind == END:
            stack.pop()
    inside = [number for number, parent in parents.items() if parent in mixed]
    return {*inside, *(partners[number] for number in inside)}
