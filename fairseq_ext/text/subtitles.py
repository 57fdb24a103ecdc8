"""Subtitles (srt, vtt) as segments: of each cue the text, whose lines are one, but for those of
several speakers, which begin with a dash; numbers, times, notes and styles are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import regex

from fairseq_ext.text.markup import of_markup
from fairseq_ext.text.segments import Item

CUE = regex.compile(r"^[^\n]*-->[^\n]*\n(?P<text>(?:(?!\s*$)[^\n]+\n?)+)", regex.MULTILINE)
SPEAKER = regex.compile(
    r"((?:^[-–—]\s*)?)((?:(?!\n[-–—]\s*\S).)+\n?)", regex.MULTILINE | regex.DOTALL
)


def of_subtitles(
    text: str, ends: Callable[[str], list[int]], protect: Sequence[str] = ()
) -> Iterator[Item]:
    """The items of a file of subtitles. ends, protect: as of `of_text`."""
    at = 0
    for cue in CUE.finditer(text):
        yield text[at : cue.start("text")]
        for dash, said in (
            SPEAKER.findall(cue["text"]) if cue["text"][0] in "-–—" else [("", cue["text"])]
        ):
            yield dash
            yield from of_markup(said, ends, [*protect, r"\{\\[^}]*\}"])
        at = cue.end()
    yield text[at:]
