"""A lexical table for --softmax lexical, from a parallel corpus that is segmented as
the model's data are.

    pip install eflomal
    python scripts/lexical_table.py --source train.src --target train.tgt --out lexicon [--words 50]

eflomal (Oestling and Tiedemann 2016) aligns the words in both directions; a pair counts where
either direction links it. Lines of OUT: source word, target word, p(target word | source word), at
most --words for a source word, likeliest first.
"""

import argparse
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path


def align(source: list[str], target: list[str]) -> list[set[tuple[int, int]]]:
    """Links (source position, target position) of each pair of lines, of both
    directions together."""
    try:
        import eflomal
    except ImportError:
        sys.exit("lexical_table: the word aligner eflomal is missing: pip install eflomal")
    with tempfile.TemporaryDirectory() as folder:
        files = [str(Path(folder) / name) for name in ("forward", "backward")]
        eflomal.Aligner().align(
            source, target, links_filename_fwd=files[0], links_filename_rev=files[1]
        )
        links = []
        for file in files:
            with open(file, encoding="utf-8") as lines:
                links.append(
                    [{tuple(map(int, pair.split("-"))) for pair in line.split()} for line in lines]
                )
    return [a | b for a, b in zip(*links, strict=True)]  # type: ignore[return-value]


def main() -> None:
    parse = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parse.add_argument("--source", type=Path, required=True)
    parse.add_argument("--target", type=Path, required=True)
    parse.add_argument("--out", type=Path, required=True)
    parse.add_argument(
        "--words", type=int, default=50, help="translations of a source word, at most (50)"
    )
    args = parse.parse_args()
    with args.source.open(encoding="utf-8") as left, args.target.open(encoding="utf-8") as right:
        pairs = [(a.strip(), b.strip()) for a, b in zip(left, right, strict=True)]
    pairs = [(a, b) for a, b in pairs if a and b]
    counts: dict[str, Counter] = defaultdict(Counter)
    for (source, target), links in zip(
        pairs, align([a for a, _ in pairs], [b for _, b in pairs]), strict=True
    ):
        left_words, right_words = source.split(), target.split()
        for i, j in links:
            counts[left_words[i]][right_words[j]] += 1
    with args.out.open("w", encoding="utf-8") as out:
        for word in sorted(counts):
            total = counts[word].total()
            out.writelines(
                f"{word} {other} {n / total:.6f}\n"
                for other, n in counts[word].most_common(args.words)
            )


if __name__ == "__main__":
    main()
