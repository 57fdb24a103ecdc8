"""Files made at random (`making.py`): identity, each word that is read goes to the translator once
and nothing else, and a translation in any order has each word, tag and code once.

TEXT_FILES=NUMBER makes that number of each format.
"""

import os
import random
import re
from collections import Counter
from collections.abc import Iterator

import pytest
from lxml import etree
from making import MAKERS, WORD, Making
from through import done, marked, through

from fairseq_ext.core.words import UNITS
from fairseq_ext.text.atoms import Segment
from fairseq_ext.text.formats import passes
from fairseq_ext.text.marks import Projection
from fairseq_ext.text.splitter import splitter

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
