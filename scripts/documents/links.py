"""The links of a Markdown page that lead into the project: to files that are there, and to
headings that the page has."""

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
