"""The width of the pages: prose and code of at most 100 columns.

Tables, outputs, headings, generated parts and what has no space to break at (links) may be wider.
"""

from __future__ import annotations

import re
from pathlib import Path

WIDTH = 100
FENCE = re.compile(r"^ *```(\w*)")
ITEM = re.compile(r"^( *)([-*] |\d+\. |> )")
SKIPPED = re.compile(r"^(#|\||<| *<!--|!\[)")  # a heading, a table, HTML, a picture
WORD = re.compile(r"(?:`[^`]*`|[^\s`])+")  # code is one word
MARK = re.compile(r"([-+*=]+|#+|1[.)])$|[>|]")  # would begin another block in front of a line


def wrapped(lines: list[str]) -> list[str]:
    """Return a paragraph or list item in lines of at most WIDTH columns."""
    item = ITEM.match(lines[0])
    first = item[0] if item else re.match(r" *", lines[0])[0]  # type: ignore[index]
    rest = " " * len(first)
    ends = "  " if lines[-1].endswith("  ") else ""
    made, line = [], first
    text = " ".join([lines[0][len(first) :], *(line.strip() for line in lines[1:])])
    for word in WORD.findall(text):
        if line.strip() and line not in (first, rest):
            if len(line) + 1 + len(word) > WIDTH and not MARK.match(word):
                made.append(line)
                line = rest + word
            else:
                line += f" {word}"
        else:
            line += word
    return [*made, line + ends]


def narrow(text: str) -> str:
    """Return a page whose paragraphs with a line above WIDTH are wrapped again."""
    made: list[str] = []
    paragraph: list[str] = []
    code = generated = False

    def close() -> None:
        if any(len(line) > WIDTH for line in paragraph) and "  " not in (
            line[-2:] for line in paragraph[:-1]
        ):
            made.extend(wrapped(paragraph))
        else:
            made.extend(paragraph)
        paragraph.clear()

    for line in text.split("\n"):
        fence = FENCE.match(line)
        generated = (generated or line.startswith("<!-- generated")) and line != "<!-- end -->"
        if code or fence or generated or not line.strip() or SKIPPED.match(line):
            close()
            made.append(line)
            code ^= bool(fence)
        else:
            if ITEM.match(line):
                close()
            paragraph.append(line)
    close()
    return "\n".join(made)


def wide(page: Path) -> list[str]:
    """Return a sentence for each wide paragraph and each wide line of code of a page."""
    text, language, wrong = page.read_text(), None, []
    if narrow(text) != text:
        wrong.append(
            f"{page.name}: a paragraph is wider than {WIDTH} columns; "
            "run python scripts/docs.py --quick --write"
        )
    for number, line in enumerate(text.split("\n"), 1):
        if fence := FENCE.match(line):
            language = None if language is not None else fence[1]
        elif language not in (None, "text", "json") and len(line) > WIDTH:
            wrong.append(f"{page.name}:{number}: code is wider than {WIDTH} columns")
    return wrong
