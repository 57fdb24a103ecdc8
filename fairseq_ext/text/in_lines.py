"""A text through a function that translates lines, such as `Translator.translate`: its segments in
batches, joined as they stood. An engine joins and halves by the same functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from fairseq_ext.core.errors import UsageError
from fairseq_ext.plugin.loading.settings import TooLong
from fairseq_ext.search.report import Translation
from fairseq_ext.text.atoms import Item, Segment, Untranslated
from fairseq_ext.text.marks import Projection
from fairseq_ext.text.segments import halves, without_stand_ins

Translate = Callable[[Sequence[Segment]], Sequence[Translation | UsageError]]
FIRST, MOST = 32, 500  # segments and what stands between them: the beginning is there soon


@dataclass
class TextTranslation:
    """A translated text. untranslated: segments that stay as they are, each with the reason."""

    text: str
    untranslated: list[tuple[str, str]] = field(default_factory=list)


def translated(
    items: Iterable[Item], translate: Translate, untranslated: list[tuple[str, str]]
) -> Iterator[str]:
    """Yield each item's translation, in order; unchanged parts go to `untranslated`.

    Items are read as they are needed.
    """
    reading, size = iter(items), FIRST
    while part := list(islice(reading, size)):
        size = min(2 * size, MOST)
        answers = iter(translate([item for item in part if isinstance(item, Segment)]))
        for item in part:
            if isinstance(item, str):
                if isinstance(item, Untranslated):
                    untranslated.append((str(item), item.reason))
                yield item
                continue
            found = next(answers)
            if parts := pieces(item, found):
                yield "".join(translated(parts, translate, untranslated))
            else:
                if not isinstance(found, Translation):
                    untranslated.append((item.source, str(found)))
                yield rendered(item, found)[0]


def pieces(item: Segment, found: object) -> list[Item]:
    """Return what is translated again in place of a segment: the parts of one that is too long, or
    one whose translation has lost what stands for a placeholder, without it; else nothing.

    found: its translation, or the error.
    """
    if isinstance(found, Translation):
        return without_stand_ins(item) if item.lacks(found.text) else []
    parts = halves(item) if isinstance(found, TooLong) else []
    return parts if len(parts) > 1 else []


def rendered(item: Item, found: object) -> tuple[str, Projection | None]:
    """Return the translation of an item, and how its characters have moved; one without a
    translation (found) stays as it is."""
    if isinstance(item, str):
        return item, None
    if not isinstance(found, Translation):
        return item.source, None
    projection = Projection(item, found.text, found.words)
    return projection.rendered(), projection
