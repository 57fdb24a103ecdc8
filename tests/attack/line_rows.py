"""Bad lines, each with a part of the sentence that it gets, and odd lines that
must be translated."""

from __future__ import annotations

import json

TOO_LONG = "tokens and the model takes 40: shorten or split it"
BYTES = "a line of the input is not valid UTF-8"
# typed into fairseq-interactive --constraints: a source, and phrases behind tabs
TYPED: dict[str, tuple[bytes, str]] = {
    "41 tokens": (b"de3 " * 40, f"has 41 {TOO_LONG}"),
    "100,000 tokens": (b"x " * 100_000, f"has 100001 {TOO_LONG}"),
    "a byte of no character": (b"de4 \xff", BYTES),
    "Latin-1": ("Straße".encode("latin-1"), BYTES),
    "overlong zero": (b"\xc0\x80", BYTES),
    "half a pair": (b"\xed\xa0\x80", BYTES),
    "bytes in a phrase": (
        b"de1\ten1\xff",
        "the phrase 'en1\\udcff' contains the piece 'en1\\udcff'",
    ),
    "bytes and too long": (b"de3 " * 50 + b"\xff", BYTES),
    "an unknown word": (
        b"de5\tnowhere",
        "the phrase 'nowhere' contains the piece 'nowhere', which the target dictionary lacks",
    ),
    "an unknown word of two": (
        b"de5\ten5 nothing",
        "the phrase 'en5 nothing' contains the piece 'nothing'",
    ),
    "a source word as phrase": (b"de5\tde5", "contains the piece 'de5'"),
    "the second phrase": (b"de5\ten5\tno\ten7", "contains the piece 'no'"),
    "an unknown word of 1,000 letters": (
        b"de5\t" + b"x" * 1000,
        "the phrase '" + "x" * 77 + "...'",
    ),
    "an empty phrase": (b"de5\t\ten1", "has an empty phrase: remove one of the tabs around it"),
    "a phrase of spaces": (b"de5\t  \ten2", "has an empty phrase"),
    "EOS": (b"de5\ten1 </s>", "contains '</s>', a symbol that no translation holds"),
    "pad": (b"de5\t<pad>", "contains '<pad>'"),
    "unk": (b"de5\t<unk>", "'<unk>'"),
    "65 phrases": (b"de5" + b"\ten1" * 65, "has 65 phrases and 64 are allowed in a sentence"),
    "600 phrase tokens": (
        b"de5" + (b"\t" + b"en1 " * 100) * 6,
        "has 600 constraint tokens and 512 are allowed",
    ),
    "too long with a phrase": (b"de3 " * 50 + b"\ten1", f"has 51 {TOO_LONG}"),
}
# lines without anything wrong in them
ODD: dict[str, bytes] = {
    "nothing": b"",
    "spaces": b"   ",
    "no-break space": "\u00a0".encode(),
    "39 tokens": b"de3 " * 39,
    "a word of 100,000 letters": b"x" * 100_000,
    "NUL": b"de1 \x00 de2",
    "a bell and an escape": b"\x07 \x1b[31mde1",
    "a byte order mark": "\ufeffde1".encode(),
    "a byte order mark inside": "de1 \ufeff de2".encode(),
    "line separator": "de1 \u2028 de2".encode(),
    "next line": "de1 \u0085 de2".encode(),
    "an emoji of four": "👩‍👩‍👧‍👦".encode(),
    "right to left": "\u202ede1\u202c".encode(),
    "combining marks": ("e" + "\u0301" * 500).encode(),
    "a private character": "\U0010fffd".encode(),
    "a noncharacter": "\uffff".encode(),
    "format codes": b"%s %d {0} {x} $(id) `id`",
    "quotes": b"'\"\\",
    "a path": b"../../etc/passwd",
    "JSON": b'{"source": "de1"}',
    "the commands' own": b"H-0 S-1 E-2",
    "special symbols": b"<s> </s> <pad> <unk>",
    "placeholder words": b"madeupword0000 #fairseq:overwrite",
    "spaces around": b"  de1   de2  ",
    "a phrase": b"de5\ten5",
    "a phrase twice": b"de5\ten5\ten5",
    "64 phrases": b"de5" + b"\ten1" * 64,
    "a tab at the end": b"de5\t",
}
# lines of a constraints file with tabs
TABS: dict[str, tuple[bytes, str]] = {
    "an empty phrase": (b"en1\t\ten2", "has an empty phrase: remove one of the tabs around it"),
    "a leading tab": (b"\ten2", "has an empty phrase"),
    "a tab alone": (b"\t", "has an empty phrase"),
    "an unknown word": (
        b"en1 nosuchword",
        "contains the piece 'nosuchword', which the target dictionary lacks",
    ),
    "unk": (b"<unk>", "'<unk>'"),
    "EOS": (b"en1 </s>", "contains '</s>'"),
    "EOS alone": (b"</s>", "contains '</s>'"),
    "pad": (b"<pad>", "contains '<pad>'"),
    "two prefixes": (b"<s> en1\t<s> en2", "has two target prefixes, 'en1' and 'en2': give one"),
    "65 phrases": (b"\t".join([b"en1"] * 65), "has 65 phrases and 64 are allowed"),
    "600 tokens": (
        b"\t".join([b"en1 " * 100] * 6),
        "has 600 constraint tokens and 512 are allowed",
    ),
    "a byte of no character": (b"en1\xff", "is not valid UTF-8 (byte 4)"),
    "Latin-1": ("für".encode("latin-1"), "is not valid UTF-8 (byte 2)"),
    "JSON": (b'{"constraints": ["en1"]}', "contains the piece '{\"constraints\":'"),
}
DEEP = b"[" * 100_000
# lines of a JSONL constraints file
OBJECTS: dict[str, tuple[bytes, str]] = {
    "cut short": (b'{"constraints": ["en1"', "is not valid JSON"),
    "no JSON": (b"en1", "is not valid JSON"),
    "deep": (DEEP, "is not valid JSON"),
    "200 deep": (
        b'{"constraints": [' + b"[" * 200 + b"]" * 200 + b"]}",
        "has lists and objects nested more than 100 deep",
    ),
    "an infinite phrase": (
        b'{"constraints": [1e999]}',
        "has a number that JSON has no form for (NaN or Infinity)",
    ),
    "more behind it": (b"{} {}", "is not valid JSON"),
    "a list": (b'["en1"]', "is not a JSON object"),
    "null": (b"null", "is not a JSON object"),
    "NaN": (b"NaN", "is not a JSON object"),
    "an unknown key": (
        b'{"constraint": ["en1"]}',
        "has the unknown key 'constraint': the keys are constraints, any_of, avoid, prefix",
    ),
    "an unknown key of 500 letters": (
        b'{"' + b"k" * 500 + b'": 1}',
        "has the unknown key '" + "k" * 77 + "...'",
    ),
    "a key twice": (b'{"constraints": ["en1"], "constraints": []}', "has a key twice"),
    "text for a list": (
        b'{"constraints": "en1"}',
        'has "en1" for "constraints": write a list of phrases',
    ),
    "null for a list": (b'{"constraints": null}', 'has null for "constraints"'),
    "an object for a list": (b'{"constraints": {"en1": 1}}', 'has {"en1": 1} for "constraints"'),
    "a number for a phrase": (
        b'{"constraints": [1]}',
        'has 1 for a phrase in "constraints": write a string or a list of words',
    ),
    "null for a phrase": (b'{"constraints": [null]}', "has null for a phrase"),
    "a number for a word": (b'{"constraints": [["en1", 2]]}', 'has ["en1", 2] for a phrase'),
    "no words": (b'{"constraints": [[]]}', 'has an empty phrase in "constraints": remove it'),
    "an empty phrase": (b'{"constraints": [""]}', "has an empty phrase"),
    "a phrase of spaces": (b'{"constraints": ["  "]}', "has an empty phrase"),
    "an empty word": (b'{"constraints": [["en1", ""]]}', "has an empty phrase"),
    "a flat any_of": (
        b'{"any_of": ["en1"]}',
        'has "en1" for a constraint in "any_of": write a list of phrases',
    ),
    "an empty any_of": (b'{"any_of": [[]]}', 'has [] for a constraint in "any_of"'),
    "a number in any_of": (b'{"any_of": [[["en1"], 7]]}', 'has 7 for a phrase in "any_of"'),
    "text to avoid": (b'{"avoid": "en1"}', 'has "en1" for "avoid": write a list of phrases'),
    "null to avoid": (b'{"avoid": [null]}', 'has null for a phrase in "avoid"'),
    "EOS to avoid": (b'{"avoid": ["</s>"]}', "contains '</s>'"),
    "a number for a prefix": (b'{"prefix": 3}', 'has 3 for a phrase in "prefix"'),
    "an empty prefix": (b'{"prefix": ""}', 'has an empty phrase in "prefix"'),
    "two prefixes": (
        b'{"prefix": "en1", "constraints": ["<s> en2"]}',
        "has two target prefixes, 'en2' and 'en1'",
    ),
    "an unknown word": (b'{"constraints": ["nosuchword"]}', "contains the piece 'nosuchword'"),
    "half a character": (b'{"constraints": ["\\ud800"]}', "which the target dictionary lacks"),
    "a byte of no character": (b'{"constraints": ["\xff"]}', "is not valid UTF-8 (byte 19)"),
    "a huge number": (b'{"constraints": [' + b"9" * 3000 + b"]}", "for a phrase in"),
    "a long wrong value": (
        json.dumps({"constraints": "z" * 5000}).encode(),
        'has "' + "z" * 76 + "... for",
    ),
}
