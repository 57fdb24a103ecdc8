"""Files by their endings, each as one text or several; all else in them stays byte for byte.

| ending | what is translated |
| --- | --- |
| txt md html htm xhtml xml srt vtt | the text |
| docx pptx odt epub | paragraphs of all parts of the archive |
| po | entries without a translation |
| xlf xliff | units without a target |
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from tqdm import tqdm

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.files import atomic_write
from fairseq_ext.text import MAX_UNPACKED
from fairseq_ext.text.archives import PARTS, Report, TranslateText, translate_archive
from fairseq_ext.text.atoms import Item
from fairseq_ext.text.encodings import Encoding, decoded, in_utf8
from fairseq_ext.text.formats import passes
from fairseq_ext.text.splitter import plain_ends

TEXTS = {
    ".txt": "text",
    ".md": "markdown",
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".xml": "xml",
    ".srt": "subtitles",
    ".vtt": "subtitles",
    ".po": "po",
    ".xlf": "xliff",
    ".xliff": "xliff",
}
ENDINGS = frozenset([*TEXTS, *PARTS])


def translate(
    source: str,
    target: str,
    translate_text: TranslateText,
    name: str | None = None,
    max_unpacked: int = MAX_UNPACKED,
    max_paragraphs: int | None = None,
) -> Report:
    """Translate a file. Return a report of its parts that are not translated.

    name: of the source, for messages (default: its path); max_unpacked: bytes to which the text of
    an archive may unpack; max_paragraphs: paragraphs with letters that a part of an office file may
    have (default: no limit). Errors: UsageError for one that cannot be read, and for one that is
    not what its ending says; TooMany; OSError for a target that cannot be written.
    """
    ending, name = Path(source).suffix.lower(), name or source
    if ending not in ENDINGS:
        raise UsageError(f"{name} is none of the files that are read: {', '.join(sorted(ENDINGS))}")
    try:
        with open(source, "rb") as file:
            content = file.read() if ending in TEXTS else b""
    except OSError as error:
        raise UsageError(
            f"cannot read {name} ({error.strerror}): name a file that exists and is readable"
        ) from None
    with atomic_write(target) as out:
        if ending in PARTS:
            return translate_archive(
                source, out, ending, translate_text, name, max_unpacked, max_paragraphs
            )
        format = TEXTS[ending]
        text, encoding = decoded(content, format, name)
        if format == "po":
            catalogue(text, encoding, out, translate_text)
        else:
            out.write(encoding.bom)
            for part in translate_text(text, format):
                out.write(encoding.encode(part))
                out.flush()  # where it is a pipe
    return Report()


def catalogue(text: str, encoding: Encoding, out: IO[bytes], translate_text: TranslateText) -> None:
    """Write a po file, in UTF-8 where its own encoding lacks a character."""
    made = "".join(translate_text(text, "po"))
    try:
        out.write(encoding.bom + encoding.encode(made))
    except UnicodeEncodeError:
        out.write(in_utf8(made).encode())


def beginning(
    source: str,
    most: int,
    name: str | None = None,
    max_unpacked: int = MAX_UNPACKED,
    max_paragraphs: int | None = None,
) -> str:
    """Return the first `most` characters of a file's sentences, without what is between them.

    name, max_unpacked, max_paragraphs, errors: see `translate`.
    """
    found: list[str] = []

    def translate_text(text: str, format: str) -> Iterator[str]:
        size = sum(map(len, found))
        for item in passes(format, plain_ends)[-1](text):
            if not isinstance(item, str):
                found.append(item.plain)
                size += len(item.plain)
                if size >= most:
                    raise Enough
        yield text

    with tempfile.TemporaryDirectory() as folder, suppress(Enough):
        target, limits = Path(folder) / Path(source).name, (max_unpacked, max_paragraphs)
        translate(source, str(target), translate_text, name, *limits)
    return "\n".join(found)[:most]


class Enough(Exception):
    """Ends the reading of a file of which only the beginning is needed."""


def counted(bar: tqdm, items: Iterator[Item]) -> Iterator[Item]:
    """Yield the items; a bar shows how much of them has been taken."""
    for item in items:
        yield item
        bar.update(len(item if isinstance(item, str) else item.source))
