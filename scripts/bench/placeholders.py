"""How placeholders come through a translation, three ways, on the demo's sentences with 1 to
6 of them at made-up places.

    python scripts/bench/placeholders.py [--limit N] [--out scripts/bench/results/placeholders]

put back: taken out of the sentence and put back by alignment, as fairseq_ext does. copied: a token
stands in the sentence, and the model copies it. required: the token stands there, and the search
must write it (DBA). once each: sentences with every placeholder exactly once. rest: BLEU without
the placeholders, next to that of the sentences without any.

    --limit N    (1000)
    --out OUT    write OUT.md
"""

from __future__ import annotations

import random
import re

import sacrebleu
from report import ROOT, Page, table
from text import DEMO, command_line, read_lines

from fairseq_ext import Translator

NAMES = "Tom Maria John Anna Peter Lisa".split()  # names that the model has seen
TOKENS = {"{name}": [f"{{v{i}}}" for i in range(6)], "names": NAMES}


def alone(token: str) -> str:
    """The pattern of a token that is no part of a word."""
    return rf"(?<!\w){re.escape(token)}(?!\w)"


def row(name: str, outputs: list[str], held: list[list[str]], references: list[str]) -> list[str]:
    """A row of the table; held: the tokens that each sentence has."""
    kept, rest = 0, []
    for out, tokens in zip(outputs, held, strict=True):
        kept += all(len(re.findall(alone(token), out)) == 1 for token in tokens)
        for token in tokens:
            out = re.sub(alone(token), " ", out)
        rest.append(re.sub(r"\s+([.,;:!?])", r"\1", " ".join(out.split())))
    bleu = sacrebleu.corpus_bleu(rest, [references]).score
    return [name, f"{kept} of {len(outputs)}", f"{bleu:.1f}"]


def main(argv: list[str] | None = None) -> None:
    args = command_line(__doc__).parse_args(argv)
    prefix = ROOT / "data" / "demo" / "test"
    sources, references = (read_lines(prefix, side, args.limit) for side in ("de", "en"))
    translator = Translator.from_folder(DEMO, cpu=True, beam=5)
    plain = [found[0].text for found in translator.translate(sources)]
    rows = [row("none", plain, [[] for _ in plain], references)]
    for kind, tokens in TOKENS.items():
        chance, lines, held = random.Random(7), [], []
        for source in sources:
            words = source.split(" ")
            mine = [token for token in tokens if token not in source][: chance.randint(1, 6)]
            for token in mine:
                words.insert(chance.randrange(len(words)), token)
            lines.append(" ".join(words))
            held.append(mine)
        if kind == "{name}":
            out = translator.translate_text("\n".join(lines)).text.split("\n")
            rows.append(row("put back", out, held, references))
        out = [found[0].text for found in translator.translate(lines)]
        rows.append(row(f"copied, {kind}", out, held, references))
        found = translator.translate(lines, 1, held, errors="return")
        pairs = zip(found, plain, strict=True)
        out = [free if isinstance(each, Exception) else each[0].text for each, free in pairs]
        rows.append(row(f"required, {kind}", out, held, references))
    Page(args.out).add(table(["placeholders", "once each", "rest"], rows))


if __name__ == "__main__":
    main()
