"""Markdown as segments: paragraphs, headings, items, cells of tables, and the HTML between them;
emphasis and links are marks, code is kept.

tree-sitter-markdown finds the blocks and what is inline, with its places; the text is cut there.
Its inline parser takes time by the square of a text, so it gets bounded pieces.
"""

from __future__ import annotations

import html
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

import regex

from fairseq_ext.core.errors import UsageError
from fairseq_ext.text import markup
from fairseq_ext.text.atoms import Escape, Part
from fairseq_ext.text.markdown_inline import Inline, titles
from fairseq_ext.text.reading import text_atoms, with_signs
from fairseq_ext.text.stopping import checked
from fairseq_ext.text.xml_tokens import places

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

Span = tuple[int, int]
# lines in a paragraph that are kept: notes, includes, definitions of links, formulas, code of MDX
KEPT_LINE = regex.compile(
    r"[ \t]*(?:\[!\w+[^\]\n]*\][-+]?[ \t]*|:{3,}[ \t]*(?:[\w-]+)?(?:[ \t]+\S*[={}\[\]/\"].*)?|"
    r"\[[^\]\n^]+\]:[ \t]*\S+.*|(?:!!!|\?\?\?\+?)[ \t]+[\w ]+|\{%.*%\}|-*8<-+.*|"
    r"import\s.*[\"'][^\"'\s]+[\"'];?|"
    r"export\s+(?:const|let|default|function|class)\b.*[={(;].*)\r?$"
)
# in a row of a table: no pipe in code parts cells, as the parser and some programs think
CELL = regex.compile(
    r"\|[ \t]*|(?:[^\\|`]|\\.?|(?P<ticks>`++).*?(?<!`)(?P=ticks)(?!`)|`++)+?(?=[ \t]*(?:\||$))"
)
# the heading of a table and what is below it
HEADING = regex.compile(r"(?m)(?:^|\G).*\n(?=.*\|)[ \t>|:]*-[ \t|:-]*\r?$")
# the parser fails at tables with empty rows; without these signs they are paragraphs
TABLE_SIGN = regex.compile(rb"(?m)\||^[ \t>]*\K-(?=[ \t]+\|[ \t|:-]*\r?$)")
# in front of the text of a line: of a note, a footnote, a definition
LEAD = regex.compile(
    r"[ \t]*(?:\[\^[^\]\n]+\]:|\[!\w+\][-+]?|:{3,}[ \t]*[\w-]+(?=[ \t\[])|:(?=[ \t])|"
    r"(?:!!!|\?\?\?\+?|===[+!]?)[ \t]+[\w ]*(?=\")|\[[ xX]\](?=[ \t])|\*\[[^\]\n]+\]:)[ \t]*"
)
# what begins a note, a tab, a footnote or a definition: what is indented by four belongs to it. The
# parser does not know these, and reads items of a list in their place
NOTE = regex.compile(
    rb"(?m)^[ \t]*\K(?:(?:!!!|\?\?\?\+?)[ \t]+(?=\w)|===[+!]?[ \t]+(?=\")|"
    rb"\[\^[^\]\s]+\]:[ \t]*(?=\S)|:(?=[ \t]{1,3}\S))"
)
NOTE_HEAD = regex.compile(r"(?m)^[ \t]*\K(?:!!!|\?\?\?|===|\[\^)[^\n]*")
FRONT_END = regex.compile(rb"\A---[ \t]*\r?\n(?:(?:[\w.-]+:|[ \t#-])[^\n]*\n)*?(\.\.\.)[ \t]*\r?\n")
TITLED = regex.compile(r"^(?:title|description|summary|subtitle|abstract|sidebar_label)$")
YAML = regex.compile(
    r"(?P<key>[\w.-]+)(?P<mid>[ \t]*[:=][ \t]*)(?P<value>\S.*?)?(?P<end>[ \t]*\r?\n?)"
)
HAS_TITLES = regex.compile(r"!\[|alt-text|<\w|\](?:\(|:\s*)\S{1,300}\s+[\"'(]")
HASHES = regex.compile(r"[ \t]+#+[ \t]*$")  # at the end of a heading
SYNTAX = regex.compile(r"[*_~\[\]!<`$\\]")
MOST = 200  # such characters in a piece of the inline parser, and 6,000 characters
LONGEST = 6000
DEEPEST = 60  # levels of quotes and lists that are read


@cache
def parsers() -> tuple[Parser, Parser]:
    """Return the parsers of blocks and of what is inline (raises UsageError)."""
    try:
        import tree_sitter_markdown
        from tree_sitter import Language, Parser
    except ImportError:
        raise UsageError(
            "Markdown is read by tree-sitter-markdown, which is not installed: pip install "
            "'fairseq_ext[text]'"
        ) from None
    return (
        Parser(Language(tree_sitter_markdown.language())),
        Parser(Language(tree_sitter_markdown.inline_language())),
    )


