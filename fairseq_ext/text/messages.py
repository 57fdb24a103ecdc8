"""Localisation files as segments: po (gettext), and XLIFF 1.2 and 2. What has no translation gets
one; all else is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

import regex

from fairseq_ext.core.errors import UsageError, cut
from fairseq_ext.text import markup
from fairseq_ext.text.atoms import (
    BLOCK,
    BREAK,
    CLOSING,
    LEADS,
    OPENING,
    PLACEHOLDER,
    POINT,
    Atom,
    Part,
)
from fairseq_ext.text.markup import COMMENT, END, START
from fairseq_ext.text.reading import XML_ENTITY, cut_at, through_escapes, with_signs
from fairseq_ext.text.stopping import checked
from fairseq_ext.text.xml_tokens import Tag, Xml

# ---- Their texts: escaped, with markup, mnemonics of menus, line breaks and plural forms of ICU
# (https://unicode-org.github.io/icu/userguide/format_parse/messages/)


ARGUMENT = regex.compile(r"\{\s*[\w.]+\s*,\s*(plural|select|selectordinal)\s*,")
SELECTOR = regex.compile(r"\s*(?:offset:\d+\s*)?(=\d+|[\w.-]+)\s*\{")
QUOTED = regex.compile(r"'[{}][^']*'")
DEEPEST = 20  # levels of plural forms
# the only sign, in front of a word, or in one that is no name of a program: Bear_beiten
MNEMONIC = regex.compile(
    r"(?:(?<![\w&])|(?<=(?<!\w)\p{Lu}\p{Ll}*)(?=.\p{Ll}+(?!\w)))[_&](?=\p{L})(?!\w*;)(?![^_&]*[_&])"
)
LINE_BREAK = regex.compile(r"\r?\n")
HEAD = regex.compile(r"[^_&]*")


def message_atoms(text: str, protect: Sequence[str], breaks: bool = True) -> Iterator[Atom]:
    """Yield the atoms of a text as it is read. breaks: whether a line break is one."""
    parts = icu(text)
    first = HEAD.match(text).end()  # type: ignore[union-attr]
    mnemonic = MNEMONIC.match(text, first) if len(parts) == 1 else None
    for start, end, kind in parts:
        if kind == BLOCK:
            yield Atom(BLOCK, text[start:end])
            continue
        keep = [*protect, "#"] if len(parts) > 1 and kind == "plural" else protect
        cuts = [start, first, first + 1, end] if mnemonic else [start, end]
        for a, b in pairwise(cuts):
            if mnemonic and a == first and b == first + 1:
                yield Atom(POINT, text[a:b], name=LEADS)
            else:
                atoms = markup.atoms(text[a:b], keep, False, None)
                yield from cut_at(LINE_BREAK, BREAK, atoms) if breaks else atoms


def icu(text: str) -> list[tuple[int, int, str]]:
    """Return a message cut into its texts and what is around them: (start, end, "text", "plural" or
    BLOCK). A message without plural forms, and one that is not well-formed, is one text."""
    if ARGUMENT.search(text) is None:
        return [(0, len(text), "text")]
    out: list[tuple[int, int, str]] = []
    if message(text, 0, 0, "text", out) != len(text):
        return [(0, len(text), "text")]
    parts: list[tuple[int, int, str]] = []
    at = 0
    for start, end, kind in out:
        if at < start:
            parts.append((at, start, BLOCK))
        if start < end:
            parts.append((start, end, kind))
        at = end
    return parts + ([(at, len(text), BLOCK)] if at < len(text) else [])


def message(text: str, at: int, depth: int, kind: str, out: list[tuple[int, int, str]]) -> int:
    """Read a message, up to the brace after it or to the end of the text, and add its texts to
    `out`. Return where it ends; -1 if it is not well-formed."""
    start, open_braces = at, 0
    while at < len(text):
        if quoted := QUOTED.match(text, at):
            at = quoted.end()
        elif depth < DEEPEST and (argument := ARGUMENT.match(text, at)):
            out.append((start, at, kind))
            at = argument.end()
            inner = "text" if argument[1] == "select" else "plural"
            while selector := SELECTOR.match(text, at):
                at = message(text, selector.end(), depth + 1, inner, out)
                if at < 0 or not text.startswith("}", at):
                    return -1
                at += 1
            closing = regex.compile(r"\s*\}").match(text, at)
            if closing is None:
                return -1
            start = at = closing.end()
        else:
            open_braces += (text[at] == "{") - (text[at] == "}")
            if open_braces < 0:
                break
            at += 1
    out.append((start, at, kind))
    return at if (open_braces < 0) == (depth > 0) else -1


# ---- po: entries without a translation get one
#
# The file is read as keywords, texts and comments (https://www.gnu.org/software/gettext/manual, PO
# Files). An entry has as many plural forms as the file's header says: the first is made of `msgid`,
# the others of `msgid_plural`; a language with one form has that of `msgid_plural`.

WORD = regex.compile(
    r"\s+|#[^\n]*|"
    r"(?P<key>domain|msgctxt|msgid_plural|msgid|msgstr(?:[ \t]*\[[ \t]*\d\d?[ \t]*\])?)|"
    r'"(?P<text>(?:[^"\\\r\n]|\\.)*)"'
)
ESCAPE = regex.compile(r"\\(?:[0-7]{1,3}|x[\da-fA-F]{1,2}|.)")
FORMS = regex.compile(r"nplurals\s*=\s*(\d)\b")  # no language has ten
NAMED = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
# text as it stands in quotes
escaped = with_signs({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"})
FIRST = ("msgstr", "msgstr[0]")


@dataclass
class Entry:
    """An entry in reading. texts: of each keyword its texts as they are written, each with where it
    begins; end: of its last text, then of its last line."""

    texts: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    end: int = 0

    def text(self, key: str) -> str:
        """Return the text of a keyword; "" where it has none."""
        return "".join(text for _, text in self.texts.get(key, ()))

    def translations(self) -> list[str]:
        """Return the keywords of its translations."""
        return [key for key in self.texts if key.startswith("msgstr")]

    def ended(self, text: str, limit: int) -> Entry:
        """Return the entry with the end of its last line, up to this place."""
        self.end = text.find("\n", self.end, limit) + 1 or limit
        return self


def of_po(text: str, protect: Sequence[str]) -> Iterator[Part]:
    """Yield the parts of a po file, where the text of an entry without a translation is its
    translation (raises UsageError for a line that is none of a po file)."""
    yield escaped
    eol = "\r\n" if "\r\n" in text else "\n"
    count, at = 0, 0
    for entry in entries(text):
        keys = [key for key in entry.translations() if entry.texts[key]]
        if entry.text("msgid") == "" and not count:
            forms = FORMS.search(entry.text("msgstr"))
            count = int(forms[1]) if forms else 0
        if not entry.text("msgid") or any(map(entry.text, keys)):
            continue
        for key in keys:
            is_plural = "msgid_plural" in entry.texts and (count == 1 or key not in FIRST)
            if count == 1 and key not in FIRST:
                continue  # a form that the language does not have
            place = entry.texts[key][0][0]
            yield text[at:place]
            at = place
            yield from of_entry(entry, "msgid_plural" if is_plural else "msgid", protect, eol)
        known = [int(key[7:-1]) for key in keys if key != "msgstr"]
        missing = range(max(known) + 1, count) if known and "msgid_plural" in entry.texts else ()
        if missing:
            yield text[at : entry.end] + ("" if text.endswith("\n", 0, entry.end) else eol)
            at = entry.end
            for form in missing:
                yield f'msgstr[{form}] "'
                yield from of_entry(entry, "msgid_plural", protect, eol)
                yield f'"{eol}'
    yield text[at:]


def of_entry(entry: Entry, key: str, protect: Sequence[str], eol: str) -> Iterator[Part]:
    """Yield the parts of a text of an entry, written as that is: with its lines."""
    raw, size = entry.text(key), 0
    between = f'"{eol}"' if len(entry.texts[key]) > 1 else ""
    yield between
    for atom in through_escapes(raw, ESCAPE, partial(message_atoms, protect=protect), decoded):
        size += len(atom.raw)
        is_break = atom.kind == BREAK and size < len(raw)
        yield replace(atom, raw=atom.raw + between) if is_break else atom


def entries(text: str) -> Iterator[Entry]:
    """Yield the entries (raises UsageError)."""
    entry, key, at = Entry(), "", 0
    for word in WORD.finditer(text):
        if word.start() > at:
            break
        if word["key"]:
            key = regex.sub(r"[ \t]", "", word["key"])
            if key in ("domain", "msgctxt", "msgid") and entry.translations():
                yield entry.ended(text, at)
                entry = Entry()
            entry.texts.pop(key, None)  # a second one stands in its own place
            entry.texts[key] = []
        elif word["text"] is not None:
            if not key:
                raise UsageError(f"line {line_at(text, at)} follows no msgid or msgstr: correct it")
            entry.texts[key].append((word.start("text"), word["text"]))
            entry.end = word.end()
        at = word.end()
    if at < len(text):
        raise UsageError(
            f"the file must be a po file, and line {line_at(text, at)} is none of one: correct it"
        )
    yield entry.ended(text, at)


def line_at(text: str, at: int) -> str:
    """Return the number and the text of the line at this place, for messages."""
    number, start = text.count("\n", 0, at) + 1, text.rfind("\n", 0, at) + 1
    return f"{number} ({cut(text[start:].splitlines()[0])})"


def decoded(escape: regex.Match[str]) -> str:
    """Return the character of an escape."""
    body = escape[0][1:]
    if body[0] in "01234567":
        return chr(int(body, 8))
    return chr(int(body[1:], 16)) if body[0] == "x" and body[1:] else NAMED.get(body, body)


# ---- XLIFF: units without a target get one, behind their source
#
# 1.2: http://docs.oasis-open.org/xliff/v1.2/os/xliff-core.html; 2.1:
# http://docs.oasis-open.org/xliff/xliff-core/v2.1/xliff-core-v2.1.html.


UNITS = ("trans-unit", "segment")
# elements of XLIFF 2 whose start tag is all there is, and those of 1.2 that hold code
LONE = frozenset("x ph cp sm em it bx ex bpt ept sc ec".split())
STARTS, ENDS = frozenset("bx bpt sc".split()), frozenset("ex ept ec".split())
BREAKS = regex.compile(r"(?i)lb|x-(?:html-)?br|xlf:lb")


def of_xliff(text: str, protect: Sequence[str]) -> Iterator[Part]:
    """Yield the parts of XLIFF, where the source of a unit without a target is its target too
    (raises UsageError for what is not well-formed, or no XLIFF)."""
    xml = Xml(text, "the XLIFF")
    found = xml.tokens
    root = next(token for token in found if token.kind == START)
    if root.local != "xliff":
        raise UsageError(f"the root element must be xliff, and is {root.local}: name an XLIFF file")
    at = 0
    for unit in checked(units(xml)):
        source, target = found[unit["source"]], unit.get("target")
        if target is None:
            last = max(unit["source"], unit.get("seg-source", 0))
            start = end = found[xml.partners[last]].end
            name = source.name.removesuffix("source") + "target"
            space = source.values(text).get("xml:space")
            opening = f'<{name} xml:space="{space}">' if space else f"<{name}>"
            closing = f"</{name}>"
        else:
            before, behind = found[target], found[xml.partners[target]]
            start, end = before.start, behind.end
            opening, closing = text[start : before.end], text[behind.start : end]
            if not closing:  # <target/>
                opening, closing = opening[:-2].rstrip() + ">", f"</{before.name}>"
        yield text[at:start] + opening
        yield from source_parts(xml, unit["source"], protect)
        yield closing
        at = end
    yield text[at:]


def units(xml: Xml) -> Iterator[dict[str, int]]:
    """Yield the units that have a source and no target, in their order: the numbers of the elements
    in each, by name; none in another."""
    is_translated, behind = [True], 0  # of each open element; the last unit's end
    for number, token in enumerate(xml.tokens):
        if number < behind:
            continue
        if token.kind == END:
            is_translated.pop()
        elif token.kind == START:
            said = token.values(xml.text).get("translate", "yes" * is_translated[-1])
            is_translated.append(said == "yes")
            if is_translated[-1] and token.local in UNITS:
                unit = {xml.tokens[each].local: each for each in xml.children(number)}
                inside = xml.inside(unit["target"]) if "target" in unit else ""
                if "source" in unit:
                    behind = xml.partners[number]
                    if not inside.strip():
                        yield unit


def source_parts(xml: Xml, source: int, protect: Sequence[str]) -> Iterator[Part]:
    """Return the parts of the source of a unit, by the number of its start tag."""
    found, partners = xml.tokens, xml.partners
    breaks = found[source].values(xml.text).get("xml:space") == "preserve"
    message = partial(message_atoms, protect=protect, breaks=breaks)

    def read(raw: str, is_cdata: bool) -> Iterator[Atom]:
        return message(raw) if is_cdata else through_escapes(raw, XML_ENTITY, message)

    def tag(number: int) -> Tag:
        token = found[number]
        attributes, name = token.values(xml.text), token.local
        if token.kind == END:
            return CLOSING, name, False
        if token.kind != START:
            return POINT if token.kind == COMMENT else PLACEHOLDER, "", False
        key = attributes.get("startRef", attributes.get("rid", attributes.get("id", "")))
        is_protected = attributes.get("translate") == "no" or (
            attributes.get("mtype") == "protected"
        )
        if BREAKS.fullmatch(attributes.get("ctype", attributes.get("subType", ""))):
            return BREAK, "", True
        if is_protected and name not in STARTS:
            return PLACEHOLDER, "", True
        if name in STARTS or name in ENDS:
            return OPENING if name in STARTS else CLOSING, f"span {key}", True
        if name in LONE or partners[number] == number + 1:
            return PLACEHOLDER if name in ("x", "ph") else POINT, "", True
        return OPENING, name, False

    return xml.parts(range(source + 1, partners[source]), read, tag)
