"""The formats of texts, each as passes: the items of a text, then those of what has come out, for
what stands inside of tags."""

from __future__ import annotations

import html
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Literal, get_args

import regex

from fairseq_ext.core.errors import LONE_SURROGATE, UsageError, cut
from fairseq_ext.search.constraints.from_python import ListOf, check_texts
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
    Part,
    Segment,
)
from fairseq_ext.text.markdown import of_markdown, of_titles
from fairseq_ext.text.markup import of_attributes, of_markup
from fairseq_ext.text.messages import of_po, of_xliff
from fairseq_ext.text.reading import ENTITY, among, escape, of_text, tabbed, tagged, text_atoms
from fairseq_ext.text.segments import items_of, led
from fairseq_ext.text.xml_tokens import of_xml

# ---- Subtitles (srt, vtt) as segments: the text of each cue
#
# Lines of a cue are joined where a
# sentence goes on; lines of several speakers, which begin with a dash, are not. Numbers, times,
# notes and styles are kept. `<i>`, `{b}` and the like are marks; every other `<` and `&` is text.
#
# WebVTT: https://www.w3.org/TR/webvtt1/.


# the lines of text below the times of a cue; in srt, a number may stand directly behind them
CUE = r"(?m)^[^\n]*-->[^\n]*\n\K(?:(?![^\n]*-->){}[^\n]*\S[^\n]*(?:\n|\Z))+"
VTT_CUE = regex.compile(CUE.format(""))
SRT_CUE = regex.compile(CUE.format(r"(?![ \t]*\d+[ \t]*\r?\n[^\n]*-->)"))
SUBTITLE_TAG = regex.compile(
    r"<(?P<close>/?)(?P<name>[a-zA-Z]+)(?:[. \t][^<>\n]*)?>|<[\d:.]+>|\{\\[^}\n]*\}|"
    r"\{(?P<end>/?)(?P<letter>[biusBIUS])\}|\\[Nnh]"
)
SPEAKER = regex.compile(r"\s*[-–—](?=\s*\S)\s*")


def of_subtitles(text: str, protect: Sequence[str]) -> Iterator[Part]:
    """Yield the parts of a file of subtitles."""
    is_vtt = text.lstrip("\ufeff").startswith("WEBVTT")
    read = partial(text_atoms, protect=protect, entities=ENTITY if is_vtt else None)
    cues = (
        (*cue.span(), of_cue(cue[0].splitlines(True), read))
        for cue in (VTT_CUE if is_vtt else SRT_CUE).finditer(text)
    )
    yield escape if is_vtt else str
    yield from among(text, cues)


def of_cue(lines: Sequence[str], read: Callable[[str], Iterator[Atom]]) -> Iterator[Part]:
    """Yield the parts of a cue's lines: their tags, and their text."""
    several = SPEAKER.match(lines[0])
    for line in lines:
        dash = SPEAKER.match(line) if several else None
        if dash:
            yield dash[0]
        yield from tagged(line[dash.end() if dash else 0 :], SUBTITLE_TAG, read, of_subtitle_tag)


def of_subtitle_tag(tag: regex.Match[str]) -> Atom:
    """Return the atom of a tag."""
    if not (name := tag["name"] or tag["letter"]):
        return Atom(POINT, tag[0], " " if tag[0].startswith("\\") else "")
    return Atom(CLOSING if tag["close"] or tag["end"] else OPENING, tag[0], name=name.lower())


Pass = Callable[[str], Iterator[Item]]
# from a text, and regular expressions of what stays as it is, to its parts
Reader = Callable[[str, Sequence[str]], Iterator[Part]]
Format = Literal["text", "html", "xml", "markdown"]  # together with those of files
FORMATS: tuple[str, ...] = get_args(Format)


def passes(
    format: str,
    ends: Ends,
    protect: ListOf[str] = (),
    leads: Collection[str] = (),
    numbers: Iterator[int] | None = None,
    inline: Collection[str] | None = None,
) -> list[Pass]:
    """Yield the passes of a format (raises UsageError).

    ends: of `splitter`; protect: regular expressions of what stays as it is; leads: see `led`;
    numbers: of the segments (default: from 0 on); inline: names of the inline elements of XML,
    where the text does not say them.
    """
    numbers = itertools.count() if numbers is None else numbers
    found: dict[str, tuple[Reader, ...]] = {
        "text": (of_text,),
        "html": (of_attributes, of_markup),
        "xml": (partial(of_xml, inline=inline),),
        "markdown": (of_titles, of_markdown),
        "subtitles": (of_subtitles,),
        "xliff": (of_xliff,),
        "po": (of_po,),
        "paragraphs": (of_paragraphs,),
    }
    if not isinstance(format, str) or format not in found:
        raise UsageError(f"format must be one of {', '.join(FORMATS)}, not {cut(repr(format))}")

    check_texts(protect, "protect")

    def items(read: Reader, text: str) -> Iterator[Item]:
        for item in led(items_of(read(text, tuple(protect)), ends), leads):
            if isinstance(item, Segment):
                item.number = next(numbers)
            yield item

    return [partial(items, each) for each in found[format]]


def check_text(text: object) -> None:
    """Refuse what is no text (raises UsageError)."""
    if not isinstance(text, str):
        raise UsageError(f"the text is {cut(repr(text))}: give a str")
    if LONE_SURROGATE.search(text):
        raise UsageError("the text has half a character (a lone surrogate): give whole characters")


# ---- Paragraphs of office files, written as text, for the translation: `<p>`, and in it
#
# - `<r i="1">...</r>`: what is formatted otherwise than most of its paragraph, or stands in another
#   element, such as a link;
# - `<o i="2"/>`: what is no text; `<f i="3"/>`: what is read as a word, such as a formula, or, as
#   `<f i="4" t="12"/>`, as the number that it shows;
# - `<b i="5"/>`: a line break; `<t i="6"/>`: a tab, which parts sentences;
# - `<n i="7">-</n>`: a character that is an element of its own.
#
# office.py makes such texts, and paragraphs of them again.

TAG = regex.compile(
    r"<(?P<close>/?)(?P<kind>[proftb])(?: i=\"\d+\")?(?: t=\"(?P<text>\d+)\")?/?>|"
    r"<n i=\"\d+\">(?P<character>[^<]*)</n>"
)
ESCAPED = regex.compile(r"&(?:amp|lt|gt);")
KINDS = {"p": BLOCK, "o": POINT, "f": PLACEHOLDER, "t": BLOCK, "b": BREAK}


def of_paragraphs(text: str, protect: Sequence[str]) -> Iterator[Part]:
    """Yield the parts of a text with these tags."""
    read = partial(text_atoms, protect=protect, entities=ESCAPED)
    yield escape
    yield from tagged(text, TAG, lambda text: tabbed(read(text)), of_tag)


def of_tag(tag: regex.Match[str]) -> Atom:
    """Return the atom of a tag."""
    kind = tag["kind"]
    if kind is None:
        return Atom(TEXT, tag[0], html.unescape(tag["character"]))
    if kind == "r":
        return Atom(CLOSING if tag["close"] else OPENING, tag[0], name="r")
    return Atom(KINDS[kind], tag[0], tag["text"] or "")
