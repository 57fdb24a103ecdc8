"""Markdown as segments: paragraphs, headings, items, cells of tables, and the HTML between them;
emphasis and links are marks, code is kept.

tree-sitter-markdown finds the blocks and what is inline, with its places; the text is cut there.
Its inline parser takes time by the square of a text, so it gets bounded pieces.
"""

from __future__ import annotations

import html
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice, pairwise
from typing import TYPE_CHECKING

import regex

from fairseq_ext.core.errors import UsageError
from fairseq_ext.text import markup
from fairseq_ext.text.atoms import LETTER, Escape, Part, Untranslated
from fairseq_ext.text.markdown_inline import Inline, places, titles
from fairseq_ext.text.markup import Span
from fairseq_ext.text.reading import text_atoms, with_signs
from fairseq_ext.text.stopping import checked

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

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
NO_TEXT, UNCUT = "no text", "uncut"
UNREAD = f"a sentence has more than {MOST} signs of Markdown or {LONGEST:,} characters: divide it"
Piece = tuple[int, int, str]  # start, end; NO_TEXT: kept; UNCUT: too much for the inline parser
ADDRESS = regex.compile(r"(?<=\]\(|<)[^\s<>]{200,}")  # a picture may be its own address
SIGN = regex.compile(r"([*_~`$])\1*+|([\[\]<>])")
PLACE = regex.compile(r"\\.|(?P<end>[.!?…][\"'“”»)*_]*\s+|[。！？])|[*_~`$\[\]<>]+")
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
        for a, b, way in pieces(self.text, start, end, inside):
            has_titles = (
                self.attributes
                and way != UNCUT
                and HAS_TITLES.search(self.text, a, b)
                and is_short(self.text, a, b)
            )
            if not has_titles and (way or self.attributes or self.text[a:b].isspace()):
                is_left = way == UNCUT and not self.attributes and LETTER.search(self.text, a, b)
                yield Untranslated(self.text[a:b], UNREAD) if is_left else self.text[a:b]
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


def pieces(text: str, start: int, end: int, inside: Sequence[Span]) -> Iterator[Piece]:
    """Yield a block cut at the lines that are kept, and where it is long for the inline parser."""
    at = start
    for first, last in texts_in(text, start, end, inside):
        if at < first:
            yield at, first, NO_TEXT
        yield from bounded(text, first, last)
        at = last
    if at < end:
        yield at, end, NO_TEXT


def texts_in(text: str, start: int, end: int, inside: Sequence[Span]) -> Iterator[Span]:
    """Yield the texts of a block: cells of tables, what stands behind leads, and what is between
    lines that are kept."""
    begins = dict(inside)
    table = HEADING.search(text, start, end)
    at = first = start
    while at < end:
        line_end = text.find("\n", at, end) + 1 or end
        body = begins.get(at, at)
        line = text[body:line_end]
        kept = KEPT_LINE.fullmatch(line.rstrip("\r\n")) is not None
        is_bounded = line.strip()[:1] == line.strip()[-1:] == "|" and line.count("|") > 2
        lead = None if kept else LEAD.match(line)
        if not kept and (is_bounded or (table and at >= table.start() and "|" in line)):
            yield first, at
            first = body
            for cell in CELL.finditer(text, body, body + len(line.rstrip())):
                first = cell.end()
                if text[cell.start()] != "|":
                    yield cell.span()
        elif kept or lead:
            yield first, at
            first = line_end if lead is None else body + lead.end()
            if lead and line.lstrip()[0] in ":!?=*" and line_end > first:  # a title
                end_quote = text.rfind('"', first + 1, line_end) if text[first] == '"' else -1
                yield (first + 1, end_quote) if end_quote > 0 else (first, line_end)
                first = line_end
        at = line_end
    yield first, end


def bounded(text: str, start: int, end: int) -> Iterator[Piece]:
    """Yield a text in pieces that the inline parser reads in little time: whole lines, else up to
    the end of a sentence where no sign is open; what has no such place is kept."""
    line_end, free = start, list[int]()
    while start < end:
        if end - start <= LONGEST and is_short(text, start, end):
            yield start, end, ""
            return
        signs = islice(SYNTAX.finditer(text, start, min(end, start + LONGEST)), MOST, None)
        last = next((sign.start() for sign in signs), min(end, start + LONGEST))
        cut = text.rfind("\n", start, last) + 1
        if cut <= start:
            if start >= line_end:
                line_end = text.find("\n", start, end) + 1 or end
                free = [*sentence_ends(text, start, line_end)]
            at = bisect_right(free, last)
            cut = free[at - 1] if at else 0
            if cut <= start:
                cut = free[at] if at < len(free) else line_end
        yield start, cut, "" if is_short(text, start, cut) else UNCUT
        start = cut


def sentence_ends(text: str, start: int, end: int) -> Iterator[int]:
    """Yield the ends of sentences where no sign of Markdown is open that has a partner."""
    is_open, depth = set[str](), 0
    for match in PLACE.finditer(text, start, end):
        for run, bracket in SIGN.findall(match[0] if match[0][0] != "\\" else ""):
            is_open ^= {run} - {""}
            depth = max(0, depth + (bracket in ("[", "<")) - (bracket in ("]", ">")))
        if match["end"] and not depth and not is_open:
            yield match.end()


def is_short(text: str, start: int, end: int) -> bool:
    """Return whether the inline parser reads a piece in little time."""
    size = end - start
    if size > LONGEST:
        size -= sum(map(len, ADDRESS.findall(text, start, end)))
    return size <= LONGEST and len(SYNTAX.findall(text, start, end)) <= MOST


# text in double quotes of YAML and TOML, and in single quotes of YAML
double_quoted = with_signs({"\\": "\\\\", '"': '\\"'})
single_quoted = with_signs({"'": "''"})


def yaml_text(text: str) -> str:
    """Return text without quotes in YAML, where a colon parts keys and values, and a quotation mark
    may begin a value of another kind."""
    return {":": " –", '"': "”", "'": "’", "#": "no."}.get(text, text)
