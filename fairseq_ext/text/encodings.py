"""The encoding of a file: of its first bytes (BOM), else the one that it declares, else UTF-8. What
is written is in the encoding that was read."""

from __future__ import annotations

import codecs
from collections.abc import Callable

import regex

from fairseq_ext.core.errors import UsageError

BOMS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
XML = regex.compile(rb"\s*<\?xml\s[^>]*?\sencoding\s*=\s*[\"']([A-Za-z][\w.-]*)[\"']")
META = regex.compile(rb"(?i)<meta\s[^>]*?charset\s*=\s*[\"']?\s*([\w:.-]+)")
PO = regex.compile(rb"(?i)charset=([\w:.-]+)\\n")
HTML_FORMATS, XML_FORMATS = ("html",), ("xml", "xliff", "html")
FIRST = 4096  # bytes in which a page declares its encoding
# what browsers read as windows-1252 (https://encoding.spec.whatwg.org/#names-and-labels)
WESTERN = ("ascii", "iso8859-1")


class Encoding:
    """The encoding of a file's text. bom: its first bytes."""

    def __init__(self, name: str, bom: bytes = b"", references: bool = False):
        self.name, self.bom = name, bom
        make = codecs.getincrementalencoder(name)
        self.encode: Callable[[str], bytes] = make(
            "xmlcharrefreplace" if references else "strict"
        ).encode


def decoded(content: bytes, format: str, what: str) -> tuple[str, Encoding]:
    """Return the text of a file, and how it is encoded. what: the file, for messages.

    Errors: UsageError for bytes that are not of their encoding.
    """
    references = format in XML_FORMATS
    bom, name = next(((b, n) for b, n in BOMS if content.startswith(b)), (b"", ""))
    name = name or declared(content, format, what)
    if not bom and references and content[:4] in (b"<\0?\0", b"\0<\0?"):
        name = "utf-16-le" if content[1] == 0 else "utf-16-be"
    body = content[len(bom) :]
    try:
        text = body.decode(name or "utf-8")
        is_same = name in ("", "utf-8") or text.encode(name) == body
    except UnicodeError as error:
        if not name and format in HTML_FORMATS and not has_undefined(body):
            return body.decode("cp1252"), Encoding("cp1252", references=references)
        shown = "UTF-8" if name in ("", "utf-8") else name
        place = getattr(error, "start", 0) + 1 + len(bom)
        raise UsageError(f"{what} is not valid {shown} (byte {place}): save it as UTF-8") from None
    if not is_same:
        raise UsageError(f"{what} cannot be written as {name} again: save it as UTF-8")
    return text, Encoding(name or "utf-8", bom, references)


def declared(content: bytes, format: str, what: str) -> str:
    """Return the encoding that a file declares; "" where it declares none.

    Errors: UsageError for one that is not known.
    """
    found = None
    if format in XML_FORMATS:
        found = XML.match(content[:FIRST])
    if found is None and format in HTML_FORMATS:
        found = META.search(content[:FIRST])
    if format == "po":
        found = PO.search(content[:65536])
    if found is None or found[1] == b"CHARSET":
        return ""
    label = found[1].decode("ascii", "replace")
    try:
        name = codecs.lookup(label).name
        "-".encode(name, "xmlcharrefreplace")  # refuses what is no encoding of text
    except (LookupError, UnicodeError):
        raise UsageError(
            f"{what} declares the encoding {label}, which is not known: save it as UTF-8"
        ) from None
    if name.startswith(("utf-16", "utf-32")):  # the declaration was read, so it is none of these
        return ""
    if format in HTML_FORMATS and name in WESTERN and not content.lstrip().startswith(b"<?xml"):
        return "latin-1" if has_undefined(content) else "cp1252"
    return name


def has_undefined(content: bytes) -> bool:
    """Return whether a text has a byte that windows-1252 lacks in Python."""
    return any(byte in content for byte in b"\x81\x8d\x8f\x90\x9d")


def in_utf8(text: str) -> str:
    """Return a po file with its charset changed to UTF-8."""
    return regex.sub(r"(?i)(charset=)[\w:.-]+(?=\\n)", r"\1UTF-8", text, count=1)
