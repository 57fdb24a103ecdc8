"""docx, pptx and odt: the paragraphs of their parts as text (formats.py), and paragraphs of
translations again.

A part is read with lxml. Only the text of a paragraph's runs is replaced, by runs with the
formatting of the words that it stands for; all else is the node that was there: pictures, fields,
footnotes, formulas, deletions. A paragraph whose text has not changed is left alone.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from itertools import groupby

import regex
from lxml import etree
from lxml.etree import _Element as Element

from fairseq_ext.core.errors import UsageError, cut
from fairseq_ext.text.atoms import LETTER
from fairseq_ext.text.reading import escape
from fairseq_ext.text.stopping import checked

W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
LINKED = regex.compile(r"\s*HYPERLINK\b")  # a field whose result is text

A = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
M = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
O_TEXT = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
# the same in files of the standard's strict form (ISO/IEC 29500), and those above
STRICT = regex.compile(rb"http://purl\.oclc\.org/ooxml/(\w+)/(main|math)")
USUAL = regex.compile(rb"http://schemas\.openxmlformats\.org/(\w+)/2006/(main|math)")
LO = "{urn:org:documentfoundation:names:experimental:office:xmlns:loext:1.0}"
SPACE = "{http://www.w3.org/XML/1998/namespace}space"


def names(space: str, words: str) -> frozenset[str]:
    """Return names of elements in a namespace."""
    return frozenset(space + word for word in words.split())


PARAGRAPHS = {W + "p", A + "p", O_TEXT + "p", O_TEXT + "h"}
RUNS = {W + "r", A + "r"}  # the formatting of each is its child of this name and Pr
TEXTS = {W + "t", A + "t"}
# what holds runs, or text, and stands around them
AROUND = (
    names(W, "hyperlink ins moveTo smartTag sdt sdtContent customXml dir bdo fldSimple")
    | names(O_TEXT, "span a meta meta-field")
    | names(LO, "content-control")
)
LAST = A + "endParaRPr"  # of a paragraph, at its end
PROPERTIES = names(W, "pPr sdtPr sdtEndPr smartTagPr customXmlPr fldData rPr") | {A + "pPr"}
CHARACTERS = {W + "noBreakHyphen": "\u2011", W + "softHyphen": "\u00ad", O_TEXT + "s": " "}
WORDS = (
    names(W, "sym ruby pgNum")
    | names(M, "oMath oMathPara")
    | names(A, "fld")
    | names(
        O_TEXT,
        "page-number page-count date time sequence bookmark-ref reference-ref sequence-ref ruby "
        "chapter title author-name user-defined variable-get variable-set text-input expression "
        "file-name subject user-field-get database-display placeholder note-ref",
    )
)
# of formats.py; all others are "o"
KINDS = (
    dict.fromkeys(WORDS, "f")
    | dict.fromkeys(CHARACTERS, "n")
    | dict.fromkeys(names(W, "tab ptab") | {O_TEXT + "tab"}, "t")
    | dict.fromkeys(names(W, "br cr") | {A + "br", O_TEXT + "line-break"}, "b")
)
UNREAD = names(W, "del moveFrom") | names(O_TEXT, "tracked-changes")  # deleted: stays as it is
DELETED = names(W, "del moveFrom") | names(O_TEXT, "deletion")
# of a run's formatting
NO_MATTER = names(W, "lang noProof rPrChange") | names(
    "", "lang err dirty noProof altLang smtClean"
)
WITHOUT_LETTERS = 10  # paragraphs of numbers alone, as in tables, for one of those with letters
NOT_XML = regex.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


class TooMany(Exception):
    """A part has more paragraphs than are allowed: says how many of which kind are."""


class Part:
    """A part of an archive that holds paragraphs.

    most: paragraphs with letters that it may have, and `WITHOUT_LETTERS` times as many with other
    text, None for no limit. Errors: UsageError where it is not well-formed; TooMany, before the
    rest of it takes memory.
    """

    def __init__(self, content: bytes, most: int | None = None):
        self.is_strict = bool(STRICT.search(content))
        if self.is_strict and USUAL.search(content):
            raise UsageError("it is of the standard's strict form and of the other one")
        content = STRICT.sub(rb"http://schemas.openxmlformats.org/\1/2006/\2", content)
        # kinds of text in it that are not translated, each as often as it is there
        self.untranslated: list[str] = []
        events = etree.iterparse(BytesIO(content), tag=[*PARAGRAPHS], resolve_entities=False)
        try:
            texts = self.texts(events, most)
        except etree.XMLSyntaxError as error:
            if "Excessive depth" in str(error.msg):  # libxml2's limit, of which lxml has no code
                raise UsageError(
                    "its elements are nested too deeply: remove the formatting of its text"
                ) from None
            raise UsageError(f"it is not well-formed ({cut(str(error.msg))})") from None
        root = events.root
        self.tree = root.getroottree()
        self.untranslated += ["deletions" for _ in root.iter(*DELETED)]
        # elements with their texts; what else is read of them is as large as the part many times
        self.paragraphs = [(each, texts[each]) for each in root.iter(*PARAGRAPHS) if each in texts]

    def texts(self, events: etree.iterparse, most: int | None) -> dict[Element, str]:
        """Return the paragraphs with text, an inner one before that around it. Errors:
        etree.XMLSyntaxError; TooMany, at the first one beyond a limit."""
        texts, lettered = dict[Element, str](), 0
        for _, element in checked(events):
            if next(element.iterancestors(*UNREAD), None) is not None:
                continue
            found = Paragraph(element)
            self.untranslated += sorted(found.unread)
            if found.text:
                texts[element] = found.text
                lettered += found.has_letters
            if most is None:
                continue
            if lettered > most:
                raise TooMany(f"{most} sentences")
            if len(texts) - lettered > WITHOUT_LETTERS * most:
                raise TooMany(f"{WITHOUT_LETTERS * most} paragraphs without letters")
        return texts

    def text(self) -> str:
        """Return the paragraphs as one text."""
        return "".join(f"<p>{text}</p>" for _, text in self.paragraphs)

    def write(self, text: str) -> int:
        """Write the translation of `text()`. Return the number of paragraphs that could not be
        written and stay as they were."""
        found = regex.findall("(?s)<p>(.*?)</p>", text)
        changed = zip(self.paragraphs, found, strict=True)
        return sum(
            new != old and not Paragraph(element).write(new)
            for (element, old), new in checked(changed)
        )

    def content(self) -> bytes:
        """Return the part."""
        form = self.tree.docinfo
        made = etree.tostring(
            self.tree,
            xml_declaration=True,
            encoding=form.encoding or "UTF-8",
            standalone=form.standalone,
        )
        strict = rb"http://purl.oclc.org/ooxml/\1/\2"
        return USUAL.sub(strict, made) if self.is_strict else made


class Paragraph:
    """A paragraph, whose `text` is that of its runs with marks."""

    def __init__(self, element: Element):
        self.element = element
        self.is_mixed = element.tag.startswith(O_TEXT)
        self.pieces = list(fields(list(self.read(element))))
        # names of elements whose text is not read
        self.unread = {
            etree.QName(node).localname
            for piece in self.pieces
            for node in piece.nodes
            if piece.kind == "o" and node.tag not in DELETED
            for text in node.iter(*TEXTS)
            if next(text.iterancestors(*PARAGRAPHS), None) is element
        }
        counts = Counter[str]()
        self.forms: dict[str, Element] = {}
        depth = 0
        for piece in self.pieces:
            depth += (piece.kind == "r") - (piece.kind == "/r")
            if piece.kind == "text" and not self.is_mixed:
                piece.form = form_of(piece.run)
                counts[piece.form] += 0 if depth else len(piece.text)  # a link has its own
                self.forms.setdefault(piece.form, piece.run)
        self.usual = max(counts, key=counts.__getitem__, default="")
        self.table: list[Piece | str] = []
        texts = [each.text for each in self.pieces if each.kind == "text"]
        self.has_letters = any(map(LETTER.search, texts))
        self.text = "".join(self.marked()) if any(map(str.strip, texts)) else ""

    def read(self, element: Element) -> Iterator[Piece]:
        """Yield the pieces of an element's content."""
        if self.is_mixed and element.text:
            yield Piece("text", element.text)
        for child in element:
            if child.tag in PROPERTIES or child.tag == LAST:
                pass
            elif child.tag in RUNS:
                yield from self.read_run(child)
            elif child.tag == W + "fldSimple" and not LINKED.match(child.get(W + "instr", "")):
                yield Piece("f", nodes=[child])
            elif child.tag in AROUND and (self.is_mixed or has_runs(child)):
                yield Piece("r", nodes=[child])
                yield from self.read(child)
                yield Piece("/r")
            else:
                yield piece_of(child)
            if self.is_mixed and child.tail:
                yield Piece("text", child.tail)

    def read_run(self, run: Element) -> Iterator[Piece]:
        """Yield the pieces of a run."""
        for child in run:
            if child.tag in TEXTS:
                if child.text:
                    yield Piece("text", child.text, [child], run)
                for inner in child:  # a comment, or an entity
                    alone = etree.Element(child.tag)
                    alone.append(clean(copy.deepcopy(inner)))
                    yield Piece("o", nodes=[alone], run=run)
                    if inner.tail:
                        yield Piece("text", inner.tail, run=run)
            elif child.tag != run.tag + "Pr":
                piece = piece_of(child)
                piece.run = run
                yield piece

    def marked(self) -> Iterator[str]:
        """Yield the text with its marks; they are numbered by `table`."""
        for form, pieces in groupby(self.pieces, lambda piece: piece.form):
            is_own = form not in ("", self.usual)
            if is_own:
                yield f'<r i="{len(self.table)}">'
                self.table.append(form)
            for piece in pieces:
                if piece.kind == "/r":
                    yield "</r>"
                elif piece.kind == "text":
                    yield escape(piece.text)
                else:
                    yield f'<{piece.kind} i="{len(self.table)}"{shown(piece)}'
                    yield {"r": ">", "n": f">{escape(piece.text)}</n>"}.get(piece.kind, "/>")
                    self.table.append(piece)
            if is_own:
                yield "</r>"

    def write(self, text: str) -> bool:
        """Write a translation; whether it could be written: each mark once, and nested."""
        try:
            new = etree.fromstring(f"<p>{NOT_XML.sub('', text)}</p>")
        except etree.XMLSyntaxError:
            return False
        seen = [int(each.get("i")) for each in new.iterdescendants()]
        optional = {i for i, mark in enumerate(self.table) if getattr(mark, "kind", "") == "n"}
        if sorted([*seen, *optional.difference(seen)]) != [*range(len(self.table))]:
            return False
        last = self.element.findall(LAST)
        fill(self.element, [*self.content(new, self.usual), *last])
        return True

    def content(self, new: Element, form: str) -> list[Element | str]:
        """Return the content of an element of a translation: texts and nodes. form: of its text."""
        made = self.texts(new.text, form)
        for child in new:
            mark = self.table[int(child.get("i"))]
            if isinstance(mark, str):
                made += self.content(child, mark)
            elif child.tag == "r":
                made += self.around(mark, self.content(child, form))
            else:
                made += nodes(mark)
            made += self.texts(child.tail, form)
        return made

    def texts(self, text: str | None, form: str) -> list[Element | str]:
        """Return text of this formatting, if there is some."""
        if not text or self.is_mixed:
            return [text] if text else []
        like = self.forms[form]
        element = etree.Element(like.tag[:-1] + "t")
        element.text = text
        if like.tag == W + "r":
            element.set(SPACE, "preserve")
        return [run_of(element, like)]

    def around(self, mark: Piece, inside: list[Element | str]) -> list[Element | str]:
        """Return the element of a mark with this content, or the nodes of a field around it."""
        if mark.end:
            return [*nodes(mark), *inside, *nodes(mark.end[0])]
        element = mark.nodes[0]
        fill(element, inside)
        return [clean(element)]


