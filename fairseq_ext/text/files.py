"""Files by their endings, each as one text or several; what is no text in them stays byte for byte.

| ending | what is translated |
| --- | --- |
| txt md html htm xhtml xml srt vtt | the text |
| docx pptx odt epub | paragraphs of all parts of the archive |
| po | entries without a translation (needs polib) |
| xlf xliff | units without a target |
"""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import regex
from lxml import etree
from tqdm import tqdm

from fairseq_ext.core.errors import UsageError, cut
from fairseq_ext.core.files import replacing
from fairseq_ext.text.formats import passes
from fairseq_ext.text.office import tidy
from fairseq_ext.text.segments import Item
from fairseq_ext.text.splitter import plain_ends

# from a text and its format to its translation, in parts
Through = Callable[[str, str], Iterator[str]]
TEXTS = {
    ".txt": "text",
    ".md": "markdown",
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".xml": "xml",
    ".srt": "subtitles",
    ".vtt": "subtitles",
}
PARTS = {  # of archives: which of them are translated, and their format
    ".docx": (r"word/(document|header\d*|footer\d*|footnotes|endnotes|comments)\.xml", "runs"),
    ".pptx": (r"ppt/(slides/slide|notesSlides/notesSlide)\d+\.xml", "runs"),
    ".odt": (r"(content|styles)\.xml", "odt"),
    ".epub": (r".*\.(xhtml|html|htm)", "html"),
}
BETWEEN = "\n\0\n"  # what parts the texts of a list
ENDINGS = frozenset([*TEXTS, *PARTS, ".po", ".xlf", ".xliff"])


def translate(source: str, target: str, through: Through) -> None:
    """Translate a file.

    Errors: UsageError for one that cannot be read, and for one that is not what its ending says.
    """
    ending = Path(source).suffix.lower()
    if ending not in ENDINGS:
        raise UsageError(
            f"{source} is none of the files that are read: {', '.join(sorted(ENDINGS))}"
        )
    try:
        content = Path(source).read_bytes()
    except OSError as error:
        raise UsageError(
            f"cannot read {source} ({error.strerror}): name a file that exists and is readable"
        ) from None
    try:
        with replacing(target) as out:
            if ending in TEXTS:
                for part in through(text_of(content, source), TEXTS[ending]):
                    out.write(part.encode())
                    out.flush()  # where it is a pipe
            elif ending in PARTS:
                archive(source, out, *PARTS[ending], through)
            elif ending == ".po":
                catalogue(source, out, through)
            else:
                units(content, source, out, through)
    except OSError as error:
        raise UsageError(
            f"cannot write {target} ({error.strerror or error}): name a file in a folder "
            "that can be written"
        ) from None


def text_of(content: bytes, source: str) -> str:
    """The text of a file; UTF-16 where its first bytes say so."""
    try:
        return content.decode("utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{source} is not valid UTF-8 (byte {error.start + 1}): save it as UTF-8"
        ) from None


def archive(source: str, out: IO[bytes], parts: str, format: str, through: Through) -> None:
    """Write an archive whose parts of these names are translated."""
    wanted = regex.compile(parts)
    try:
        with zipfile.ZipFile(source) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
            for info in old.infolist():
                content = old.read(info)
                if wanted.fullmatch(info.filename):
                    text = "".join(
                        through(text_of(content, f"{info.filename} in {source}"), format)
                    )
                    content = (tidy(text) if format == "runs" else text).encode()
                new.writestr(info, content, info.compress_type)
    except zipfile.BadZipFile:
        raise UsageError(
            f"{source} must be an archive, as its ending says: save it again"
        ) from None


def listed(texts: Iterable[str], format: str, through: Through) -> list[str]:
    """The translations of several texts, together."""
    return "".join(through(BETWEEN.join(texts), format)).split(BETWEEN)


def catalogue(source: str, out: IO[bytes], through: Through) -> None:
    """Write a po file whose entries without a translation have one."""
    try:
        import polib
    except ImportError:
        raise UsageError(
            "po files need polib, which is not installed: pip install 'fairseq_ext[text]'"
        ) from None
    try:
        file = polib.pofile(source)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{source} must be a po file ({cut(str(error))}): correct it") from None
    entries = [
        entry
        for entry in file
        if not entry.obsolete and not entry.msgstr and not any(entry.msgstr_plural.values())
    ]
    texts = [text for entry in entries for text in (entry.msgid, entry.msgid_plural)]
    found = iter(listed(texts, "text", through))
    for entry in entries:
        entry.msgstr, several = next(found), next(found)
        if entry.msgid_plural:
            one, entry.msgstr = entry.msgstr, ""
            entry.msgstr_plural = {i: several if i else one for i in entry.msgstr_plural or (0, 1)}
    out.write(str(file).encode() + b"\n")


def units(content: bytes, source: str, out: IO[bytes], through: Through) -> None:
    """Write an XLIFF file whose units without a target have one."""
    try:
        root = etree.fromstring(
            content, etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False)
        )
    except etree.XMLSyntaxError as error:
        raise UsageError(
            f"line {error.lineno} of {source} is not valid XML ({cut(str(error.msg))}): correct it"
        ) from None
    open_units = [
        each
        for each in root.iter("{*}source")
        if not "".join(each.getparent().itertext("{*}target"))
    ]
    found = listed(map(inner, open_units), "html", through)
    for unit, text in zip(open_units, found if open_units else (), strict=True):
        target = unit.getparent().find("{*}target")
        if target is None:
            target = etree.Element(
                etree.QName(etree.QName(unit).namespace, "target"), nsmap=unit.nsmap
            )
            unit.addnext(target)
            target.tail, unit.tail = unit.tail, unit.tail
        names = " ".join(
            f'xmlns{":" + prefix if prefix else ""}="{uri}"' for prefix, uri in unit.nsmap.items()
        )
        whole = etree.fromstring(f"<x {names}>{text}</x>")
        target.text = whole.text
        target[:] = list(whole)
    out.write(etree.tostring(root.getroottree(), xml_declaration=True, encoding="utf-8"))


def inner(element: Any) -> str:
    """What stands in an element, without the declarations of its namespaces."""
    whole = etree.tostring(element, encoding="unicode", with_tail=False)
    return (
        regex.sub(r"\sxmlns(:\w+)?=\"[^\"]*\"", "", whole.partition(">")[2].rpartition("</")[0])
        if not whole.endswith("/>")
        else ""
    )


def beginning(source: str, most: int) -> str:
    """So many characters of a file's sentences, without what stands between them.

    Errors: as of `translate`.
    """
    found: list[str] = []

    def through(text: str, format: str) -> Iterator[str]:
        items = passes(format, plain_ends)[-1](text)
        found.extend(
            item.plain
            for item in items
            if sum(map(len, found)) < most and not isinstance(item, str)
        )
        yield text

    with tempfile.TemporaryDirectory() as folder:
        translate(source, str(Path(folder) / Path(source).name), through)
    return "\n".join(found)[:most]


def counted(bar: tqdm, items: Iterator[Item]) -> Iterator[Item]:
    """The items; a bar shows how much of them has been taken."""
    for item in items:
        yield item
        bar.update(len(item if isinstance(item, str) else item.source))
