"""Constraints taken from references, as in Section 5 of the paper: rand1..rand4 are one to four
random words, phr4 a random phrase of four.

    python scripts/experiments/dba/extract.py REFERENCES --set rand3 --seed 1 > rand3.tsv
        a --constraints-file

A word or phrase is drawn among those that `usable` takes (the target dictionary can write them);
a short line gives what it has.
"""

import argparse
import random
from collections.abc import Callable, Sequence
from pathlib import Path

# (phrases, words of each)
SETS = {"rand1": (1, 1), "rand2": (2, 1), "rand3": (3, 1), "rand4": (4, 1), "phr4": (1, 4)}
MORE_SETS = SETS | {"phr2": (1, 2), "phr3": (1, 3)}  # phr3: Figure 7; phr2: not in the paper


def extract(
    references: Sequence[str],
    name: str,
    seed: int,
    usable: Callable[[str], bool] = lambda phrase: True,
) -> list[list[str]]:
    """The phrases of each line, in the order in which the reference has them; each
    set draws on its own."""
    count, length = MORE_SETS[name]
    draw = random.Random(f"{name} {seed}")
    out = []
    for line in references:
        words = line.split()
        n = min(length, len(words))
        starts = [i for i in range(len(words) - n + 1) if n and usable(" ".join(words[i : i + n]))]
        out.append(
            [
                " ".join(words[i : i + n])
                for i in sorted(draw.sample(starts, min(count, len(starts))))
            ]
        )
    return out


def main() -> None:
    parse = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parse.add_argument("references", type=Path, help="text file, one line a sentence")
    parse.add_argument(
        "--set", choices=MORE_SETS, default="rand3", help="rand1 .. rand4, phr2 .. phr4 (rand3)"
    )
    parse.add_argument("--seed", type=int, default=1)
    args = parse.parse_args()
    lines = args.references.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    for phrases in extract(lines, args.set, args.seed):
        print("\t".join(phrases))


if __name__ == "__main__":
    main()