def nodes(piece: Piece) -> list[Element]:
    """Return the nodes of a piece, in a run where they stood in one."""
    own = [clean(node) if piece.run is None else run_of(node, piece.run) for node in piece.nodes]
    return [*(node for part in piece.parts for node in nodes(part)), *own]


def run_of(node: Element, like: Element) -> Element:
    """Return a run of a node, with the formatting of another run."""
    run = etree.Element(like.tag, nsmap=like.nsmap)
    run.extend(clean(copy.deepcopy(each)) for each in like.findall(like.tag + "Pr")[:1])
    run.append(clean(node))
    return run


def shown(piece: Piece) -> str:
    """Return the number that a field shows, as an attribute; "" where it shows something else."""
    if piece.kind != "f":
        return ""
    nodes = [node for part in [piece, *piece.parts] for node in part.nodes]
    text = "".join(each.text or "" for node in nodes for each in node.iter(*TEXTS, *WORDS)).strip()
    return f' t="{text}"' if regex.fullmatch("[0-9]{1,6}", text) else ""


def clean(node: Element) -> Element:
    """Return a node without the text behind it."""
    node.tail = None
    return node


def fill(element: Element, content: list[Element | str]) -> None:
    """Put texts and nodes, a node between two texts, behind an element's properties, in place of
    all else in it."""
    element[:] = [clean(each) for each in element if each.tag in PROPERTIES]
    element.text = None
    for each in content:
        if not isinstance(each, str):
            element.append(each)
        elif len(element):
            element[-1].tail = each
        else:
            element.text = each


