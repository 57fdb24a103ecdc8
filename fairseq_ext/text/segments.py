"""A text as segments, each of which a model of single sentences can take, and what
is kept between them.

A run of text is a list of atoms: text, tags, placeholders. It is cut where its sentences
end; `items` are segments and kept strings whose sources, joined in order, are the text,
character for character. A segment has one plain sentence, and marks: what was taken out of it.
A segment of more tokens than the model takes is cut again (`halves`): at punctuation, else
at a space, else anywhere.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import regex

from fairseq_ext.text.atoms import (
    BARE,
    BLOCK,
    BREAK,
    CLOSING,
    LETTER,
    OPENING,
    PLACEHOLDER,
    POINT,
    TEXT,
    Atom,
    Ends,
    Escape,
    Item,
    Part,
    Segment,
    is_plain,
    is_word_of_sentence,
    pairs,
    raw,
    segment_of,
    text_atom,
)
from fairseq_ext.text.stopping import checked

CUTS = (
    regex.compile(r"[,;:.!?…)\]]+\s+|[，；：。！？、]|\s[-–—]\s"),
    regex.compile(r"\s+"),
    regex.compile(r"(?<=.)(?=.)"),
)
# characters of a segment: no model takes as many, and segmenting more would delay other requests
LONGEST = 3000
SPACES = regex.compile(r"\s")
BRACKETS = {"(": ")", "[": "]"}
OPENS, CLOSES = regex.compile(r"[(\[](?=\S)"), regex.compile(r"(?<![\s:;=-])[)\]]\Z")  # not :-)
DEEPEST = 100  # tags in each other; those in them part sentences
STANDS_IN = "\ufffc"  # what is read of a placeholder, see splitter.py
DASH = regex.compile(r"\s*(?:[-–—:]\s+(?=\S))?")  # in front of a sentence
ENDED = regex.compile(r"[.!?…:;。！？।؟۔][\p{Pe}\p{Pf}\"'“‘]*$")
STOP = regex.compile(r"[.!?…][\p{Pe}\p{Pf}\"'“‘]*$")


def items_of(parts: Iterable[Part], ends: Ends) -> Iterator[Item]:
    """Yield the items of the parts of a text. ends: of `splitter`."""
    run: list[Atom] = []
    depth = 0
    escape: Escape = str
    for part in checked(parts):
        atom = (
            part if isinstance(part, Atom) else Atom(BLOCK, part if isinstance(part, str) else "")
        )
        if atom.kind in (OPENING, CLOSING):
            depth += 1 if atom.kind == OPENING else -1
            if abs(depth - (atom.kind == OPENING)) >= DEEPEST:
                atom = replace(atom, kind=BLOCK)
        if atom.kind == BLOCK:
            yield from of_run(run, ends, escape)
            if atom.raw:
                yield atom.raw
            run, depth = [], depth if atom.name else 0
            escape = part if callable(part) else escape
        elif atom.raw or atom.text:
            run.append(atom)
    yield from of_run(run, ends, escape)


def of_run(run: Sequence[Atom], ends: Ends, escape: Escape) -> Iterator[Item]:
    """Yield the items of a run: of each of its lines, where its breaks end sentences."""
    for atoms in lines_of(run):
        shown = SPACES.sub(" ", read(atoms))
        whole = ends(shown) if shown else []
        parts = short(shown, whole)
        long = [start for start, end in pairwise([0, *whole]) if end - start > LONGEST]
        cuts = {parts[bisect_right(parts, start)] for start in long}
        yield from of_parts(atoms, parts, escape, cuts)


def lines_of(run: Sequence[Atom]) -> Iterator[list[Atom]]:
    """Yield the run cut at its breaks; a break within a sentence is a point with white space."""
    places = [i for i, atom in enumerate(run) if atom.kind == BREAK]
    starts = [0, *(place + 1 for place in places)]
    texts = [
        read(run[start:end]).strip() for start, end in zip(starts, [*places, len(run)], strict=True)
    ]
    line: list[Atom] = []
    for number, (start, place) in enumerate(zip(starts, [*places, None], strict=True)):
        line += run[start:place]
        if place is not None and goes_on(texts[number], texts[number + 1]):
            line.append(Atom(POINT, run[place].raw, " "))
        elif place is not None:
            yield [*line, Atom(POINT, run[place].raw)]
            line = []
    yield line


def goes_on(line: str, following: str) -> bool:
    """Return whether a sentence goes on behind a line break: with a small letter, or with another
    to a full stop, behind three words the last of which has a small initial."""
    if not line or not following or ENDED.search(line):
        return False
    if following[0].islower():
        return True
    words = line.split()
    is_open = len(words) > 2 and words[-1][0].islower()
    return is_open and following[0].isalpha() and STOP.search(following) is not None


def short(shown: str, ends: Sequence[int]) -> list[int]:
    """Return the ends of sentences, and more of them where one is longer than `LONGEST`."""
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
    """Return what is read of atoms; a placeholder is one character."""
    return "".join(STANDS_IN if atom.kind == PLACEHOLDER else atom.text for atom in atoms)


def of_parts(
    atoms: Sequence[Atom], ends: Sequence[int], escape: Escape, cuts: Collection[int] = ()
) -> Iterator[Item]:
    """Yield the items of atoms, given where their parts end in what is read. cuts: the ends of the
    first parts of sentences that are too long."""
    at = 0
    for sentence in cut(atoms, ends):
        at += len(read(sentence))
        for item in trimmed(collapsed(balanced(sentence)), escape):
            if isinstance(item, Segment):
                item.is_cut = at in cuts
            yield item


def cut(atoms: Sequence[Atom], ends: Sequence[int]) -> Iterator[list[Atom]]:
    """Yield the atoms of each sentence, given where sentences end in what is read."""
    sentence, at, left = list[Atom](), 0, set(ends)
    for atom in atoms:
        if sentence and at in left and atom.kind != CLOSING:
            yield sentence
            sentence = []
            left.remove(at)  # tags at the beginning of a sentence belong to it
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
            sentence.append(text_atom(text))
        if not inside:
            sentence.append(atom)
        at += size
    if sentence:
        yield sentence


def balanced(atoms: list[Atom]) -> list[Atom]:
    """Return the sentence, where tags without a partner in it are points: of a tag around parts of
    two sentences, the end stands in the second."""
    open_tags, matched = list[int](), set[int]()
    for place, atom in enumerate(atoms):
        if atom.kind == OPENING:
            open_tags.append(place)
        elif atom.kind == CLOSING and open_tags and atoms[open_tags[-1]].name == atom.name:
            matched |= {open_tags.pop(), place}
    lone = [
        atom.kind in (OPENING, CLOSING) and place not in matched for place, atom in enumerate(atoms)
    ]
    return [
        Atom(POINT, atom.raw, name=atom.kind if number <= DEEPEST else "") if is_lone else atom
        for atom, is_lone, number in zip(atoms, lone, accumulate(lone), strict=True)
    ]


def collapsed(atoms: list[Atom]) -> list[Atom]:
    """Return the atoms, where tags around nothing but white space are one point."""
    out: list[Atom] = []
    for atom in atoms:
        out.append(atom)
        if atom.kind == CLOSING:
            start = len(out) - 2
            while start >= 0 and out[start].kind == TEXT and not out[start].text.strip():
                start -= 1
            if start >= 0 and out[start].kind == OPENING:
                inside = out[start:]
                del out[start:]
                space = " " if any(each.text for each in inside) else ""
                out.append(Atom(POINT, raw(inside), space))
    return out


def trimmed(atoms: list[Atom], escape: Escape) -> Iterator[Item]:
    """Yield a segment without what stands around its words, and that."""
    first, behind = 0, len(atoms)
    partners = pairs((atom.kind for atom in atoms), OPENING, CLOSING)
    opened = {end: start for start, end in partners.items()}
    while first < behind:
        if is_edge(atoms[first]) or is_label(atoms[first:behind]):
            first += 1
        elif is_edge(atoms[behind - 1]) or follows_colon(atoms[first:behind]):
            behind -= 1
        elif partners.get(first) == behind - 1:
            first, behind = first + 1, behind - 1
        elif first in partners and all(map(is_edge, atoms[first + 1 : partners[first]])):
            # a picture that is a link
            first = partners[first] + 1
        elif behind - 1 in opened and all(map(is_edge, atoms[opened[behind - 1] : behind - 1][1:])):
            behind = opened[behind - 1]
        else:
            break
    lead, core, trail = atoms[:first], atoms[first:behind], atoms[behind:]
    if core and is_plain(core[0]):
        stripped = core[0].text[DASH.match(core[0].text).end() :]  # type: ignore[union-attr]
        space = core[0].text[: len(core[0].text) - len(stripped)]
        lead, core = [*lead, text_atom(space)], [text_atom(stripped), *core[1:]]
    if core and is_plain(core[-1]):
        stripped = core[-1].text.rstrip()
        space = core[-1].text[len(stripped) :]
        core = [*core[:-1], text_atom(stripped)]
        trail = [text_atom(space), *trail]
    opening, core, closing = without_brackets(core)
    lead, trail = [*lead, *opening], [*closing, *trail]
    if kept := raw(lead):
        yield kept
    if core:
        segment = segment_of(core, escape)
        around = [atom for atom in lead if atom.raw][-1:], [atom for atom in trail if atom.raw][:1]
        segment.touches = tuple(  # type: ignore[assignment]
            any(atom.kind == PLACEHOLDER for atom in side) for side in around
        )
        yield segment if LETTER.search(segment.plain) else raw(core)
    if kept := raw(trail):
        yield kept


def without_brackets(atoms: list[Atom]) -> tuple[list[Atom], list[Atom], list[Atom]]:
    """Return the opening bracket, the sentence without brackets, and the closing bracket, since a
    model may lose brackets.

    They are separated from it if they enclose all of it, or this sentence and others.
    """
    shown, waiting, pairs = read(atoms), list[int](), dict[int, int]()  # pairs: end to start
    for at, character in enumerate(shown):
        if character in BRACKETS:
            waiting.append(at)
        elif waiting and character == BRACKETS[shown[waiting[-1]]]:
            pairs[at] = waiting.pop()
    last = len(shown) - 1
    opening, closing = list[Atom](), list[Atom]()
    is_whole = pairs.get(last) == 0
    if (is_whole or (OPENS.match(shown) and 0 in waiting)) and is_plain(atoms[0]):
        opening, rest = [text_atom(shown[0])], atoms[0].text[1:]
        atoms = [text_atom(rest), *atoms[1:]]
    if (is_whole or (CLOSES.search(shown) and last not in pairs)) and is_plain(atoms[-1]):
        closing, rest = [text_atom(shown[last])], atoms[-1].text[:-1]
        atoms = [*atoms[:-1], text_atom(rest)]
    return opening, atoms, closing


def is_edge(atom: Atom) -> bool:
    """Return whether an atom at the edge of a sentence is no part of it."""
    return (
        atom.kind == POINT
        or (atom.kind == PLACEHOLDER and not is_word_of_sentence(atom))
        or (atom.kind == TEXT and not atom.text.strip())
    )


def is_label(atoms: Sequence[Atom]) -> bool:
    """Return whether a sentence begins with a placeholder and a colon: `%s: not found`."""
    return [atom.kind for atom in atoms[:2]] == [PLACEHOLDER, TEXT] and atoms[1].text[:1] == ":"


def follows_colon(atoms: Sequence[Atom]) -> bool:
    """Return whether a sentence ends with a placeholder behind a colon: `not found: %s`."""
    kinds = [atom.kind for atom in atoms[-2:]]
    return kinds == [TEXT, PLACEHOLDER] and atoms[-2].text.rstrip()[-1:] == ":"


def led(items: Iterable[Item], leads: Collection[str]) -> Iterator[Item]:
    """Yield the items, where a sentence that begins with one of these words (>>fra<<) says it
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
                item = replace(segment_of(atoms, item.escape), lead=lead, is_cut=item.is_cut)
        yield item


def without_stand_ins(segment: Segment) -> list[Item]:
    """Return the segment, where no number stands for a placeholder: the model does not see it."""
    atoms = [
        replace(atom, name=BARE) if atom.kind == PLACEHOLDER else atom for atom in segment.atoms
    ]
    items = list(led(trimmed(atoms, segment.escape), {segment.lead} - {""}))
    for item in items:
        if isinstance(item, Segment):
            item.number = segment.number
    return items


def halves(segment: Segment) -> list[Item]:
    """Return the segment in two pieces, near its middle; between or around them, tags that
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
