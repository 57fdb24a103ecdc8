"""Texts of localisation files (po, XLIFF): escaped, with markup, mnemonics of menus, line breaks
and plural forms of ICU (https://unicode-org.github.io/icu/userguide/format_parse/messages/)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import regex

from fairseq_ext.text import markup
from fairseq_ext.text.atoms import BLOCK, BREAK, LEADS, POINT, Atom
from fairseq_ext.text.reading import cut_at

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
