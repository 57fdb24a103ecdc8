"""The tokens of HTML with their places, as the HTML standard's tokenizer finds them (WHATWG HTML,
section 13.2.5).

It reads each character once, and no text is wrong for it: what is not closed goes to the end. (The
parsers tried either give no places, take time by the square of the text, or read `a < b` as a tag.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

TEXT, START, END, COMMENT, DECLARATION, CDATA = "text", "start", "end", "comment", "decl", "cdata"
RAW = frozenset("script style xmp iframe noembed noframes".split())  # hold text without tags
TITLES = frozenset(("title", "textarea"))  # the same, with entities
NAME = re.compile(r"[^\t\n\f\r />]*")
ATTRIBUTE = re.compile(
    r"[\t\n\f\r /]*(?P<name>=?[^\t\n\f\r />=]*)(?:[\t\n\f\r ]*=[\t\n\f\r ]*"
    r"(?:\"(?P<double>[^\"]*)\"?|'(?P<single>[^']*)'?|(?P<bare>[^\t\n\f\r >]*)))?"
)
CODE = (("<?php", "?>"), ("<?=", "?>"), ("<%", "%>"))  # of PHP, ASP, JSP, ERB
COMMENT_END = re.compile(r"--!?>")


@dataclass(slots=True)
class Token:
    """A token, which is text[start:end].

    name: of a tag, in small letters but for XHTML; attributes: names in small letters, with the
    places of their values; is_closed: the tag ends with `/>`.
    """

    kind: str
    start: int
    end: int
    name: str = ""
    attributes: list[tuple[str, int, int]] = field(default_factory=list)
    is_closed: bool = False


def tokens(text: str, xhtml: bool = False) -> Iterator[Token]:
    """Yield the tokens of a text. xhtml: `<x/>` closes each element, and CDATA sections may stand
    everywhere, else within svg and math alone."""
    at = 0
    last_code = text.rfind("%>")
    foreign = list[str]()  # open elements of svg and math
    size = len(text)
    while at < size:
        mark = text.find("<", at)
        while 0 <= mark and not begins(text, mark, last_code):
            mark = text.find("<", mark + 1)
        if mark < 0:
            yield Token(TEXT, at, size)
            return
        if mark > at:
            yield Token(TEXT, at, mark)
        token = markup(text, mark, xhtml or bool(foreign))
        yield token
        at = token.end
        if token.name in ("svg", "math"):
            if token.kind == START and not token.is_closed:
                foreign.append(token.name)
            elif token.kind == END and foreign:
                foreign.pop()
        is_raw = token.kind == START and not foreign and not (xhtml and token.is_closed)
        if is_raw and (token.name in RAW or token.name in TITLES):
            closing = re.compile(rf"</{token.name}(?=[\t\n\f\r />])", re.IGNORECASE)
            found = closing.search(text, at)
            end = found.start() if found else size
            if end > at:
                yield Token(TEXT, at, end)
            at = end
        elif is_raw and token.name == "plaintext":
            yield Token(TEXT, at, size)
            return


def begins(text: str, at: int, last_code: int) -> bool:
    """Return whether a `<` begins markup. last_code: where the last `%>` is."""
    following = text[at + 1 : at + 2]
    if following == "%":
        return at + 2 <= last_code
    if following == "/":
        return text[at + 2 : at + 3] != ""
    return following in ("!", "?") or (following.isascii() and following.isalpha())


def markup(text: str, at: int, has_cdata: bool) -> Token:
    """Return the token that begins with this `<`."""
    size = len(text)
    if text.startswith("<!--", at):
        if text.startswith((">", "->"), at + 4):
            return Token(COMMENT, at, text.index(">", at) + 1)
        found = COMMENT_END.search(text, at + 4)
        return Token(COMMENT, at, found.end() if found else size)
    for opening, closing in CODE:  # which is not HTML, and stands in pages
        if text.startswith(opening, at):
            end = text.find(closing, at)
            return Token(COMMENT, at, end + 2 if end >= 0 else size)
    if has_cdata and text.startswith("<![CDATA[", at):
        end = text.find("]]>", at)
        return Token(CDATA, at, end + 3 if end >= 0 else size)
    is_end = text[at + 1] == "/"
    first = text[at + 1 + is_end]
    if not (first.isascii() and first.isalpha()):
        end = text.find(">", at + 1)
        return Token(DECLARATION, at, end + 1 if end >= 0 else size)
    found = NAME.match(text, at + 1 + is_end)
    name = found[0]  # type: ignore[index]
    token = Token(END if is_end else START, at, size, name if has_cdata else name.lower())
    at = found.end()  # type: ignore[union-attr]
    while at < size:
        part = ATTRIBUTE.match(text, at)
        at = part.end()  # type: ignore[union-attr]
        kind = part.lastgroup  # type: ignore[union-attr]
        if kind in ("double", "single", "bare"):
            token.attributes.append((part["name"].lower(), *part.span(kind)))  # type: ignore
        if text.startswith(">", at):
            token.end, token.is_closed = at + 1, text[at - 1] == "/" and kind != "bare"
            return token
    token.kind = DECLARATION  # a tag that is not ended is none, and nothing is behind it
    return token
