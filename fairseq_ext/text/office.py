"""Paragraphs of docx, pptx and odt as segments: a run of other formatting than most of its
paragraph is a mark.

In docx and pptx all text stands in runs, `<w:r><w:rPr>...</w:rPr><w:t>text</w:t></w:r>`. The
paragraph is written as one run of its usual formatting, which a mark closes and opens again. What
stands between runs, a link for instance, goes with the words beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import regex

from fairseq_ext.text.markup import BLOCK, of_atoms, of_markup, text_atoms
from fairseq_ext.text.segments import CLOSE, OPEN, POINT, TEXT, Atom, Item

ODT = frozenset(
    (
        "text:span text:a text:s text:bookmark text:bookmark-start text:bookmark-end "
        "text:soft-page-break"
    ).split()
)
NO_MATTER = regex.compile(
    r"<w:(?:proofErr|lastRenderedPageBreak)[^>]*/>|<w:lang [^>]*/>|<w:noProof/>|"
    r"\sw:rsid\w*=\"[^\"]*\"|<w:rPr></w:rPr>"
)


def of_odt(
    text: str, ends: Callable[[str], list[int]], protect: Sequence[str] = ()
) -> Iterator[Item]:
    """The items of an odt's content. ends, protect: as of `of_text`."""
    return of_markup(text, ends, protect, xml=True, inline=ODT)


def of_runs(
    text: str, ends: Callable[[str], list[int]], protect: Sequence[str] = ()
) -> Iterator[Item]:
    """The items of a part of a docx or pptx."""
    space = "w" if "<w:p" in text else "a"
    paragraph = regex.compile(
        rf"(<{space}:p(?: [^>]*)?>)((?:(?!<{space}:p[ >]).)*?)(?=</{space}:p>)", regex.DOTALL
    )
    at = 0
    for found in paragraph.finditer(text):
        yield text[at : found.start(2)]
        at = found.end()
        yield from of_paragraph(found[2], space, ends, protect)
    yield text[at:]


def of_paragraph(
    text: str, space: str, ends: Callable[[str], list[int]], protect: Sequence[str]
) -> Iterator[Item]:
    """The items of what stands in a paragraph."""
    text = NO_MATTER.sub("", text) if space == "w" else text
    run = regex.compile(
        rf"(?P<head><{space}:r(?: [^>]*)?>(?:<{space}:rPr[^>]*/>|<{space}:rPr(?: "
        rf"[^>]*)?>.*?</{space}:rPr>)?)(?P<body>.*?)</{space}:r>|<(?P<close>/?)(?P<link>{space}"
        rf":hyperlink|{space}:smartTag|{space}:ins)(?: [^>]*)?>|<[^>]+>",
        regex.DOTALL,
    )
    words = regex.compile(rf"<{space}:t(?: [^>]*)?>([^<]*)</{space}:t>|<[^>]*>")
    tokens = list(run.finditer(text))
    usual = Counter[str]()
    for token in tokens:
        if token["head"]:
            usual[token["head"]] += sum(
                len(word[1] or "") for word in words.finditer(token["body"])
            )
    if not usual or not usual.most_common(1)[0][1]:
        yield text
        return
    base = usual.most_common(1)[0][0]
    opened, closed = (
        f'<{space}:t xml:space="preserve">' if space == "w" else "<a:t>",
        f"</{space}:t></{space}:r>",
    )
    first = next(
        token.start() for token in tokens if token["head"] == base or token["link"] or token["head"]
    )
    yield text[:first]
    atoms = list[Atom]()
    start, end = base + opened, closed  # between marks, the paragraph is in its usual run
    for token in tokens:
        if token.start() < first:
            continue
        if token["link"]:
            atoms.append(
                Atom(CLOSE if token["close"] else OPEN, end + token[0] + start, name=token["link"])
            )
        elif not token["head"]:
            atoms.append(Atom(POINT, end + token[0] + start))
        else:
            is_usual = token["head"] == base
            atoms += [] if is_usual else [Atom(OPEN, end + token["head"] + opened, name="run")]
            for word in words.finditer(token["body"]):
                if word[1] is not None:
                    atoms += text_atoms(word[1], protect)
                else:
                    atoms.append(Atom(BLOCK, f"</{space}:t>{word[0]}{opened}"))
            atoms += [] if is_usual else [Atom(CLOSE, end + start, name="run")]
    yield start
    yield from of_atoms(merged(atoms, end + start), ends)
    yield end


def merged(atoms: list[Atom], again: str) -> list[Atom]:
    """The atoms without marks that close and open the same formatting again."""
    out: list[Atom] = []
    for atom in atoms:
        if (
            atom.kind == OPEN
            and atom.name == "run"
            and out
            and out[-1].kind == CLOSE
            and out[-1].raw == again
        ):
            before = next(
                other for other in reversed(out) if other.kind == OPEN and other.name == "run"
            )
            if before.raw == atom.raw:
                out.pop()
                continue
        if atom.kind != TEXT or atom.raw:
            out.append(atom)
    return out


def tidy(text: str) -> str:
    """A part of a docx or pptx without runs that hold nothing."""
    return regex.sub(
        r"<([wa]):r(?: [^>]*)?>(?:<\1:rPr[^>]*/>|<\1:rPr(?: [^>]*)?>(?:(?!</\1:rPr>).)*</"
        r"\1:rPr>)?<\1:t(?: [^>]*)?></\1:t></\1:r>",
        "",
        text,
    )
