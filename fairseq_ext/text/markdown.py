"""Markdown as segments: paragraphs, headings, items and cells of tables; emphasis and links
are marks, code is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import regex

from fairseq_ext.text.markup import BLOCK, of_atoms
from fairseq_ext.text.placeholders import find
from fairseq_ext.text.segments import CLOSE, OPEN, PLACEHOLDER, TEXT, Atom, Item

FENCE = regex.compile(r" {0,3}(`{3,}|~{3,})")
# of headings, quotations and items
LEAD = regex.compile(r"(?:\s*(?:#{1,6}|>|[-*+]|\d{1,9}[.)]|\[[ xX]\])(?=\s))*\s*")
BREAKS = regex.compile(
    r"\s*$| {4}|\t|\s*(?:[-*_=]\s*){3,}$|\s*\[[^\]]+\]:\s|\s*</?[a-zA-Z!?]|"
    r"\s*\|?(?:\s*:?-+:?\s*\|)+"
)  # lines that are kept
URL = r"\](?:\([^)\n]*\)|\[[^\]\n]*\])"  # the end of a link
CODE = r"(`+)(?!`).*?(?<!`)\1(?!`)|</?[a-zA-Z][^<>]*>|\[\^[^\]]+\]|!\[[^\]]*\]\([^)]*\)"
MARK = regex.compile(r"\*\*|__|~~|(?<!\w)_(?=\S)|(?<=\S)_(?!\w)|\*|\[|\|")


def of_markdown(
    text: str, ends: Callable[[str], list[int]], protect: Sequence[str] = ()
) -> Iterator[Item]:
    """The items of Markdown. ends, protect: as of `of_text`."""
    fence, paragraph = "", list[str]()
    front = text.startswith("---\n")

    def flush() -> Iterator[Item]:
        yield from of_atoms(inline("".join(paragraph), protect), ends, str)
        paragraph.clear()

    for number, line in enumerate(text.splitlines(keepends=True)):
        mark = FENCE.match(line)
        is_front = front and line.strip() in ("---", "...") and number > 0
        if fence or front or mark:
            yield from flush()
            yield line
            fence = (
                ("" if mark and fence and mark[1].startswith(fence) else fence)
                if fence
                else mark[1]
                if mark and not front
                else ""
            )
            front = front and not is_front
            continue
        lead = LEAD.match(line)[0]  # type: ignore[index]
        is_kept = BREAKS.match(line) is not None and not (
            paragraph and line[:1] in " \t" and line.strip()
        )
        if is_kept or lead.strip():
            yield from flush()
        if is_kept:
            yield line
            continue
        if lead:
            yield from flush() if lead.strip() else ()
            paragraph.append(lead) if paragraph else (yield lead)
        paragraph.append(line[len(lead) :])
        if lead.lstrip().startswith("#") or line.endswith(("  \n", "\\\n")):
            yield from flush()
    yield from flush()


def inline(text: str, protect: Sequence[str]) -> Iterator[Atom]:
    """The atoms of a paragraph."""
    at = 0
    for start, end in [*find(text, [*protect, URL, CODE]), (len(text), len(text))]:
        is_link = text.startswith(("](", "]["), start)
        yield from emphasis(text[at:start], is_link)
        yield Atom(CLOSE if is_link else PLACEHOLDER, text[start:end], name="link" * is_link)
        at = end


def emphasis(text: str, is_link: bool) -> Iterator[Atom]:
    """The atoms of text without code; a mark opens where a word follows, and closes elsewhere.

    is_link: the text ends as a link's.
    """
    at, start = 0, text.rfind("[") if is_link else -1
    for mark in MARK.finditer(text):
        yield Atom(TEXT, text[at : mark.start()], text[at : mark.start()])
        opens = (
            text[mark.end() : mark.end() + 1].strip() != ""
            and not text[: mark.start()][-1:].isalnum()
        )
        if mark[0] == "|":
            yield Atom(BLOCK, "|")
        elif mark[0] != "[":
            yield Atom(OPEN if opens else CLOSE, mark[0], name=mark[0])
        else:
            yield Atom(OPEN, "[", name="link") if mark.start() == start else Atom(TEXT, "[", "[")
        at = mark.end()
    yield Atom(TEXT, text[at:], text[at:])
