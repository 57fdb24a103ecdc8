"""Inline parts of Markdown: emphasis, links, code, tags, and text."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import regex

from fairseq_ext.text import markup
from fairseq_ext.text.atoms import (
    BREAK,
    CLOSING,
    OPENING,
    PLACEHOLDER,
    TEXT,
    Atom,
    Escape,
    Part,
    is_plain,
    raw,
    text_atom,
)
from fairseq_ext.text.markup import VERBATIM, Span, tokens
from fairseq_ext.text.reading import ENTITY_IN_VALUE, KINDS, text_atoms, with_signs

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

# what the parser does not know, or takes where it is none, such as formulas, and what is kept of it
OPAQUE = regex.compile(
    r"\[!(?:INCLUDE|code[\w-]*)\s*\[[^\]\n]*\]\([^)\n]*\)\]|"
    r":::image\b.*?:::|\{%.*?%\}|\{\{.*?\}\}+|"
    r"\[\[[^\]\n]+\]\]|[<{](?P<stars>\*\*?)[^*<>{}\n]+(?P=stars)[>}]|"
    r"(?<!\])\{[#:.][^{}\n]*\}|(?s:\$\$.*?\$\$)|(?<![\w\\$])\$(?=[^\s$])[^$`]*(?<=[^\s\\])\$(?!\w)",
    regex.IGNORECASE,
)
# code, in which the parser reads an end in other backticks: `a``b`
CODE = regex.compile(r"(?<![`\\])(?P<ticks>`+)(?!`)(?P<code>[^\n]+?)(?<!`)(?P=ticks)(?!`)")
URL = regex.compile(rf"(?<!\]\(|\]:\s*|<){KINDS['URL']}")
EMPHASIS = ("emphasis", "strong_emphasis", "strikethrough")
LINKS = ("inline_link", "full_reference_link", "collapsed_reference_link", "shortcut_link")
DELIMITERS = ("emphasis_delimiter",)
PROTECTED = regex.compile(r"(?i)\stranslate\s*=\s*[\"']?no\b|class\s*=[^>]*\bnotranslate\b")
LINK_END = regex.compile(
    r"\]\((?:<[^<>\n]*>|[^\s()<>]*(?:\([^\s()]*\)[^\s()]*)*)(?:\s+(?:\"[^\"]*\"|'[^']*'))?\)|"
    r"\]\{[#:.][^{}\n]*\}"
)
LONE = "lone"  # name of the end of a link whose beginning the parser does not know
PICTURE_TEXT = regex.compile(r"alt-text\s*=\s*\"([^\"]*)\"")


class Inline:
    """A paragraph, or a piece of one. inside: what continues quotes and items in it; labels: of
    links that are defined elsewhere."""

    def __init__(
        self,
        text: str,
        inside: Sequence[Span],
        protect: Sequence[str],
        labels: set[str],
        parser: Parser,
    ):
        self.text, self.protect, self.labels = text, protect, labels
        self.inside = dict(inside)
        code = [match.span() for match in CODE.finditer(text) if "`" in match["code"]]
        self.opaque = apart([*(match.span() for match in OPAQUE.finditer(text)), *code])
        shown = list(text.replace("$", ","))
        for start, end in inside:
            shown[start:end] = " " * (end - start)
        for start, end in self.opaque:
            shown[start:end] = ["x" if each != "\n" else each for each in text[start:end]]
        for match in URL.finditer(text):
            for at in range(*match.span()):
                if text[at] == "]":
                    break
                if text[at] in "_*~":
                    shown[at] = "x"
        content = "".join(shown).encode()
        self.root = parser.parse(content).root_node
        self.nodes = nodes = [self.root]
        for node in nodes:
            nodes += node.children
        flat = places(
            content, [place for each in nodes for place in (each.start_byte, each.end_byte)]
        )
        self.places = {
            (each.start_byte, each.end_byte): (flat[2 * i], flat[2 * i + 1])
            for i, each in enumerate(nodes)
        }

    def span(self, node: Node) -> Span:
        """Return where a node stands in the text."""
        return self.places[node.start_byte, node.end_byte]

    def is_syntax(self) -> bool:
        """Return whether code and brackets outweigh words: a line that shows how something is
        written."""
        code = [self.span(node) for node in self.nodes if node.type == "code_span"]
        code += [(start, end) for start, end in self.opaque if self.text[start] == "`"]
        if len(code) < 3:
            return False
        size = sum(end - start for start, end in code)
        depth = letters = plain = 0  # plain: those that are not emphasised
        for atom in self.atoms:
            depth += (atom.kind == OPENING) - (atom.kind == CLOSING)
            here = sum(map(str.isalpha, atom.text)) if atom.kind == TEXT else 0
            letters, plain = letters + here, plain + (0 if depth else here)
        if not plain:
            return True
        signs = sum(self.text.count(sign) for sign in "[]{}|()")
        return letters < size + signs and (letters < size / 2 or signs >= len(code))

    def escape(self) -> Escape:
        """Return how text is written here: what would be syntax has a backslash, but for the
        characters that stand in the source as text."""
        known = {character for atom in self.atoms if is_plain(atom) for character in atom.raw}
        return with_signs({sign: "\\" + sign for sign in "*_`[]<\\|" if sign not in known})

    @cached_property
    def atoms(self) -> list[Atom]:
        """The atoms."""
        return kept_elements(linked(list(self.of_children(self.root, 0, len(self.text)))))

    def of_children(self, node: Node, start: int, end: int) -> Iterator[Atom]:
        """Yield the atoms of a node's text from start to end."""
        at = start
        for child in node.children:
            first, last = self.span(child)
            if first < at or last > end or not child.is_named or child.type in DELIMITERS:
                continue
            yield from self.of_text(at, first)
            yield from self.of_node(child, first, last)
            at = last
        yield from self.of_text(at, end)

    def of_node(self, node: Node, start: int, end: int) -> Iterator[Atom]:
        """Yield the atoms of a node."""
        kind, whole = node.type, self.text[start:end]
        if kind in EMPHASIS:
            marks = [self.span(each) for each in node.children if each.type in DELIMITERS]
            first = last = 0
            while first < len(marks) and marks[first][0] == start + first:
                first += 1
            while last < len(marks) - first and marks[-1 - last][1] == end - last:
                last += 1
            inner = self.text[start : start + first], self.text[end - last : end]
            yield Atom(OPENING, inner[0], name=kind)
            yield from self.of_children(node, start + first, end - last)
            yield Atom(CLOSING, inner[1], name=kind)
        elif kind in LINKS:
            yield from self.of_link(node, start, end)
        elif kind == "html_tag":
            yield from tag_atoms(whole)
        elif kind == "hard_line_break":
            yield from self.of_break(start, end)
        elif kind == "backslash_escape":
            yield Atom(TEXT, whole, whole[1:])
        elif kind in ("entity_reference", "numeric_character_reference"):
            yield Atom(TEXT, whole, html.unescape(whole))
        else:  # code, pictures, addresses
            yield Atom(PLACEHOLDER, whole)

    def of_break(self, start: int, end: int) -> Iterator[Atom]:
        """Yield the atoms of a hard line break, and of what continues a quote behind it."""
        line = self.text.find("\n", start) + 1
        if line == 0 or line > end:
            line = end
        yield Atom(BREAK, self.text[start:line])
        if line < end:
            yield from self.of_text(line, end)

    def of_link(self, node: Node, start: int, end: int) -> Iterator[Atom]:
        """Yield the atoms of a link."""
        inner = next((each for each in node.children if each.type == "link_text"), None)
        whole = self.text[start:end]
        label = whole[1:-1] if node.type == "shortcut_link" else whole[1:].partition("]")[0]
        by_label = node.type in ("shortcut_link", "collapsed_reference_link")
        if (
            inner is None
            or label[:1] == "^"
            or (by_label and label.strip().casefold() in self.labels)
        ):
            yield Atom(PLACEHOLDER, whole)
            return
        first, last = self.span(inner)
        if by_label:  # brackets around text
            yield from self.of_text(start, first)
            yield from self.of_children(inner, first, last)
            yield from self.of_text(last, end)
            return
        inside = list(self.of_children(inner, first, last))
        if all(atom.kind != TEXT or not any(map(str.isalpha, atom.text)) for atom in inside):
            yield Atom(PLACEHOLDER, whole)
        else:
            yield Atom(OPENING, self.text[start:first], name="link")
            yield from inside
            yield Atom(CLOSING, self.text[last:end], name="link")

    def of_text(self, start: int, end: int) -> Iterator[Atom]:
        """Yield the atoms of text."""
        at = start
        for first, last in [*self.opaque, (end, end)]:
            if at <= first and last <= end:
                for match in LINK_END.finditer(self.text, at, first):
                    yield from self.of_lines(at, match.start())
                    yield Atom(CLOSING, match[0], name=LONE)
                    at = match.end()
                yield from self.of_lines(at, first)
                if first < last:
                    yield Atom(PLACEHOLDER, self.text[first:last])
                at = last

    def of_lines(self, start: int, end: int) -> Iterator[Atom]:
        """Yield the atoms of text, where a line break with what continues a quote is one space."""
        at = start
        if not start and self.inside.get(0, end + 1) <= end:  # in front of a line behind a kept one
            at = self.inside[0]
            yield Atom(TEXT, self.text[:at], " ")
        while at < end:
            line = self.text.find("\n", at, end)
            if line < 0:
                break
            head = line - 1 if self.text[line - 1 : line] == "\r" and line > at else line
            yield from text_atoms(self.text[at:head], self.protect)
            at = line + 1
            if at in self.inside and self.inside[at] <= end:
                at = self.inside[at]
            yield Atom(TEXT, self.text[head:at], " ")
        yield from text_atoms(self.text[at:end], self.protect)


