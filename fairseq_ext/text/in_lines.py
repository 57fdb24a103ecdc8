"""A text through a function that translates lines, such as `Translator.translate`: its segments in
batches, joined as they stood."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from fairseq_ext.core.errors import UsageError
from fairseq_ext.plugin.calls import Translation
from fairseq_ext.plugin.loading.settings import TooLong
from fairseq_ext.text.atoms import Item, Segment
from fairseq_ext.text.marks import Projection
from fairseq_ext.text.segments import halves

Translate = Callable[[Sequence[Segment]], Sequence[Translation | UsageError]]
FIRST, TOGETHER = 32, 500  # segments and what stands between them: the beginning is there soon


@dataclass
class TextTranslation:
    """A translated text. left: segments that stay as they are, each with the reason."""

    text: str
    left: list[tuple[str, str]] = field(default_factory=list)


def translated(
    items: Iterable[Item], translate: Translate, left: list[tuple[str, str]]
) -> Iterator[str]:
    """Each item's translation, in order; what stays as it is goes to `left`.

    Items are read as they are needed.
    """
    reading, size = iter(items), FIRST
    while part := list(islice(reading, size)):
        size = min(2 * size, TOGETHER)
        answers = iter(translate([item for item in part if isinstance(item, Segment)]))
        for item in part:
            if isinstance(item, str):
                yield item
                continue
            found = next(answers)
            if isinstance(found, Translation):
                yield Projection(item, found.text, found.words).rendered()
            elif isinstance(found, TooLong) and len(parts := halves(item)) > 1:
                yield "".join(translated(parts, translate, left))
            else:
                left.append((item.source, str(found)))
                yield item.source
