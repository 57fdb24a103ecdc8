"""English to German, French and Czech in one, at word level, from the raw text of Multi30k: a real
vocabulary of some 50,000 words.

    python scripts/experiments/lsh/prepare.py --raw DIR --out DIR

DIR of --raw holds train.LL, val.LL and test_2016_flickr.LL for en, de, fr and cs. Every English
sentence occurs once for each target language, with the language's tag as its first word. OUT then
holds the text in words and OUT/bin, for fairseq-train.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

LANGUAGES = ("de", "fr", "cs")
PARTS = {"train": "train", "valid": "val", "test": "test_2016_flickr"}
WORD = re.compile(r"\w+(?:[-.,]\w+)*['’]?|[^\w\s]")


def words(line: str) -> str:
    """A line's words and punctuation marks, separated by spaces; case is kept."""
    return " ".join(WORD.findall(line))


def read(path: Path) -> list[str]:
    with path.open(encoding="utf-8", newline="\n") as file:
        return [words(line) for line in file]


def main() -> None:
    parse = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parse.add_argument("--raw", type=Path, required=True)
    parse.add_argument("--out", type=Path, required=True)
    args = parse.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
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
        "fairseq-preprocess",
        "--source-lang",
        "src",
        "--target-lang",
        "tgt",
        "--destdir",
        str(args.out / "bin"),
        *prefixes,
    ]
    sys.exit(subprocess.run(command).returncode)


if __name__ == "__main__":
    main()
