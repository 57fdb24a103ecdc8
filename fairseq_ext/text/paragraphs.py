"""Paragraphs of office files, written as text, for the translation: `<p>`, and in it

- `<r i="1">...</r>`: what is formatted otherwise than most of its paragraph, or stands in another
  element, such as a link;
- `<o i="2"/>`: what is no text; `<f i="3"/>`: what is read as a word, such as a formula, or, as
  `<f i="4" t="12"/>`, as the number that it shows;
- `<b i="5"/>`: a line break; `<t i="6"/>`: a tab, which parts sentences;
- `<n i="7">-</n>`: a character that is an element of its own.

office.py makes such texts, and paragraphs of them again.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

import regex

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
)
from fairseq_ext.text.markup import escape, text_atoms
from fairseq_ext.text.segments import of_atoms, tabbed

TAG = regex.compile(
    r"<(?P<close>/?)(?P<kind>[proftb])(?: i=\"\d+\")?(?: t=\"(?P<text>\d+)\")?/?>|"
    r"<n i=\"\d+\">(?P<character>[^<]*)</n>"
)
ENTITY = regex.compile(r"&(?:amp|lt|gt);")
KINDS = {"p": BLOCK, "o": POINT, "f": PLACEHOLDER, "t": BLOCK, "b": BREAK}


def of_paragraphs(text: str, ends: Ends, protect: Sequence[str] = ()) -> Iterator[Item]:
    """Yield the items of a text with these tags. ends, protect: as for `of_text` of
    text/segments.py."""
    yield from of_atoms(atoms(text, protect), ends, escape)


def atoms(text: str, protect: Sequence[str]) -> Iterator[Atom]:
    """Yield the atoms of such a text."""
    at = 0
    for tag in TAG.finditer(text):
        yield from tabbed(text_atoms(text[at : tag.start()], protect, ENTITY))
        at, kind = tag.end(), tag["kind"]
        if kind is None:
            yield Atom(TEXT, tag[0], html.unescape(tag["character"]))
        elif kind == "r":
            yield Atom(CLOSING if tag["close"] else OPENING, tag[0], name="r")
        else:
            yield Atom(KINDS[kind], tag[0], tag["text"] or "")
    yield from tabbed(text_atoms(text[at:], protect, ENTITY))
