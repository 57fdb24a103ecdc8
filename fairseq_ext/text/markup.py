"""HTML as segments: block elements part them, inline tags are marks of them, and what is no text
for people is kept.

The source is cut where its tags are and never serialised, so whatever is no translated text comes
out byte for byte: well-formed where it was. An element that HTML does not know is inline, as in a
browser.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import regex

from fairseq_ext.text.atoms import BLOCK, BREAK, CLOSING, OPENING, PLACEHOLDER, POINT, Atom, Part
from fairseq_ext.text.reading import ENTITY, ENTITY_IN_VALUE, among, escape, text_atoms
from fairseq_ext.text.stopping import checked

# ---- The tokens of HTML with their places
#
# As the HTML standard's tokenizer finds them (WHATWG HTML, section 13.2.5). It reads each character
# once, and no text is wrong for it: what is not closed goes to the end. (The parsers tried either
# give no places, take time by the square of the text, or read `a < b` as a tag.)


Span = tuple[int, int]
UNTRANSLATED = "untranslated"  # an element that is not translated
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
    """A token of HTML or XML, which is text[start:end].

    name: of a tag, in small letters but for XML; attributes: with the places of their values, names
    of HTML in small letters; is_closed: the tag of HTML ends with `/>`.
    """

    kind: str
    start: int
    end: int
    name: str = ""
    attributes: dict[str, Span] = field(default_factory=dict)
    is_closed: bool = False

    @property
    def local(self) -> str:
        """Return the name without its prefix."""
        return self.name.rpartition(":")[2]

    def values(self, text: str) -> dict[str, str]:
        """Return the attributes with their values."""
        return {name: text[slice(*span)] for name, span in self.attributes.items()}


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
            # of two with one name, the first counts
            token.attributes.setdefault(part["name"].lower(), part.span(kind))  # type: ignore
        if text.startswith(">", at):
            token.end, token.is_closed = at + 1, text[at - 1] == "/" and kind != "bare"
            return token
    token.kind = DECLARATION  # a tag that is not ended is none, and nothing is behind it
    return token


BLOCKS = frozenset(
    (
        "address area article aside audio base blockquote body button canvas caption center col "
        "colgroup dd details dialog dir div dl dt embed fieldset figcaption figure footer form "
        "frame frameset h1 h2 h3 h4 h5 h6 head header hgroup hr html iframe legend li link main "
        "map menu meta nav noframes noscript object ol optgroup option p param picture plaintext "
        "pre script search section select source style summary table tbody td template textarea "
        "tfoot th thead title tr track ul video xmp"
    ).split()
)
VOID = frozenset(
    "area base br col embed frame hr img input link meta param source track wbr".split()
)
VERBATIM = frozenset("code kbd samp var tt pre script style svg math object xmp iframe".split())
SEPARATE = frozenset(
    "pre script style object xmp iframe".split()
)  # kept, and no part of a sentence
# attributes that people read, of all elements or of some
READ = frozenset("title alt placeholder aria-label aria-description aria-placeholder".split())
READ_OF = {
    "label": ("option", "optgroup", "track"),
    "value": ("input",),
    "content": ("meta",),
    "summary": ("table",),
}
BUTTONS = ("submit", "button", "reset")
DESCRIBES = regex.compile(r"(?i)description|(?:og|twitter):(?:title|description)|application-name")
FILE = regex.compile(r"[\w./\\:%-]+\.\w{2,5}")
FRONT = regex.compile(r"---\r?\n(?:[^\n]*\n)*?---\r?\n")  # settings of a site's generator
NOT_TRANSLATED = regex.compile(r"(?i)(?:^|\s)notranslate(?:\s|$)")
NOTES = ("sup", "sub")
NOTE = regex.compile(r"\s*[\d*†‡§]+\s*")  # the mark of a footnote
XHTML = regex.compile(r"\A\ufeff?\s*<\?xml\b|<html[^>]{0,400}\sxmlns=")
WAITING = 20_000  # tokens for which an inline element that is kept is looked for its end


def of_markup(text: str, protect: Sequence[str]) -> Iterator[Part]:
    """Yield the parts of HTML."""
    front = FRONT.match(text)
    start = front.end() if front else 0
    yield text[:start]
    yield escape
    yield from atoms(text[start:], protect)


def of_attributes(text: str, protect: Sequence[str]) -> Iterator[Part]:
    """Yield the parts of HTML whose only text is in attributes that people read."""
    places = (
        (start, end, text_atoms(text[start:end], protect, ENTITY_IN_VALUE))
        for token in parts(text, bool(XHTML.search(text[:4000])))
        for start, end in read_values(text, token)
    )
    yield html.escape
    yield from among(text, places)


def read_values(text: str, tag: Token) -> Iterator[tuple[int, int]]:
    """Yield where the values of a tag's attributes stand that people read."""
    if tag.kind != START:
        return
    values = tag.values(text)
    for name, (start, end) in tag.attributes.items():
        if name not in READ and tag.name not in READ_OF.get(name, ()):
            continue
        if name == "value" and values.get("type", "").lower() not in BUTTONS:
            continue
        if name == "content" and not DESCRIBES.fullmatch(
            values.get("name", "") or values.get("property", "")
        ):
            continue
        # an unquoted value ends with a space; a file's name is nothing to read
        if start < end and text[start - 1] in "\"'" and not FILE.fullmatch(text, start, end):
            yield start, end


