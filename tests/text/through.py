"""Translators for the tests of files: what comes back equal, in capitals, or marked."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from fairseq_ext.core.words import UNITS
from fairseq_ext.text.atoms import Segment
from fairseq_ext.text.files import TranslateText, translate
from fairseq_ext.text.formats import passes
from fairseq_ext.text.marks import Projection
from fairseq_ext.text.splitter import splitter

CAPITALS = str.maketrans(
    {chr(i): chr(i - 32) for i in range(ord("a"), ord("z") + 1)}
    | dict(zip("äöü", "ÄÖÜ", strict=True))
)
OPENS, CLOSES = "⟦", "⟧"


def capitals(text: str) -> str:
    """The text in capitals, of the same length."""
    return text.translate(CAPITALS)


def marked(text: str) -> str:
    """The text between two marks."""
    return f"{OPENS}{text}{CLOSES}"


def through(
    change: Callable[[str], str] = str,
    seen: list[str] | None = None,
    known: bool = True,
    language: str = "de",
) -> TranslateText:
    """A translation by a function of each sentence.

    seen: gets the sentences; known: whether it is known which word has become which.
    """

    def run(text: str, format: str) -> Iterator[str]:
        for items in passes(format, splitter(language)):
            out = []
            for item in items(text):
                if isinstance(item, Segment):
                    if seen is not None:
                        seen.append(item.plain)
                    words = [word.span() for word in UNITS.finditer(item.plain)]
                    offset = change("").find(CLOSES) if change("") else 0
                    pairs = [((a, b), (a + offset, b + offset)) for a, b in words]
                    made = Projection(item, change(item.plain), pairs if known else None)
                    out.append(made.rendered())
                else:
                    out.append(item)
            text = "".join(out)
        yield text

    return run


def done(folder: Path, name: str, content: bytes, way: TranslateText) -> bytes:
    """A file's translation."""
    (folder / name).write_bytes(content)
    translate(str(folder / name), str(folder / f"out-{name}"), way)
    return (folder / f"out-{name}").read_bytes()


def without_marks(text: str) -> str:
    """The text without the marks of `marked`."""
    return re.sub(f"[{OPENS}{CLOSES}]", "", text)
