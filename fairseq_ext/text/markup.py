"""HTML as segments: block elements part them, inline tags are marks of them, and what is no text
for people is kept.

The source is cut where its tags are and never serialised, so whatever is no translated text comes
out byte for byte: well-formed where it was. An element that HTML does not know is inline, as in a
browser.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from html.entities import html5
from itertools import groupby

import regex

from fairseq_ext.text import html_tokens, segments
from fairseq_ext.text.atoms import (
    BLOCK,
    BREAK,
    CLOSING,
    OPENING,
    PLACEHOLDER,
    POINT,
    TEXT,
    Atom,
    Ends,
    Item,
    is_plain,
)
from fairseq_ext.text.html_tokens import CDATA, COMMENT, DECLARATION, END, START, Token, tokens
from fairseq_ext.text.segments import of_atoms, of_run
from fairseq_ext.text.stopping import checked

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
# of HTML; some are known without a semicolon
ENTITY = regex.compile(
    r"&(?:#\d{1,8}|#[xX][\da-fA-F]{1,7}|[a-zA-Z]\w{1,31});"
    rf"|&(?:{'|'.join(name for name in html5 if name[-1] != ';')})(?![\w=])"
)
# in XML, all but these are defined by the document, if at all
XML_ENTITY = regex.compile(r"&(?:#\d+|#x[\da-fA-F]+|amp|lt|gt|quot|apos);")
ANY_ENTITY = regex.compile(r"&(?:#\d+|#x[\da-fA-F]+|[^\s&;<]+);")
NOTES = ("sup", "sub")
NOTE = regex.compile(r"\s*[\d*†‡§]+\s*")  # the mark of a footnote
XHTML = regex.compile(r"\A\ufeff?\s*<\?xml\b|<html[^>]{0,400}\sxmlns=")
WAITING = 20_000  # tokens for which an inline element that is kept is looked for its end


def escape(text: str) -> str:
    """Return text as it stands between tags."""
    return html.escape(text, quote=False)


def of_markup(text: str, ends: Ends, protect: Sequence[str] = ()) -> Iterator[Item]:
    """Return the items of HTML. ends, protect: see `of_text`."""
    front = FRONT.match(text)
    if front:
        yield front[0]
    yield from of_atoms(atoms(text[front.end() if front else 0 :], protect), ends, escape)


def of_attributes(text: str, ends: Ends, protect: Sequence[str] = ()) -> Iterator[Item]:
    """Yield the items of HTML whose only text is in attributes that people read."""
    at = 0
    for part in parts(text, bool(XHTML.search(text[:4000]))):
        if isinstance(part, tuple):
            continue
        for start, end in read_values(text, part):
            yield text[at:start]
            yield from of_run(list(text_atoms(text[start:end], protect)), ends, html.escape)
            at = end
    yield text[at:]


def read_values(text: str, tag: Token) -> Iterator[tuple[int, int]]:
    """Yield where the values of a tag's attributes stand that people read."""
    if tag.kind != START:
        return
    values = {name: text[start:end] for name, start, end in tag.attributes}
    for name, start, end in tag.attributes:
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
    return any(
        (name == "translate" and text[start:end].strip().lower() == "no")
        or (name == "class" and NOT_TRANSLATED.search(text[start:end]) is not None)
        for name, start, end in tag.attributes
    )


def parts(text: str, xhtml: bool) -> Iterator[Token | tuple[Token, int]]:
    """Yield the tokens; of an element that is not translated its start tag, with where it ends."""
    found = list(checked(tokens(text, xhtml)))
    ends = ends_of(text, found, xhtml)
    at = 0
    for number, token in enumerate(found):
        if token.start < at:
            continue
        if number in ends:
            at = ends[number]
            yield token, at
        else:
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
    for part in parts(text, xhtml):
        yield from of_part(text, part, protect, xhtml, entities)


def of_part(
    text: str,
    part: Token | tuple[Token, int],
    protect: Sequence[str],
    xhtml: bool,
    entities: regex.Pattern[str] | None,
) -> Iterator[Atom]:
    """Yield the atoms of a token, or of an element that is kept."""
    if isinstance(part, tuple):
        token, end = part
        name = token.name
        is_block = name in SEPARATE or (name in BLOCKS and name not in VERBATIM)
        yield Atom(BLOCK if is_block else PLACEHOLDER, text[token.start : end])
        return
    raw = text[part.start : part.end]
    if part.kind == html_tokens.TEXT:
        yield from text_atoms(raw, protect, entities)
    elif part.kind == COMMENT:
        yield Atom(POINT, raw)
    elif part.kind == DECLARATION:
        yield Atom(POINT if raw.startswith("<?") else BLOCK, raw)
    elif part.kind == CDATA:
        yield Atom(BLOCK, raw)
    elif part.name == "br" and part.kind in (START, END):
        yield Atom(BREAK, raw)
    elif part.name in BLOCKS:
        yield Atom(BLOCK, raw)
    elif part.kind == END:
        yield Atom(CLOSING, raw, name=part.name)
    elif (part.is_closed and xhtml) or part.name in VOID:
        yield Atom(POINT, raw)
    else:
        yield Atom(OPENING, raw, name=part.name)


def text_atoms(
    text: str, protect: Sequence[str] = (), entities: regex.Pattern[str] | None = ENTITY
) -> Iterator[Atom]:
    """Yield the atoms of text between tags: its placeholders and its characters.

    entities: those that are the characters that they stand for; None: they are placeholders.
    """

    read = partial(segments.text_atoms, protect=protect, of_markup=entities is not None)

    def decode(entity: str) -> str | None:
        character = html.unescape(entity)
        is_known = entities is not ANY_ENTITY or XML_ENTITY.fullmatch(entity)
        return character if is_known and character != entity else None

    if entities is None:
        yield from read(text)
    else:
        yield from through_escapes(text, entities, decode, read)


def through_escapes(
    raw: str,
    escapes: regex.Pattern[str],
    decode: Callable[[str], str | None],
    read: Callable[[str], Iterator[Atom]],
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
        character = decode(match[0]) if match else None
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
