"""Archives of office files and e-books: the parts with text are read and written again, all others
are copied as they are, without being unpacked."""

from __future__ import annotations

import copy
import lzma
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any

import regex

from fairseq_ext.core.errors import UsageError
from fairseq_ext.text import MAX_UNPACKED
from fairseq_ext.text.encodings import decoded
from fairseq_ext.text.office import Part

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
    paragraphs with letters that a part may have, None for no limit.
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
        return encoding.bom + b"".join(map(encoding.encode, translate_text(text, format)))
    part = Part(content, most)
    report.kinds += part.untranslated
    text = part.text()
    made = "".join(translate_text(text, format))
    if made == text:
        return content
    if left := part.write(made):
        report.parts.append((name, f"{left} of its paragraphs could not be written"))
    return part.content()
