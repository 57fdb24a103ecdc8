"""Files by their endings, each as one text or several; all else in them stays byte for byte.

| ending | what is translated |
| --- | --- |
| txt md html htm xhtml xml srt vtt | the text |
| docx pptx odt epub | paragraphs of all parts of the archive |
| po | entries without a translation |
| xlf xliff | units without a target |
"""

from __future__ import annotations

import codecs
import copy
import lzma
import shutil
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import regex
from tqdm import tqdm

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.files import atomic_write, is_stream
from fairseq_ext.text import MAX_UNPACKED
from fairseq_ext.text.atoms import Item
from fairseq_ext.text.formats import passes
from fairseq_ext.text.office import Part
from fairseq_ext.text.splitter import plain_ends

# ---- The encoding of a file: of its first bytes (BOM), else the one that it declares, else UTF-8
#
# What is written is in the encoding that was read.


BOMS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
DECLARED = regex.compile(rb"\s*<\?xml\s[^>]*?\sencoding\s*=\s*[\"']([A-Za-z][\w.-]*)[\"']")
META = regex.compile(rb"(?i)<meta\s[^>]*?charset\s*=\s*[\"']?\s*([\w:.-]+)")
PO = regex.compile(rb"(?i)charset=([\w:.-]+)\\n")
HTML_FORMATS, XML_FORMATS = ("html",), ("xml", "xliff", "html")
FIRST = 4096  # bytes in which a page declares its encoding
# what browsers read as windows-1252 (https://encoding.spec.whatwg.org/#names-and-labels)
WESTERN = ("ascii", "iso8859-1")


@dataclass
class Encoding:
    """The encoding of a file's text. bom: its first bytes; errors: what is made of a character that
    it lacks."""

    name: str
    bom: bytes
    errors: str

    def written(self, parts: Iterable[str]) -> Iterator[bytes]:
        """Yield a text that comes in parts as bytes (raises UnicodeEncodeError)."""
        yield self.bom
        yield from map(codecs.getincrementalencoder(self.name)(self.errors).encode, parts)


def decoded(content: bytes, format: str, what: str) -> tuple[str, Encoding]:
    """Return the text of a file, and how it is encoded. what: the file, for messages.

    Errors: UsageError for bytes that are not of their encoding.
    """
    errors = "xmlcharrefreplace" if format in XML_FORMATS else "strict"
    bom, name = next(((b, n) for b, n in BOMS if content.startswith(b)), (b"", ""))
    name = name or declared(content, format, what)
    if not bom and format in XML_FORMATS and content[:4] in (b"<\0?\0", b"\0<\0?"):
        name = "utf-16-le" if content[1] == 0 else "utf-16-be"
    body = content[len(bom) :]
    try:
        text = body.decode(name or "utf-8")
        is_same = name in ("", "utf-8") or text.encode(name) == body
    except UnicodeError as error:
        if not name and format in HTML_FORMATS and not has_undefined(body):
            return body.decode("cp1252"), Encoding("cp1252", bom, errors)
        shown = "UTF-8" if name in ("", "utf-8") else name
        place = getattr(error, "start", 0) + 1 + len(bom)
        raise UsageError(f"{what} is not valid {shown} (byte {place}): save it as UTF-8") from None
    if not is_same:
        raise UsageError(f"{what} cannot be written as {name} again: save it as UTF-8")
    return text, Encoding(name or "utf-8", bom, errors)


def declared(content: bytes, format: str, what: str) -> str:
    """Return the encoding that a file declares; "" where it declares none.

    Errors: UsageError for one that is not known.
    """
    found = None
    if format in XML_FORMATS:
        found = DECLARED.match(content[:FIRST])
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


