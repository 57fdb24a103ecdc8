"""How many numbers a reader meets before a page's first table; a page without one, on all of it.

Code, links, comments, headings (a table's caption) and the marks of a list do not count. Also the
figures that sentences of a results page repeat, which go stale when their table changes.
"""

from __future__ import annotations

import re

BEFORE, WITHOUT = 2, 12  # numbers before the first table; of a page without a table
SKIPPED = re.compile(
    r"<!--.*?-->|^ *```.*?^ *```|`[^`]*`|!?\[[^\]]*\]\([^)]*\)|^#.*?$|^ *\d+\. ",
    re.MULTILINE | re.DOTALL,
)
NUMBER = re.compile(r"(?<![\w.])(?<!\w-)\d+(?:[.,]\d+)*(?!\w)")
FIGURE = re.compile(r"\d+\.\d+|\d+x\b|\d+ (?:BLEU|ms|µs|nats|%)")
ROW, RATIO = re.compile(r"^\|.*$", re.MULTILINE), re.compile(r"\d+(?:\.\d+)?x\b")


def early(text: str) -> list[str]:
    """Return the numbers before the first table of a page if they are too many, else none."""
    text = SKIPPED.sub(" ", text)
    table = re.search(r"^\|", text, flags=re.MULTILINE)
    numbers: list[str] = NUMBER.findall(text[: table.start()] if table else text)
    return numbers if len(numbers) > (BEFORE if table else WITHOUT) else []


def measured(text: str) -> list[str]:
    """Return the figures that a results page's own sentences repeat; a paper's stay with it, and
    goals and the level of intervals are not measured."""
    text = re.sub(r"<!-- generated:.*?<!-- end -->", "\n", text, flags=re.DOTALL)
    text = re.sub(r"^## From the paper.*?(?=^## |\Z)", "\n", text, flags=re.MULTILINE | re.DOTALL)
    text = SKIPPED.sub(" ", text).replace("95 %", " ")
    ratios = [each for row in ROW.findall(text) for each in RATIO.findall(row)]
    sentences = re.split(r"(?<=[.:;])\s", ROW.sub(" ", text))
    return ratios + FIGURE.findall(" ".join(each for each in sentences if "goal" not in each))
