"""The formats of texts, each as passes: the items of a text, then those of what has come out, for
what stands inside of tags."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Literal, get_args

from lxml import etree

from fairseq_ext.core.errors import UsageError, cut
from fairseq_ext.search.constraints.from_python import ListOf, check_texts
from fairseq_ext.text.markdown import of_markdown
from fairseq_ext.text.markup import of_attributes, of_markup
from fairseq_ext.text.office import of_odt, of_runs
from fairseq_ext.text.segments import Item, Segment, led, of_text
from fairseq_ext.text.subtitles import of_subtitles

Pass = Callable[[str], Iterator[Item]]
Format = Literal["text", "html", "xml", "markdown"]  # together with those of files
FORMATS: tuple[str, ...] = get_args(Format)


def passes(
    format: str,
    ends: Callable[[str], list[int]],
    protect: ListOf[str] = (),
    leads: Collection[str] = (),
    numbers: Iterator[int] | None = None,
) -> list[Pass]:
    """The passes of a format (raises UsageError).

    ends: of `splitter`; protect: regular expressions of what stays as it is; leads: as of `led`;
    numbers: of the segments (default: from 0 on).
    """
    numbers = itertools.count() if numbers is None else numbers
    found: dict[str, tuple[Callable[..., Iterator[Item]], ...]] = {
        "text": (of_text,),
        "html": (of_attributes, of_markup),
        "xml": (of_xml,),
        "markdown": (of_markdown,),
        "subtitles": (of_subtitles,),
        "runs": (of_runs,),
        "odt": (of_odt,),
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


def of_xml(
    text: str, ends: Callable[[str], list[int]], protect: Sequence[str] = ()
) -> Iterator[Item]:
    """The items of XML. Errors: UsageError for what is not well-formed."""
    try:
        etree.fromstring(
            text.encode(),
            etree.XMLParser(
                resolve_entities=False, no_network=True, load_dtd=False, encoding="utf-8"
            ),
        )
    except etree.XMLSyntaxError as error:
        raise UsageError(
            f"line {error.lineno} of the XML is not well-formed ({cut(str(error.msg))}): "
            "correct it, or use html"
        ) from None
    return of_markup(text, ends, protect, xml=True)
