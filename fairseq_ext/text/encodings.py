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
    has_bom = bool(bom)
    name = name or declared(content, format, what)
    if not has_bom and format in XML_FORMATS and content[:4] in (b"<\0?\0", b"\0<\0?"):
        name = "utf-16-le" if content[1] == 0 else "utf-16-be"
    body = content[len(bom) :]
    try:
        text = body.decode(name or "utf-8")
    except UnicodeDecodeError as error:
        if not name and format in HTML_FORMATS:
            return decoded_as(body, "cp1252", what, references)
        shown = {"utf-8": "UTF-8"}.get(name or "utf-8", name)
        raise UsageError(
            f"{what} is not valid {shown} (byte {error.start + 1 + len(bom)}): save it as UTF-8"
        ) from None
    encoding = Encoding(name or "utf-8", bom, references)
    if name and name != "utf-8" and encoding.encode(text) != body:
        raise UsageError(f"{what} cannot be written as {name} again: save it as UTF-8")
    return text, Encoding(name or "utf-8", bom, references)


def decoded_as(body: bytes, name: str, what: str, references: bool) -> tuple[str, Encoding]:
    """Return the text of a page without a declaration that is no UTF-8."""
    try:
        return body.decode(name), Encoding(name, references=references)
    except UnicodeDecodeError:
        raise UsageError(f"{what} is not valid UTF-8: save it as UTF-8") from None


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
        is_text = codecs.lookup(label)._is_text_encoding  # type: ignore[attr-defined]
    except LookupError:
        is_text = False
    if not is_text:
        raise UsageError(
            f"{what} declares the encoding {label}, which is not known: save it as UTF-8"
        )
    if name.startswith(("utf-16", "utf-32")):  # the declaration was read, so it is none of these
        return ""
    if format in HTML_FORMATS and name in WESTERN and not content.lstrip().startswith(b"<?xml"):
        return "cp1252" if not any(byte in content for byte in UNDEFINED) else "latin-1"
    return name


UNDEFINED = (b"\x81", b"\x8d", b"\x8f", b"\x90", b"\x9d")  # of windows-1252 in Python


def in_utf8(text: str) -> str:
    """Return a po file with its charset changed to UTF-8."""
    return regex.sub(r"(?i)(charset=)[\w:.-]+(?=\\n)", r"\1UTF-8", text, count=1)
