"""The parts of a text: atoms (text, tags, placeholders), the sentences that are made of them, and
what is taken out of these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import regex

TEXT, OPENING, CLOSING, POINT, PLACEHOLDER = "text", "open", "close", "point", "placeholder"
BLOCK, BREAK = "block", "break"  # atoms that part runs; one that may: a line break
LEADS = "leads"  # name of a point that stands before a word: the mnemonic of a menu
SHOWN = "shown"  # name of a placeholder that is read as a number: its own, or a stand-in's
BARE = "bare"  # name of a placeholder for which no number stands
# placeholders that are no words of their sentences: emoji, %%, entities, pictures, footnotes, tags
NO_WORD_OF_SENTENCE = regex.compile(
    r"(?!.*(?:\w|\{\}|%@))|&|!\[|\[\^|\{%|<(?!(?:code|kbd|samp|tt|var)\b)", regex.DOTALL
)
STAND_INS = range(17, 1000, 13)  # two digits, which models copy
SPACE, WORD, NO_WORD = "space", "word", "other"  # what is next to a mark
LETTER, WORDY = regex.compile(r"\p{L}"), regex.compile(r"\w")
WORDS = regex.compile(r"\w+")
# punctuation that stands directly behind a word
CLOSES = regex.compile(r"[\p{P}--[\p{Ps}\p{Pi}]]", regex.V1)
Ends = Callable[[str], list[int]]  # from a line to the ends of its sentences
Escape = Callable[[str], str]  # from plain text to what stands in a file
SOFT = "\u00ad\u2060\ufeff"  # characters that are not read


@dataclass(frozen=True)
class Atom:
    """A part of a run.

    raw: as it stands there; text: what is read, of text, " " of a break, and the number that a
    placeholder shows; name: of a tag.
    """

    kind: str
    raw: str
    text: str = ""
    name: str = ""


# of a file, as a reader finds them: a str is kept, and a function says how all text behind it is
# written; both part runs
Part = Atom | str | Escape


class Untranslated(str):
    """Text that a reader keeps though people read it. reason: why."""

    reason: str

    def __new__(cls, text: str, reason: str) -> Untranslated:
        made = super().__new__(cls, text)
        made.reason = reason
        return made


def text_atom(text: str) -> Atom:
    """Return text that is written as it is read."""
    return Atom(TEXT, text, text)


def is_word_of_sentence(atom: Atom) -> bool:
    """Return whether the model reads a number in place of a placeholder."""
    is_word = atom.name != BARE and not NO_WORD_OF_SENTENCE.match(atom.raw)
    return atom.kind == PLACEHOLDER and (bool(atom.text) or is_word)


def is_plain(atom: Atom) -> bool:
    """Return whether an atom is text that is written as it is read."""
    return atom.kind == TEXT and atom.raw == atom.text


@dataclass
class Mark:
    """A part taken out of a sentence: a tag around the characters [start, end) of the plain text,
    or the content of a place in it."""

    start: int
    end: int
    opening: str  # of what has no end: itself
    closing: str = ""
    # what stands directly before and behind it: SPACE, WORD or NO_WORD
    near: tuple[str, str] = ("", "")
    half: str = ""  # OPENING or CLOSING: of a tag whose other half stands in another sentence
    inside: list[Mark] = field(default_factory=list)
    name: str = ""


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
    escape: Escape = str
    lead: str = ""  # what plain begins with to name its target language, here or before
    # in its text; of a piece of a longer segment, the upper 31 bits say which piece it is
    number: int = 0
    is_cut: bool = False  # whether it is the first part of a sentence of too many characters
    # whether a placeholder that is no part of it stands directly before and behind it
    touches: tuple[bool, bool] = (False, False)
    # what the source is made of, in its order: (raw, place in plain), and (raw, edge of a mark)
    track: Track = field(default_factory=list)
    # the numbers that stand for placeholders; a translation has each once
    stand_ins: list[str] = field(default_factory=list)

    def lacks(self, text: str) -> bool:
        """Return whether a translation has not each number once that stands for a placeholder."""
        words = WORDS.findall(text) if self.stand_ins else []
        return any(words.count(number) != 1 for number in self.stand_ins)


Item = str | Segment
Edge = tuple[int, str]  # id() of a mark, and OPENING, CLOSING or POINT
Track = list[tuple[str, int | Edge | None]]


def in_cdata(text: str) -> str:
    """Return text as it stands in a CDATA section; where it would end one, `Projection` writes a
    space."""
    return text


def raw(atoms: Sequence[Atom]) -> str:
    """Return atoms as they stand in the text."""
    return "".join(atom.raw for atom in atoms)


def pairs(kinds: Iterable[str], opening: str, closing: str) -> dict[int, int]:
    """Return the places of what opens, by its kind, each with the place of what closes it, in
    balanced parts."""
    open_places, ends = list[int](), dict[int, int]()
    for place, kind in enumerate(kinds):
        if kind == opening:
            open_places.append(place)
        elif kind == closing:
            ends[open_places.pop()] = place
    return ends


def segment_of(atoms: list[Atom], escape: Escape) -> Segment:
    """Return the segment of balanced atoms."""
    reader = Reader(atoms)
    return Segment(
        raw(atoms),
        "".join(reader.plain),
        reader.marks,
        atoms,
        reader.origin,
        escape,
        track=reader.track,
        stand_ins=reader.stand_ins,
    )


class Reader:
    """The plain text of balanced atoms with single spaces, what was taken out of it, and where its
    characters stand in the atoms."""

    def __init__(self, atoms: Sequence[Atom]):
        self.plain, self.origin = list[str](), list[int]()
        self.marks, self.stack, self.track = list[Mark](), list[Mark](), Track()
        self.place, self.last = 0, ""
        self.stand_ins = list[str]()
        text = "".join(atom.text for atom in atoms)
        self.numbers = (str(n) for n in STAND_INS if str(n) not in text)
        following = [""] * len(atoms)  # of each atom, the first character that is read behind it
        for place in range(len(atoms) - 2, -1, -1):
            following[place] = atoms[place + 1].text[:1] or following[place + 1]
        for place, atom in enumerate(atoms):
            if atom.kind == TEXT:
                self.text(atom)
            elif atom.kind == CLOSING:
                while (mark := self.stack.pop()).half:  # of what is not nested
                    mark.end = len(self.plain)
                mark.end, mark.closing = len(self.plain), atom.raw
                self.track.append((atom.raw, (id(mark), CLOSING)))
            else:
                self.mark(atom, following[place])
            self.place += len(atom.raw)
        for mark in self.stack:
            mark.end = len(self.plain)
        if self.plain[-1:] == [" "]:
            self.drop_space()

    def text(self, atom: Atom) -> None:
        """Read text."""
        if atom.raw == atom.text:
            for at, character in enumerate(atom.text, self.place):
                self.add(character, character, at)
        else:
            for i, character in enumerate(atom.text):
                self.add(character, "" if i else atom.raw, self.place)
        self.last = atom.text[-1:] or self.last

    def add(self, character: str, raw: str, at: int) -> None:
        """Read a character; of white space the first alone, and none at the beginning."""
        plain, is_space = self.plain, character.isspace()
        if character in SOFT or (is_space and (not plain or plain[-1] == " ")):
            self.track.append((raw, None))
        else:
            self.track.append((raw, len(plain)))
            plain.append(" " if is_space else character)
            self.origin.append(at)

    def mark(self, atom: Atom, behind: str) -> None:
        """Take out a tag or a placeholder. behind: the next character that is read."""
        near = kind_of(self.last), kind_of(behind)
        marks = self.stack[-1].inside if self.stack else self.marks
        if is_word_of_sentence(atom) and WORD not in near and (number := self.number(atom)):
            mark = Mark(len(self.plain), 0, atom.raw, near=near, name=SHOWN)
            marks.append(mark)
            self.track.append((atom.raw, (id(mark), OPENING)))
            for character in number:
                self.add(character, "", self.place)
            mark.end, self.last = len(self.plain), number[-1]
            self.track.append(("", (id(mark), CLOSING)))
            return
        if atom.kind == PLACEHOLDER and near == (WORD, WORD):
            self.add(" ", "", self.place)
        elif atom.kind == PLACEHOLDER and self.plain[-1:] == [" "] and CLOSES.match(behind):
            self.drop_space()
        half = atom.name if atom.kind == POINT and atom.name in (OPENING, CLOSING) else ""
        at = len(self.plain)
        mark = Mark(at, at, atom.raw, near=near, half=half, name=atom.name)
        if half == CLOSING:  # around all before it
            mark.start = self.stack[-1].start if self.stack else 0
            mark.opening = ""
            mark.closing = atom.raw
            mark.inside = marks[:]
            marks.clear()
        marks.append(mark)
        kind = half or (OPENING if atom.kind == OPENING else POINT)
        self.track.append((atom.raw, (id(mark), kind)))
        if OPENING in (atom.kind, half):
            self.stack.append(mark)
        elif atom.text and atom.kind == POINT:  # a line break
            self.add(" ", "", self.place)
            self.last = " "

    def number(self, atom: Atom) -> str:
        """Return what is read of a placeholder; "" where no number is left."""
        if not atom.text and (number := next(self.numbers, "")):
            self.stand_ins.append(number)
            return number
        return atom.text

    def drop_space(self) -> None:
        """Read the last character, which is white space, no more."""
        del self.plain[-1], self.origin[-1]
        place = next(
            i for i in range(len(self.track) - 1, -1, -1) if self.track[i][1] == len(self.plain)
        )
        self.track[place] = (self.track[place][0], None)
        keep_within(self.marks, len(self.plain))


def kind_of(character: str) -> str:
    """Return what a character is for a mark that stands directly before or behind it."""
    if not character:
        return ""
    return SPACE if character.isspace() else WORD if is_word(character) else NO_WORD


def keep_within(marks: Sequence[Mark], length: int) -> None:
    """Let no mark stand behind a text of this length, which has become shorter."""
    for mark in marks:
        mark.start, mark.end = min(mark.start, length), min(mark.end, length)
        keep_within(mark.inside, length)


def is_word(character: str) -> bool:
    """Return whether a character belongs to a word."""
    return WORDY.match(character) is not None
