"""A length-mixed corpus from a parallel text: every line is 1 to LONGEST consecutive sentences
joined, how many drawn by seed.

    python scripts/experiments/streaming/mixed_corpus.py --text PREFIX --src de --tgt en
        --out PREFIX [--longest 8] [--lines N] [--seed 1]

Writes OUT.src and OUT.tgt, source and reference joined alike. Without --lines every sentence is
used once; with it the text is gone through again as often as needed.
"""

import argparse
import random
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

from harness import BenchError  # noqa: E402


def groups(sentences: int, longest: int, seed: int, lines: int | None = None) -> list[list[int]]:
    """The sentences of each line; the last line of a run through the text may be
    cut short by its end."""
    draw = random.Random(seed)
    out: list[list[int]] = []
    while lines is None or len(out) < lines:
        start = 0
        while start < sentences:
            size = draw.randint(1, longest)
            out.append(list(range(start, min(start + size, sentences))))
            start += size
        if lines is None:
            return out
    return out[:lines]


def mix(
    text: str,
    languages: list[str],
    out: Path,
    longest: int = 8,
    seed: int = 1,
    lines: int | None = None,
    limit: int | None = None,
) -> int:
    """Write OUT.language for each language from the first `limit` sentences; returns
    the number of lines."""
    sides = []
    for language in languages:
        try:
            sides.append(
                Path(f"{text}.{language}")
                .read_text(encoding="utf-8")
                .removesuffix("\n")
                .split("\n")[:limit]
            )
        except OSError as error:
            raise BenchError(f"cannot read {text}.{language}: {error.strerror}") from error
    if len({len(side) for side in sides}) > 1:
        raise BenchError(
            f"{text} has {' and '.join(str(len(side)) for side in sides)} lines: the languages "
            "are not parallel"
        )
    made = groups(len(sides[0]), longest, seed, lines)
    out.parent.mkdir(parents=True, exist_ok=True)
    for language, side in zip(languages, sides, strict=True):
        joined = (" ".join(side[i] for i in group) for group in made)
        Path(f"{out}.{language}").write_text(
            "".join(f"{line}\n" for line in joined), encoding="utf-8"
        )
    return len(made)


def main() -> None:
    parse = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parse.add_argument("--text", required=True, help="prefix of the two text files")
    parse.add_argument("--src", default="de", help="source language and suffix (de)")
    parse.add_argument("--tgt", default="en", help="target language and suffix (en)")
    parse.add_argument("--out", type=Path, required=True, help="prefix of the two files to write")
    parse.add_argument("--longest", type=int, default=8, help="sentences of the longest lines (8)")
    parse.add_argument("--lines", type=int, help="lines to make (as many as the text gives)")
    parse.add_argument("--seed", type=int, default=1, help="of the draws (1)")
    args = parse.parse_args()
    print(
        f"{mix(args.text, [args.src, args.tgt], args.out, args.longest, args.seed, args.lines)} "
        "lines",
        file=sys.stderr,
    )


if __name__ == "__main__":
    try:
        main()
    except BenchError as error:
        sys.exit(f"error: {error}")
