"""A text as segments, each of which a model of single sentences can take, and what
is kept between them.

A run of text is a list of atoms: text, tags, placeholders. It is cut where its sentences
end; `items` are segments and kept strings whose sources, one behind the other, are the text,
character for character. A segment has one plain sentence, and marks: what was taken out of it.
A segment of more tokens than the model takes is cut again (`halves`): at punctuation, else
at a space, else anywhere.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import regex

from fairseq_ext.text.placeholders import find

TEXT, OPEN, CLOSE, POINT, PLACEHOLDER = "text", "open", "close", "point", "placeholder"
CUTS = (
    regex.compile(r"[,;:.!?…)\]]+\s+|[，；：。！？、]|\s[-–—]\s"),
    regex.compile(r"\s+"),
    regex.compile(r"(?<=.)(?=.)"),
)
# of an item of a list, a quotation, somebody who speaks
BULLET = regex.compile(r"\s*(?:[-–—*•·‣▪◦+>]|\d{1,3}[.)]|[a-z]\))\s+(?=\S)")
# characters of a segment: no model takes so many, and to segment them would keep others waiting
LONGEST = 3000
LETTER, WORDY, SPACE = regex.compile(r"\p{L}"), regex.compile(r"\w"), regex.compile(r"\s")
# punctuation that stands directly behind a word
CLOSES = regex.compile(r"[\p{P}--[\p{Ps}\p{Pi}]]", regex.V1)


@dataclass(frozen=True)
class Atom:
    """A part of a run.

    raw: as it stands there; text: what is read, of text alone; name: of a tag.
    """

    kind: str
    raw: str
    text: str = ""
    name: str = ""


@dataclass
class Mark:
    """What is taken out of a sentence: a tag around the characters [start, end) of the plain text,
    or what stands at a place of it."""

    start: int
    end: int
    opening: str  # of what has no end: itself
    closing: str = ""
    glued: tuple[bool, bool] = (False, False)  # whether a word stands directly before and behind
    half: str = ""  # OPEN or CLOSE: of a tag whose other half stands in another sentence
    inside: list[Mark] = field(default_factory=list)


@dataclass
class Segment:
    """One sentence, or a piece of one.

    source: its characters in the text; plain: what is translated.
    """

    source: str
    plain: str
    marks: list[Mark]
    atoms: list[Atom]
    origin: list[int]  # of each character of plain, where it stands in the source
    escape: Callable[[str], str] = str
    lead: str = ""  # what plain begins with to name its target language, here or before
    # in its text; of a piece of a longer segment, the upper 31 bits say which piece it is
    number: int = 0


Item = str | Segment


def of_text(
    text: str, ends: Callable[[str], list[int]], protect: Sequence[str] = ()
) -> Iterator[Item]:
    """The items of a plain text.

    A line break ends a sentence. ends: of `splitter`; protect: regular expressions.
    """
    for line in text.splitlines(keepends=True):
        lead = BULLET.match(line)
        atoms, at = [Atom(POINT, lead[0])] if lead else [], lead.end() if lead else 0
        for start, end in find(line, protect):
            if start < at:
                continue
            atoms += [
                Atom(TEXT, line[at:start], line[at:start]),
                Atom(PLACEHOLDER, line[start:end]),
            ]
            at = end
        yield from of_run([*atoms, Atom(TEXT, line[at:], line[at:])], ends)


def of_run(
    atoms: Sequence[Atom], ends: Callable[[str], list[int]], escape: Callable[[str], str] = str
) -> Iterator[Item]:
    """The items of a run. escape: from plain text to what stands in the run."""
    atoms = [atom for atom in atoms if atom.raw]
    shown = SPACE.sub(" ", read(atoms))
    yield from of_parts(atoms, short(shown, ends(shown)) if shown else [], escape)


def short(shown: str, ends: Sequence[int]) -> list[int]:
    """The ends of sentences, and more of them where one is longer than `LONGEST`."""
    out, at = list[int](), 0
    for end in ends:
        while end - at > LONGEST:
            found = (
                match.end()
                for pattern in CUTS[:2]
                for match in pattern.finditer(shown, at + LONGEST // 2, at + LONGEST)
            )
            at = next(found, at + LONGEST)
            out.append(at)
        out.append(end)
        at = end
    return out


def read(atoms: Sequence[Atom]) -> str:
    """What is read of atoms; a placeholder is one character."""
    return "".join("_" if atom.kind == PLACEHOLDER else atom.text for atom in atoms)


def of_parts(
    atoms: Sequence[Atom], ends: Sequence[int], escape: Callable[[str], str]
) -> Iterator[Item]:
    """The items of atoms, given where their parts end in what is read."""
    for sentence in cut(atoms, ends):
        yield from trimmed(balanced(sentence), escape)


def cut(atoms: Sequence[Atom], ends: Sequence[int]) -> Iterator[list[Atom]]:
    """The atoms of each sentence, given where sentences end in what is read."""
    sentence, at, all_ends = list[Atom](), 0, set(ends)
    for atom in atoms:
        if sentence and at in all_ends and atom.kind != CLOSE:
            yield sentence
            sentence = []
        size = 1 if atom.kind == PLACEHOLDER else len(atom.text)
        inside = (
            ends[bisect_right(ends, at) : bisect_left(ends, at + size)]
            if atom.raw == atom.text
            else []
        )
        for start, end in pairwise([at, *inside, at + size]) if inside else ():
            if start > at:
                yield sentence
                sentence = []
            text = atom.text[start - at : end - at]
            sentence.append(Atom(TEXT, text, text))
        if not inside:
            sentence.append(atom)
        at += size
    if sentence:
        yield sentence


def balanced(atoms: list[Atom]) -> list[Atom]:
    """The sentence, where tags without a partner in it are points: of a tag around parts of two
    sentences, the end stands in the second."""
    open_tags, matched = list[int](), set[int]()
    for place, atom in enumerate(atoms):
        if atom.kind == OPEN:
            open_tags.append(place)
        elif atom.kind == CLOSE and open_tags and atoms[open_tags[-1]].name == atom.name:
            matched |= {open_tags.pop(), place}
    lone = [atom.kind in (OPEN, CLOSE) and place not in matched for place, atom in enumerate(atoms)]
    return [
        Atom(POINT, atom.raw, name=atom.kind) if is_lone else atom
        for atom, is_lone in zip(atoms, lone, strict=True)
    ]


def trimmed(atoms: list[Atom], escape: Callable[[str], str]) -> Iterator[Item]:
    """A segment without what stands around its words, and that."""
    first, behind = 0, len(atoms)
    pairs = matching(atoms)
    while first < behind:
        if is_edge(atoms[first]):
            first += 1
        elif is_edge(atoms[behind - 1]):
            behind -= 1
        elif pairs.get(first) == behind - 1:
            first, behind = first + 1, behind - 1
        elif first in pairs and all(map(is_edge, atoms[first + 1 : pairs[first]])):
            # a picture that is a link
            first = pairs[first] + 1
        else:
            break
    lead, core, trail = atoms[:first], atoms[first:behind], atoms[behind:]
    if core and core[0].kind == TEXT and core[0].raw == core[0].text:
        stripped = core[0].text.lstrip()
        space = core[0].text[: len(core[0].text) - len(stripped)]
        lead, core = [*lead, Atom(TEXT, space, space)], [Atom(TEXT, stripped, stripped), *core[1:]]
    if core and core[-1].kind == TEXT and core[-1].raw == core[-1].text:
        stripped = core[-1].text.rstrip()
        space = core[-1].text[len(stripped) :]
        core, trail = (
            [*core[:-1], Atom(TEXT, stripped, stripped)],
            [Atom(TEXT, space, space), *trail],
        )
    if kept := raw(lead):
        yield kept
    if core:
        plain, marks, origin = taken_out(core)
        yield (
            Segment(raw(core), plain, marks, core, origin, escape)
            if LETTER.search(plain)
            else raw(core)
        )
    if kept := raw(trail):
        yield kept


def is_edge(atom: Atom) -> bool:
    """Whether an atom at the edge of a sentence is no part of it."""
    return atom.kind in (POINT, PLACEHOLDER) or (atom.kind == TEXT and not atom.text.strip())


def raw(atoms: Sequence[Atom]) -> str:
    """Atoms as they stand in the text."""
    return "".join(atom.raw for atom in atoms)


def matching(atoms: Sequence[Atom]) -> dict[int, int]:
    """The place of each opening tag to that of its closing tag, in balanced atoms."""
    open_tags, found = list[int](), dict[int, int]()
    for place, atom in enumerate(atoms):
        if atom.kind == OPEN:
            open_tags.append(place)
        elif atom.kind == CLOSE:
            found[open_tags.pop()] = place
    return found


def taken_out(atoms: Sequence[Atom]) -> tuple[str, list[Mark], list[int]]:
    """The plain text of balanced atoms with single spaces, what was taken out of it, and where its
    characters stand in the atoms."""
    plain, origin, marks, stack = list[str](), list[int](), list[Mark](), list[Mark]()

    def add(character: str, at: int) -> None:
        if not (character.isspace() and plain and plain[-1] == " "):
            plain.append(" " if character.isspace() else character)
            origin.append(at)

    at = 0
    for place, atom in enumerate(atoms):
        if atom.kind == TEXT:
            for i, character in enumerate(atom.text):
                add(character, at + (i if atom.raw == atom.text else 0))
        elif atom.kind == CLOSE:
            while (mark := stack.pop()).half:  # of what is not nested
                mark.end = len(plain)
            behind = next((other.text[0] for other in atoms[place + 1 :] if other.text), " ")
            mark.end, mark.closing, mark.glued = (
                len(plain),
                atom.raw,
                (mark.glued[0], is_word(behind)),
            )
        else:
            before, behind = (
                plain[-1] if plain else "",
                next((other.text[0] for other in atoms[place + 1 :] if other.text), " "),
            )
            glued = is_word(before), is_word(behind)
            # nothing comes between it and its tag
            is_first = place > 0 and atoms[place - 1].kind == OPEN
            if atom.kind == PLACEHOLDER and all(glued):
                add(" ", at)
            elif atom.kind == PLACEHOLDER and before == " " and CLOSES.match(behind):
                del plain[-1], origin[-1]
                keep_within([*stack, *(stack[-1].inside if stack else marks)], len(plain))
            beside, half = (
                stack[-1].inside if stack else marks,
                atom.name if atom.kind == POINT else "",
            )
            mark = Mark(
                len(plain), len(plain), atom.raw, glued=(glued[0] or is_first, glued[1]), half=half
            )
            if half == CLOSE:  # around all before it
                mark.start, mark.opening, mark.closing, mark.inside = (
                    stack[-1].start if stack else 0,
                    "",
                    atom.raw,
                    beside[:],
                )
                beside.clear()
            beside.append(mark)
            if OPEN in (atom.kind, half):
                stack.append(mark)
        at += len(atom.raw)
    for mark in stack:
        mark.end = len(plain)
    return "".join(plain), marks, origin


def keep_within(marks: Sequence[Mark], length: int) -> None:
    """Let no mark stand behind a text of this length, which has become shorter."""
    for mark in marks:
        mark.start, mark.end = min(mark.start, length), min(mark.end, length)
        keep_within(mark.inside, length)


def led(items: Iterable[Item], leads: Collection[str]) -> Iterator[Item]:
    """The items, where a sentence that begins with one of these words (>>fra<<) says it
    for those behind it too."""
    lead = ""
    for item in items:
        if isinstance(item, Segment) and leads:
            own = next((each for each in leads if item.plain.startswith(each)), "")
            lead = own or lead
            if item.plain.strip() == own:
                item = item.source
            elif own or lead:
                atoms = item.atoms if own else [Atom(TEXT, "", f"{lead} "), *item.atoms]
                plain, marks, origin = taken_out(atoms)
                item = replace(
                    item, plain=plain, marks=marks, origin=origin, atoms=atoms, lead=lead
                )
        yield item


def is_word(character: str) -> bool:
    """Whether a character belongs to a word."""
    return WORDY.match(character) is not None


def halves(segment: Segment) -> list[Item]:
    """The segment in two pieces, near its middle; between or around them, tags that
    stand around both."""
    shown = read(segment.atoms)
    for pattern in CUTS:
        ends = [
            match.end()
            for match in pattern.finditer(shown)
            if len(shown) / 5 <= match.end() <= len(shown) * 4 / 5
        ]
        if ends:
            end = min(ends, key=lambda each: abs(each - len(shown) / 2))
            items = list(
                led(
                    of_parts(segment.atoms, [end, len(shown)], segment.escape),
                    {segment.lead} - {""},
                )
            )
            for i, piece in enumerate(item for item in items if isinstance(item, Segment)):
                piece.number = segment.number + ((segment.number >> 32) + 1 + i << 32)
            return items
    return [segment.source]