def has_runs(element: Element) -> bool:
    """Return whether an element around runs has some that are not another paragraph's."""
    return any(child.tag in RUNS or (child.tag in AROUND and has_runs(child)) for child in element)


def piece_of(child: Element) -> Piece:
    """Return the piece of an element that is no text."""
    kind = KINDS.get(child.tag, "o")
    if kind == "b" and child.get(W + "type") not in (None, "textWrapping"):
        kind = "t"  # of a page or a column
    return Piece(kind, CHARACTERS.get(child.tag, ""), [child])


def form_of(run: Element) -> str:
    """Return a run's formatting, to be compared."""
    found = []
    for properties in run.iterfind(run.tag + "Pr"):
        found = [pair for pair in sorted(properties.items()) if pair[0] not in NO_MATTER]
        found += [
            etree.tostring(each, method="c14n", with_tail=False)
            for each in properties
            if each.tag not in NO_MATTER
        ]
    return repr(found)


# ---- Pieces of a paragraph, and fields of docx among them


@dataclass
class Piece:
    """A piece of a paragraph's content.

    kind: of formats.py, "/r" for the end of an r, or "text"; nodes: what stands there; run: in
    which it stands.
    """

    kind: str
    text: str = ""
    nodes: list[Element] = field(default_factory=list)
    run: Element | None = None
    form: str = ""  # of text: its formatting
    parts: list[Piece] = field(default_factory=list)  # of a field, what it is made of
    end: list[Piece] = field(default_factory=list)  # of a field around text, what is behind it