class Document:
    """A Markdown text cut into its blocks. attributes: of the titles of links and the texts of
    pictures alone; labels: of the links that are defined at its end."""

    def __init__(
        self,
        text: str,
        protect: Sequence[str],
        attributes: bool = False,
    ):
        self.text, self.protect, self.attributes = text, protect, attributes
        self.content = NOTE.sub(
            lambda note: b"-   ".ljust(len(note[0]), b"x")[: len(note[0])],
            TABLE_SIGN.sub(b",", text.encode()),
        )
        if (front := FRONT_END.match(self.content)) and b"\n---" not in front[0]:
            at = front.start(1)  # the parser knows one end of front matter
            self.content = self.content[:at] + b"---" + self.content[at + 3 :]
        self.labels = {
            each.strip().casefold()
            for each in regex.findall(r"(?m)^[ >\t]*\[([^\]\n^]+)\]:[ \t]*\S", text)
        }
        self.blocks: list[tuple[str, Span, list[Span]]] = []  # kind, place, continuations in it
        self.read(parsers()[0].parse(self.content).root_node)

    def read(self, root: Node) -> None:
        """Find the blocks that hold text."""
        found: list[tuple[str, Node, list[Node]]] = []
        nodes = [root]
        for node in checked(nodes):
            kind = node.type
            if kind in (
                "inline",
                "html_block",
                "minus_metadata",
                "plus_metadata",
            ):
                found.append((kind, node, continuations(node)))
            elif kind == "link_title":
                before = node.prev_sibling
                if before is None or before.text not in (b"#", b"<>"):  # else it is a comment
                    found.append((kind, node, []))
            elif kind not in ("fenced_code_block", "indented_code_block"):
                nodes += node.children
        found.sort(key=lambda each: each[1].start_byte)
        flat = [
            place
            for _, node, inside in found
            for each in (node, *inside)
            for place in (each.start_byte, each.end_byte)
        ]
        at = iter(places(self.content, flat))
        for kind, node, inside in checked(found):
            span = next(at), next(at)
            if node.parent is not None and node.parent.type == "atx_heading":
                closing = HASHES.search(self.text, *span)
                span = span[0], closing.start() if closing else span[1]
            line = self.text.rfind("\n", 0, span[0]) + 1
            if kind == "inline" and (note := NOTE_HEAD.fullmatch(self.text, line, span[0])):
                span = note.start(), span[1]
            self.blocks.append((kind, span, [(next(at), next(at)) for _ in inside]))

    def parts(self) -> Iterator[Part]:
        """Yield the parts."""
        at = 0
        for kind, (start, end), inside in checked(self.blocks):
            if start < at:
                continue
            yield self.text[at:start]
            at, block = end, self.text[start:end]
            if kind == "html_block":
                yield from self.html(start, end, inside)
            elif kind == "inline":
                yield from self.inline(start, end, inside)
            elif (kind == "link_title") != self.attributes:
                yield block
            elif kind == "link_title":
                yield from self.quoted(block[:1], block[1:-1], block[-1:], html.escape)
            else:
                yield from self.front_matter(block)
        yield self.text[at:]

    def html(self, start: int, end: int, inside: Sequence[Span]) -> Iterator[Part]:
        """Yield the parts of HTML; what continues a quote or an item in it is kept."""
        read = markup.of_attributes if self.attributes else markup.of_markup
        bounds = [start, *(place for span in inside for place in span), end]
        for number, (a, b) in enumerate(pairwise(bounds)):
            part = self.text[a:b]
            yield from [part] if number % 2 else read(part, self.protect)

    def inline(self, start: int, end: int, inside: Sequence[Span]) -> Iterator[Part]:
        """Yield the parts of a paragraph, a heading or a table, which is a paragraph here."""
        for a, b, is_kept in pieces(self.text, start, end, inside):
            has_titles = self.attributes and HAS_TITLES.search(self.text, a, b)
            if not has_titles and (is_kept or self.attributes or self.text[a:b].isspace()):
                yield self.text[a:b]
                continue
            here = inside[bisect_left(inside, (a, a)) : bisect_left(inside, (b, b))]
            spans = [(x - a, y - a) for x, y in here if y <= b]
            found = Inline(self.text[a:b], spans, self.protect, self.labels, parsers()[1])
            if self.attributes:
                yield from titles(found)
            elif found.is_syntax():
                yield found.text
            else:
                yield found.escape()
                yield from found.atoms

    def front_matter(self, text: str) -> Iterator[Part]:
        """Yield the parts of front matter (YAML, TOML): the values of titles and descriptions."""
        block: int | None = None  # of a text over several lines, how far its key is indented
        for line in regex.findall(r"[^\n]*\n|[^\n]+", text):
            indent = len(line) - len(line.lstrip(" "))
            if block is not None and (indent > block or not line.strip()):
                yield from self.quoted(line[:indent], line[indent:], "", yaml_text)
                continue
            block = None
            found = YAML.fullmatch(line, indent)
            if found is None or not TITLED.match(found["key"]) or not found["value"]:
                yield line
                continue
            value, start = found["value"], found.start("value")
            quote = value[0] if value[0] in "\"'" else ""
            if value[0] in "|>" and len(value) <= 2:
                block = indent
                yield line
            elif value[0] in "[{&*!" or (quote and (len(value) < 2 or not value.endswith(quote))):
                yield line
            else:
                escape = {'"': double_quoted, "'": single_quoted, "": yaml_text}[quote]
                inner = value[len(quote) : len(value) - len(quote)]
                behind = quote + line[found.end("value") :]
                yield from self.quoted(line[:start] + quote, inner, behind, escape)

    def quoted(self, before: str, text: str, behind: str, escape: Escape) -> Iterator[Part]:
        """Yield the parts of a text without markup, and of what stands before and behind it."""
        yield before
        yield escape
        yield from text_atoms(text, self.protect)
        yield behind


