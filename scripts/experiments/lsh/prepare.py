"""English to German, French and Czech in one, at word level, from the raw text of Multi30k: a real
vocabulary of some 50,000 words.

    python scripts/experiments/lsh/prepare.py --raw DIR --out DIR
    python scripts/experiments/lsh/prepare.py --model DIR --text PREFIX --counts FILE ...
        [--src de] [--tgt en] --out DIR

DIR of --raw holds train.LL, val.LL and test_2016_flickr.LL for en, de, fr and cs. Every English
sentence occurs once for each target language, with the language's tag as its first word. OUT then
holds the text in words and OUT/bin, for fairseq-train. With --model OUT gets that model, which has
an spm.model, and the text in its pieces: for run.py, but for the lexical table. FILEs are target
text, in which the pieces are counted: a dictionary from SentencePiece may have no counts.

    --raw DIR            Multi30k's text
    --model DIR          of a model with an spm.model
    --text PREFIX        what is translated with --model
    --counts FILE ...    target text, with --model
    --src LANGUAGE       (de)
    --tgt LANGUAGE       (en)
    --out DIR            (required)
"""

import argparse
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

from text import command_line  # noqa: E402

LANGUAGES = ("de", "fr", "cs")
PARTS = {"train": "train", "valid": "val", "test": "test_2016_flickr"}
WORD = re.compile(r"\w+(?:[-.,]\w+)*['’]?|[^\w\s]")


def words(line: str) -> str:
    """A line's words and punctuation marks, separated by spaces; case is kept."""
    return " ".join(WORD.findall(line))


def read(path: Path) -> list[str]:
    with path.open(encoding="utf-8", newline="\n") as file:
        return [words(line) for line in file]


def with_model(args: argparse.Namespace) -> None:
    """Write the model under the names of run.py, and the text in pieces."""
    import sentencepiece

    pieces = sentencepiece.SentencePieceProcessor(model_file=str(args.model / "spm.model"))
    shutil.copy(args.model / "checkpoint.pt", args.out)
    for side, language in (("src", args.src), ("tgt", args.tgt)):
        shutil.copy(args.model / f"dict.{language}.txt", args.out / f"dict.{side}.txt")
        with open(f"{args.text}.{language}", encoding="utf-8", newline="\n") as lines:
            text = "".join(" ".join(pieces.encode(line, out_type=str)) + "\n" for line in lines)
        (args.out / f"test.{side}").write_text(text, encoding="utf-8")
    seen: Counter[str] = Counter()
    for file in args.counts:
        with file.open(encoding="utf-8", newline="\n") as lines:
            for line in lines:
                seen.update(pieces.encode(line, out_type=str))
    counts = "".join(f"{piece} {count}\n" for piece, count in seen.most_common())
    (args.out / "counts").write_text(counts, encoding="utf-8")


def main() -> None:
    parse = command_line(__doc__)
    args = parse.parse_args()
    if {given is None for given in (args.model, args.text, args.counts)} != {args.raw is not None}:
        parse.error("take --raw, or --model, --text and --counts together")
    args.out.mkdir(parents=True, exist_ok=True)
    if args.model is not None:
        with_model(args)
        return
    for name, part in PARTS.items():
        source = read(args.raw / f"{part}.en")
        left, right = [], []
        for language in LANGUAGES:
            target = read(args.raw / f"{part}.{language}")
            if len(target) != len(source):
                sys.exit(
                    f"{part}.en has {len(source)} lines and {part}.{language} has {len(target)}: "
                    "they are not parallel"
                )
            left += [f"<2{language}> {line}\n" for line in source]
            right += [f"{line}\n" for line in target]
        (args.out / f"{name}.src").write_text("".join(left), encoding="utf-8")
        (args.out / f"{name}.tgt").write_text("".join(right), encoding="utf-8")
    for old in (args.out / "bin").glob("dict.*.txt"):
        old.unlink()  # fairseq-preprocess refuses to make a dictionary that is there
    prefixes = [argument for name in PARTS for argument in (f"--{name}pref", str(args.out / name))]
    command = [
        *"fairseq-preprocess --source-lang src --target-lang tgt --destdir".split(),
        str(args.out / "bin"),
        *prefixes,
    ]
    sys.exit(subprocess.run(command).returncode)


if __name__ == "__main__":
    main()
