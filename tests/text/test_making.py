"""Files as people and their programs write them, made at random of `patterns.txt`: identity, each
word that is read goes to the translator once and nothing else, and a translation in any order has
each word, tag and code once.

Of a made file each word that a person reads is one of `reads`, each other word one of `keeps`, and
no word stands there twice. A pattern is a line: §s is a text, §r a word that is read, §k one that
is kept, §p a paragraph; of pages §b is the body and §e the declared encoding; of units §u is
the source and §t the target. Other signs are those of `signs` in texts.py.

TEXT_FILES=NUMBER makes that number of each format.
"""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lxml import etree
from texts import done, marked, signs, through

from fairseq_ext.core.words import UNITS
from fairseq_ext.text.atoms import Segment
from fairseq_ext.text.formats import passes
from fairseq_ext.text.marks import Projection
from fairseq_ext.text.splitter import splitter

LETTERS = "abdefgiklmnoprstuw"
WORD = re.compile(r"(?:Les|kein)[a-z]{3}x")


def of_xml(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


def patterns() -> dict[str, list[str]]:
    """The patterns of each kind."""
    text = Path(__file__).with_name("patterns.txt").read_text(encoding="utf-8")
    sections = (part.partition("\n") for part in text.removeprefix("== ").split("\n\n== "))
    return {name: [*map(signs, body.strip("\n").split("\n"))] for name, _, body in sections}


PATTERNS = patterns()


class Making:
    """A file in making. seed: of its choices; many: of words that come out several times, how
    often; encoding: in which it is written."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.reads, self.keeps, self.count = list[str](), list[str](), 0
        self.many: dict[str, int] = {}
        self.encoding = "utf-8"

    def word(self, stem: str, words: list[str]) -> str:
        self.count += 1
        number, letters = self.count, ""
        for _ in range(3):
            number, digit = divmod(number, len(LETTERS))
            letters += LETTERS[digit]
        words.append(f"{stem}{letters}x")
        return words[-1]

    def r(self) -> str:
        return self.word("Les", self.reads)

    def k(self) -> str:
        return self.word("kein", self.keeps)

    def text(self, escape: Callable[[str], str] = str) -> str:
        frame = escape(self.random.choice(PATTERNS["FRAMES"])).split("{}")
        return "".join(
            part + (self.r() if i < len(frame) - 1 else "") for i, part in enumerate(frame)
        )

    def fill(self, pattern: str, escape: Callable[[str], str] = str) -> str:
        return re.sub(
            "§([srk])",
            lambda place: {"s": lambda: self.text(escape), "r": self.r, "k": self.k}[place[1]](),
            pattern,
        )

    def some(self, kind: str, least: int, most: int) -> list[str]:
        return self.random.choices(PATTERNS[kind], k=self.random.randint(least, most))

    def paragraph(self, inline: str, between: str, most: int) -> str:
        out = list[str]()
        for _ in range(self.random.randint(1, 3)):
            out += [self.text(), *map(self.fill, self.some(inline, 0, most))]
        return self.random.choice(between).join(out)

    def ends(self, text: str, bom: bool = True) -> bytes:
        """The text with line ends of one kind or the other, encoded."""
        text = text.replace("\n", "\r\n") if self.random.random() < 0.25 else text
        mark = b"\xef\xbb\xbf" if bom and self.encoding == "utf-8" and self.count % 7 == 0 else b""
        return mark + text.encode(self.encoding)


def markdown(making: Making) -> bytes:
    parts = making.some("MARKDOWN_BLOCKS", 3, 12)
    fronts = making.some("MARKDOWN_FRONT", 0, 2)
    blocks = [making.fill(front) for front in fronts[:1]]
    for pattern in parts:
        first, *others = pattern.split("§p")
        block = making.fill(first)
        for other in others:
            text = making.paragraph("MARKDOWN_INLINE", " ", 2)
            line = block.rpartition("\n")[2]
            lead = re.match(r"[ >\t]*(?:[-*+]\s+|\d+[.)]\s+)?", line)[0]
            break_ = " " if re.search(r"\||: +$", line) else "\n" + re.sub(r"[^>\t]", " ", lead)
            block += text.replace("\n", break_) + making.fill(other)
        blocks.append(block)
    return making.ends("\n\n".join(blocks) + making.random.choice(["", "\n", "\n\n"]))


def page(making: Making) -> bytes:
    head, tail = making.random.choice(PATTERNS["HTML_PAGES"]).split("§b")
    if "§e" in head:
        making.encoding, label = making.random.choice(
            [("cp1252", "iso-8859-1"), ("cp1252", "windows-1252"), ("utf-8", "UTF-8")]
        )
        head = head.replace("§e", label)
    blocks = list[str]()
    for pattern in making.some("HTML_BLOCKS", 2, 9):
        first, *others = pattern.split("§p")
        block = making.fill(first)
        for other in others:
            block += making.paragraph("HTML_INLINE", " \n", 3) + making.fill(other)
        blocks.append(block)
    return making.ends(making.fill(head) + "\n".join(blocks) + making.fill(tail))


def quoted(making: Making, key: str, text: str) -> str:
    """A text of po, in one line or in several."""
    text = text.translate(str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"}))
    if making.random.random() < 0.5:
        return f'{key} "{text}"\n'
    parts = [part for part in re.split(r"(?<=\\n)|(?<= )(?=L)", text) if part]
    return f'{key} ""\n' + "".join(f'"{part}"\n' for part in parts)


def po(making: Making) -> bytes:
    forms = making.random.choice([1, 2, 2, 3])
    out = [
        f'# {making.k()}\nmsgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n'
        f'"Plural-Forms: nplurals={forms}; plural=0;\\n"\n"X: {making.k()}\\n"\n'
    ]
    for kind in making.random.choices(["one", "many", "done", "old"], [5, 2, 1, 1], k=7):
        entry = making.fill(making.random.choice(["", "#: §k.c:1\n#. §k §k\n", "#, c-format\n"]))
        if kind in ("old", "done"):
            done = '#~ msgid "§k"\n#~ msgstr ""\n' if kind == "old" else 'msgid "§k"\nmsgstr "§k"\n'
            out.append(making.fill(done))
            continue
        entry += making.fill(making.random.choice(["", 'msgctxt "§k"\n']))
        before = len(making.reads)
        message = making.fill(making.random.choice(PATTERNS["MESSAGES"]))
        if kind == "one":
            entry += quoted(making, "msgid", message) + 'msgstr ""\n'
        else:
            middle = len(making.reads)
            several = making.fill(making.random.choice(PATTERNS["MESSAGES"]))
            one, others = making.reads[before:middle], making.reads[middle:]
            del making.reads[before:]
            making.many |= dict.fromkeys(one, int(forms > 1)) | dict.fromkeys(
                others, max(1, forms - 1)
            )
            entry += quoted(making, "msgid", message) + quoted(making, "msgid_plural", several)
            entry += "".join(f'msgstr[{form}] ""\n' for form in range(forms))
        out.append(entry)
    return making.ends("\n".join(out), False)


def xliff(making: Making) -> bytes:
    version = making.random.choice(["1.2", "2.0"])
    sources = PATTERNS["XLIFF_12" if version == "1.2" else "XLIFF_2"]
    body = ""
    for unit in making.some(f"UNITS {version}", 1, 8):
        unit = unit.replace("§t", making.random.choice(PATTERNS["TARGETS"]))
        body += making.fill(unit.replace("§u", making.random.choice(sources)), of_xml) + "\n"
    body = f"<body>{body}</body>" if version == "1.2" else body
    space = "urn:oasis:names:tc:xliff:document:" + version
    text = f'<xliff version="{version}" xmlns="{space}"><file id="f">{body}</file></xliff>\n'
    if version == "1.2" and making.random.random() < 0.3:
        text = re.sub(r"<(/?)(?![!?])", r"<\1k:", text).replace("xmlns=", "xmlns:k=")
    return making.ends('<?xml version="1.0"?>\n' + text)


def srt(making: Making) -> bytes:
    cues = [
        f"{number}\n00:00:0{number},000 --> 00:00:0{number},900\n{making.fill(cue)}\n"
        for number, cue in enumerate(making.some("SRT", 1, 9), 1)
    ]
    return making.ends(making.random.choice(["\n", "\n\n", " \n"]).join(cues))


def vtt(making: Making) -> bytes:
    others = ["NOTE §k\n§k\n", "STYLE\n::cue { color: §k }\n", "REGION\nid:§k\n"]
    out = [making.random.choice(["WEBVTT\n", "WEBVTT - §k\n", "WEBVTT\nKind: §k\n"])]
    for cue in making.some("VTT", 1, 8):
        out += making.random.choices(["", making.random.choice(others)], [5, 1])
        out.append(f"§k\n00:00.000 --> 00:01.900 align:start\n{cue}\n")
    return making.ends(making.fill("\n".join(part for part in out if part)), False)


def xml(making: Making) -> bytes:
    making.encoding = making.random.choice(["utf-8", "utf-8", "iso8859-1", "utf-16", "cp1252"])
    body = "\n".join(
        making.fill(each.replace("§p", "§s"), str if "CDATA" in each else of_xml)
        for each in making.some("XML", 1, 8)
    )
    return making.ends(
        f'<?xml version="1.0" encoding="{making.encoding}"?>\n<!DOCTYPE r [<!ENTITY foo "b">]>\n'
        f"<r>\n{body}\n</r>\n",
        False,
    )


MAKERS = {
    ".md": markdown,
    ".html": page,
    ".po": po,
    ".xlf": xliff,
    ".srt": srt,
    ".vtt": vtt,
    ".xml": xml,
}


COUNT = int(os.environ.get("TEXT_FILES", "8"))
FILLED = {
    ".po": re.compile(r'(?m)^msgstr(?:\[\d+\])? "[^\r\n]*\r?\n(?:"[^\r\n]*\r?\n)*'),
    ".xlf": re.compile(r"(?s)<(?:k:)?target[^>]*/>|<(?:k:)?target[^>]*>.*?</(?:k:)?target>"),
}


def shuffled(draw: random.Random):
    """A translation that has the words of each sentence in another order, with their
    punctuation."""

    def of_sentence(item: Segment) -> str:
        words = list[list[tuple[int, int]]]()
        for unit in UNITS.finditer(item.plain):
            is_glued = words and words[-1][-1][1] == unit.start()
            words[-1].append(unit.span()) if is_glued else words.append([unit.span()])
        draw.shuffle(words)
        text, pairs = "", list[tuple[tuple[int, int], tuple[int, int]]]()
        for word in words:
            text += " " if text else ""
            for start, end in word:
                pairs.append(((start, end), (len(text), len(text) + end - start)))
                text += item.plain[start:end]
        return Projection(item, text, pairs if draw.random() < 0.7 else None).rendered()

    def run(text: str, format: str) -> Iterator[str]:
        for items in passes(format, splitter("de")):
            parts = (item if isinstance(item, str) else of_sentence(item) for item in items(text))
            text = "".join(parts)
        yield text

    return run


def tags(text: str) -> Counter[str]:
    """The tags of a text, without words that are read."""
    found = re.findall(r"</?[a-zA-Z][^<>]*>", text)
    kept = (re.sub(r"Les[a-z]{3}x|&quot;|&gt;|\s", "", tag) for tag in found)
    return Counter("".join(sorted(tag)) for tag in kept)


@pytest.mark.parametrize("ending", MAKERS)
def test_files_made_at_random(ending, tmp_path):
    for seed in range(COUNT):
        making, name = Making(seed), f"a{ending}"
        content = MAKERS[ending](making)
        out, text = (
            each.decode(making.encoding)
            for each in (done(tmp_path, name, content, through()), content)
        )
        if ending in FILLED:
            assert FILLED[ending].sub("", out) == FILLED[ending].sub("", text)
        else:
            assert out == text
        seen = list[str]()
        done(tmp_path, name, content, through(marked, seen))
        counts = Counter(word for each in seen for word in WORD.findall(each))
        wanted = Counter(making.reads) + Counter(making.many)
        assert counts == wanted, (seed, counts - wanted, wanted - counts)
        made = done(tmp_path, name, content, shuffled(random.Random(seed)))
        if ending in (".xml", ".xlf"):
            etree.fromstring(made)
        new = made.decode(making.encoding)
        if ending not in FILLED:
            assert Counter(WORD.findall(new)) == Counter(WORD.findall(text)), seed
            assert ending not in (".html", ".xml") or tags(new) == tags(text), seed
