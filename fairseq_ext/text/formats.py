"""The formats of texts, each as passes: the items of a text, then those of what has come out, for
what stands inside of tags."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Literal, get_args

from fairseq_ext.core.errors import LONE_SURROGATE, UsageError, cut
from fairseq_ext.search.constraints.from_python import ListOf, check_texts
from fairseq_ext.text.atoms import Ends, Item, Segment
from fairseq_ext.text.markdown import of_markdown, of_titles
from fairseq_ext.text.markup import of_attributes, of_markup
from fairseq_ext.text.paragraphs import of_paragraphs
from fairseq_ext.text.po import of_po
from fairseq_ext.text.segments import led, of_text
from fairseq_ext.text.subtitles import of_subtitles
from fairseq_ext.text.xliff import of_xliff
from fairseq_ext.text.xml_text import of_xml

Pass = Callable[[str], Iterator[Item]]
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
    found: dict[str, tuple[Callable[..., Iterator[Item]], ...]] = {
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

    def items(each: Callable[..., Iterator[Item]], text: str) -> Iterator[Item]:
        for item in led(each(text, ends=ends, protect=tuple(protect)), leads):
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