def places(content: bytes, found: list[int]) -> list[int]:
    """Return places in UTF-8 as places in its text."""
    if content.isascii():
        return found
    begins = (np.frombuffer(content, np.uint8) & 0xC0) != 0x80  # a byte that begins a character
    before = np.concatenate(([0], np.cumsum(begins)))
    return before[np.asarray(found, dtype=np.int64)].tolist()


def apart(spans: list[Span]) -> list[Span]:
    """Return places in their order, without those that begin in another."""
    found = list[Span]()
    for start, end in sorted(spans):
        if not found or start >= found[-1][1]:
            found.append((start, end))
    return found


def tag_atoms(text: str) -> Iterator[Atom]:
    """Yield the atoms of a tag of HTML."""
    for token in tokens(text):
        yield from markup.of_token(text, token)


def kept_elements(atoms: list[Atom]) -> list[Atom]:
    """Return the atoms, where the elements of HTML that are kept are one placeholder each; a block
    in a paragraph parts it."""
    out: list[Atom] = []
    for atom in atoms:
        out.append(atom)
        if atom.kind == CLOSING:
            start = next(
                (
                    i
                    for i in range(len(out) - 1, -1, -1)
                    if out[i].name == atom.name and out[i].kind == OPENING
                ),
                None,
            )
            if start is not None and (atom.name in VERBATIM or PROTECTED.search(out[start].raw)):
                whole = raw(out[start:])
                del out[start:]
                out.append(Atom(PLACEHOLDER, whole))
    return out


