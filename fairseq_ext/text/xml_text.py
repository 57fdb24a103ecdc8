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
    Part,
)
from fairseq_ext.text.reading import XML_ENTITY, text_atoms
from fairseq_ext.text.xml_tokens import (
    COMMENT,
    INSTRUCTION,
    START,
    Tag,
    Token,
    Xml,
)

TAG = regex.compile(r"<[/a-zA-Z!]")  # of HTML in a CDATA section


def of_xml(
    text: str, protect: Sequence[str], inline: Collection[str] | None = None
) -> Iterator[Part]:
    """Return the parts of XML.

    inline: names of inline elements, where they are known. Errors: UsageError for what is not
    well-formed.
    """
    xml = Xml(text, "the XML")
    found, mixed = xml.tokens, xml.among_text() if inline is None else set()

    def read(raw: str, is_cdata: bool) -> Iterator[Atom]:
        if is_cdata and TAG.search(raw):
            return markup.atoms(raw, protect, False)
        return text_atoms(raw, protect, None if is_cdata else XML_ENTITY)

    def tag(number: int) -> Tag:
        token = found[number]
        is_inline = number in mixed if inline is None else token.name in inline
        if token.kind == START and is_protected(token):
            return PLACEHOLDER if is_inline else BLOCK, "", True
        if token.kind in (COMMENT, INSTRUCTION):
            return POINT, "", False
        if not is_inline:
            return BLOCK, "", False
        if token.kind == START and found[number + 1].start == found[number + 1].end:
            return POINT, "", True  # <x/>
        return OPENING if token.kind == START else CLOSING, token.name, False

    return xml.parts(range(len(found)), read, tag)


def is_protected(token: Token) -> bool:
    """Return whether a start tag says that its element is not translated."""
    said = token.attributes.get("translate", token.attributes.get("translatable", ""))
    return said.lower() in ("no", "false")