# ---- Tags, and elements that are kept as a whole


def is_kept(text: str, tag: Token) -> bool:
    """Return whether a start tag's element is not translated."""
    return tag.name in VERBATIM or is_protected(text, tag)


def is_protected(text: str, tag: Token) -> bool:
    """Return whether a start tag says so."""
    values = tag.values(text)
    return (
        values.get("translate", "").strip().lower() == "no"
        or NOT_TRANSLATED.search(values.get("class", "")) is not None
    )


def parts(text: str, xhtml: bool) -> Iterator[Token]:
    """Yield the tokens; an element that is not translated is one, of kind UNTRANSLATED."""
    found = list(checked(tokens(text, xhtml)))
    ends, at = ends_of(text, found, xhtml), 0
    for number, token in enumerate(found):
        if token.start >= at:
            if number in ends:
                token.kind, token.end = UNTRANSLATED, ends[number]
            at = token.end
            yield token


def ends_of(text: str, found: list[Token], xhtml: bool) -> dict[int, int]:
    """Return the ends of elements that are not translated, by the tokens that start them.

    One whose end tag is missing ends in front of the next block, and one that is a block itself in
    front of the next of its name.
    """
    ends: dict[int, int] = {}
    waiting: dict[str, list[int]] = {}  # open elements by name, as numbers of tokens
    for number, token in enumerate(found):
        name = token.name
        if token.kind == START:
            if (token.is_closed and (xhtml or name in VERBATIM)) or (not xhtml and name in VOID):
                if is_kept(text, token):
                    ends[number] = token.end
            elif is_kept(text, token) or name in waiting or name in NOTES:
                waiting.setdefault(name, []).append(number)
        elif token.kind == END and waiting.get(name):
            start = waiting[name].pop()
            is_note = name in NOTES and NOTE.fullmatch(text, found[start].end, token.start)
            if is_note or is_kept(text, found[start]):
                ends[start] = token.end
            if not waiting[name]:
                del waiting[name]
    lone = [n for stack in waiting.values() for n in stack if is_kept(text, found[n])]
    for number in lone:
        name, ends[number] = found[number].name, found[number].end
        behind = found[number + 1 : number + 1 + WAITING // len(lone)]
        stops = {name} if name in BLOCKS else BLOCKS
        stop = next((other for other in behind if other.name in stops), None)
        if stop is not None or len(behind) == len(found) - number - 1:
            ends[number] = stop.start if stop else len(text)
    return ends


def atoms(
    text: str,
    protect: Sequence[str] = (),
    xhtml: bool | None = None,
    entities: regex.Pattern[str] | None = ENTITY,
) -> Iterator[Atom]:
    """Yield the atoms of HTML; those of kind BLOCK part segments. entities: see `text_atoms`."""
    xhtml = bool(XHTML.search(text[:4000])) if xhtml is None else xhtml
    for token in parts(text, xhtml):
        yield from of_token(text, token, protect, xhtml, entities)


def of_token(
    text: str,
    token: Token,
    protect: Sequence[str] = (),
    xhtml: bool = False,
    entities: regex.Pattern[str] | None = ENTITY,
) -> Iterable[Atom]:
    """Return the atoms of a token."""
    raw, name = text[token.start : token.end], token.name
    if token.kind == TEXT:
        return text_atoms(raw, protect, entities)
    if token.kind == UNTRANSLATED:
        is_block = name in SEPARATE or (name in BLOCKS and name not in VERBATIM)
        return [Atom(BLOCK if is_block else PLACEHOLDER, raw)]
    if token.kind == COMMENT or raw.startswith("<?"):
        return [Atom(POINT, raw)]
    if token.kind in (DECLARATION, CDATA) or name in BLOCKS:
        return [Atom(BLOCK, raw)]
    if name == "br":
        return [Atom(BREAK, raw)]
    if token.kind == END:
        return [Atom(CLOSING, raw, name=name)]
    if (token.is_closed and xhtml) or name in VOID:
        return [Atom(POINT, raw)]
    return [Atom(OPENING, raw, name=name)]