def linked(atoms: list[Atom]) -> list[Atom]:
    """Return the atoms, where brackets in the text of a link, which the parser does not know,
    do not make its address text: `[a [b] c](d)`. Without a beginning, it is a placeholder."""
    out: list[Atom] = []
    for atom in atoms:
        if atom.name != LONE:
            out.append(atom)
        elif (start := opening_of(out)) is None:
            out.append(Atom(PLACEHOLDER, atom.raw))
        else:
            place, at = start
            first, second = out[place].text[:at], out[place].text[at + 1 :]
            out[place : place + 1] = [
                text_atom(first),
                Atom(OPENING, "[", name="link"),
                text_atom(second),
            ]
            out.append(replace(atom, name="link"))
    return out


def opening_of(atoms: Sequence[Atom]) -> tuple[int, int] | None:
    """Return which atom has the bracket that is open behind them, and where in it."""
    depth = 1
    for place in range(len(atoms) - 1, -1, -1):
        text = atoms[place].text
        if not is_plain(atoms[place]):
            continue
        for at in range(len(text) - 1, -1, -1):
            depth += (text[at] == "]") - (text[at] == "[")
            if not depth:
                return place, at
    return None


def titles(given: Inline) -> Iterator[Part]:
    """Yield the parts of titles of links and texts of pictures."""
    found: list[tuple[int, int, bool]] = []
    for node in given.nodes:
        if node.type == "image_description":
            found.append((*given.span(node), False))
        elif node.type == "link_title":
            start, end = given.span(node)
            found.append((start + 1, end - 1, True))
    for start, end in given.opaque:
        if match := PICTURE_TEXT.search(given.text, start, end):
            found.append((*match.span(1), True))
    for match in regex.finditer(r"<[a-zA-Z][^<>]*>", given.text):
        for token in tokens(match[0]):
            for a, b in markup.read_values(match[0], token):
                found.append((match.start() + a, match.start() + b, True))
    at = 0
    for start, end, is_quoted in sorted(found):
        if start < at or "\n" in given.text[start:end]:
            continue
        yield given.text[at:start]
        yield html.escape if is_quoted else bracketed
        yield from text_atoms(given.text[start:end], given.protect, ENTITY_IN_VALUE)
        at = end
    yield given.text[at:]


bracketed = with_signs({sign: "\\" + sign for sign in "\\[]"})
