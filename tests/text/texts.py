"""Texts of the formats that are cut and spliced (samples.jsonl), with what people and attackers
write in them, and translators for the tests of files: what comes back equal, in capitals, or
marked."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from fairseq_ext.core.words import UNITS
from fairseq_ext.text.atoms import Segment
from fairseq_ext.text.files import TranslateText, translate
from fairseq_ext.text.formats import passes
from fairseq_ext.text.marks import Projection
from fairseq_ext.text.splitter import splitter

# (ending of the file, text)
SAMPLES = [
    tuple(json.loads(line))
    for line in Path(__file__).with_name("samples.jsonl").read_text("utf-8").split("\n")[:-1]
]


def xliff(units: list[str], version: str = "1.2", target: str = "") -> str:
    """A file of these units. target: as it stands in each."""
    space = f"urn:oasis:names:tc:xliff:document:{version}"
    if version == "1.2":
        made = "\n".join(
            f'<trans-unit id="{i}"><source>{unit}</source>{target}<note>n</note></trans-unit>'
            for i, unit in enumerate(units)
        )
        inside = f'<file original="x" source-language="de"><body>\n{made}\n</body></file>'
    else:
        made = "\n".join(
            f'<unit id="u{i}"><segment><source>{unit}</source>{target}</segment></unit>'
            for i, unit in enumerate(units)
        )
        inside = f'<file id="f">{made}</file>'
    return f'<?xml version="1.0"?>\n<xliff version="{version}" xmlns="{space}">{inside}</xliff>\n'


SIGNS = str.maketrans({"↵": "\n", "⇥": "\t", "␣": "\u00a0", "␍": "\r", "▏": None})


def signs(text: str) -> str:
    """A cell or a line of a table with what stands for signs: ↵ and ␍ for the ends of lines, ⇥ ␣
    for a tab and a no-break space; ▏ for nothing, next to spaces at its ends."""
    return text.translate(SIGNS)


def rows(name: str, columns: int = 0) -> list[list[str]]:
    """The rows of a table next to this file, in whose cells signs are written; columns: that each
    row gets, be they empty."""
    lines = (Path(__file__).parent / name).read_text("utf-8").split("\n")[:-1]
    found = [[*map(signs, line.split("\t"))] for line in lines]
    return [row + [""] * (columns - len(row)) for row in found]


# of each version of XLIFF, units
XLIFF_UNITS = {v: [unit for key, unit in rows("units.tsv") if key == v] for v in ("1.2", "2.0")}
PO = Path(__file__).with_name("sample.po").read_text("utf-8")
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