AT_ONCE = 1 << 16
# from a text and its format to its translation, in parts
TranslateText = Callable[[str, str], Iterator[str]]
OFFICE, HTML, XML = "paragraphs", "html", "xml"
# of each ending, the parts that are translated, by name
PARTS = {
    ".docx": [(r"word/(document|header|footer|footnotes|endnotes|comments)\d*\.xml", OFFICE)],
    ".pptx": [(r"ppt/(slides/slide|notesSlides/notesSlide)\d+\.xml", OFFICE)],
    ".odt": [(r"(content|styles)\.xml", OFFICE)],
    ".epub": [(r"(?i).*\.(xhtml|html|htm)", HTML), (r"(?i).*\.ncx", XML)],
}
# parts with text that is not translated
NOT_TRANSLATED = (
    (r".*/charts/chart[^/]*\.xml", "charts"),
    (r".*/diagrams/data[^/]*\.xml", "SmartArt"),
    (r".*/embeddings/.+|Object [^/]*/content\.xml", "embedded files"),
    (r"ppt/comments/.+\.xml", "comments of slides"),
)
DAMAGED = (
    NotImplementedError,  # a way to pack
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    struct.error,
    OverflowError,
    ValueError,
)
# where archives name the parts that are encrypted in them (OpenDocument 1.3, part 2; OCF 3.3)
MANIFESTS = {
    "META-INF/manifest.xml": rb"<(?:\w+:)?encryption-data\b",
    "META-INF/encryption.xml": rb"(?i)\bURI\s*=\s*[\"'][^\"'<>]*\.(?:xhtml|html|htm|ncx)[\"']",
}


@dataclass
class Report:
    """The parts of a file that are not translated: kinds that never are, and parts that cannot be
    read, each with the reason."""

    kinds: list[str] = field(default_factory=list)
    parts: list[tuple[str, str]] = field(default_factory=list)


