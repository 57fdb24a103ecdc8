"""Subtitles (srt, vtt) as segments: the text of each cue. Lines of a cue are joined where a
sentence goes on; lines of several speakers, which begin with a dash, are not. Numbers, times, notes
and styles are kept. `<i>`, `{b}` and the like are marks; every other `<` and `&` is text.

WebVTT: https://www.w3.org/TR/webvtt1/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import regex

from fairseq_ext.text import segments
from fairseq_ext.text.atoms import BLOCK, CLOSING, OPENING, POINT, Atom, Item
from fairseq_ext.text.markup import ENTITY, escape, text_atoms

TIMES = regex.compile(r"[^\n]*-->[^\n]*\n?")
LINE = regex.compile(r"[^\n]*\n|[^\n]+")
TAG = regex.compile(
    r"<(?P<close>/?)(?P<name>[a-zA-Z]+)(?:[. \t][^<>\n]*)?>|<[\d:.]+>|\{\\[^}\n]*\}|"
    r"\{(?P<end>/?)(?P<letter>[biusBIUS])\}|\\[Nnh]"
)
SPEAKER = regex.compile(r"\s*[-–—](?=\s*\S)\s*")


def of_subtitles(
    text: str, ends: Callable[[str], list[int]], protect: Sequence[str] = ()
) -> Iterator[Item]:
    """Yield the items of a file of subtitles. ends, protect: see `of_text`."""
    is_vtt = text.lstrip("\ufeff").startswith("WEBVTT")
    cue: list[str] = []
    in_cue = False
    for line in LINE.findall(text):
        if in_cue and line.strip() and TIMES.fullmatch(line) is None:
            cue.append(line)
            continue
        if TIMES.fullmatch(line) is not None and cue and not is_vtt and cue[-1].strip().isdigit():
            number = cue.pop()  # no blank line stands between the cues
            yield from of_cue(cue, is_vtt, ends, protect)
            cue, in_cue = [], True
            yield number + line
            continue
        yield from of_cue(cue, is_vtt, ends, protect)
        cue, in_cue = [], TIMES.fullmatch(line) is not None
        yield line
    yield from of_cue(cue, is_vtt, ends, protect)


def of_cue(
    lines: Sequence[str],
    is_vtt: bool,
    ends: Callable[[str], list[int]],
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
    for tag in [*TAG.finditer(line), None]:
        end = tag.start() if tag else len(line)
        yield from text_atoms(line[at:end], protect, ENTITY if is_vtt else None)
        if tag is None:
            return
        at, name = tag.end(), tag["name"] or tag["letter"]
        if not name:
            yield Atom(POINT, tag[0], " " if tag[0].startswith("\\") else "")
        else:
            is_end = tag["close"] or tag["end"]
            yield Atom(CLOSING if is_end else OPENING, tag[0], name=name.lower())
