"""Files by their endings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tqdm import tqdm

from fairseq_ext.errors import UsageError
from fairseq_ext.files import replacing
from fairseq_ext.text.formats import passes
from fairseq_ext.text.in_lines import translated
from fairseq_ext.text.segments import Item
from fairseq_ext.text.splitter import splitter
from fairseq_ext.translator import Translator


def translate(source: str, target: str, load: Callable[[], Translator], protect: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Translate a file; return what stays as it was, with the reason. load: gives the translator, once the file has been read.

    Errors: UsageError for a file that cannot be read, and for one that is not what its ending says.
    """
    try:
        with open(source, encoding="utf-8", newline="") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {source} ({error}): name a file of text in UTF-8") from None
    translator, left = load(), list[tuple[str, str]]()
    items = passes("text", splitter(getattr(translator.task.flags(), "source_lang", None)), protect)[0](text)
    with replacing(target) as out, tqdm(total=len(text), unit=" characters", unit_scale=True, dynamic_ncols=True) as bar:
        for part in translated(counted_by(bar, items), translator.of_segments, left):
            out.write(part.encode("utf-8", "surrogatepass"))
    return left


def counted_by(bar: tqdm, items: Iterator[Item]) -> Iterator[Item]:
    """The items; a bar shows how much of them has been taken."""
    for item in items:
        yield item
        bar.update(len(item if isinstance(item, str) else item.source))
