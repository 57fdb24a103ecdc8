"""po files as segments: entries without a translation get one; all else is kept.

An entry is read by its lines (https://www.gnu.org/software/gettext/manual, PO Files). Its plural
forms are as many as the file's header says: the first is made of `msgid`, the others of
`msgid_plural`; a language with one form has that of `msgid_plural`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import regex

from fairseq_ext.core.errors import UsageError, cut
from fairseq_ext.text.atoms import BREAK, Part
from fairseq_ext.text.messages import message_atoms
from fairseq_ext.text.reading import through_escapes, with_signs

LINE = regex.compile(r"[^\n]*\n|[^\n]+")
KEYWORD = regex.compile(
    r"[ \t]*(?P<old>#~\|?[ \t]*)?"
    r"(?:(?P<key>domain|msgctxt|msgid_plural|msgid|msgstr(?:\[\d\d?\])?)[ \t]*)?"
    r'(?:"(?P<text>(?:[^"\\\r\n]|\\.)*)"[ \t]*)*\r?\n?'
)
ESCAPE = regex.compile(r"\\(?:[0-7]{1,3}|x[\da-fA-F]{1,2}|.)")
FORMS = regex.compile(r"nplurals\s*=\s*(\d)\b")  # no language has ten
NAMED = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
# text as it stands in quotes
escaped = with_signs({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"})


@dataclass
class Entry:
    """An entry in reading: of each keyword the text as it is written, and where it begins."""

    texts: dict[str, str] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    is_old: bool = False

    def is_open(self) -> bool:
        """Return whether it waits for a translation."""
        filled = any(text for key, text in self.texts.items() if key.startswith("msgstr"))
        return bool(self.texts.get("msgid")) and not filled and not self.is_old


def of_po(text: str, protect: Sequence[str]) -> Iterator[Part]:
    """Yield the parts of a po file, where the text of an entry without a translation is its
    translation (raises UsageError for a line that is none of a po file)."""
    yield escaped
    eol = "\r\n" if "\r\n" in text else "\n"
    count, at = 0, 0
    for entry, end in entries(text):
        if entry.texts.get("msgid") == "" and not count:
            forms = FORMS.search(entry.texts.get("msgstr", ""))
            count = int(forms[1]) if forms else 0
        if not entry.is_open():
            continue
        here = sorted(
            (place, key) for key, place in entry.places.items() if key.startswith("msgstr")
        )
        for place, key in here:
            is_plural = "msgid_plural" in entry.texts and (count == 1 or key not in FIRST)
            if count == 1 and key not in FIRST:
                continue  # a form that the language does not have
            yield text[at:place]
            at = place
            yield from of_entry(entry, "msgid_plural" if is_plural else "msgid", protect, eol)
        known = [int(key[7:-1]) for _, key in here if key != "msgstr"]
        missing = range(max(known) + 1, count) if known else ()
        if missing:
            yield text[at:end] + ("" if text[:end].endswith("\n") else eol)
            at = end
            for form in missing:
                yield f'msgstr[{form}] "'
                yield from of_entry(entry, "msgid_plural", protect, eol)
                yield f'"{eol}'
    yield text[at:]


FIRST = ("msgstr", "msgstr[0]")


def of_entry(entry: Entry, key: str, protect: Sequence[str], eol: str) -> Iterator[Part]:
    """Yield the parts of a text of an entry, written as that is: with its lines."""
    raw, size, between = entry.texts[key], 0, f'"{eol}"' if entry.lines[key] > 1 else ""
    yield between
    for atom in through_escapes(raw, ESCAPE, partial(message_atoms, protect=protect), decoded):
        size += len(atom.raw)
        is_break = atom.kind == BREAK and size < len(raw)
        yield replace(atom, raw=atom.raw + between) if is_break else atom


def entries(text: str) -> Iterator[tuple[Entry, int]]:
    """Yield the entries, each with where it ends (raises UsageError)."""
    entry, key, at = Entry(), "", 0
    for number, line in enumerate(LINE.findall(text), 1):
        start, at = at, at + len(line)
        found = KEYWORD.fullmatch(line)
        if found is None or not (found["key"] or found["text"] is not None):
            if line.strip() and not line.lstrip().startswith("#"):
                raise UsageError(
                    f"the file must be a po file, and line {number} ({cut(repr(line.strip()))}) is "
                    "none of one: correct it"
                )
            if entry.texts and not key.startswith("msgid") and key != "msgctxt":
                yield entry, start
                entry, key = Entry(), ""
            continue
        if found["key"]:
            key = found["key"]
            is_new = key in ("domain", "msgctxt", "msgid") and any(
                each.startswith("msgstr") for each in entry.texts
            )
            if is_new:
                yield entry, start
                entry = Entry()
            entry.texts[key], entry.lines[key] = "", 0
        elif not key:
            raise UsageError(
                f"line {number} ({cut(line.strip())}) follows no msgid or msgstr: correct it"
            )
        entry.is_old |= found["old"] is not None
        if found["text"] is not None:
            entry.places.setdefault(key, start + found.starts("text")[0])
        entry.texts[key] += "".join(found.captures("text"))
        entry.lines[key] += len(found.captures("text"))
    if entry.texts:
        yield entry, at


def decoded(escape: regex.Match[str]) -> str:
    """Return the character of an escape."""
    body = escape[0][1:]
    if body[0] in "01234567":
        return chr(int(body, 8))
    return chr(int(body[1:], 16)) if body[0] == "x" and body[1:] else NAMED.get(body, body)
