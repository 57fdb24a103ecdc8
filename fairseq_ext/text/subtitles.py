"""Subtitles (srt, vtt) as segments: the text of each cue. Lines of a cue are joined where a
sentence goes on; lines of several speakers, which begin with a dash, are not. Numbers, times, notes
and styles are kept. `<i>`, `{b}` and the like are marks; every other `<` and `&` is text.

WebVTT: https://www.w3.org/TR/webvtt1/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import regex

from fairseq_ext.text.atoms import CLOSING, OPENING, POINT, Atom, Part
from fairseq_ext.text.reading import ENTITY, among, escape, tagged, text_atoms

# the lines of text below the times of a cue; in srt, a number may stand directly behind them
CUE = r"(?m)^[^\n]*-->[^\n]*\n\K(?:(?![^\n]*-->){}[^\n]*\S[^\n]*(?:\n|\Z))+"
VTT_CUE = regex.compile(CUE.format(""))
SRT_CUE = regex.compile(CUE.format(r"(?![ \t]*\d+[ \t]*\r?\n[^\n]*-->)"))
TAG = regex.compile(
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
        yield from tagged(line[dash.end() if dash else 0 :], TAG, read, of_tag)


def of_tag(tag: regex.Match[str]) -> Atom:
    """Return the atom of a tag."""
    if not (name := tag["name"] or tag["letter"]):
        return Atom(POINT, tag[0], " " if tag[0].startswith("\\") else "")
    return Atom(CLOSING if tag["close"] or tag["end"] else OPENING, tag[0], name=name.lower())
