"""The tokens of XML with their places, and XML as segments. expat says whether a document is
well-formed; it does not read what a DTD names elsewhere, and entities stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from xml.parsers import expat

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
from fairseq_ext.text.markup import CDATA, COMMENT, DECLARATION, END, START, TEXT, Token
from fairseq_ext.text.reading import XML_ENTITY, escape, text_atoms
from fairseq_ext.text.stopping import checked

INSTRUCTION = "instruction"
CDATA_MARKS = "<![CDATA[", "]]>"
# of what is well-formed
MARKUP = regex.compile(
    r"(?s)(?P<comment><!--.*?-->)|(?P<cdata><!\[CDATA\[.*?\]\]>)|<\?.*?\?>|</(?P<end>[^\s>]+)\s*>|"
    r"<(?P<start>[^\s/>]+)(?:\s+(?P<key>[^\s=]+)\s*=\s*"
    r"(?:\"(?P<value>[^\"]*)\"|'(?P<value>[^']*)'))*\s*(?P<empty>/?)>"
)
Tag = tuple[str, str, bool]  # kind and name of an atom, and whether it is the whole element


class Xml:
    """A document. tokens: the whole of it, an empty END behind the START of `<x/>`; partners: of
    start tags and end tags, by their numbers.

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

    def inside(self, number: int) -> str:
        """Return what stands in the element of a start tag."""
        return self.text[self.tokens[number].end : self.tokens[self.partners[number]].start]

    def children(self, number: int) -> Iterator[int]:
        """Yield the start tags of the elements in that of a start tag."""
        at = number + 1
        while at < self.partners[number]:
            if self.tokens[at].kind == START:
                yield at
                at = self.partners[at]
            at += 1

    def characters(self, number: int) -> str:
        """Return the text of a token, without the marks of a CDATA section; "" of a tag."""
        kind, raw = self.tokens[number].kind, self.raw(number)
        if kind == CDATA:
            return raw.removeprefix(CDATA_MARKS[0]).removesuffix(CDATA_MARKS[1])
        return raw if kind == TEXT else ""

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
        number = numbers.start
        while number < numbers.stop:
            kind, last = self.tokens[number].kind, number
            if kind == TEXT:
                yield from read(self.raw(number), False)
            elif kind == CDATA:
                yield CDATA_MARKS[0]
                yield in_cdata
                yield from read(self.characters(number), True)
                yield CDATA_MARKS[1]
                yield escape
            else:
                kind, name, is_whole = tag(number)
                last = self.partners[number] if is_whole else number
                yield Atom(kind, self.raw(number, last), name=name)
            number = last + 1

    def among_text(self) -> set[int]:
        """Return the numbers of the tags of elements that stand among text."""
        stack, parents, mixed = [-1], dict[int, int](), set[int]()
        for number, token in enumerate(self.tokens):
            if self.characters(number).strip():
                mixed.add(stack[-1])
            elif token.kind == START:
                parents[number] = stack[-1]
                stack.append(number)
            elif token.kind == END:
                stack.pop()
        inside = [number for number, parent in parents.items() if parent in mixed]
        return {*inside, *(self.partners[number] for number in inside)}


def tokens(text: str, what: str) -> list[Token]:
    """Return the tokens of a document, which are the whole of it; what stands in front of its root
    element is one.

    what: the document, for messages. Errors: UsageError where it is not well-formed.
    """
    content, parser = text.encode(), expat.ParserCreate("utf-8")
    begins: list[int] = []

    def begin(*_: object) -> None:
        begins.append(parser.CurrentByteIndex)
        parser.StartElementHandler = None

    parser.StartElementHandler = begin
    parser.DefaultHandler = len  # whatever it is: entities are not expanded for it
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        reason = cut(expat.ErrorString(error.code) or str(error))
        raise UsageError(
            f"line {error.lineno} of {what} is not well-formed ({reason}): correct it"
        ) from None
    at = len(content[: begins[0]].decode())
    found = [Token(DECLARATION, 0, at)] if at else []
    for match in checked(MARKUP.finditer(text, at)):
        if at < match.start():
            found.append(Token(TEXT, at, match.start()))
        start, at = match.span()
        if name := match["start"]:
            attributes = dict(zip(match.captures("key"), match.spans("value"), strict=True))
            found.append(Token(START, start, at, name, attributes))
            if match["empty"]:
                found.append(Token(END, at, at, name))
        elif name := match["end"]:
            found.append(Token(END, start, at, name))
        else:
            kind = COMMENT if match["comment"] else CDATA if match["cdata"] else INSTRUCTION
            found.append(Token(kind, start, at))
    return [*found, Token(TEXT, at, len(text))] if at < len(text) else found


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
        if token.kind == START and is_protected(token.values(text)):
            return PLACEHOLDER if is_inline else BLOCK, "", True
        if token.kind in (COMMENT, INSTRUCTION):
            return POINT, "", False
        if not is_inline:
            return BLOCK, "", False
        if token.kind == START and found[number + 1].start == found[number + 1].end:
            return POINT, "", True  # <x/>
        return OPENING if token.kind == START else CLOSING, token.name, False

    return xml.parts(range(len(found)), read, tag)


def is_protected(attributes: dict[str, str]) -> bool:
    """Return whether a start tag says that its element is not translated."""
    said = attributes.get("translate", attributes.get("translatable", ""))
    return said.lower() in ("no", "false")
