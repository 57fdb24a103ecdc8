"""How placeholders come through a translation, three ways, on the demo's sentences with 1 to
6 of them at made-up places.

    python scripts/bench/placeholders.py [--limit N] [--out scripts/bench/results/placeholders]

put back: taken out of the sentence and put back by alignment, as fairseq_ext does. copied: a token
stands in the sentence, and the model copies it. required: the token stands there, and the search
must write it (DBA). once each: sentences with every placeholder exactly once. rest: BLEU without
the placeholders, next to that of the sentences without any.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import sacrebleu
from arguments import command_line
from report import write_page

from fairseq_ext import Translator

ROOT = Path(__file__).parents[2]
DATA, MODEL = ROOT / "data" / "demo", ROOT / "checkpoints" / "demo"
NAMES = "Tom Maria John Anna Peter Lisa".split()  # names that the model has seen
TOKENS = {"{name}": [f"{{v{i}}}" for i in range(6)], "names": NAMES}


def without(text: str, tokens: list[str]) -> str:
    """The text without these tokens."""
    for token in tokens:
        text = re.sub(rf"(?<!\w){re.escape(token)}(?!\w)", " ", text)
    return re.sub(r"\s+([.,;:!?])", r"\1", " ".join(text.split()))


def row(name: str, outputs: list[str], held: list[list[str]], references: list[str]) -> str:
    """A row of the table."""
    counts = [
        [len(re.findall(rf"(?<!\w){re.escape(t)}(?!\w)", out)) for t in tokens]
        for out, tokens in zip(outputs, held, strict=True)
    ]
    kept = sum(all(count == 1 for count in each) for each in counts)
    rest = [without(out, tokens) for out, tokens in zip(outputs, held, strict=True)]
    bleu = sacrebleu.corpus_bleu(rest, [references]).score
    return f"| {name} | {kept} of {len(outputs)} | {bleu:.1f} |"


def main() -> None:
    parse = command_line(__doc__)
    parse.add_argument("--limit", type=int, default=1000)
    parse.add_argument("--out", type=Path, help="write OUT.md")
    args = parse.parse_args()
    sources, references = (
        (DATA / f"test.{side}").read_text(encoding="utf-8").splitlines()[: args.limit]
        for side in ("de", "en")
    )
    translator = Translator.from_folder(MODEL, cpu=True, beam=5)
    rows = ["| placeholders | once each | rest |", "| --- | ---: | ---: |"]
    plain = [found[0].text for found in translator.translate(sources)]
    rows.append(row("none", plain, [[] for _ in plain], references))
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
        out = [
            plain[i] if isinstance(each, Exception) else each[0].text
            for i, each in enumerate(found)
        ]
        rows.append(row(f"required, {kind}", out, held, references))
    print("\n".join(rows))
    write_page(args.out, [*rows, ""])


if __name__ == "__main__":
    main()
