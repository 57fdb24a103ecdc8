"""What the readers of all formats share: texts as atoms, and what is between them."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from html.entities import html5
from itertools import groupby
from operator import methodcaller

import regex

from fairseq_ext.core.errors import UsageError
from fairseq_ext.text.atoms import (
    BLOCK,
    PLACEHOLDER,
    POINT,
    TEXT,
    Atom,
    Escape,
    Part,
    is_plain,
    text_atom,
)

# ---- Placeholders: URLs, e-mail addresses, `{name}`, `%s`, `%1$d`, and matches of --protect
#
# They stay unchanged in every translation. A placeholder is taken out of its sentence and put back
# by word alignment (marks.py), whatever the model does: exactly once, unchanged. So the rest of the
# sentence is translated as it is without it.


URL_END = r"[^\s<>\"'`|]*[^\s<>\"'`|.,;:!?)\]}“”’»*_]"
# kinds of placeholders
KINDS = {
    "URL": rf"\b(?:https?|ftps?|file)://{URL_END}|\bmailto:[^\s<>\"'`]+\w",
    "domain": rf"\bwww\.{URL_END}",
    "e-mail address": r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+",
    # GUIDs, and numbers to the base of 16 such as those of git
    "identifier": (
        r"(?<![\w-])[\da-fA-F]{8}(?:-[\da-fA-F]{4}){3}-[\da-fA-F]{12}(?![\w-])|"
        r"(?<![\w-])(?=[a-f]{0,63}\d)(?=\d{0,63}[a-f])[\da-f]{16,64}(?![\w-])"
    ),
    # of printf, with length modifiers; Python's %(name)s; Objective-C's %@
    "printf": (
        r"(?<![\d%])%(?:\d{1,6}\$|\(\w{1,80}\))?[-+0#']{0,4}(?:\d{1,4}|\*)?(?:\.(?:\d{1,3}|\*))?"
        r"(?:hh?|ll?|[Lqjzt])?(?:[diouxXeEfFgGaAcsSp@]|n(?=\W|$))"
        r"(?=(?:px|th|st|nd|rd|m?s|h|m|min|[kKMGT]?i?B)?(?![\w%])|x?%[\d(a-zA-Z.$%-])"
    ),
    "Qt": r"(?<![\d%])%(?:L?\d{1,2}|n)(?![\w%])",
    "percent sign": r"%%(?!\w)",
    "Ruby": r"[%#]\{[^{}\n]{1,80}\}",
    "mustache": r"\{\{\{?[^{}\n]{1,80}\}?\}\}|\{%[^{}\n]{1,120}%\}",
    # Python's and .NET's format fields, ICU's simple arguments, shell variables
    "braces": r"\$?\{(?:[^{}\s][^{}\n]{0,80})?\}|\$\([\w.]{1,40}\)",
    "emoji": (
        r"(?:[\u2190-\u21ff\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff][\ufe0f\u200d]*)+"
    ),
}
NAMED_CHARACTER = r"&(?:[a-zA-Z]\w{1,30}|#\d{1,7}|#[xX][\da-fA-F]{1,6});"  # where it is no markup
AROUND = {
    "(": ")",
    "[": "]",
    "{": "}",
    "<": ">",
    "„": "“",
    "“": "”",
    "‚": "‘",
    "‘": "’",
    "«": "»",
    "»": "«",
    '"': '"',
    "'": "'",
}
BETWEEN = re.compile(r"\s*[-–—:&/|+=*×x·•→@#^~]{0,2}\s*")  # of two placeholders: stays there


@cache
def pattern(protect: tuple[str, ...], of_markup: bool) -> re.Pattern[str]:
    """Return the pattern that finds placeholders.

    protect: regular expressions of more of them; of_markup: entities are characters.
    Errors: UsageError for one that is none.
    """
    for each in protect:
        try:
            if re.compile(each).search("") is not None:
                raise UsageError(
                    f"--protect {each} matches nothing at all as well: write what it must hold"
                )
        except re.error as error:
            raise UsageError(
                f"--protect {each} must be a regular expression ({error}): correct it"
            ) from None
    return re.compile(
        "|".join(
            f"(?:{each})" for each in (*protect, *KINDS.values(), *[NAMED_CHARACTER][of_markup:])
        )
    )


def find(text: str, protect: Sequence[str] = (), of_markup: bool = False) -> list[tuple[int, int]]:
    """Return where placeholders stand, with the brackets or quotes that hold nothing else; those
    with nothing but a sign such as `:` or `/` between them are one.

    of_markup: see `pattern`.
    """
    found: list[tuple[int, int]] = []
    for match in pattern(tuple(protect), of_markup).finditer(text):
        start, end = match.span()
        while start and end < len(text) and AROUND.get(text[start - 1]) == text[end]:
            start, end = start - 1, end + 1
        start, end = (start, end) if not found or start >= found[-1][1] else match.span()
        between = text[found[-1][1] : start] if found else " "
        if not between.isspace() and BETWEEN.fullmatch(between):
            start = found.pop()[0]
        found.append((start, end))
    return found


# of HTML: in text the longest known name, some of them without a semicolon; in an attribute such a
# name is text before `=`, a letter or a digit (WHATWG HTML, section 13.2.5.73)
NUMBER = r"#\d{1,8};?|#[xX][\da-fA-F]{1,7};?"
UNKNOWN = r"(?P<unknown>&[a-zA-Z]\w{1,31};)"
ENTITY = regex.compile(rf"&(?:{NUMBER}|\L<names>)|{UNKNOWN}", names=list(html5))
ENTITY_IN_VALUE = regex.compile(
    rf"&(?:{NUMBER}|\L<ended>|\L<names>(?![a-zA-Z\d=]))|{UNKNOWN}",
    ended=[name for name in html5 if name[-1] == ";"],
    names=[name for name in html5 if name[-1] != ";"],
)
# of XML; those that are unknown are defined by the document, if at all
XML_ENTITY = regex.compile(r"&(?:#\d+|#x[\da-fA-F]+|amp|lt|gt|quot|apos);|(?P<unknown>&[^\s&;<]+;)")
# of an item of a list, a quotation, a speaker
BULLET = regex.compile(r"\s*(?:[-–—*•·‣▪◦+>]|\d{1,3}[.)]|[a-z]\))\s+(?=\S)")
TAB = regex.compile(r"\t+")


def escape(text: str) -> str:
    """Return text as it stands between tags."""
    return html.escape(text, quote=False)


def with_signs(signs: dict[str, str]) -> Escape:
    """Return a function that writes each of these characters so."""
    return methodcaller("translate", str.maketrans(signs))


def among(text: str, places: Iterable[tuple[int, int, Iterable[Part]]]) -> Iterator[Part]:
    """Yield the parts of these places of a text (start, end, parts), in order; all else is kept."""
    at = 0
    for start, end, parts in places:
        yield text[at:start]
        yield from parts
        at = end
    yield text[at:]


def text_atoms(
    text: str, protect: Sequence[str] = (), entities: regex.Pattern[str] | None = None
) -> Iterator[Atom]:
    """Yield the atoms of text: its placeholders, and what is between them.

    protect: regular expressions of what stays as it is; entities: those that are the characters
    that they stand for; None: they are placeholders.
    """

    def read(text: str) -> Iterator[Atom]:
        at = 0
        for start, end in [*find(text, protect, entities is not None), (len(text), len(text))]:
            if at < start:
                yield text_atom(text[at:start])
            if start < end:
                yield Atom(PLACEHOLDER, text[start:end])
            at = end

    return read(text) if entities is None else through_escapes(text, entities, read)


def character(entity: regex.Match[str]) -> str | None:
    """Return the character of an entity; None for one that is not known."""
    found = html.unescape(entity[0])
    return None if entity.lastgroup or found == entity[0] else found


def of_text(text: str, protect: Sequence[str] = ()) -> Iterator[Part]:
    """Yield the parts of a plain text. A line break or a tab ends a sentence."""
    for line in text.splitlines(keepends=True):
        lead = BULLET.match(line)
        if lead:
            yield Atom(POINT, lead[0])
        yield from tabbed(text_atoms(line[lead.end() if lead else 0 :], protect))
        yield ""


def tagged(
    text: str,
    tags: regex.Pattern[str],
    read: Callable[[str], Iterable[Atom]],
    tag: Callable[[regex.Match[str]], Atom],
) -> Iterator[Atom]:
    """Yield the atoms of a text with these tags: `tag` makes one of each, `read` those between."""
    at = 0
    for found in tags.finditer(text):
        yield from read(text[at : found.start()])
        yield tag(found)
        at = found.end()
    yield from read(text[at:])


def cut_at(separator: regex.Pattern[str], kind: str, atoms: Iterable[Atom]) -> Iterator[Atom]:
    """Yield the atoms, whose text is cut at a separator, which is an atom of this kind."""

    def separated(found: regex.Match[str]) -> Atom:
        return Atom(kind, found[0])

    for atom in atoms:
        yield from tagged(atom.raw, separator, in_one, separated) if is_plain(atom) else [atom]


def in_one(text: str) -> list[Atom]:
    """Return the atoms of text without placeholders."""
    return [text_atom(text)]


tabbed = partial(cut_at, TAB, BLOCK)


def through_escapes(
    raw: str,
    escapes: regex.Pattern[str],
    read: Callable[[str], Iterator[Atom]],
    decode: Callable[[regex.Match[str]], str | None] = character,
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
        character = decode(match) if match else None
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
