"""The tables of bad inputs: commands.tsv and lines.tsv.

A row: its kind, its name, the input, a part of the sentence that it gets. In both texts <ab*9> is
ab nine times, and \\t, \\n, \\\\ and \\xff are a character each.
"""

import re
import shlex
from pathlib import Path

ONE = {b"t": b"\t", b"n": b"\n", b"\\": b"\\"}
EXT = "--task translation_ext --cpu --beam 2 --max-len-b 8".split()
LANGUAGES = "-s de -t en".split()


def search(tiny, *more, model="model.pt"):
    """Arguments of a command over the tiny model, or another one of its dictionaries."""
    return [tiny / "data", "--path", tiny / model, *EXT, *more]


def written(text):
    """What a text of a table stands for."""
    whole = re.sub(r"<([^<>]*)\*(\d+)>", lambda m: m[1] * int(m[2]), text).encode("latin-1")
    return re.sub(rb"\\(x..|.)", lambda m: ONE.get(m[1]) or bytes([int(m[1][1:], 16)]), whole)


def rows(table, kind):
    """name -> (input, sentence) of the rows of a kind."""
    lines = (Path(__file__).parent / table).read_text("utf-8").split("\n")[:-1]
    each = (line.split("\t") for line in lines)
    return {
        name: (written(given), written(sentence).decode("latin-1"))
        for of, name, given, sentence in each
        if of == kind
    }


def commands(kind):
    """name -> (arguments behind those of a command that works, sentence)."""
    return {
        name: (shlex.split(given.decode("latin-1")), sentence)
        for name, (given, sentence) in rows("commands.tsv", kind).items()
    }
