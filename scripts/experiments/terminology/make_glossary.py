"""A glossary as a customer may hand it in: nouns of the training text, each with a translation that
the text prefers another one to.

    python scripts/experiments/terminology/make_glossary.py --source train.de --target train.en
        --out glossary.tsv [--entries 26]

Both directions are aligned by IBM Model 1 (P. F. Brown et al., Computational Linguistics 1993).
An entry is a capitalised word of the source side that stands inside sentences, with the likeliest
of its translations that is another word than the usual one and that is translated back often enough
to be a synonym, not a neighbour ("Hund": not "dog", but "puppy"). The most frequent such words come
first. Made for German, whose nouns are capitalised.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

import regex
import torch
from torch import Tensor

WORD = regex.compile(r"\p{L}[\p{L}\p{M}'-]*|\p{N}+|[^\s\p{L}\p{N}]")
ROUNDS = 5
LEAST = 25  # occurrences of a source word
SECOND, BACK = 0.01, 0.15  # least probability of the other translation, and of its way back


class Words:
    """A text as numbers of its words."""

    def __init__(self, path: Path):
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        self.lines = [WORD.findall(line) for line in lines]
        self.number: dict[str, int] = {}
        self.of_line = [
            [self.number.setdefault(word, len(self.number)) for word in line] for line in self.lines
        ]
        self.words = list(self.number)
        self.count = Counter(word for line in self.lines for word in line)
        self.inside = Counter(word for line in self.lines for word in line[1:])


class Model1:
    """p(target word | source word) for the pairs that stand in one sentence: `pair` (P,) ascending,
    source x targets + target."""

    def __init__(self, source: Words, target: Words):
        self.targets = len(target.words)
        # of each pair of places: which target place it explains, and which words it pairs
        of, key = [], []
        places = 0
        for left, right in zip(source.of_line, target.of_line, strict=True):
            # (right, left)
            grid = torch.tensor(left)[None, :] * self.targets + torch.tensor(right)[:, None]
            key.append(grid.flatten())
            of.append((places + torch.arange(len(right)))[:, None].expand(grid.shape).flatten())
            places += len(right)
        self.pair, index = torch.cat(key).unique(return_inverse=True)
        place = torch.cat(of)
        source_word = self.pair // self.targets
        p = torch.ones(len(self.pair), dtype=torch.float64)
        for _ in range(ROUNDS):
            each = p[index]
            share = each / torch.zeros(places, dtype=p.dtype).index_add_(0, place, each)[place]
            counts = torch.zeros_like(p).index_add_(0, index, share)
            p = (
                counts
                / torch.zeros(len(source.words), dtype=p.dtype).index_add_(0, source_word, counts)[
                    source_word
                ]
            )
        self.p: Tensor = p

    def translations(self, source: int) -> list[tuple[float, int]]:
        """Target words of a source word with their probabilities, likeliest first."""
        first, end = torch.searchsorted(
            self.pair, torch.tensor([source, source + 1]) * self.targets
        ).tolist()
        found = zip(
            self.p[first:end].tolist(),
            (self.pair[first:end] - source * self.targets).tolist(),
            strict=True,
        )
        return sorted(found, reverse=True)

    def probability(self, source: int, target: int) -> float:
        """Of one pair; 0 where no sentence has both."""
        key = source * self.targets + target
        place = int(torch.searchsorted(self.pair, torch.tensor(key)))
        return (
            float(self.p[place]) if place < len(self.pair) and int(self.pair[place]) == key else 0.0
        )


def related(one: str, other: str) -> bool:
    """Whether two words look like forms of one."""
    one, other = one.casefold(), other.casefold()
    return one[:4] == other[:4] or one in other or other in one


def entries(source: Words, target: Words, wanted: int, of_usual: bool) -> list[tuple[str, str]]:
    """The glossary; of_usual: the usual translations are the entries."""
    there, back = Model1(source, target), Model1(target, source)
    out: list[tuple[str, str]] = []
    taken: set[str] = set()
    nouns = [
        word
        for word, n in source.inside.most_common()
        if n >= LEAST and len(word) > 3 and word[0].isupper() and word[1:].islower()
    ]
    for word in nouns:
        found = [(p, target.words[i]) for p, i in there.translations(source.number[word])[:10]]
        usual = "" if of_usual else found[0][1]
        for p, other in found[0 if of_usual else 1 :]:
            is_word = len(other) > 3 and other.isalpha() and other.islower()
            if p < SECOND or not is_word or (usual and related(usual, other)) or other in taken:
                continue
            if back.probability(target.number[other], source.number[word]) >= BACK:
                out.append((word, other))
                taken |= {usual, other}
                break
        if len(out) == wanted:
            break
    return out


def main() -> None:
    parse = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parse.add_argument(
        "--source", type=Path, required=True, help="training text, a line a sentence"
    )
    parse.add_argument("--target", type=Path, required=True)
    parse.add_argument("--entries", type=int, default=26, help="(26)")
    parse.add_argument(
        "--usual", action="store_true", help="the usual translations, for runs.py --proper"
    )
    parse.add_argument("--out", type=Path, required=True)
    args = parse.parse_args()
    found = entries(Words(args.source), Words(args.target), args.entries, args.usual)
    args.out.write_text("".join(f"{word}\t{other}\n" for word, other in found), encoding="utf-8")


if __name__ == "__main__":
    main()