def fields(pieces: list[Piece]) -> Iterator[Piece]:
    """Yield the pieces, in which a field without text runs is one piece, read as a word.

    A link's text stays, between two pieces that mark it; the pieces of other fields stay, too.
    """
    at, ends = 0, field_ends(pieces)
    while at < len(pieces):
        inside = pieces[at : ends.get(at, at) + 1]
        at += len(inside)
        nodes = (node for piece in inside for node in piece.nodes if node.tag == W + "instrText")
        is_link = LINKED.match("".join(node.text or "" for node in nodes))
        states = list(map(state, inside))
        if is_link and "separate" in states and "begin" not in states[1:]:
            middle = states.index("separate") + 1
            yield Piece("r", parts=inside[:middle], end=inside[-1:])
            yield from inside[middle:-1]
            yield Piece("/r")
        elif len(inside) == 1 or any(piece.kind == "r" for piece in inside):
            yield from inside
        else:
            yield Piece("f", parts=inside)


def state(piece: Piece) -> str:
    """Return begin, separate or end, for a character of a field."""
    node = piece.nodes[0] if piece.nodes else None
    if node is None or node.tag != W + "fldChar":
        return ""
    return str(node.get(W + "fldCharType"))


def field_ends(pieces: list[Piece]) -> dict[int, int]:
    """Return the places of the beginnings of fields, each with that of its end in the same
    element."""
    ends, begun, around = dict[int, int](), list[tuple[int, int]](), [-1]
    for place, piece in enumerate(pieces):
        kind = state(piece)
        if piece.kind == "r":
            around.append(place)
        elif piece.kind == "/r":
            around.pop()
        elif kind == "begin":
            begun.append((place, around[-1]))
        elif kind == "end" and begun:
            start, element = begun.pop()
            if element == around[-1]:
                ends[start] = place
    return ends