def translate_archive(
    source: str,
    out: IO[bytes],
    ending: str,
    translate_text: TranslateText,
    name: str,
    limit: int = MAX_UNPACKED,
    most: int | None = None,
) -> Report:
    """Write an archive whose parts with text are translated.

    name: of the file, for messages; limit: bytes to which these parts may unpack together; most:
    paragraphs with letters that a part may have (more without), None for no limit.
    Errors: UsageError for a file that is none, is encrypted or damaged, or unpacks to more;
    TooMany.
    """
    report = Report()
    try:
        old = zipfile.ZipFile(source)
    except DAMAGED:
        # one with a password, or of a program before 2007, is of another kind
        raise UsageError(
            f"{name} must be an archive without a password, as its ending says: save it again as "
            f"{ending[1:]} with its program"
        ) from None
    with old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        with reading(name):
            check_encryption(old, limit, name)
        for info in old.infolist():
            part = info.filename
            report.kinds += [kind for known, kind in NOT_TRANSLATED if regex.fullmatch(known, part)]
            format = next(
                (kind for known, kind in PARTS[ending] if regex.fullmatch(known, part)), ""
            )
            content = made = b""
            if format:
                with reading(name):
                    content = made = unpacked(old, info, limit, name)
                limit -= len(content)
                try:
                    made = translated(content, format, part, translate_text, report, most)
                except UsageError as error:
                    report.parts.append((part, str(error)))
            if made != content:
                new.writestr(info, made, info.compress_type)
            else:
                with reading(name):
                    copied(old, new, info)
    report.kinds = list(dict.fromkeys(report.kinds))
    return report


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Read an archive in this context (raises UsageError where it is wrong)."""
    try:
        yield
    except UsageError:
        raise
    except DAMAGED:
        raise UsageError(
            f"{name} is damaged, or packed in a way that is not read: save it again with its "
            "program"
        ) from None
    except RuntimeError:
        raise UsageError(f"{name} needs a password: save it without") from None


def check_encryption(old: zipfile.ZipFile, limit: int, name: str) -> None:
    """Refuse an archive that names encrypted parts with text (raises RuntimeError)."""
    for info in old.infolist():
        pattern = MANIFESTS.get(info.filename)
        if pattern and regex.search(pattern, unpacked(old, info, limit, name)):
            raise RuntimeError


def unpacked(old: zipfile.ZipFile, info: zipfile.ZipInfo, limit: int, name: str) -> bytes:
    """Return a part, read in pieces up to the limit."""
    content = bytearray()
    with old.open(info) as part:
        while piece := part.read(AT_ONCE):
            content += piece
            if len(content) > limit:
                raise UsageError(
                    f"the text of {name} unpacks to more than is allowed: raise --max-unpacked, or "
                    "divide the file"
                )
    return bytes(content)


def copied(old: zipfile.ZipFile, new: Any, info: zipfile.ZipInfo) -> None:
    """Copy a part as it is packed."""
    packed: Any = copy.copy(info)  # as if it were stored without being packed
    packed.compress_type, packed.CRC = zipfile.ZIP_STORED, None
    packed.file_size = info.compress_size
    made = copy.copy(info)
    made.flag_bits &= ~0x08  # the sizes stand in front of the data
    made.header_offset = new.start_dir
    new.fp.write(made.FileHeader(info.file_size > zipfile.ZIP64_LIMIT))
    with old.open(packed) as part:
        shutil.copyfileobj(part, new.fp)
    new.filelist.append(made)
    new.start_dir = new.fp.tell()


def translated(
    content: bytes,
    format: str,
    name: str,
    translate_text: TranslateText,
    report: Report,
    most: int | None,
) -> bytes:
    """Return a part whose text is translated (raises UsageError, TooMany)."""
    if format != OFFICE:
        text, encoding = decoded(content, format, name)
        return b"".join(encoding.written(translate_text(text, format)))
    part = Part(content, most)
    report.kinds += part.untranslated
    text = part.text()
    made = "".join(translate_text(text, format))
    if made == text:
        return content
    if left := part.write(made):
        report.parts.append((name, f"{left} of its paragraphs could not be written"))
    return part.content()


TEXTS = {
    ".txt": "text",
    ".md": "markdown",
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".xml": "xml",
    ".srt": "subtitles",
    ".vtt": "subtitles",
    ".po": "po",
    ".xlf": "xliff",
    ".xliff": "xliff",
}
ENDINGS = frozenset([*TEXTS, *PARTS])


def translate(
    source: str,
    target: str,
    translate_text: TranslateText,
    name: str | None = None,
    max_unpacked: int = MAX_UNPACKED,
    max_paragraphs: int | None = None,
) -> Report:
    """Translate a file. Return a report of its parts that are not translated.

    name: of the source, for messages (default: its path); max_unpacked: bytes to which the text of
    an archive may unpack; max_paragraphs: paragraphs with letters that a part of an office file may
    have, and ten times as many without (default: no limit). Errors: UsageError for one that cannot
    be read, and for one that is not what its ending says; TooMany; OSError for a target that cannot
    be written.
    """
    ending, name = Path(source).suffix.lower(), name or source
    if ending not in ENDINGS:
        raise UsageError(f"{name} is none of the files that are read: {', '.join(sorted(ENDINGS))}")
    try:
        with open(source, "rb") as file:
            content = file.read() if ending in TEXTS else b""
    except OSError as error:
        raise UsageError(
            f"cannot read {name} ({error.strerror}): name a file that exists and is readable"
        ) from None
    with atomic_write(target) as out:
        if ending in PARTS:
            # an archive would seek, and a file that is open may write at its end alone
            pipe: Any = SimpleNamespace(write=out.write, flush=out.flush)
            into = pipe if is_stream(target) else out
            return translate_archive(
                source, into, ending, translate_text, name, max_unpacked, max_paragraphs
            )
        format = TEXTS[ending]
        text, encoding = decoded(content, format, name)
        made = translate_text(text, format)
        for part in catalogue(made, encoding) if format == "po" else encoding.written(made):
            out.write(part)
            out.flush()  # where it is a pipe
    return Report()


def catalogue(parts: Iterable[str], encoding: Encoding) -> list[bytes]:
    """Return a po file, in UTF-8 where its own encoding lacks a character."""
    text = "".join(parts)
    try:
        return list(encoding.written([text]))
    except UnicodeEncodeError:
        return [regex.sub(r"(?i)(charset=)[\w:.-]+(?=\\n)", r"\1UTF-8", text, count=1).encode()]


def beginning(
    source: str,
    most: int,
    name: str | None = None,
    max_unpacked: int = MAX_UNPACKED,
    max_paragraphs: int | None = None,
) -> str:
    """Return the first `most` characters of a file's sentences, without what is between them.

    name, max_unpacked, max_paragraphs, errors: see `translate`.
    """
    found: list[str] = []

    def translate_text(text: str, format: str) -> Iterator[str]:
        size = sum(map(len, found))
        for item in passes(format, plain_ends)[-1](text):
            if not isinstance(item, str):
                found.append(item.plain)
                size += len(item.plain)
                if size >= most:
                    raise Enough
        yield text

    with tempfile.TemporaryDirectory() as folder, suppress(Enough):
        target, limits = Path(folder) / Path(source).name, (max_unpacked, max_paragraphs)
        translate(source, str(target), translate_text, name, *limits)
    return "\n".join(found)[:most]


class Enough(Exception):
    """Ends the reading of a file of which only the beginning is needed."""


def counted(bar: tqdm, items: Iterator[Item]) -> Iterator[Item]:
    """Yield the items; a bar shows how much of them has been taken."""
    for item in items:
        yield item
        bar.update(len(item if isinstance(item, str) else item.source))
