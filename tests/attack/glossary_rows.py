"""Glossary files that cannot be used, by format, each with a part of the sentence that
`terms expand` gives it."""

from __future__ import annotations

from collections.abc import Iterator

TSV: dict[str, tuple[bytes, str]] = {
    "one column": (
        b"Haus\n",
        (
            "line 1 of {path} has 1 column and needs 2: write the source term, one tab, "
            "the target term"
        ),
    ),
    "three columns": (b"Haus\thouse\thome\n", "has 3 columns and needs 2"),
    "no source": (b"\thouse\n", "has no source term: write one before the tab"),
    "a source of spaces": (b"  \thouse\n", "has no source term"),
    "no target": (b"Haus\t\n", "has no target for the term 'Haus': write it after the tab"),
    "bars for a target": (b"Haus\t||\n", "has no target for the term 'Haus'"),
    "an empty alternative": (
        b"Haus\thouse||home\n",
        "has an empty alternative in 'house||home': remove the bar",
    ),
    "a bar at the end": (b"Haus\thouse|\n", "has an empty alternative"),
    "a byte of no character": (
        b"Haus\thouse\nH\xfcgel\thill\n",
        "line 2 of {path} is not valid UTF-8 (byte 2)",
    ),
    "the second line": (b"Haus\thouse\nHof\n", "line 2 of {path} has 1 column"),
    "two bad lines": (b"Haus\nHof\nTor\tgate\n", "(1 more such line in the file)"),
    "three bad lines": (b"Haus\nHof\nTor\n", "(2 more such lines in the file)"),
}
CSV: dict[str, tuple[bytes, str]] = {
    "no header for three columns": (
        b"Haus,house,home\n",
        "has 3 columns and no header that names two of them",
    ),
    "a row too short": (b"source,target\nHaus\n", "line 2 of {path} has 1 column and needs 2"),
    "an open quote": (b'source,target\n"Haus,house\n', "is not valid CSV"),
    "a quote inside": (b'source,target\n"Ha"us,house\n', "is not valid CSV"),
    "no target": (b"source,target\nHaus,\n", "line 2 of {path} has no target for the term 'Haus'"),
    "no source": (b"source,target\n,house\n", "line 2 of {path} has no source term"),
    "a byte of no character": (
        b"source,target\nHaus,h\xffuse\n",
        "line 2 of {path} is not valid UTF-8 (byte 7)",
    ),
}
JSONL: dict[str, tuple[bytes, str]] = {
    "no JSON": (b"Haus\thouse\n", "line 1 of {path} is not an entry: write"),
    "cut short": (b'{"source": "Haus", "target": "ho\n', "is not an entry"),
    "no target": (b'{"source": "Haus"}\n', "is not an entry"),
    "no source": (b'{"target": "house"}\n', "is not an entry"),
    "a number": (b'{"source": 7, "target": "house"}\n', "is not an entry"),
    "null": (b'{"source": "Haus", "target": null}\n', "is not an entry"),
    "a number among the targets": (
        b'{"source": "Haus", "target": ["house", 3]}\n',
        "is not an entry",
    ),
    "a list": (b'["Haus", "house"]\n', "is not an entry"),
    "a text": (b'"Haus"\n', "is not an entry"),
    "deep": (b"[" * 100_000 + b"\n", "is not an entry"),
    "half a character": (b'{"source": "\\ud800", "target": "house"}\n', "is not an entry"),
    "half a character in a target": (
        b'{"source": "Haus", "target": ["a\\udfff"]}\n',
        "is not an entry",
    ),
    "an empty target": (
        b'{"source": "Haus", "target": ["house", ""]}\n',
        "has an empty alternative",
    ),
    "no targets": (b'{"source": "Haus", "target": []}\n', "has no target for the term 'Haus'"),
    "bytes": (b'{"source": "H\xff", "target": "house"}\n', "is not valid UTF-8 (byte 14)"),
}
CONCEPT = (
    '<conceptEntry id="1"><langSec xml:lang="de"><termSec><term>{source}</term></termSec></langSec>'
    '<langSec xml:lang="en"><termSec><term>{target}</term></termSec></langSec></conceptEntry>'
)
WHOLE = '<?xml version="1.0"?>{doctype}<tbx><text><body>' + CONCEPT + "</body></text></tbx>"
CHAIN = zip("abcdefgh", "bcdefghi", strict=True)
LAUGHS = (
    "<!DOCTYPE t [<!ENTITY a 'ha'>"
    + "".join(f"<!ENTITY {b} '{f'&{a};' * 10}'>" for a, b in CHAIN)
    + "]>"
)
OUTSIDE = '<!DOCTYPE t [<!ENTITY x SYSTEM "file://{path}">]>'  # whose content must not come in


def tbx(source: str = "Haus", target: str = "house", doctype: str = "") -> bytes:
    return WHOLE.format(source=source, target=target, doctype=doctype).encode()


TBX: dict[str, tuple[bytes, str]] = {
    "no XML": (b"Haus\thouse\n", "is not valid XML"),
    "nothing": (b"", "is not valid XML"),
    "cut short": (tbx()[:-20], "is not valid XML"),
    "a stray ampersand": (tbx("Haus & Hof"), "is not valid XML"),
    "a byte of no character": (
        tbx().replace(b"Haus", b"H\xff"),
        "Invalid bytes in character encoding",
    ),
    "no concepts": (
        b"<tbx/>",
        "has 0 concepts with terms, none in both de and en: name its languages",
    ),
    "other languages": (
        tbx().replace(b'"de"', b'"fr"'),
        "has terms in fr, en, none in both de and en",
    ),
    "one language": (tbx().replace(b'"de"', b'"en"'), "none in both de and en"),
    "an empty term": (tbx(""), "has no source term"),
    "an empty target": (tbx(target=" "), "has no target for the term 'Haus'"),
    "entities of entities": (
        tbx("&i;", doctype=LAUGHS),
        "is not valid XML (Maximum entity amplification factor exceeded",
    ),
}


def rows() -> Iterator[tuple[str, str, bytes, str]]:
    """(format, name, content, sentence) of all."""
    for suffix, table in ((".tsv", TSV), (".csv", CSV), (".jsonl", JSONL), (".tbx", TBX)):
        for name, (content, sentence) in table.items():
            yield suffix, name, content, sentence
