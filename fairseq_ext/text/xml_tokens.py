"""The tokens of XML with their places, by expat, which does not read what a DTD names elsewhere and
leaves entities as they are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from xml.parsers import expat

import numpy as np
import regex

from fairseq_ext.core.errors import UsageError, cut
from fairseq_ext.text import markup
from fairseq_ext.text.atoms import (
    BLOCK,
    CLOSING,
    OPENING,
    PLACEHOLDER,
    POINT,
    Atom,
    Part,
    in_cdata,
    pairs,
)
from fairseq_ext.text.reading import XML_ENTITY, escape, text_atoms
from fairseq_ext.text.stopping import EVERY, check

TEXT, START, END, COMMENT, INSTRUCTION = "text", "start", "end", "comment", "instruction"
CDATA, CDATA_END, DECLARATION = "cdata", "cdata end", "declaration"


@dataclass(slots=True)
class Token:
    """A token, which is text[start:end]; the end of `<x/>` is empty. name: of a tag."""

    kind: str
    start: int
    end: int
    name: str = ""
    attributes: dict[str, str] = field(default_factory=dict)

    @property
    def local(self) -> str:
        """Return the name without its prefix."""
        return self.name.rpartition(":")[2]


Tag = tuple[str, str, bool]  # kind and name of an atom, and whether it is the whole element


class Xml:
    """A document. tokens: the whole of it; partners: of start tags and end tags, by their numbers.

    what: the document, for messages. Errors: UsageError where it is not well-formed.
    """

    def __init__(self, text: str, what: str):
        self.text = text
        self.tokens = tokens(text, what)
        self.partners = pairs((token.kind for token in self.tokens), START, END)

    def raw(self, first: int, last: int | None = None) -> str:
        """Return a token, or those from the first to the last, as they stand in the text."""
        behind = self.tokens[first if last is None else last].end
        return self.text[self.tokens[first].start : behind]

    def parts(
        self,
        numbers: range,
        read: Callable[[str, bool], Iterator[Atom]],
        tag: Callable[[int], Tag],
    ) -> Iterator[Part]:
        """Yield the parts of the tokens of these numbers.

        read: from text, and whether it stands in a CDATA section, to its atoms; tag: what the token
        of a number is, which is no text.
        """
        yield escape
        is_cdata, number = False, numbers.start
        while number < numbers.stop:
            raw, last = self.raw(number), number
            kind = self.tokens[number].kind
            if kind == TEXT:
                yield from read(raw, is_cdata)
            elif kind in (CDATA, CDATA_END):
                is_cdata = kind == CDATA
                yield raw
                yield in_cdata if is_cdata else escape
            else:
                kind, name, is_whole = tag(number)
                last = self.partners[number] if is_whole else number
                yield Atom(kind, self.raw(number, last), name=name)
            number = last + 1

    def among_text(self) -> set[int]:
        """Return the numbers of the tags of elements that stand among text."""
        stack, parents, mixed = [-1], dict[int, int](), set[int]()
        for number, token in enumerate(self.tokens):
            if token.kind == TEXT and self.raw(number).strip():
                mixed.add(stack[-1])
            elif token.kind == START:
                parents[number] = stack[-1]
                stack.append(number)
            elif token.kind == END:
                stack.pop()
        inside = [number for number, parent in parents.items() if parent in mixed]
        return {*inside, *(self.partners[number] for number in inside)}


def tokens(text: str, what: str) -> list[Token]:
    """Return the tokens of a document, which are the whole of it.

    what: the document, for messages. Errors: UsageError where it is not well-formed.
    """
    content = text.encode()
    parser = expat.ParserCreate("utf-8")
    found = [Token(DECLARATION, 0, 0)]
    depth = 0

    def on(kind: str) -> Callable[..., None]:
        def add(name: object = "", attributes: object = None, *_: object) -> None:
            nonlocal depth
            if not len(found) % EVERY:
                check()
            # what stands around the root element is declarations; pieces of text are one
            here = kind if depth or kind != TEXT else DECLARATION
            depth += (kind == START) - (kind == END)
            if here != TEXT or found[-1].kind != TEXT:
                token = Token(here, parser.CurrentByteIndex, 0)
                if kind in (START, END):
                    token.name = str(name)
                if kind == START and isinstance(attributes, dict):
                    token.attributes = attributes
                found.append(token)

        return add

    parser.StartElementHandler, parser.EndElementHandler = on(START), on(END)
    parser.CommentHandler, parser.ProcessingInstructionHandler = on(COMMENT), on(INSTRUCTION)
    parser.StartCdataSectionHandler, parser.EndCdataSectionHandler = on(CDATA), on(CDATA_END)
    parser.StartDoctypeDeclHandler = parser.EndDoctypeDeclHandler = on(DECLARATION)
    parser.XmlDeclHandler = on(DECLARATION)
    parser.CharacterDataHandler = parser.DefaultHandler = on(TEXT)
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        reason = cut(expat.ErrorString(error.code) or str(error))
        raise UsageError(
            f"line {error.lineno} of {what} is not well-formed ({reason}): correct it"
        ) from None
    starts = places(content, [token.start for token in found])
    for token, start, end in zip(found, starts, [*starts[1:], len(text)], strict=True):
        token.start, token.end = start, end
    return found[not found[0].end :]


def places(content: bytes, found: list[int]) -> list[int]:
    """Return places in UTF-8 as places in its text."""
    if content.isascii():
        return found
    begins = (np.frombuffer(content, np.uint8) & 0xC0) != 0x80  # a byte that begins a character
    before = np.concatenate(([0], np.cumsum(begins)))
    return before[np.asarray(found, dtype=np.int64)].tolist()


# ---- XML as segments: an element is inline among text; every other parts segments


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
