"""HTML and XML as segments: block elements part them, inline tags are marks of them, and what is
no text for people is kept.

The source is cut where its tags are and never written anew, so whatever is no translated text comes
out byte for byte: well-formed where it was. In HTML the names say what is inline; in XML an element
is inline where text stands beside it.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import regex

from fairseq_ext.text.placeholders import find
from fairseq_ext.text.segments import CLOSE, OPEN, PLACEHOLDER, POINT, TEXT, Atom, Item, of_run

BLOCK = "block"  # a tag that parts segments
INLINE = frozenset(
    (
        "a abbr acronym b bdi bdo big cite data del dfn em font i img input ins label mark q rp rt "
        "ruby s small span strike strong sub sup time tt u wbr bpt ept ex g it mrk ph x"
    ).split()  # those of XLIFF at the end
)
VOID = frozenset("img input wbr".split())
KEPT = frozenset("code kbd samp var tt pre script style svg math object".split())
PARTING = frozenset("pre script style object".split())  # kept, and no part of a sentence
TOKEN = regex.compile(
    r"<!--.*?-->|<!\[CDATA\[.*?\]\]>|<\?.*?\?>|<![^>]*>|<(?P<close>/?)(?P<name>[A-Za-z_][^\s/"
    r">]*)(?P<rest>(?:[^>\"']++|\"[^\"]*\"|'[^']*')*+)>",
    regex.DOTALL,
)
ATTRIBUTE = regex.compile(
    r"(?<=\s(?:title|alt|placeholder|aria-label)\s*=\s*)(?:\"[^\"]+\"|'[^']+')", regex.IGNORECASE
)
NOT_TRANSLATED = regex.compile(
    r"\s(?:translate\s*=\s*[\"']?no\b|class\s*=\s*[\"'][^\"']*\bnotranslate\b)", regex.IGNORECASE
)
# the end of the mark of a footnote
NOTE = regex.compile(r"\s*[\d*†‡§]+\s*</su[bp]>", regex.IGNORECASE)
ENTITY = regex.compile(r"&(?:#\d+|#[xX][\da-fA-F]+|\w+);")


def escape(text: str) -> str:
    """Text as it stands between tags."""
    return html.escape(text, quote=False)


def of_markup(
    text: str,
    ends: Callable[[str], list[int]],
    protect: Sequence[str] = (),
    xml: bool = False,
    inline: Collection[str] | None = None,
) -> Iterator[Item]:
    """The items of HTML or XML.

    ends, protect: as of `of_text`; inline: names of inline elements, where they are known in XML.
    """
    return of_atoms(atoms(text, protect, xml, inline), ends)


def of_atoms(
    given: Iterable[Atom], ends: Callable[[str], list[int]], escape: Callable[[str], str] = escape
) -> Iterator[Item]:
    """The items of atoms among which there are some of kind BLOCK. escape: as of `of_run`."""
    run: list[Atom] = []
    for atom in given:
        if atom.kind == BLOCK:
            yield from of_run(run, ends, escape)
            yield atom.raw
            run = []
        else:
            run.append(atom)
    yield from of_run(run, ends, escape)


def of_attributes(
    text: str, ends: Callable[[str], list[int]], protect: Sequence[str] = ()
) -> Iterator[Item]:
    """The items of HTML whose only text is in the attributes title, alt, placeholder
    and aria-label."""
    at = 0
    kept = kept_spans(text)
    for tag in TOKEN.finditer(text):
        for value in (
            ATTRIBUTE.finditer(tag[0])
            if tag["name"] and not any(a <= tag.start() < b for a, b in kept)
            else ()
        ):
            start = tag.start() + value.start() + 1
            yield text[at:start]
            at = start + len(value[0]) - 2
            yield from of_run(list(text_atoms(text[start:at], protect)), ends, html.escape)
    yield text[at:]


def kept_spans(text: str) -> list[tuple[int, int]]:
    """Where elements stand that are not translated."""
    found: list[tuple[int, int]] = []
    for tag in TOKEN.finditer(text):
        if (not found or tag.start() >= found[-1][1]) and is_kept(tag):
            found.append((tag.start(), end_of(text, tag)))
    return found


def is_kept(tag: regex.Match[str]) -> bool:
    """Whether a tag starts an element that is not translated."""
    is_start = tag["name"] and not tag["close"]
    return bool(is_start) and (
        tag["name"].lower() in KEPT or NOT_TRANSLATED.search(tag["rest"]) is not None
    )


def end_of(text: str, tag: regex.Match[str]) -> int:
    """Where the element of an opening tag ends; the tag's end where it has none."""
    name = tag["name"].lower()
    if tag["rest"].endswith("/") or name in VOID:
        return tag.end()
    if name in ("script", "style"):
        last = regex.compile(rf"</{name}\s*>", regex.IGNORECASE).search(text, tag.end())
        return len(text) if last is None else last.end()
    depth = 1
    for other in TOKEN.finditer(text, tag.end()):
        if (other["name"] or "").lower() == name and not other["rest"].endswith("/"):
            depth += -1 if other["close"] else 1
        if not depth:
            return other.end()
    return tag.end()


