"""Subtitles (srt, vtt) as segments: the text of each cue. Lines of a cue are joined where a
sentence goes on; lines of several speakers, which begin with a dash, are not. Numbers, times, notes
and styles are kept. `<i>`, `{b}` and the like are marks; every other `<` and `&` is text.

WebVTT: https://www.w3.org/TR/webvtt1/.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import regex

from fairseq_ext.text import segments
from fairseq_ext.text.atoms import BLOCK, CLOSING, OPENING, POINT, Atom, Ends, Item
from fairseq_ext.text.markup import ENTITY, escape, text_atoms

# the lines of text below the times of a cue; in srt, a number may stand directly behind them
CUE = r"(?m)^[^\n]*-->[^\n]*\n\K(?:(?![^\n]*-->){}[^\n]*\S[^\n]*(?:\n|\Z))+"
VTT_CUE = regex.compile(CUE.format(""))
SRT_CUE = regex.compile(CUE.format(r"(?![ \t]*\d+[ \t]*\r?\n[^\n]*-->)"))
TAG = regex.compile(
    r"<(?P<close>/?)(?P<name>[a-zA-Z]+)(?:[. \t][^<>\n]*)?>|<[\d:.]+>|\{\\[^}\n]*\}|"
    r"\{(?P<end>/?)(?P<letter>[biusBIUS])\}|\\[Nnh]"
)
SPEAKER = regex.compile(r"\s*[-–—](?=\s*\S)\s*")


def of_subtitles(text: str, ends: Ends, protect: Sequence[str] = ()) -> Iterator[Item]:
    """Yield the items of a file of subtitles. ends, protect: see `of_text`."""
    is_vtt = text.lstrip("\ufeff").startswith("WEBVTT")
    at = 0
    for cue in (VTT_CUE if is_vtt else SRT_CUE).finditer(text):
        yield text[at : cue.start()]
        yield from of_cue(cue[0].splitlines(True), is_vtt, ends, protect)
        at = cue.end()
    yield text[at:]


def of_cue(
    lines: Sequence[str],
    is_vtt: bool,
    ends: Ends,
    protect: Sequence[str],
) -> Iterator[Item]:
    """Yield the items of a cue's lines."""
    several = bool(lines) and SPEAKER.match(lines[0]) is not None
    atoms: list[Atom] = []
    for line in lines:
        dash = SPEAKER.match(line) if several else None
        if dash:
            atoms.append(Atom(BLOCK, dash[0]))
        atoms += line_atoms(line[dash.end() if dash else 0 :], is_vtt, protect)
    yield from segments.of_atoms(atoms, ends, escape if is_vtt else str)


def line_atoms(line: str, is_vtt: bool, protect: Sequence[str]) -> Iterator[Atom]:
    """Yield the atoms of a line: its tags, and its text."""
    at = 0
    read = partial(text_atoms, protect=protect, entities=ENTITY if is_vtt else None)
    for tag in TAG.finditer(line):
        yield from read(line[at : tag.start()])
        at, name = tag.end(), tag["name"] or tag["letter"]
        if not name:
            yield Atom(POINT, tag[0], " " if tag[0].startswith("\\") else "")
        else:
            is_end = tag["close"] or tag["end"]
            yield Atom(CLOSING if is_end else OPENING, tag[0], name=name.lower())
    yield from read(line[at:])
