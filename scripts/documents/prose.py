"""What the pages are held to besides their blocks and generated parts.

Links: those that lead into the project, to files that are there, and to headings that the page has.
Columns: prose and code of at most 100. Tables, outputs, headings, generated parts and what has no
space to break at (links) may be wider.
Numbers: how many a reader meets before a page's first table; a page without one, on all of it.
Code, links, comments, headings (a table's caption) and the marks of a list do not count. Also the
figures that sentences of a results page repeat, which go stale when their table changes.
"""

from __future__ import annotations

import re
from pathlib import Path

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"")
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as code hosts make them."""
    found: set[str] = set()
    for heading in re.findall(
        r"^#+ +(.+?) *$",
        CODE.sub(lambda m: m[0] if "\n" not in m[0] else "", text),
        flags=re.MULTILINE,
    ):
        plain = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        number = 0
        while (name := plain if not number else f"{plain}-{number}") in found:
            number += 1
        found.add(name)
    return found


def broken(page: Path, root: Path) -> list[str]:
    """Return a sentence for each link of the page that leads nowhere.

    Addresses on the web are not fetched.
    """
    wrong, text = [], page.read_text()
    for match in LINK.finditer(CODE.sub("", text)):
        target = match[1] or match[2]
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or not file.is_relative_to(root):
            wrong.append(f"{page.name}: the link {target} leads nowhere")
        elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text()):
            wrong.append(
                f"{page.name}: the link {target} names a heading that {file.name} does not have"
            )
    return wrong


# ---- columns

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


# ---- numbers

BEFORE, WITHOUT = 2, 12  # numbers before the first table; of a page without a table
NOT_READ = re.compile(
    r"<!--.*?-->|^ *```.*?^ *```|`[^`]*`|!?\[[^\]]*\]\([^)]*\)|^#.*?$|^ *\d+\. ",
    re.MULTILINE | re.DOTALL,
)
NUMBER = re.compile(r"(?<![\w.])(?<!\w-)\d+(?:[.,]\d+)*(?!\w)")
FIGURE = re.compile(r"\d+\.\d+|\d+x\b|\d+ (?:BLEU|ms|µs|nats|%)")
ROW, RATIO = re.compile(r"^\|.*$", re.MULTILINE), re.compile(r"\d+(?:\.\d+)?x\b")


def early(text: str) -> list[str]:
    """Return the numbers before the first table of a page if they are too many, else none."""
    text = NOT_READ.sub(" ", text)
    table = re.search(r"^\|", text, flags=re.MULTILINE)
    numbers: list[str] = NUMBER.findall(text[: table.start()] if table else text)
    return numbers if len(numbers) > (BEFORE if table else WITHOUT) else []


def measured(text: str) -> list[str]:
    """Return the figures that a results page's own sentences repeat; a paper's stay with it, and
    goals and the level of intervals are not measured."""
    text = re.sub(r"<!-- generated:.*?<!-- end -->", "\n", text, flags=re.DOTALL)
    text = re.sub(r"^## From the paper.*?(?=^## |\Z)", "\n", text, flags=re.MULTILINE | re.DOTALL)
    text = NOT_READ.sub(" ", text).replace("95 %", " ")
    ratios = [each for row in ROW.findall(text) for each in RATIO.findall(row)]
    sentences = re.split(r"(?<=[.:;])\s", ROW.sub(" ", text))
    return ratios + FIGURE.findall(" ".join(each for each in sentences if "goal" not in each))