def atoms(
    text: str, protect: Sequence[str], xml: bool, inline: Collection[str] | None
) -> Iterator[Atom]:
    """The atoms of HTML or XML; those of kind BLOCK part segments."""
    tags = list(TOKEN.finditer(text))
    beside = beside_text(text, tags) if xml and inline is None else set()
    at = 0
    for number, tag in enumerate(tags):
        if tag.start() < at:  # inside of what is kept
            continue
        yield from text_atoms(text[at : tag.start()], protect)
        at = tag.end()
        name = tag["name"] or ""
        key = name if xml else name.lower()
        is_inline = number in beside or key in ((inline or ()) if xml else INLINE)
        if tag[0].startswith("<![CDATA["):
            yield Atom(BLOCK, tag[0])
        elif not name:
            yield Atom(POINT if tag[0].startswith(("<!--", "<?")) else BLOCK, tag[0])
        elif (not xml or NOT_TRANSLATED.search(tag["rest"])) and is_kept(tag):
            at = end_of(text, tag)
            yield Atom(
                BLOCK if key in PARTING or not (is_inline or key in KEPT) else PLACEHOLDER,
                text[tag.start() : at],
            )
        elif key in ("sup", "sub") and (note := NOTE.match(text, tag.end())):
            at = note.end()
            yield Atom(PLACEHOLDER, text[tag.start() : at])
        elif not is_inline:
            yield Atom(BLOCK, tag[0])
        elif tag["rest"].endswith("/") or (not xml and key in VOID):
            yield Atom(POINT, tag[0])
        else:
            yield Atom(CLOSE if tag["close"] else OPEN, tag[0], name=key)
    yield from text_atoms(text[at:], protect)


def beside_text(text: str, tags: list[regex.Match[str]]) -> set[int]:
    """The numbers of the tags of elements beside which text stands, in XML."""
    parent, stack, children, mixed = -1, list[int](), dict[int, list[int]](), set[int]()
    at = 0
    for number, tag in enumerate(tags):
        if text[at : tag.start()].strip():
            mixed.add(parent)
        at = tag.end()
        if not tag["name"]:
            continue
        if tag["close"]:
            parent = stack.pop() if stack else -1
        children.setdefault(parent, []).append(number)
        if not tag["close"] and not tag["rest"].endswith("/"):
            stack.append(parent)
            parent = number
    return {number for element in mixed for number in children.get(element, [])}


def text_atoms(text: str, protect: Sequence[str]) -> Iterator[Atom]:
    """The atoms of text between tags: its placeholders, `&nbsp;` among them, and its characters."""
    at = 0
    for start, end in [*find(text, protect, of_markup=True), (len(text), len(text))]:
        while (entity := ENTITY.search(text, at, start)) is not None:
            yield Atom(TEXT, text[at : entity.start()], text[at : entity.start()])
            yield Atom(TEXT, entity[0], html.unescape(entity[0]))
            at = entity.end()
        yield Atom(TEXT, text[at:start], text[at:start])
        yield Atom(PLACEHOLDER, text[start:end])
        at = end