def continuations(node: Node) -> list[Node]:
    """Return what continues the quotes and items around a block, in its lines."""
    return [
        each
        for each in node.children
        if each.type == "block_continuation" and each.start_byte < each.end_byte
    ]


def of_markdown(text: str, protect: Sequence[str]) -> Iterator[Part]:
    """Return the parts of Markdown."""
    return Document(text, protect).parts()


def of_titles(text: str, protect: Sequence[str]) -> Iterator[Part]:
    """Return the parts of Markdown whose only text is in titles of links and texts of pictures."""
    if HAS_TITLES.search(text) is None:
        return iter([text])
    return Document(text, protect, True).parts()


def pieces(
    text: str, start: int, end: int, inside: Sequence[Span]
) -> Iterator[tuple[int, int, bool]]:
    """Yield a block cut at the lines that are kept, and where it is long for the inline parser:
    (start, end, whether it is kept)."""
    begins = {a: b for a, b in inside}
    table = HEADING.search(text, start, end)
    at = first = start
    while at < end:
        line_end = text.find("\n", at, end)
        line_end = end if line_end < 0 else line_end + 1
        body = begins.get(at, at)
        line = text[body:line_end]
        kept = KEPT_LINE.fullmatch(line.rstrip("\r\n")) is not None
        is_bounded = line.strip()[:1] == line.strip()[-1:] == "|" and line.count("|") > 2
        if not kept and (is_bounded or (table and at >= table.start() and "|" in line)):
            yield from bounded(text, first, at)
            yield at, body, True
            first = body
            for cell in CELL.finditer(text, body, body + len(line.rstrip())):
                first = cell.end()
                yield cell.start(), first, text[cell.start()] == "|"
            at = line_end
            continue
        lead = None if kept else LEAD.match(line)
        if kept or lead:
            yield from bounded(text, first, at)
            first = line_end if kept else body + lead.end()  # type: ignore[union-attr]
            yield at, first, True
            if lead and line.lstrip()[0] in ":!?=*" and line_end > first:  # a title
                end_quote = text.rfind('"', first + 1, line_end) if text[first] == '"' else -1
                if end_quote > 0:
                    yield first, first + 1, True
                    yield from bounded(text, first + 1, end_quote)
                    yield end_quote, line_end, True
                else:
                    yield from bounded(text, first, line_end)
                first = line_end
        at = line_end
    yield from bounded(text, first, end)


def bounded(text: str, start: int, end: int) -> Iterator[tuple[int, int, bool]]:
    """Yield a text in pieces that the inline parser reads in little time: whole lines, else up to
    the end of a sentence with all of its links; one that has no such place is kept."""
    while start < end:
        if end - start <= LONGEST and len(SYNTAX.findall(text, start, end)) <= MOST:
            yield start, end, False
            return
        last = start
        for count, match in enumerate(SYNTAX.finditer(text, start, min(end, start + LONGEST))):
            last = match.start()
            if count == MOST:
                break
        else:
            last = min(end, start + LONGEST)
        cut = text.rfind("\n", start, last) + 1
        if cut <= start:
            cut = next(
                (
                    match.end()
                    for match in regex.finditer(r"(?r)[.!?]\s+", text, pos=start, endpos=last)
                    if is_even(text[start : match.end()])
                ),
                0,
            )
        if cut <= start:
            cut = text.find("\n", last, end) + 1 or end
            yield start, cut, True
        else:
            yield start, cut, False
        start = cut


def is_even(text: str) -> bool:
    """Return whether all that is opened is closed, as far as counting says."""
    return (
        text.count("`") % 2 == text.count("*") % 2 == 0
        and text.count("[") == text.count("]")
        and text.count("(") == text.count(")")
    )


# text in double quotes of YAML and TOML, and in single quotes of YAML
double_quoted = with_signs({"\\": "\\\\", '"': '\\"'})
single_quoted = with_signs({"'": "''"})


def yaml_text(text: str) -> str:
    """Return text without quotes in YAML, where a colon parts keys and values, and a quotation mark
    may begin a value of another kind."""
    return {":": " –", '"': "”", "'": "’", "#": "no."}.get(text, text)
